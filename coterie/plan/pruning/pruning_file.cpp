// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/pruning_file.hpp"

#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::pruning {
namespace {

constexpr const char* kFormat = "coterie-pruning";
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

PruningFigures figures_from(const JsonReader& reader) {
  PruningFigures figures;
  figures.num_tokens = static_cast<std::uint64_t>(reader.at("num_tokens").as_int(0));
  figures.replicas_before = reader.at("replicas_before").as_double();
  figures.replicas_after = reader.at("replicas_after").as_double();
  figures.limited_share = reader.at("limited_share").as_double();
  figures.kept_mass = reader.at("kept_mass").as_double();
  figures.replaced_picks = reader.at("replaced_picks").as_double();
  for (const std::int64_t count :
       reader.at("tokens_of_count").as_ints(0, std::numeric_limits<std::int64_t>::max())) {
    figures.tokens_of_count.push_back(static_cast<std::uint64_t>(count));
  }
  return figures;
}

/// Empty fingerprints are not known and contradict nothing.
void check_fingerprint(const std::string& policy, const std::string& other, const char* what) {
  COTERIE_REQUIRE(policy.empty() || other.empty() || policy == other,
                  "the pruning policy is of the model with fingerprint ", policy, ", the ", what,
                  " of ", other);
}

}  // namespace

void check_policy(const Policy& policy, const std::string& where) {
  check_pruning_options(policy.options);
  COTERIE_REQUIRE(policy.num_devices > 0, where, ": num_devices is ", policy.num_devices);
  COTERIE_REQUIRE(!policy.layers.empty(), where, ": no layer");
  for (std::size_t i = 1; i < policy.layers.size(); ++i) {
    COTERIE_REQUIRE(policy.layers[i] > policy.layers[i - 1], where, ": layer ", policy.layers[i],
                    " stands after layer ", policy.layers[i - 1]);
  }
  for (const auto& [size, what] : {std::pair{policy.options.layer_budgets.size(), "layer budgets"},
                                   std::pair{policy.figures.size(), "figures"}}) {
    COTERIE_REQUIRE(size == 0 || size == policy.layers.size(), where, ": ", size, " ", what,
                    " for ", policy.layers.size(), " layers");
  }
}

Json to_json(const PruningFigures& figures) {
  return {{"num_tokens", figures.num_tokens},
          {"replicas_before", figures.replicas_before},
          {"replicas_after", figures.replicas_after},
          {"limited_share", figures.limited_share},
          {"kept_mass", figures.kept_mass},
          {"replaced_picks", figures.replaced_picks},
          {"tokens_of_count", figures.tokens_of_count}};
}

void write_policy(const std::filesystem::path& path, const Policy& policy) {
  check_policy(policy, path.string());
  Json figures = Json::array();
  for (const PruningFigures& layer : policy.figures) {
    figures.push_back(to_json(layer));
  }
  write_json_file(path, {{"format", kFormat},
                         {"version", 1},
                         {"model_fingerprint", policy.model_fingerprint},
                         {"num_devices", policy.num_devices},
                         {"layers", policy.layers},
                         {"options", to_json(policy.options)},
                         {"figures", figures}});
}

Policy read_policy(const std::filesystem::path& path) {
  const Json document = read_json_file(path);
  const JsonReader file(document, path.string());
  if (file.at("format").as_string() != kFormat) {
    file.at("format").refuse(std::string("\"") + kFormat + "\"");
  }
  if (file.at("version").as_int(1) > 1) {
    file.at("version").refuse("version 1: a newer program wrote this file");
  }
  Policy policy;
  policy.model_fingerprint = file.at("model_fingerprint").as_string();
  policy.num_devices = static_cast<std::int32_t>(file.at("num_devices").as_int(1, kMost));
  for (const std::int64_t layer : file.at("layers").as_ints(0, kMost)) {
    policy.layers.push_back(static_cast<std::int32_t>(layer));
  }
  policy.options =
      pruning_options_from_json(file.at("options").value(), path.string() + ": /options");
  const JsonReader figures = file.at("figures");
  for (std::size_t i = 0; i < figures.size(); ++i) {
    policy.figures.push_back(figures_from(figures.at(i)));
  }
  check_policy(policy, path.string());
  return policy;
}

void check_same_model(const Policy& policy, const placement::Placement& placement,
                      const ModelSimilarity* similarity) {
  check_fingerprint(policy.model_fingerprint, placement.model_fingerprint, "placement");
  COTERIE_REQUIRE(policy.num_devices == placement.num_devices(), "the pruning policy is for ",
                  policy.num_devices, " devices, the placement for ", placement.num_devices());
  std::vector<std::int32_t> placed;
  for (const placement::PlacedLayer& layer : placement.layers) {
    placed.push_back(layer.layer);
  }
  COTERIE_REQUIRE(policy.layers == placed, "the pruning policy is for ", policy.layers.size(),
                  " layers, others than the ", placed.size(), " of the placement");
  if (similarity != nullptr) {
    check_fingerprint(policy.model_fingerprint, similarity->model_fingerprint, "similarity file");
    COTERIE_REQUIRE(similarity->layers == policy.layers, "the similarity file is for ",
                    similarity->layers.size(), " layers, others than the ", policy.layers.size(),
                    " of the pruning policy");
  }
}

}  // namespace coterie::pruning
