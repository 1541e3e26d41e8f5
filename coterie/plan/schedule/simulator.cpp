// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/simulator.hpp"

#include <algorithm>
#include <limits>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

/// Work that counts as done: rounding left of sums of times.
constexpr double kDone = 1e-12;

}  // namespace

Simulator::Simulator(const cost::Contention& contention)
    : contention_(contention), is_free_(contention.is_free()) {}

void Simulator::prepare(const TaskGraph& graph) {
  const std::size_t count = graph.size();
  for (LaneState& lane : lanes_) {
    lane.running = kNoTask;
    lane.next = 0;
    lane.waiting.clear();
  }
  missing_.assign(count, 0);
  starts_.assign(count, 0);
  ends_.assign(count, 0);
  offsets_.assign(count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const auto before = graph.before(static_cast<TaskId>(i));
    missing_[i] = static_cast<std::int32_t>(before.size());
    for (const TaskId other : before) {
      ++offsets_[static_cast<std::size_t>(other) + 1];
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    offsets_[i + 1] += offsets_[i];
  }
  after_.resize(offsets_[count]);
  for (std::size_t i = count; i-- > 0;) {  // backwards: offsets_[k + 1] walks down to the start
    for (const TaskId other : graph.before(static_cast<TaskId>(i))) {
      after_[--offsets_[static_cast<std::size_t>(other) + 1]] = static_cast<TaskId>(i);
    }
  }
  // Now offsets_[k + 1] is where the list of k begins; shift so that offsets_[k] is.
  for (std::size_t i = 0; i < count; ++i) {
    offsets_[i] = offsets_[i + 1];
  }
  offsets_[count] = static_cast<std::uint32_t>(after_.size());
  for (std::size_t l = 0; l < kNumLanes; ++l) {
    const auto order = graph.order(static_cast<Lane>(l));
    lanes_[l].waiting.assign(order.begin(), order.end());
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<TaskId>(i);
    const Lane lane = graph.task(id).lane;
    if (!graph.order(lane).empty()) {
      continue;
    }
    if (graph.queue(lane) == Queue::kFifo) {
      lanes_[static_cast<std::size_t>(lane)].waiting.push_back(id);
    } else if (missing_[i] == 0) {
      make_ready(graph, id);
    }
  }
}

void Simulator::make_ready(const TaskGraph& graph, TaskId id) {
  const Task& task = graph.task(id);
  if (graph.queue(task.lane) == Queue::kPriority) {
    lanes_[static_cast<std::size_t>(task.lane)].waiting.push_back(id);
  }
}

bool Simulator::start_tasks(const TaskGraph& graph, double now_s) {
  bool any = false;
  for (std::size_t l = 0; l < kNumLanes; ++l) {
    LaneState& lane = lanes_[l];
    if (lane.running != kNoTask) {
      any = true;
      continue;
    }
    if (graph.queue(static_cast<Lane>(l)) == Queue::kFifo) {
      if (lane.next == lane.waiting.size() ||
          missing_[static_cast<std::size_t>(lane.waiting[lane.next])] > 0) {
        continue;
      }
      lane.running = lane.waiting[lane.next++];
    } else {
      if (lane.waiting.empty()) {
        continue;
      }
      const auto first = std::ranges::min_element(lane.waiting, [&](TaskId a, TaskId b) {
        return std::pair(graph.task(a).rank, a) < std::pair(graph.task(b).rank, b);
      });
      lane.running = *first;
      *first = lane.waiting.back();
      lane.waiting.pop_back();
    }
    lane.left_s = graph.task(lane.running).work_s;
    starts_[static_cast<std::size_t>(lane.running)] = now_s;
    any = true;
  }
  return any;
}

double Simulator::slow_down(const TaskGraph& graph, std::size_t lane) const {
  double factor = 1;
  const cost::Resource own = graph.task(lanes_[lane].running).resource;
  for (std::size_t other = 0; other < kNumLanes; ++other) {
    if (other != lane && lanes_[other].running != kNoTask) {
      factor += contention_.factor(own, graph.task(lanes_[other].running).resource) - 1;
    }
  }
  return factor;
}

void Simulator::finish(const TaskGraph& graph, LaneState& lane, double now_s) {
  const auto id = static_cast<std::size_t>(lane.running);
  ends_[id] = now_s;
  lane.running = kNoTask;
  for (std::size_t k = offsets_[id]; k < offsets_[id + 1]; ++k) {
    const TaskId follower = after_[k];
    if (--missing_[static_cast<std::size_t>(follower)] == 0) {
      make_ready(graph, follower);
    }
  }
}

double Simulator::run(const TaskGraph& graph) {
  prepare(graph);
  double now_s = 0;
  std::size_t num_done = 0;
  while (num_done < graph.size()) {
    COTERIE_REQUIRE(start_tasks(graph, now_s), "task graph: after ", num_done, " of ", graph.size(),
                    " tasks every lane waits for another");
    std::array<double, kNumLanes> factors = {1, 1, 1};
    double step_s = std::numeric_limits<double>::infinity();
    for (std::size_t l = 0; l < kNumLanes; ++l) {
      if (lanes_[l].running != kNoTask) {
        factors[l] = slow_down(graph, l);
        step_s = std::min(step_s, lanes_[l].left_s * factors[l]);
      }
    }
    now_s += step_s;
    for (std::size_t l = 0; l < kNumLanes; ++l) {
      LaneState& lane = lanes_[l];
      if (lane.running == kNoTask) {
        continue;
      }
      const double left_s = lane.left_s - step_s / factors[l];
      if (left_s <= kDone * graph.task(lane.running).work_s) {
        finish(graph, lane, now_s);
        ++num_done;
      } else {
        lane.left_s = left_s;
      }
    }
  }
  return now_s;
}

std::array<std::vector<TaskId>, kNumLanes> Simulator::lane_orders(const TaskGraph& graph) const {
  std::array<std::vector<TaskId>, kNumLanes> orders;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const auto id = static_cast<TaskId>(i);
    orders[static_cast<std::size_t>(graph.task(id).lane)].push_back(id);
  }
  for (auto& order : orders) {
    std::ranges::stable_sort(order, [&](TaskId a, TaskId b) {
      const auto i = static_cast<std::size_t>(a);
      const auto j = static_cast<std::size_t>(b);
      return std::pair(starts_[i], ends_[i]) < std::pair(starts_[j], ends_[j]);
    });
  }
  return orders;
}

Timeline Simulator::timeline(const TaskGraph& graph, Phase phase, std::int32_t layer) const {
  Timeline timeline;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (ends_[i] > starts_[i]) {
      const Task& task = graph.task(static_cast<TaskId>(i));
      timeline.spans.push_back(
          {task.kind, task.lane, phase, task.chunk, layer, 0, starts_[i], ends_[i]});
    }
  }
  return timeline;
}

}  // namespace coterie::schedule
