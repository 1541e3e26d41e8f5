// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/layer_plan.hpp"

#include <cmath>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

constexpr Order kOrders[] = {Order::kDispatchFirst, Order::kLaterStageFirst, Order::kGradientLast};
constexpr std::size_t kMostChunks = 1024;

double not_negative(const JsonReader& reader) {
  const double value = reader.as_double();
  if (!std::isfinite(value) || value < 0) {
    reader.refuse("a number that is not negative");
  }
  return value;
}

std::vector<double> numbers_from(const JsonReader& reader) {
  std::vector<double> values;
  const std::size_t count = reader.size();
  COTERIE_REQUIRE(count <= kMostChunks, reader.place(), ": ", count, " items; at most ",
                  kMostChunks);
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(not_negative(reader.at(i)));
  }
  return values;
}

PhasePlan phase_plan_from(const JsonReader& reader) {
  PhasePlan plan;
  plan.shares = numbers_from(reader.at("shares"));
  const double sum = std::accumulate(plan.shares.begin(), plan.shares.end(), 0.0);
  COTERIE_REQUIRE(!plan.shares.empty() && std::abs(sum - 1) < 1e-9, reader.place(),
                  "/shares: they sum to ", sum, " instead of 1");
  for (const double share : plan.shares) {
    COTERIE_REQUIRE(share > 0, reader.place(), "/shares: a chunk has the share ", share);
  }
  plan.one_stream = reader.at("one_stream").as_bool();
  const std::string order = reader.at("order").as_string();
  bool found = false;
  for (const Order known : kOrders) {
    if (name_of(known) == order) {
      plan.order = known;
      found = true;
    }
  }
  COTERIE_REQUIRE(found, reader.place(), "/order: there is no order \"", order, "\"");
  plan.moe_gradients = numbers_from(reader.at("moe_gradients"));
  plan.dense_gradient = not_negative(reader.at("dense_gradient"));
  plan.last_gradient = not_negative(reader.at("last_gradient"));
  plan.weight_tasks = static_cast<std::int32_t>(reader.at("weight_tasks").as_int(0, kMostChunks));
  plan.pipelines_attention = reader.at("pipelines_attention").as_bool();
  const JsonReader orders = reader.at("lane_orders");
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    plan.lane_orders[lane] = orders.at(std::string(name_of(static_cast<Lane>(lane)))).as_string();
  }
  plan.moe_s = not_negative(reader.at("moe_s"));
  plan.predicted_s = not_negative(reader.at("predicted_s"));
  return plan;
}

}  // namespace

std::string_view name_of(Order order) {
  switch (order) {
    case Order::kDispatchFirst: return "dispatch_first";
    case Order::kLaterStageFirst: return "later_stage_first";
    case Order::kGradientLast: return "gradient_last";
  }
  return "unknown";
}

std::vector<double> equal_shares(std::int32_t num_chunks) {
  COTERIE_REQUIRE(num_chunks >= 1, "number of chunks ", num_chunks, " is not positive");
  return std::vector<double>(static_cast<std::size_t>(num_chunks), 1.0 / num_chunks);
}

Json to_json(const PhasePlan& plan) {
  Json orders = Json::object();
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    orders[std::string(name_of(static_cast<Lane>(lane)))] = plan.lane_orders[lane];
  }
  return {{"num_chunks", plan.num_chunks()},
          {"shares", plan.shares},
          {"one_stream", plan.one_stream},
          {"order", name_of(plan.order)},
          {"moe_gradients", plan.moe_gradients},
          {"dense_gradient", plan.dense_gradient},
          {"last_gradient", plan.last_gradient},
          {"weight_tasks", plan.weight_tasks},
          {"pipelines_attention", plan.pipelines_attention},
          {"lane_orders", std::move(orders)},
          {"moe_s", plan.moe_s},
          {"predicted_s", plan.predicted_s}};
}

Json to_json(const LayerPlan& plan) {
  return {{"schedule", plan.schedule},
          {"forward", to_json(plan.forward)},
          {"backward", to_json(plan.backward)},
          {"predicted_s", plan.predicted_s()}};
}

LayerPlan layer_plan_from(const JsonReader& reader) {
  return {reader.has("schedule") ? reader.at("schedule").as_string() : "",
          phase_plan_from(reader.at("forward")), phase_plan_from(reader.at("backward"))};
}

}  // namespace coterie::schedule
