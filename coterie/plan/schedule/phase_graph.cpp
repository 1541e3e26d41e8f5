// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/phase_graph.hpp"

#include <array>
#include <cmath>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/plan/schedule/timeline.hpp"

namespace coterie::schedule {
namespace {

using cost::Resource;

/// Ranks of later-stage-first: what is nearer to the end of the layer goes first.
constexpr std::array<std::int32_t, kNumTaskKinds> kStageRanks = {
    1 /* A */,  7 /* g */, 6 /* s */, 5 /* D */, 4 /* AG */, 0 /* E */,
    1 /* RS */, 0 /* C */, 2 /* S */, 3 /* G */, 3 /* W */};
constexpr std::int32_t kLast = 1 << 20;
constexpr std::int32_t kMostChunks = 1024;

class Builder {
 public:
  Builder(const LayerWork& work, const PhasePlan& plan, Phase phase, TaskGraph& graph)
      : layer_(work),
        work_(phase == Phase::kForward ? work.forward : work.backward),
        plan_(plan),
        phase_(phase),
        graph_(graph) {}

  void build() {
    graph_.clear();
    const Queue queue = plan_.order == Order::kDispatchFirst ? Queue::kFifo : Queue::kPriority;
    for (const Lane lane : {Lane::kCompute, Lane::kInter, Lane::kIntra}) {
      graph_.set_queue(lane, queue);
    }
    if (phase_ == Phase::kForward) {
      add_dense();
    }
    add_moe();
    if (phase_ == Phase::kBackward) {
      add_dense();
    }
    if (plan_.last_gradient > 0) {
      add_gradient(plan_.last_gradient, dense_ends_);
    }
  }

 private:
  TaskId add(TaskKind kind, std::size_t chunk, double work_s, std::span<const TaskId> after) {
    const bool is_compute = kind == TaskKind::kAttention || kind == TaskKind::kExperts ||
                            kind == TaskKind::kSharedExperts || kind == TaskKind::kWeights;
    const bool is_inter =
        kind == TaskKind::kDispatch || kind == TaskKind::kCombine || kind == TaskKind::kGradient;
    Task task;
    task.kind = kind;
    task.resource = is_compute ? Resource::kCompute
                    : is_inter ? Resource::kInterNode
                               : Resource::kIntraNode;
    // One stream is one for the MoE part; the dense part's collectives belong to another group.
    const bool is_moe_link = kind == TaskKind::kGather || kind == TaskKind::kScatter;
    task.lane = is_compute                                      ? Lane::kCompute
                : is_inter || (is_moe_link && plan_.one_stream) ? Lane::kInter
                                                                : Lane::kIntra;
    task.chunk = static_cast<std::int16_t>(chunk);
    task.work_s = work_s;
    task.rank = plan_.order == Order::kLaterStageFirst ? kStageRanks[static_cast<std::size_t>(kind)]
                                                       : static_cast<std::int32_t>(graph_.size());
    if (plan_.order == Order::kGradientLast && kind == TaskKind::kGradient) {
      task.rank = kLast;
    }
    return graph_.add(task, after);
  }
  TaskId add(TaskKind kind, std::size_t chunk, double work_s, std::initializer_list<TaskId> after) {
    return add(kind, chunk, work_s, std::span<const TaskId>(after.begin(), after.size()));
  }

  void add_gradient(double bytes, std::span<const TaskId> after) {
    const Stage& gradient = layer_.gradient;
    const double work_s = gradient.calls * gradient.model.time_s(bytes);
    add(TaskKind::kGradient, num_gradients_++, work_s, after);
  }

  /// Of the dense part: as one piece behind all of `ends`, or chunk by chunk.
  void add_dense() {
    const std::vector<TaskId> behind = combines_;
    if (!plan_.pipelines_attention) {
      dense_ends_ = {add_dense_chunk(0, 1, behind)};
    } else {
      for (std::size_t i = 0; i < plan_.shares.size(); ++i) {
        const TaskId after = behind.empty() ? kNoTask : behind[i];
        dense_ends_.push_back(add_dense_chunk(i, plan_.shares[i], std::span(&after, 1)));
      }
    }
    if (plan_.dense_gradient > 0) {
      add_gradient(plan_.dense_gradient, behind);
    }
  }

  TaskId add_dense_chunk(std::size_t chunk, double share, std::span<const TaskId> after) {
    const TaskId gather =
        add(TaskKind::kDenseGather, chunk, work_.dense_gather.time_s(share), after);
    const TaskId attention =
        add(TaskKind::kAttention, chunk, work_.attention.time_s(share), {gather});
    return add(TaskKind::kDenseScatter, chunk, work_.dense_scatter.time_s(share), {attention});
  }

  [[nodiscard]] TaskId start_of(std::size_t chunk) const {
    return dense_ends_.empty() ? kNoTask : dense_ends_[plan_.pipelines_attention ? chunk : 0];
  }

  void add_dispatch(std::size_t chunk) {
    dispatches_.push_back(add(TaskKind::kDispatch, chunk,
                              work_.dispatch.time_s(plan_.shares[chunk]), {start_of(chunk)}));
  }
  void add_gather(std::size_t chunk) {
    gathers_.push_back(add(TaskKind::kGather, chunk, work_.gather.time_s(plan_.shares[chunk]),
                           {dispatches_[chunk]}));
  }
  void add_scatter(std::size_t chunk) {
    scatters_.push_back(add(TaskKind::kScatter, chunk, work_.scatter.time_s(plan_.shares[chunk]),
                            {experts_[chunk]}));
  }
  void add_combine(std::size_t chunk) {
    combines_.push_back(add(TaskKind::kCombine, chunk, work_.combine.time_s(plan_.shares[chunk]),
                            {scatters_[chunk]}));
  }

  /// Ids ascend in the FIFO order of every lane: all D and AG, gradients, then all RS and C.
  void add_moe() {
    const std::size_t num_chunks = plan_.shares.size();
    for (std::size_t i = 0; i < num_chunks; ++i) {
      add_dispatch(i);
      add_gather(i);
    }
    for (const double bytes : plan_.moe_gradients) {
      add_gradient(bytes, {});
    }
    for (std::size_t i = 0; i < num_chunks; ++i) {
      const double inputs_s = work_.experts.time_s(plan_.shares[i]);
      const double weights_s = plan_.weight_tasks > 0 ? 0 : work_.weights.time_s(plan_.shares[i]);
      experts_.push_back(add(TaskKind::kExperts, i, inputs_s + weights_s, {gathers_[i]}));
    }
    for (std::size_t i = 0; i < num_chunks; ++i) {
      add_scatter(i);
      add_combine(i);
    }
    add_shared_experts();
    add_weights();
  }

  /// Chunks are dealt out to the tasks in turn; a task waits for its last chunk's E.
  void add_weights() {
    const std::size_t num_chunks = plan_.shares.size();
    const std::size_t num_tasks =
        std::min(num_chunks, static_cast<std::size_t>(plan_.weight_tasks));
    for (std::size_t i = 0, chunk = 0; i < num_tasks; ++i) {
      const std::size_t end = (i + 1) * num_chunks / num_tasks;
      double share = 0;
      for (; chunk < end; ++chunk) {
        share += plan_.shares[chunk];
      }
      add(TaskKind::kWeights, i, work_.weights.time_s(share), {experts_[end - 1]});
    }
  }

  void add_shared_experts() {
    if (work_.shared_experts.size <= 0) {
      return;
    }
    // In gaps they come in pieces, else in one behind the routed experts.
    const bool in_gaps = plan_.order == Order::kLaterStageFirst;
    for (std::size_t i = 0; i < (in_gaps ? plan_.shares.size() : 1); ++i) {
      combines_.push_back(add(TaskKind::kSharedExperts, i,
                              work_.shared_experts.time_s(in_gaps ? plan_.shares[i] : 1),
                              {start_of(i)}));
    }
  }

  const LayerWork& layer_;
  const PhaseWork& work_;
  const PhasePlan& plan_;
  Phase phase_;
  TaskGraph& graph_;
  std::size_t num_gradients_ = 0;
  std::vector<TaskId> dispatches_, gathers_, experts_, scatters_, combines_, dense_ends_;
};

void check_shares(const std::vector<double>& shares) {
  COTERIE_REQUIRE(!shares.empty() && shares.size() <= kMostChunks, "phase plan: ", shares.size(),
                  " chunks; there must be 1 to ", kMostChunks);
  for (const double share : shares) {
    COTERIE_REQUIRE(share > 0, "phase plan: a chunk has the share ", share);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  COTERIE_REQUIRE(std::abs(sum - 1) < 1e-9, "phase plan: shares sum to ", sum, " instead of 1");
}

}  // namespace

void build_phase(const LayerWork& work, const PhasePlan& plan, Phase phase, TaskGraph& graph) {
  check_shares(plan.shares);
  Builder(work, plan, phase, graph).build();
}

std::string order_text(const TaskGraph& graph, std::span<const TaskId> order) {
  std::string text;
  for (const TaskId id : order) {
    const Task& task = graph.task(id);
    if (task.work_s > 0) {
      text += (text.empty() ? "" : " ") + std::string(short_name_of(task.kind)) +
              std::to_string(task.chunk + 1);
    }
  }
  return text;
}

}  // namespace coterie::schedule
