// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/cluster_run.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/schedule/phase_graph.hpp"

namespace coterie::schedule {
namespace {

constexpr std::size_t kMostDevices = 1 << 20;

/// Who waits for whom in a task.
enum class Group : std::uint8_t { kDevice, kNode, kRail };

Group group_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kDispatch:
    case TaskKind::kCombine:
    case TaskKind::kGradient: return Group::kRail;
    case TaskKind::kGather:
    case TaskKind::kScatter:
    case TaskKind::kDenseGather:
    case TaskKind::kDenseScatter: return Group::kNode;
    default: return Group::kDevice;
  }
}

bool scales_with_load(TaskKind kind) {
  return kind == TaskKind::kExperts || kind == TaskKind::kWeights || kind == TaskKind::kDispatch ||
         kind == TaskKind::kCombine || kind == TaskKind::kGather || kind == TaskKind::kScatter;
}

/// The devices' clocks over one phase after the other.
class ClusterSimulation {
 public:
  ClusterSimulation(const cost::Contention& contention, const ClusterOptions& options)
      : options_(options),
        num_devices_(static_cast<std::size_t>(options.num_nodes) *
                     static_cast<std::size_t>(options.devices_per_node)),
        simulator_(contention),
        random_(options.seed),
        now_(num_devices_, 0),
        loads_(num_devices_, 1) {}

  void draw_loads() {
    if (options_.load_spread <= 0) {
      return;
    }
    for (double& load : loads_) {
      load = std::exp(options_.load_spread * random_.normal());
    }
    const double mean =
        std::accumulate(loads_.begin(), loads_.end(), 0.0) / static_cast<double>(num_devices_);
    std::ranges::for_each(loads_, [mean](double& load) { load /= mean; });
  }

  /// Runs a phase on every device from its own clock on.
  void run_phase(const LayerWork& work, const PhasePlan& plan, Phase phase, Timeline* drawn) {
    build_phase(work, plan, phase, graph_);
    simulator_.run(graph_);
    const auto starts = simulator_.starts_s();
    const auto ends = simulator_.ends_s();
    order_.resize(graph_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, [&](TaskId a, TaskId b) {
      const auto i = static_cast<std::size_t>(a);
      const auto j = static_cast<std::size_t>(b);
      return std::pair(starts[i], ends[i]) < std::pair(starts[j], ends[j]);
    });
    for (auto& lane : free_) {
      lane = now_;
    }
    ends_.resize(graph_.size());
    for (const TaskId id : order_) {
      const auto i = static_cast<std::size_t>(id);
      run_task(id, ends[i] - starts[i], phase, drawn);
    }
    for (std::size_t d = 0; d < num_devices_; ++d) {
      for (const auto& lane : free_) {
        now_[d] = std::max(now_[d], lane[d]);
      }
    }
    num_tasks_ += static_cast<std::int64_t>(graph_.size() * num_devices_);
  }

  [[nodiscard]] double latest_s() const { return *std::ranges::max_element(now_); }
  [[nodiscard]] std::int64_t num_tasks() const { return num_tasks_; }

 private:
  void run_task(TaskId id, double duration_s, Phase phase, Timeline* drawn) {
    const Task& task = graph_.task(id);
    std::vector<double>& lane = free_[static_cast<std::size_t>(task.lane)];
    std::vector<double>& end = ends_[static_cast<std::size_t>(id)];
    end.resize(num_devices_);
    start_ = lane;
    for (const TaskId before : graph_.before(id)) {
      const std::vector<double>& other = ends_[static_cast<std::size_t>(before)];
      for (std::size_t d = 0; d < num_devices_; ++d) {
        start_[d] = std::max(start_[d], other[d]);
      }
    }
    const bool scales = scales_with_load(task.kind);
    for (std::size_t d = 0; d < num_devices_; ++d) {
      const double noise = options_.jitter > 0 ? std::exp(options_.jitter * random_.normal()) : 1;
      end[d] = duration_s * (scales ? loads_[d] : 1) * noise;
    }
    wait_for_group(group_of(task.kind), end);
    for (std::size_t d = 0; d < num_devices_; ++d) {
      end[d] += start_[d];
      lane[d] = end[d];
    }
    if (drawn != nullptr && duration_s > 0) {
      draw(task, phase, end, *drawn);
    }
  }

  /// Members start when the last one is ready and take as long as the slowest.
  void wait_for_group(Group group, std::vector<double>& durations) {
    if (group == Group::kDevice) {
      return;
    }
    const auto per_node = static_cast<std::size_t>(options_.devices_per_node);
    const std::size_t num_groups = group == Group::kNode ? num_devices_ / per_node : per_node;
    const std::size_t first = group == Group::kNode ? per_node : 1;
    const std::size_t step = group == Group::kNode ? 1 : per_node;
    const std::size_t size = num_devices_ / num_groups;
    for (std::size_t g = 0; g < num_groups; ++g) {
      double start_s = 0;
      double duration_s = 0;
      for (std::size_t m = 0, d = g * first; m < size; ++m, d += step) {
        start_s = std::max(start_s, start_[d]);
        duration_s = std::max(duration_s, durations[d]);
      }
      for (std::size_t m = 0, d = g * first; m < size; ++m, d += step) {
        start_[d] = start_s;
        durations[d] = duration_s;
      }
    }
  }

  void draw(const Task& task, Phase phase, const std::vector<double>& end, Timeline& drawn) const {
    const std::size_t count =
        std::min(num_devices_, static_cast<std::size_t>(std::max(1, options_.drawn_devices)));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t d = i * num_devices_ / count;
      drawn.spans.push_back({task.kind, task.lane, phase, task.chunk, options_.drawn_layer,
                             static_cast<std::int32_t>(d), start_[d], end[d]});
    }
  }

  const ClusterOptions& options_;
  std::size_t num_devices_;
  Simulator simulator_;
  Random random_;
  TaskGraph graph_;
  std::vector<double> now_;
  std::vector<double> loads_;
  std::vector<double> start_;
  std::array<std::vector<double>, kNumLanes> free_;
  std::vector<std::vector<double>> ends_;  ///< [task][device]
  std::vector<TaskId> order_;
  std::int64_t num_tasks_ = 0;
};

void check(std::span<const LayerWork> works, std::span<const LayerPlan> plans,
           const ClusterOptions& options) {
  COTERIE_REQUIRE(works.size() == plans.size(), "cluster run: ", works.size(), " layers and ",
                  plans.size(), " plans");
  COTERIE_REQUIRE(options.num_nodes >= 1 && options.devices_per_node >= 1 &&
                      static_cast<std::size_t>(options.num_nodes) *
                              static_cast<std::size_t>(options.devices_per_node) <=
                          kMostDevices,
                  "cluster run: ", options.num_nodes, " nodes of ", options.devices_per_node,
                  " devices; at most ", kMostDevices, " devices can be simulated");
  COTERIE_REQUIRE(options.load_spread >= 0 && options.jitter >= 0, "cluster run: load spread ",
                  options.load_spread, ", jitter ", options.jitter);
}

void shift_to_zero(Timeline& timeline) {
  double first_s = timeline.spans.empty() ? 0 : timeline.spans.front().start_s;
  for (const Span& span : timeline.spans) {
    first_s = std::min(first_s, span.start_s);
  }
  for (Span& span : timeline.spans) {
    span.start_s -= first_s;
    span.end_s -= first_s;
  }
}

}  // namespace

ClusterRun simulate_cluster(const Schedule& schedule, std::span<const LayerWork> works,
                            std::span<const LayerPlan> plans, const cost::Contention& contention,
                            const ClusterOptions& options) {
  check(works, plans, options);
  ClusterRun run;
  ClusterSimulation simulation(contention, options);
  std::vector<LayerWork> own;
  for (const LayerWork& work : works) {
    own.push_back(schedule.adapt != nullptr ? schedule.adapt(work) : work);
  }
  const auto drawn_at = [&](std::size_t layer) {
    return static_cast<std::int32_t>(layer) == options.drawn_layer ? &run.drawn : nullptr;
  };
  for (std::size_t layer = 0; layer < own.size(); ++layer) {
    simulation.draw_loads();
    simulation.run_phase(own[layer], plans[layer].forward, Phase::kForward, drawn_at(layer));
    run.even_s += plans[layer].predicted_s();
  }
  run.forward_s = simulation.latest_s();
  for (std::size_t layer = own.size(); layer-- > 0;) {
    simulation.draw_loads();
    simulation.run_phase(own[layer], plans[layer].backward, Phase::kBackward, nullptr);
  }
  run.step_s = simulation.latest_s();
  run.num_tasks = simulation.num_tasks();
  run.drawn.name = std::string(schedule.name);
  shift_to_zero(run.drawn);
  return run;
}

}  // namespace coterie::schedule
