// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_cluster.hpp"

#include <string>
#include <string_view>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/plan/cost/cost.hpp"

namespace coterie::cli {

bool is_cluster_profile(const std::filesystem::path& path) {
  // Anywhere in the file: a person or another tool may have put its keys in any order.
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
             .find("\"coterie-cluster-profile\"") != std::string_view::npos;
}

void verify_cluster_profile(const std::filesystem::path& path, Console& console) {
  const cost::ClusterProfile profile = cost::read_profile(path);
  cost::require_usable(profile, path.string());
  Json findings = Json::array();
  std::string text = join_message("cluster profile \"", profile.name, "\": ", profile.num_nodes,
                                  " node(s) of ", profile.devices_per_node, " device(s), ",
                                  profile.engines.size(), " engine(s)\n");
  for (const cost::Finding& finding : cost::verify_profile(profile)) {
    text += std::string(cost::name_of(finding.verdict)) + ": " + finding.message + "\n";
    findings.push_back({{"verdict", cost::name_of(finding.verdict)}, {"message", finding.message}});
  }
  console.print(text);
  console.emit({{"file", path.string()},
                {"kind", "cluster_profile"},
                {"name", profile.name},
                {"passed", true},
                {"findings", std::move(findings)}});
}

}  // namespace coterie::cli
