// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coterie/plan/cost/cost.hpp"
#include "coterie/plan/schedule/schedule.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/plan/cost/sample_profile.hpp"
#include "tests/plan/schedule/random_work.hpp"

namespace coterie::fuzz {
namespace {

void read_cluster(std::string_view bytes) {
  const cost::ClusterProfile profile = cost::read_profile(file_of(bytes));
  cost::verify_profile(profile);
  cost::format_profile(profile);
}

std::vector<std::string> cluster_seeds() {
  return {cost::format_profile(cost::sample_profile())};
}

void read_plan(std::string_view bytes) {
  const schedule::ModelPlan plan = schedule::read_plan(file_of(bytes));
  (void)schedule::to_json(plan);
}

std::vector<std::string> plan_seeds() {
  Random random(1);
  const schedule::LayerWork work = schedule::random_layer(random);
  const schedule::ModelPlan plan = {
      "coterie", "sample", "nccl", {{0, schedule::plan_layer(schedule::kCoterie, work, {})}}};
  return {format_json(schedule::to_json(plan))};
}

void read_timeline(std::string_view bytes) {
  const schedule::Timeline timeline = schedule::timeline_from(parse_json(bytes, "fuzz"), "fuzz");
  (void)schedule::to_json(timeline);
}

std::vector<std::string> timeline_seeds() {
  Random random(2);
  const schedule::LayerWork work = schedule::random_layer(random);
  const schedule::LayerPlan plan = schedule::plan_layer(schedule::kFsmoe, work, {});
  return {
      format_json(schedule::to_json(schedule::simulate_layer(schedule::kFsmoe, work, plan, {})))};
}

}  // namespace

const Target kCluster = {"cluster", read_cluster, cluster_seeds};
const Target kPlan = {"plan", read_plan, plan_seeds};
const Target kTimeline = {"timeline", read_timeline, timeline_seeds};

}  // namespace coterie::fuzz
