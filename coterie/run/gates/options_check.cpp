// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/options.hpp"

namespace coterie::gates {
namespace {

bool selects_k(GateKind kind) {
  return kind != GateKind::kExpertChoice && kind != GateKind::kSoftMoe;
}

void require_amount(const std::string& name, const char* field, double value, double low) {
  COTERIE_REQUIRE(std::isfinite(value) && value >= low, name, ": ", field, " is ", value,
                  "; expected a number of at least ", low);
}

/// Fields of other kinds must be as they are by default: a setting without effect misleads.
void refuse_foreign_fields(const GateOptions& o) {
  if (o.kind == GateKind::kCustom) {
    return;  // its author knows
  }
  const GateOptions plain;
  const auto foreign = [&](bool has_field, bool is_default, const char* field) {
    COTERIE_REQUIRE(has_field || is_default, o.name, ": a ", name_of(o.kind), " gate has no ",
                    field);
  };
  const GateKind k = o.kind;
  foreign(selects_k(k), o.top_k == plain.top_k, "top_k");
  foreign(k == GateKind::kTopkSoftmax, o.softmax_over == plain.softmax_over, "softmax_over");
  foreign(selects_k(k) && k != GateKind::kSwitch && k != GateKind::kGshard,
          o.renormalise == plain.renormalise, "renormalise");
  const bool deepseek = k == GateKind::kDeepseek;
  foreign(deepseek, o.score == plain.score, "score");
  foreign(deepseek, o.selection_bias == plain.selection_bias, "selection_bias");
  foreign(deepseek, o.num_groups == plain.num_groups, "num_groups");
  foreign(deepseek, o.num_groups_kept == plain.num_groups_kept, "num_groups_kept");
  foreign(deepseek, o.group_score == plain.group_score, "group_score");
  foreign(deepseek, o.scaling == plain.scaling, "scaling");
  foreign(deepseek, o.bias_update_rate == plain.bias_update_rate, "bias_update_rate");
  foreign(k == GateKind::kGshard, o.noise == plain.noise, "noise");
  foreign(k == GateKind::kSwitch, o.jitter == plain.jitter, "jitter");
  foreign(k == GateKind::kXmoe, o.projection == plain.projection, "projection");
  foreign(k == GateKind::kXmoe, o.temperature == plain.temperature, "temperature");
  foreign(k == GateKind::kExpertChoice, o.capacity_factor == plain.capacity_factor,
          "capacity_factor");
  foreign(k == GateKind::kSoftMoe, o.slots_per_expert == plain.slots_per_expert,
          "slots_per_expert");
  foreign(k == GateKind::kSoftMoe, o.normalise == plain.normalise, "normalise");
  foreign(selects_k(k), o.balance.load_balance == 0.0,
          "load balance loss: its experts are balanced by construction");
}

void check_groups(const GateOptions& o) {
  COTERIE_REQUIRE(o.num_groups >= 1 && o.num_experts % o.num_groups == 0, o.name,
                  ": num_groups is ", o.num_groups, ", which does not divide ", o.num_experts,
                  " experts");
  COTERIE_REQUIRE(o.num_groups_kept >= 1 && o.num_groups_kept <= o.num_groups, o.name,
                  ": num_groups_kept is ", o.num_groups_kept, ", not in [1, ", o.num_groups, "]");
  const std::int32_t per_group = o.num_experts / o.num_groups;
  COTERIE_REQUIRE(o.num_groups == 1 || o.group_score == GroupScore::kMax || per_group >= 2, o.name,
                  ": the two best of a group are summed, but num_groups ", o.num_groups,
                  " leaves one expert a group");
  COTERIE_REQUIRE(o.top_k <= o.num_groups_kept * per_group, o.name, ": top_k is ", o.top_k,
                  ", but ", o.num_groups_kept, " groups of ", per_group, " hold fewer experts");
  COTERIE_REQUIRE(o.selection_bias || o.bias_update_rate == 0.0, o.name, ": bias_update_rate is ",
                  o.bias_update_rate, ", but there is no selection_bias");
}

}  // namespace

void check_gate_options(const GateOptions& o) {
  COTERIE_REQUIRE(o.hidden > 0, o.name, ": hidden is ", o.hidden);
  COTERIE_REQUIRE(o.num_experts > 0, o.name, ": num_experts is ", o.num_experts);
  refuse_foreign_fields(o);
  COTERIE_REQUIRE(o.top_k >= 1 && o.top_k <= o.num_experts, o.name, ": top_k is ", o.top_k,
                  ", not in [1, ", o.num_experts, "]");
  COTERIE_REQUIRE(o.kind != GateKind::kSwitch || o.top_k == 1, o.name,
                  ": a switch gate has top_k 1, not ", o.top_k);
  COTERIE_REQUIRE(!(o.softmax_over == SoftmaxOver::kSelected && o.renormalise), o.name,
                  ": softmax over the selected logits already sums to 1; drop renormalise");
  require_amount(o.name, "balance.load_balance", o.balance.load_balance, 0.0);
  require_amount(o.name, "balance.z_loss", o.balance.z_loss, 0.0);
  require_amount(o.name, "initializer_range", o.initializer_range, 0.0);
  require_amount(o.name, "bias_update_rate", o.bias_update_rate, 0.0);
  require_amount(o.name, "jitter", o.jitter, 0.0);
  COTERIE_REQUIRE(o.jitter < 1.0, o.name, ": jitter is ", o.jitter, "; expected less than 1");
  COTERIE_REQUIRE(std::isfinite(o.scaling) && o.scaling > 0, o.name, ": scaling is ", o.scaling);
  COTERIE_REQUIRE(o.projection >= 0, o.name, ": projection is ", o.projection);
  COTERIE_REQUIRE(std::isfinite(o.temperature) && o.temperature > 0, o.name, ": temperature is ",
                  o.temperature);
  COTERIE_REQUIRE(std::isfinite(o.capacity_factor) && o.capacity_factor > 0, o.name,
                  ": capacity_factor is ", o.capacity_factor);
  COTERIE_REQUIRE(o.slots_per_expert >= 1, o.name, ": slots_per_expert is ", o.slots_per_expert);
  if (o.kind == GateKind::kDeepseek) {
    check_groups(o);
  }
}

void check_order_options(const OrderOptions& o) {
  require_amount(o.name, "capacity.factor", o.capacity.factor, 0.0);
  COTERIE_REQUIRE(o.capacity.minimum >= 1, o.name, ": capacity.minimum is ", o.capacity.minimum,
                  "; expected at least 1");
  COTERIE_REQUIRE(o.kind != OrderKind::kSlots || o.capacity == CapacityOptions{}, o.name,
                  ": slots have no capacity; leave it at its default");
}

}  // namespace coterie::gates
