// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/moe_layer_options.hpp"

#include "coterie/base/error.hpp"

namespace coterie::nn {
namespace {

void check_groups(const MoELayerOptions& options) {
  const std::string& name = options.name;
  const int num_shards = options.shard_group == nullptr ? 1 : options.shard_group->size();
  COTERIE_REQUIRE(num_shards == 1 || options.expert_group != nullptr, name, ": shard_group has ",
                  num_shards, " ranks; then expert_group must be given too, if only of one rank");
  COTERIE_REQUIRE(options.intermediate % num_shards == 0, name, ": intermediate size ",
                  options.intermediate, " does not divide by ", num_shards, " shards");
  if (options.expert_kind == ExpertKind::kCustom) {
    if (num_shards > 1) {
      fail(ErrorCode::kUnsupported, name, ": custom experts cannot be cut over ", num_shards,
           " ranks");
    }
    if (options.recompute) {
      fail(ErrorCode::kUnsupported, name, ": recompute is for the library's own experts");
    }
  }
  const bool is_alone = options.expert_group == nullptr || options.expert_group->size() == 1;
  if (options.path != LayerPath::kExchange && (!is_alone || num_shards > 1)) {
    fail(ErrorCode::kUnsupported, name, ": the ",
         options.path == LayerPath::kReference ? "reference" : "grouped_mm",
         " path runs in one process");
  }
  if (options.path == LayerPath::kGroupedMm && options.expert_kind == ExpertKind::kCustom) {
    fail(ErrorCode::kUnsupported, name, ": custom experts have no grouped_mm path");
  }
}

}  // namespace

const char* name_of(ExpertKind kind) noexcept {
  switch (kind) {
    case ExpertKind::kSwiGlu: return "swiglu";
    case ExpertKind::kGelu: return "gelu";
    case ExpertKind::kGeluTanh: return "gelu_tanh";
    case ExpertKind::kCustom: return "custom";
  }
  return "unknown";
}

void check_moe_layer_options(const MoELayerOptions& options) {
  const std::string& name = options.name;
  const bool is_custom = options.expert_kind == ExpertKind::kCustom;
  COTERIE_REQUIRE(options.hidden > 0, name, ": hidden size is ", options.hidden);
  COTERIE_REQUIRE(is_custom || options.intermediate > 0, name, ": intermediate size is ",
                  options.intermediate);
  COTERIE_REQUIRE(options.num_experts > 0, name, ": number of experts is ", options.num_experts);
  COTERIE_REQUIRE(options.top_k >= 0 && options.top_k <= options.num_experts, name, ": top_k is ",
                  options.top_k, ", not in [0, ", options.num_experts, "]");
  COTERIE_REQUIRE(options.gate != nullptr, name, ": gate is missing");
  COTERIE_REQUIRE(options.gate->options().num_experts == options.num_experts, name,
                  ": the gate is for ", options.gate->options().num_experts,
                  " experts, the layer has ", options.num_experts);
  COTERIE_REQUIRE(options.gate->options().hidden == options.hidden, name, ": the gate is for ",
                  options.gate->options().hidden, " wide tokens, the layer for ", options.hidden);
  COTERIE_REQUIRE(options.pruner == nullptr || options.placement.has_value(), name,
                  ": pruning needs the placement that its policy is for");
  COTERIE_REQUIRE(is_custom == static_cast<bool>(options.expert_factory), name,
                  ": expert_factory and the expert kind custom go together");
  COTERIE_REQUIRE(!options.expert_bias || options.expert_kind == ExpertKind::kGelu ||
                      options.expert_kind == ExpertKind::kGeluTanh,
                  name, ": experts of kind ", name_of(options.expert_kind), " have no biases");
  COTERIE_REQUIRE(
      options.type == at::kFloat || options.type == at::kDouble || options.type == at::kBFloat16,
      name, ": type is ", at::toString(options.type), ", not Float, Double or BFloat16");
  COTERIE_REQUIRE(options.forward_chunks > 0 && options.backward_chunks > 0, name, ": chunks are ",
                  options.forward_chunks, " and ", options.backward_chunks);
  check_groups(options);
  exchange::check_exchange_options(options.exchange);
}

}  // namespace coterie::nn
