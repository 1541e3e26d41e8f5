// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/task_graph.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

struct KindName {
  std::string_view name;
  std::string_view short_name;
};

constexpr std::array<KindName, kNumTaskKinds> kKindNames = {{{"attention", "A"},
                                                             {"dense_gather", "g"},
                                                             {"dense_scatter", "s"},
                                                             {"dispatch", "D"},
                                                             {"gather", "AG"},
                                                             {"experts", "E"},
                                                             {"scatter", "RS"},
                                                             {"combine", "C"},
                                                             {"shared_experts", "S"},
                                                             {"gradient", "G"},
                                                             {"weights", "W"}}};
constexpr std::array<std::string_view, kNumLanes> kLaneNames = {"compute", "inter", "intra"};

}  // namespace

std::string_view name_of(TaskKind kind) {
  return kKindNames.at(static_cast<std::size_t>(kind)).name;
}

std::string_view short_name_of(TaskKind kind) {
  return kKindNames.at(static_cast<std::size_t>(kind)).short_name;
}

TaskKind task_kind_of(std::string_view name) {
  const auto found = std::ranges::find(kKindNames, name, &KindName::name);
  COTERIE_REQUIRE(found != kKindNames.end(), "no kind of task is called \"", name, "\"");
  return static_cast<TaskKind>(found - kKindNames.begin());
}

std::string_view name_of(Lane lane) {
  return kLaneNames.at(static_cast<std::size_t>(lane));
}

Lane lane_of(std::string_view name) {
  const auto found = std::ranges::find(kLaneNames, name);
  COTERIE_REQUIRE(found != kLaneNames.end(), "no lane is called \"", name, "\"");
  return static_cast<Lane>(found - kLaneNames.begin());
}

std::string_view name_of(Phase phase) {
  return phase == Phase::kForward ? "forward" : "backward";
}

void TaskGraph::clear() {
  tasks_.clear();
  offsets_.assign(1, 0);
  before_.clear();
  queues_ = {};
  for (auto& order : orders_) {
    order.clear();
  }
}

TaskId TaskGraph::add(const Task& task, std::initializer_list<TaskId> after) {
  return add(task, std::span<const TaskId>(after.begin(), after.size()));
}

TaskId TaskGraph::add(const Task& task, std::span<const TaskId> after) {
  const auto id = static_cast<TaskId>(tasks_.size());
  for (const TaskId other : after) {
    COTERIE_CHECK(other < id, "task ", id, " waits for ", other);
    if (other != kNoTask) {
      before_.push_back(other);
    }
  }
  tasks_.push_back(task);
  offsets_.push_back(static_cast<std::uint32_t>(before_.size()));
  return id;
}

void TaskGraph::set_order(Lane lane, std::vector<TaskId> order) {
  std::vector<TaskId> own;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].lane == lane) {
      own.push_back(static_cast<TaskId>(i));
    }
  }
  COTERIE_REQUIRE(std::ranges::is_permutation(own, order), "order of lane ", name_of(lane),
                  ": its ", order.size(), " items are not the lane's ", own.size(), " tasks");
  set_queue(lane, Queue::kFifo);
  orders_[static_cast<std::size_t>(lane)] = std::move(order);
}

}  // namespace coterie::schedule
