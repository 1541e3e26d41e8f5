// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/phase_steps.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::layer {
namespace {

using schedule::kNumLanes;
using schedule::Lane;
using schedule::PhasePlan;
using schedule::TaskKind;

struct Step {
  TaskKind kind = TaskKind::kExperts;
  std::int32_t chunk = 0;
  auto operator<=>(const Step&) const = default;
};

using StepLanes = std::array<std::vector<Step>, kNumLanes>;

std::string text_of(const Step& step) {
  return std::string(short_name_of(step.kind)) + std::to_string(step.chunk + 1);
}

/// Whether the layer carries it out; the rest of the block is its caller's.
bool is_ours(TaskKind kind) {
  switch (kind) {
    case TaskKind::kDispatch:
    case TaskKind::kGather:
    case TaskKind::kExperts:
    case TaskKind::kScatter:
    case TaskKind::kCombine:
    case TaskKind::kGradient:
    case TaskKind::kWeights: return true;
    default: return false;
  }
}

Step step_from(const std::string& word, const std::string& where) {
  const std::size_t digits = word.find_first_of("0123456789");
  Step step;
  bool is_known = false;
  for (std::size_t kind = 0; kind < schedule::kNumTaskKinds && digits != std::string::npos;
       ++kind) {
    if (short_name_of(static_cast<TaskKind>(kind)) == word.substr(0, digits)) {
      step.kind = static_cast<TaskKind>(kind);
      is_known = true;
    }
  }
  std::int32_t number = 0;
  if (is_known) {
    const char* end = word.data() + word.size();
    const auto read = std::from_chars(word.data() + digits, end, number);
    is_known = read.ec == std::errc() && read.ptr == end && number >= 1;
  }
  COTERIE_REQUIRE(is_known, where, ": lane orders name '", word, "', which is no task");
  step.chunk = number - 1;
  return step;
}

/// The lanes' orders without what is not ours.
StepLanes read_orders(const PhasePlan& plan, const std::string& where) {
  StepLanes lanes;
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    std::istringstream words(plan.lane_orders[lane]);
    for (std::string word; words >> word;) {
      const Step step = step_from(word, where);
      const bool is_dense_gradient =
          step.kind == TaskKind::kGradient && step.chunk >= std::ssize(plan.moe_gradients);
      if (is_ours(step.kind) && !is_dense_gradient) {
        lanes[lane].push_back(step);
      }
    }
  }
  return lanes;
}

std::int32_t count(const StepLanes& lanes, TaskKind kind) {
  std::ptrdiff_t found = 0;
  for (const auto& lane : lanes) {
    found += std::ranges::count(lane, kind, &Step::kind);
  }
  return static_cast<std::int32_t>(found);
}

/// Puts a kind that no lane names beside `neighbour` of the same chunk, before or after it.
void put_beside(StepLanes& lanes, TaskKind kind, TaskKind neighbour, bool before) {
  for (auto& lane : lanes) {
    for (std::size_t i = 0; i < lane.size(); ++i) {
      if (lane[i].kind == neighbour) {
        lane.insert(lane.begin() + static_cast<std::ptrdiff_t>(i + (before ? 0 : 1)),
                    {kind, lane[i].chunk});
        ++i;
      }
    }
  }
}

/// All kinds are there for all chunks afterwards.
void complete(StepLanes& lanes, const PhasePlan& plan, const std::string& where) {
  const std::int32_t num_chunks = plan.num_chunks();
  const auto check = [&](TaskKind kind) {
    const std::int32_t found = count(lanes, kind);
    COTERIE_REQUIRE(found == 0 || found == num_chunks, where, ": lane orders have ", found, " of ",
                    num_chunks, " tasks ", short_name_of(kind));
    return found > 0;
  };
  COTERIE_REQUIRE(check(TaskKind::kExperts), where,
                  ": the plan has no order of the compute lane; it must come from the planner");
  // A way out and its way home are between the same ranks, so they share a lane.
  const auto pair = [&](TaskKind out, TaskKind home, TaskKind before, TaskKind after) {
    const bool has_out = check(out);
    const bool has_home = check(home);
    if (!has_out) {
      put_beside(lanes, out, has_home ? home : before, true);
    }
    if (!has_home) {
      put_beside(lanes, home, has_out ? out : after, false);
    }
  };
  pair(TaskKind::kGather, TaskKind::kScatter, TaskKind::kExperts, TaskKind::kExperts);
  pair(TaskKind::kDispatch, TaskKind::kCombine, TaskKind::kGather, TaskKind::kScatter);
}

void check_ascending(const StepLanes& lanes, const std::string& where) {
  for (const TaskKind kind : {TaskKind::kExperts, TaskKind::kWeights}) {
    std::int32_t next = 0;
    for (const Step& step : lanes[static_cast<std::size_t>(Lane::kCompute)]) {
      if (step.kind == kind) {
        COTERIE_REQUIRE(step.chunk == next, where, ": the compute lane runs ", text_of(step),
                        " out of order; chunks must follow each other");
        ++next;
      }
    }
    COTERIE_REQUIRE(next == count(lanes, kind), where, ": ", short_name_of(kind),
                    " is not in the compute lane");
  }
}

std::function<void()> action_of(const Step& step, const StepActions& actions,
                                std::int32_t num_chunks, std::int32_t num_weight_tasks) {
  const std::int32_t chunk = step.chunk;
  switch (step.kind) {
    case TaskKind::kDispatch: return [&actions, chunk] { actions.send_out(chunk); };
    case TaskKind::kGather: return [&actions, chunk] { actions.gather_in(chunk); };
    case TaskKind::kExperts: return [&actions, chunk] { actions.experts(chunk); };
    case TaskKind::kScatter: return [&actions, chunk] { actions.scatter_sums(chunk); };
    case TaskKind::kCombine: return [&actions, chunk] { actions.bring_home(chunk); };
    case TaskKind::kWeights: {
      const ChunkRange range = weight_chunks(num_chunks, num_weight_tasks, chunk);
      return [&actions, range] { actions.weights(range.first, range.end); };
    }
    default:
      return [&actions, chunk] {
        if (actions.gradient) {
          actions.gradient(chunk);
        }
      };
  }
}

/// The step that this one waits for; itself if it waits for none.
Step before(const Step& step, std::int32_t num_chunks, std::int32_t num_weight_tasks) {
  switch (step.kind) {
    case TaskKind::kGather: return {TaskKind::kDispatch, step.chunk};
    case TaskKind::kExperts: return {TaskKind::kGather, step.chunk};
    case TaskKind::kScatter: return {TaskKind::kExperts, step.chunk};
    case TaskKind::kCombine: return {TaskKind::kScatter, step.chunk};
    case TaskKind::kWeights:
      return {TaskKind::kExperts, weight_chunks(num_chunks, num_weight_tasks, step.chunk).end - 1};
    default: return step;
  }
}

}  // namespace

ChunkRange weight_chunks(std::int32_t num_chunks, std::int32_t num_tasks, std::int32_t task) {
  return {task * num_chunks / num_tasks, (task + 1) * num_chunks / num_tasks};
}

PhaseSteps steps_of(const PhasePlan& plan, const StepActions& actions, const std::string& where) {
  StepLanes lanes = read_orders(plan, where);
  complete(lanes, plan, where);
  check_ascending(lanes, where);
  const std::int32_t num_weight_tasks = count(lanes, TaskKind::kWeights);
  PhaseSteps steps;
  std::map<Step, std::int32_t> number;
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    for (const Step& step : lanes[lane]) {
      const auto id = static_cast<std::int32_t>(steps.tasks.size());
      COTERIE_REQUIRE(step.kind == TaskKind::kGradient || step.chunk < plan.num_chunks(), where,
                      ": lane orders name ", text_of(step), " of ", plan.num_chunks(), " chunks");
      COTERIE_REQUIRE(number.emplace(step, id).second, where, ": lane orders name ", text_of(step),
                      " twice");
      steps.tasks.push_back({step.kind,
                             step.chunk,
                             {},
                             action_of(step, actions, plan.num_chunks(), num_weight_tasks)});
      steps.orders[lane].push_back(id);
    }
  }
  for (const auto& [step, id] : number) {
    const Step first = before(step, plan.num_chunks(), num_weight_tasks);
    if (first != step) {
      steps.tasks[static_cast<std::size_t>(id)].after.push_back(number.at(first));
    }
  }
  return steps;
}

}  // namespace coterie::layer
