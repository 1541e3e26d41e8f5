// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_cluster.hpp"

#include <fstream>
#include <string>

#include "coterie/base/error.hpp"
#include "coterie/plan/cost/cost.hpp"

namespace coterie::cli {

bool is_cluster_profile(const std::filesystem::path& path) {
  constexpr std::size_t kHead = 256;  // the format comes first in what we write
  std::ifstream file(path, std::ios::binary);
  std::string head(kHead, '\0');
  file.read(head.data(), static_cast<std::streamsize>(kHead));
  return head.find("\"coterie-cluster-profile\"") != std::string::npos;
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
