// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/plan/cost/cost.hpp"

namespace coterie::schedule {

/// The steps of a block with a mixture-of-experts layer (FSMoE, section 4.1; docs/concepts.md).
enum class TaskKind : std::uint8_t {
  kAttention,      ///< attention, norms and projections of the block
  kDenseGather,    ///< all-gather of the sequence, before attention
  kDenseScatter,   ///< reduce-scatter of the sequence, after attention
  kDispatch,       ///< D: exchange of tokens between nodes
  kGather,         ///< AG: all-gather (or exchange) inside the node
  kExperts,        ///< E: the experts' products
  kScatter,        ///< RS: reduce-scatter (or exchange) inside the node
  kCombine,        ///< C: exchange of results between nodes
  kSharedExperts,  ///< S: experts that every token uses, without exchange
  kGradient,       ///< G: all-reduce of a piece of dense gradients
  kWeights,        ///< W: the experts' products for weight gradients, where they are put off
};
inline constexpr std::size_t kNumTaskKinds = 11;

/// "attention", "dense_gather", ...: as JSON and traces name it.
std::string_view name_of(TaskKind kind);
/// "A", "g", "s", "D", "AG", "E", "RS", "C", "S", "G", "W": as orders and charts name it.
std::string_view short_name_of(TaskKind kind);
/// kBadInput if there is no such kind.
TaskKind task_kind_of(std::string_view name);

/// A queue of a device that runs one task at a time: a CUDA stream, a thread.
enum class Lane : std::uint8_t { kCompute, kInter, kIntra };
inline constexpr std::size_t kNumLanes = 3;

/// "compute", "inter", "intra".
std::string_view name_of(Lane lane);
/// kBadInput if there is no such lane.
Lane lane_of(std::string_view name);

enum class Phase : std::uint8_t { kForward, kBackward };
/// "forward", "backward".
std::string_view name_of(Phase phase);

/// Which task of a lane runs next.
enum class Queue : std::uint8_t {
  kFifo,      ///< in the order in which they were added; the first one waits for its turn
  kPriority,  ///< of those that are ready the one with the lowest rank, then the one added first
};

/// One step of one chunk.
struct Task {
  TaskKind kind = TaskKind::kExperts;
  Lane lane = Lane::kCompute;
  cost::Resource resource = cost::Resource::kCompute;  ///< what it slows and is slowed by
  std::int16_t chunk = 0;                              ///< 0-based; of gradients: the piece
  std::int32_t rank = 0;                               ///< in a priority queue
  double work_s = 0;  ///< seconds that it takes while nothing else runs on the device

  bool operator==(const Task&) const = default;
};

using TaskId = std::int32_t;
inline constexpr TaskId kNoTask = -1;

/// Tasks of one device, what each waits for, and how lanes choose. Keeps its memory over clear(),
/// so that a planner can build thousands. Not thread-safe.
class TaskGraph {
 public:
  void clear();
  /// Adds a task that waits for `after` (kNoTask is passed over; earlier ids only).
  TaskId add(const Task& task, std::initializer_list<TaskId> after = {});
  TaskId add(const Task& task, std::span<const TaskId> after);
  void set_queue(Lane lane, Queue queue) { queues_[static_cast<std::size_t>(lane)] = queue; }
  /// Makes a lane FIFO in this order instead of that of adding: how a plan made with priorities is
  /// carried out alike on every rank. kBadInput if it is not a permutation of the lane's tasks.
  void set_order(Lane lane, std::vector<TaskId> order);

  [[nodiscard]] std::size_t size() const { return tasks_.size(); }
  [[nodiscard]] const Task& task(TaskId id) const { return tasks_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::span<const Task> tasks() const { return tasks_; }
  /// The tasks that `id` waits for.
  [[nodiscard]] std::span<const TaskId> before(TaskId id) const {
    const auto i = static_cast<std::size_t>(id);
    return std::span(before_).subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  [[nodiscard]] Queue queue(Lane lane) const { return queues_[static_cast<std::size_t>(lane)]; }
  /// What set_order set; empty if nothing.
  [[nodiscard]] std::span<const TaskId> order(Lane lane) const {
    return orders_[static_cast<std::size_t>(lane)];
  }

 private:
  std::vector<Task> tasks_;
  std::vector<std::uint32_t> offsets_ = {0};
  std::vector<TaskId> before_;
  std::array<Queue, kNumLanes> queues_ = {};
  std::array<std::vector<TaskId>, kNumLanes> orders_;
};

}  // namespace coterie::schedule
