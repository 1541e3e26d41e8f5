// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/measure_cluster.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::layer {
namespace {

using cost::Resource;
using cost::Sample;
using profiling::Nodes;

constexpr std::int64_t kColumns = 128;  ///< fp32: a row of 512 bytes
constexpr int kNumSizes = 9;
constexpr double kSmallest = 4096;
constexpr int kNumTokenCounts = 7;
/// A task that is slower than this beside another one met something else.
constexpr double kLargestFactor = 20;

/// Ascending, each a fixed factor larger than the one before.
std::vector<double> sizes_between(double smallest, double largest, int count) {
  std::vector<double> sizes;
  for (int i = 0; i < count; ++i) {
    sizes.push_back(smallest * std::pow(std::max(1.0, largest / smallest), i / (count - 1.0)));
  }
  return sizes;
}

Json to_json(const std::vector<Sample>& samples) {
  Json list = Json::array();
  for (const Sample& sample : samples) {
    list.push_back({sample.size, sample.time_s});
  }
  return list;
}

std::vector<Sample> samples_from(const Json& list) {
  std::vector<Sample> samples;
  for (const Json& pair : list) {
    samples.push_back({pair.at(0).get<double>(), pair.at(1).get<double>()});
  }
  return samples;
}

/// The four steps of the layer's movement with even rows of a given number of bytes.
class LinkSteps {
 public:
  explicit LinkSteps(const Nodes& nodes)
      : num_devices_(nodes.num_nodes),
        num_shards_(nodes.devices_per_node),
        movement_({nodes.between.get(), num_shards_ > 1 ? nodes.inside.get() : nullptr}) {}

  /// `bytes` that this rank gives.
  void exchange(double bytes) {
    set(bytes);
    movement_.exchange_out(moved_, out_, in_, comm::Purpose::kDispatch);
  }
  /// `bytes` of the gathered output.
  void gather(double bytes) {
    set(bytes / num_shards_);
    movement_.gather(moved_, in_, comm::Purpose::kDispatch);
  }
  /// `bytes` of the input.
  void scatter(double bytes) {
    set(bytes / num_shards_);
    movement_.scatter(moved_, in_, comm::Purpose::kCombine);
  }

 private:
  void set(double bytes) {
    const double row_bytes = kColumns * 4;
    const auto rows = std::max<std::int64_t>(
        1, std::llround(bytes / row_bytes / static_cast<double>(num_devices_)));
    moved_.columns = kColumns;
    moved_.to.assign(static_cast<std::size_t>(num_devices_), rows);
    moved_.from.assign(static_cast<std::size_t>(num_devices_ * num_shards_), rows);
    const auto total = static_cast<std::size_t>(rows * num_devices_ * kColumns * 4);
    out_memory_.resize(std::max(out_memory_.size(), total));
    in_memory_.resize(std::max(in_memory_.size(), total * static_cast<std::size_t>(num_shards_)));
    out_ = std::span(out_memory_).first(total);
    in_ = std::span(in_memory_).first(total * static_cast<std::size_t>(num_shards_));
  }

  int num_devices_;
  int num_shards_;
  exchange::GroupMovement movement_;
  exchange::MovedRows moved_;
  std::vector<std::byte> out_memory_, in_memory_;
  std::span<std::byte> out_, in_;
};

class Measurement {
 public:
  Measurement(comm::Communicator& world, const Nodes& nodes, const ClusterMeasureOptions& options,
              MeasureStore& store, const kernels::Execution& execution, Progress& progress)
      : world_(world),
        nodes_(nodes),
        options_(options),
        store_(store),
        execution_(execution),
        progress_(progress) {}

  cost::ClusterProfile run() {
    cost::ClusterProfile profile;
    profile.name = options_.name;
    profile.source = options_.source;
    profile.num_nodes = nodes_.num_nodes;
    profile.devices_per_node = nodes_.devices_per_node;
    progress_.begin("measure", kNumSteps);
    cost::Engine engine;
    engine.name = world_.name();
    measure_links(engine);
    measure_products(profile);
    measure_contention(profile, engine);
    profile.engines = {engine};
    check(profile);
    progress_.end();
    return profile;
  }

 private:
  static constexpr int kNumSteps = 10;

  /// What `measure` gives, or gave before an interruption.
  template <typename Measure>
  Json once(const std::string& name, const Measure& measure) {
    if (!store_.done.contains(name)) {
      store_.done[name] = measure();
      if (store_.save) {
        store_.save(store_.done);
      }
    }
    progress_.update(++num_done_);
    return store_.done.at(name);
  }

  cost::CostModel fit(const std::string& name, const std::vector<double>& sizes,
                      const std::function<void(double)>& step) {
    const Json samples = once(name, [&] {
      return to_json(profiling::measure_operation(world_, sizes, step, options_.measure));
    });
    return cost::fit_cost_model(samples_from(samples), name);
  }

  /// Equal parts to every rank of the node, on all nodes at once: the world's slowest counts.
  void exchange_inside(double bytes) {
    const auto num_ranks = static_cast<std::size_t>(nodes_.devices_per_node);
    const auto part = static_cast<std::size_t>(bytes) / num_ranks;
    out_.resize(part * num_ranks);
    in_.resize(part * num_ranks);
    const std::vector<std::int64_t> parts(num_ranks, static_cast<std::int64_t>(part));
    nodes_.inside->all_to_all(out_, parts, in_, parts, comm::Purpose::kDispatch);
  }

  void measure_links(cost::Engine& engine) {
    const SyntheticShape& shape = options_.shape;
    const double rows = 4.0 * static_cast<double>(shape.hidden * shape.tokens);
    const double replicas = std::min(nodes_.num_nodes, shape.top_k);
    const double largest = std::max(2 * kSmallest, 1.25 * rows * replicas);
    const auto between = sizes_between(kSmallest, largest, kNumSizes);
    const auto inside = sizes_between(kSmallest, largest * nodes_.devices_per_node, kNumSizes);
    LinkSteps steps(nodes_);
    if (nodes_.num_nodes > 1) {
      engine.exchange = fit("exchange", between, [&](double bytes) { steps.exchange(bytes); });
    } else {
      num_done_ += 1;
    }
    if (nodes_.devices_per_node > 1) {
      engine.all_gather = fit("all_gather", inside, [&](double bytes) { steps.gather(bytes); });
      engine.reduce_scatter =
          fit("reduce_scatter", inside, [&](double bytes) { steps.scatter(bytes); });
      engine.local_exchange =
          fit("local_exchange", inside, [&](double bytes) { exchange_inside(bytes); });
    }
    if (nodes_.num_nodes > 1) {
      const double dense =
          std::max(8 * kSmallest, 16.0 * static_cast<double>(shape.hidden * shape.hidden));
      std::vector<float> tensor;
      engine.all_reduce =
          fit("all_reduce", sizes_between(kSmallest, dense, kNumSizes), [&](double bytes) {
            tensor.resize(static_cast<std::size_t>(bytes / 4));
            parallel::all_reduce(*nodes_.gradients,
                                 {tensor.data(), std::ssize(tensor), parallel::SumType::kFloat32});
          });
    }
  }

  SyntheticShape shape_with(std::int64_t tokens) const {
    SyntheticShape shape = options_.shape;
    shape.tokens = tokens;
    return shape;
  }

  /// Median seconds of E forward, E backward and W on the slowest rank.
  std::array<double, 3> time_experts(SyntheticLayer& layer) {
    std::array<std::vector<double>, 3> times;
    profiling::TimelineRecorder recorder("experts");
    layer.layer().set_plan(step_by_step_plan());
    layer.layer().set_run({nullptr, &recorder, 0, nullptr});
    const std::int32_t warm_ups = options_.measure.warm_ups;
    for (std::int32_t i = 0; i < warm_ups + options_.measure.repeats; ++i) {
      world_.barrier();
      layer.forward();
      world_.barrier();
      layer.backward();
      std::array<double, 3> mine{};
      for (const schedule::Span& span : recorder.take().spans) {
        if (span.kind == schedule::TaskKind::kExperts) {
          mine[span.phase == schedule::Phase::kForward ? 0 : 1] += span.end_s - span.start_s;
        } else if (span.kind == schedule::TaskKind::kWeights) {
          mine[2] += span.end_s - span.start_s;
        }
      }
      for (std::size_t k = 0; k < times.size(); ++k) {
        const double slowest = profiling::largest_of(world_, mine[k]);
        if (i >= warm_ups) {
          times[k].push_back(slowest);
        }
      }
    }
    return {profiling::median_of(times[0]), profiling::median_of(times[1]),
            profiling::median_of(times[2])};
  }

  void measure_products(cost::ClusterProfile& profile) {
    const Json rows = once("products", [&] {
      Json list = Json::array();
      const double tokens = static_cast<double>(options_.shape.tokens);
      for (const double count : sizes_between(tokens / 16, 1.25 * tokens, kNumTokenCounts)) {
        const SyntheticShape shape = shape_with(std::max<std::int64_t>(1, std::llround(count)));
        SyntheticLayer alone(shape, nodes_.num_nodes, nodes_.devices_per_node, execution_);
        const double picks = alone.load().picks;
        // The operations of one of three matrices, as the planner counts them.
        const double size = 2 * picks * static_cast<double>(shape.tokens) *
                            static_cast<double>(shape.hidden * shape.intermediate);
        const auto [forward, inputs, weights] = time_experts(alone);
        list.push_back({size, forward / 3, inputs / 3, weights / 3});
      }
      return list;
    });
    std::vector<Sample> samples;
    std::vector<double> inputs;
    std::vector<double> weights;
    for (const Json& row : rows) {
      samples.push_back({row.at(0).get<double>(), row.at(1).get<double>()});
      inputs.push_back(row.at(2).get<double>() / samples.back().time_s);
      weights.push_back(row.at(3).get<double>() / samples.back().time_s);
    }
    profile.products = cost::fit_cost_model(samples, "products");
    profile.input_gradients = profiling::median_of(inputs);
    profile.weight_gradients = profiling::median_of(weights);
    profile.attention = profile.products;
  }

  /// A task that keeps one resource busy for about pair_s: as many steps on every rank.
  std::function<void()> busy(Resource resource, const cost::ClusterProfile& profile,
                             const cost::Engine& engine, LinkSteps& steps, SyntheticLayer& alone) {
    const SyntheticShape& shape = options_.shape;
    const double bytes = static_cast<double>(shape.hidden * shape.tokens);  // a quarter of D
    const double flops = 2 * alone.load().picks * static_cast<double>(shape.tokens) *
                         static_cast<double>(shape.hidden * shape.intermediate);
    const double step_s = resource == Resource::kInterNode   ? engine.exchange.time_s(bytes)
                          : resource == Resource::kIntraNode ? engine.all_gather.time_s(bytes)
                                                             : 3 * profile.products.time_s(flops);
    const int count = std::clamp(static_cast<int>(std::lround(options_.pair_s / step_s)), 1, 10000);
    return [=, &steps, &alone] {
      for (int i = 0; i < count; ++i) {
        switch (resource) {
          case Resource::kInterNode: steps.exchange(bytes); break;
          case Resource::kIntraNode: steps.gather(bytes); break;
          case Resource::kCompute: alone.forward(); break;
        }
      }
    };
  }

  void measure_contention(const cost::ClusterProfile& profile, cost::Engine& engine) {
    LinkSteps between(nodes_);
    LinkSteps inside(nodes_);
    SyntheticLayer alone(options_.shape, nodes_.num_nodes, nodes_.devices_per_node, execution_);
    const auto steps_of_resource = [&](Resource r) -> LinkSteps& {
      return r == Resource::kInterNode ? between : inside;
    };
    const std::array<std::pair<Resource, Resource>, 3> pairs = {
        {{Resource::kInterNode, Resource::kIntraNode},
         {Resource::kInterNode, Resource::kCompute},
         {Resource::kIntraNode, Resource::kCompute}}};
    for (const auto& [a, b] : pairs) {
      if ((a == Resource::kInterNode && nodes_.num_nodes == 1) ||
          ((a == Resource::kIntraNode || b == Resource::kIntraNode) &&
           nodes_.devices_per_node == 1)) {
        continue;
      }
      const Json times = once(std::string(name_of(a)) + " beside " + std::string(name_of(b)), [&] {
        const cost::PairMeasurement pair = profiling::measure_pair(
            world_, busy(a, profile, engine, steps_of_resource(a), alone),
            busy(b, profile, engine, steps_of_resource(b), alone), options_.measure);
        return Json{pair.alone_a_s, pair.alone_b_s, pair.end_a_s, pair.end_b_s};
      });
      const cost::PairSlowDown slow =
          cost::slow_down_of({times.at(0).get<double>(), times.at(1).get<double>(),
                              times.at(2).get<double>(), times.at(3).get<double>()});
      engine.contention.set(a, b, std::min(slow.a, kLargestFactor));
      engine.contention.set(b, a, std::min(slow.b, kLargestFactor));
    }
  }

  /// A layer of another number of tokens than any that was measured.
  void check(cost::ClusterProfile& profile) {
    SyntheticShape shape =
        shape_with(std::max<std::int64_t>(64, options_.shape.tokens * 3 / 4 / 64 * 64));
    shape.seed = options_.shape.seed + 1;
    SyntheticLayer layer(shape, nodes_, execution_);
    schedule::LayerWork moe = schedule::work_of(layer.block(), layer.load(), profile);
    moe.gradient.size = 0;  // no dense gradients are sent here
    for (const schedule::Schedule* each : {&schedule::kSequential, &schedule::kCoterie}) {
      const schedule::LayerPlan plan =
          schedule::plan_layer(*each, moe, profile.engines.front().contention);
      std::vector<double> times;
      for (std::int32_t i = 0; i < options_.measure.warm_ups + options_.measure.repeats; ++i) {
        const double time_s = time_phases(world_, layer, plan).sum_s();
        if (i >= options_.measure.warm_ups) {
          times.push_back(time_s);
        }
      }
      profile.checks.push_back(
          {"MoE part of " + std::to_string(shape.tokens) + " tokens, " + std::string(each->name),
           cost::check_prediction(plan.moe_s(), profiling::median_of(times))});
    }
    num_done_ = kNumSteps;
    progress_.update(num_done_);
  }

  comm::Communicator& world_;
  const Nodes& nodes_;
  const ClusterMeasureOptions& options_;
  MeasureStore& store_;
  kernels::Execution execution_;
  Progress& progress_;
  int num_done_ = 0;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

}  // namespace

PhaseTimes time_phases(comm::Communicator& world, SyntheticLayer& layer,
                       const schedule::LayerPlan& plan, schedule::Timeline* timeline) {
  profiling::TimelineRecorder recorder("measured", world.rank());
  layer.layer().set_plan(plan);
  layer.layer().set_run({nullptr, &recorder, 0, nullptr});
  world.barrier();
  layer.forward();
  world.barrier();
  layer.backward();
  layer.layer().set_run({});
  const schedule::Timeline taken = recorder.take();
  const auto length = [&](schedule::Phase phase) {
    double start_s = 1e300;
    double end_s = 0;
    for (const schedule::Span& span : taken.spans) {
      if (span.phase == phase) {
        start_s = std::min(start_s, span.start_s);
        end_s = std::max(end_s, span.end_s);
      }
    }
    return profiling::largest_of(world, std::max(0.0, end_s - start_s));
  };
  const PhaseTimes times{length(schedule::Phase::kForward), length(schedule::Phase::kBackward)};
  if (timeline != nullptr) {
    *timeline = taken;
  }
  return times;
}

cost::ClusterProfile measure_cluster(comm::Communicator& world, const Nodes& nodes,
                                     const ClusterMeasureOptions& options, MeasureStore& store,
                                     const kernels::Execution& execution, Progress& progress) {
  return Measurement(world, nodes, options, store, execution, progress).run();
}

}  // namespace coterie::layer
