// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/gates.hpp"

namespace coterie::gates {
namespace {

GateOptions other_gate() {
  GateOptions o;
  o.kind = GateKind::kDeepseek;
  o.name = "layer 7";
  o.hidden = 1LL << 40;
  o.num_experts = 256;
  o.top_k = 8;
  o.type = RouterType::kFloat64;
  o.softmax_over = SoftmaxOver::kSelected;
  o.renormalise = true;
  o.score = ScoreFunction::kSoftmax;
  o.selection_bias = true;
  o.num_groups = 8;
  o.num_groups_kept = 4;
  o.group_score = GroupScore::kMax;
  o.scaling = 2.5;
  o.bias_update_rate = 1e-3;
  o.noise = false;
  o.jitter = 0.01;
  o.projection = 16;
  o.temperature = 0.07;
  o.capacity_factor = 2.0;
  o.slots_per_expert = 3;
  o.normalise = true;
  o.balance = {0.01, 1e-3, BalanceScope::kBatch};
  o.noise_stream = (1ULL << 63U) - 1;
  o.initializer_range = 0.1;
  o.initializer_seed = 9;
  return o;
}

TEST(GateOptions, JsonGivesThemBack) {
  for (const GateOptions& o : {GateOptions{}, other_gate()}) {
    const Json json = parse_json(format_json(to_json(o)), "text");
    EXPECT_EQ(gate_options_from_json(JsonReader(json, "text")), o);
    std::ostringstream printed;
    printed << o;
    EXPECT_EQ(parse_json(printed.str(), "printed"), to_json(o));
  }
}

TEST(GateOptions, EveryFieldCountsInEqualityAndJson) {
  const Json plain = to_json(GateOptions{});
  const Json other = to_json(other_gate());
  ASSERT_EQ(plain.size(), 26U);
  for (const auto& [key, value] : other.items()) {
    EXPECT_NE(plain.at(key), value) << key;
    Json changed = plain;
    changed[key] = value;
    EXPECT_NE(gate_options_from_json(JsonReader(changed, "text")), GateOptions{}) << key;
  }
}

TEST(OrderOptions, JsonGivesThemBack) {
  OrderOptions o;
  o.kind = OrderKind::kEinsum;
  o.name = "layer 7";
  o.capacity = {1.25, 4, CapacityRounding::kDown, CapacityScope::kRank, CapacityKeep::kScore};
  const Json json = parse_json(format_json(to_json(o)), "text");
  EXPECT_EQ(order_options_from_json(JsonReader(json, "text")), o);
  EXPECT_EQ(order_options_from_json(JsonReader(Json::object(), "text")), OrderOptions{});
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(GateOptions, JsonRefusesWhatItDoesNotKnow) {
  const auto read = [](const std::string& text) {
    return refusal([&] {
      const Json json = parse_json(text, "recipe");
      gate_options_from_json(JsonReader(json, "recipe"));
    });
  };
  EXPECT_NE(read(R"({"kind": "best"})").find("topk_softmax, gshard"), std::string::npos);
  EXPECT_NE(read(R"({"topk": 2})").find("/topk"), std::string::npos);
  EXPECT_NE(read(R"({"top_k": 2.5})").find("/top_k"), std::string::npos);
  EXPECT_NE(read(R"({"top_k": 3000000000})").find("/top_k"), std::string::npos);
  EXPECT_NE(read(R"({"balance": {"zloss": 1}})").find("/balance/zloss"), std::string::npos);
  EXPECT_NE(read(R"([])").find("an object"), std::string::npos);
}

struct BadOptions {
  const char* expected;
  std::function<void(GateOptions&)> change;
};

TEST(GateOptions, ChecksNameGateFieldAndValue) {
  const std::vector<BadOptions> table = {
      {"top_k is 5, not in [1, 4]", [](GateOptions& o) { o.top_k = 5; }},
      {"top_k is 0", [](GateOptions& o) { o.top_k = 0; }},
      {"hidden is 0", [](GateOptions& o) { o.hidden = 0; }},
      {"num_experts is -1", [](GateOptions& o) { o.num_experts = -1; }},
      {"a topk_softmax gate has no scaling", [](GateOptions& o) { o.scaling = 2; }},
      {"a topk_softmax gate has no jitter", [](GateOptions& o) { o.jitter = 0.1; }},
      {"a switch gate has top_k 1",
       [](GateOptions& o) {
         o.kind = GateKind::kSwitch;
         o.top_k = 2;
       }},
      {"a switch gate has no renormalise",
       [](GateOptions& o) {
         o.kind = GateKind::kSwitch;
         o.top_k = 1;
         o.renormalise = true;
       }},
      {"already sums to 1",
       [](GateOptions& o) {
         o.softmax_over = SoftmaxOver::kSelected;
         o.renormalise = true;
       }},
      {"load_balance is -1", [](GateOptions& o) { o.balance.load_balance = -1; }},
      {"num_groups is 3, which does not divide 4 experts",
       [](GateOptions& o) {
         o.kind = GateKind::kDeepseek;
         o.num_groups = 3;
       }},
      {"top_k is 3, but 1 groups of 2",
       [](GateOptions& o) {
         o.kind = GateKind::kDeepseek;
         o.num_groups = 2;
         o.top_k = 3;
       }},
      {"one expert a group",
       [](GateOptions& o) {
         o.kind = GateKind::kDeepseek;
         o.num_groups = 4;
       }},
      {"there is no selection_bias",
       [](GateOptions& o) {
         o.kind = GateKind::kDeepseek;
         o.bias_update_rate = 0.001;
       }},
      {"balanced by construction",
       [](GateOptions& o) {
         o.kind = GateKind::kExpertChoice;
         o.top_k = 1;
         o.balance.load_balance = 0.1;
       }},
  };
  for (const BadOptions& bad : table) {
    GateOptions o;
    o.name = "layer 3";
    o.hidden = 8;
    o.num_experts = 4;
    o.top_k = 2;
    bad.change(o);
    const std::string message = refusal([&] { check_gate_options(o); });
    EXPECT_NE(message.find("layer 3: "), std::string::npos) << message;
    EXPECT_NE(message.find(bad.expected), std::string::npos) << message;
  }
}

TEST(OrderOptions, Checks) {
  OrderOptions o;
  o.capacity.minimum = 0;
  EXPECT_NE(refusal([&] { check_order_options(o); }).find("minimum is 0"), std::string::npos);
  o = {};
  o.capacity.factor = -0.5;
  EXPECT_NE(refusal([&] { check_order_options(o); }).find("factor is -0.5"), std::string::npos);
  o = {OrderKind::kSlots, "order", {1.0}};
  EXPECT_NE(refusal([&] { check_order_options(o); }).find("no capacity"), std::string::npos);
}

}  // namespace
}  // namespace coterie::gates
