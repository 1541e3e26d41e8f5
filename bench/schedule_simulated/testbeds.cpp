// SPDX-License-Identifier: Apache-2.0
#include "bench/schedule_simulated/testbeds.hpp"

namespace coterie::bench {
namespace {

constexpr double kElementBytes = 4;  // fp32 tensors
constexpr double kMilli = 1e-3;

/// Published numbers are milliseconds and milliseconds an element.
cost::CostModel by_element(double alpha_ms, double beta_ms) {
  return {alpha_ms * kMilli, beta_ms * kMilli / kElementBytes};
}
cost::CostModel by_work(double alpha_ms, double beta_ms) {
  return {alpha_ms * kMilli, beta_ms * kMilli};
}

schedule::PhaseWork phase_of(const Testbed& testbed, const GridLayer& layer, bool backward) {
  const double tokens = layer.batch * layer.length;
  const double dense_bytes = tokens * layer.hidden * kElementBytes;
  const double rows_bytes = layer.picks * dense_bytes;
  const double n = testbed.devices_per_node;
  schedule::PhaseWork work;
  work.dispatch = {testbed.exchange, rows_bytes / n};
  work.combine = work.dispatch;
  work.gather = {testbed.all_gather, rows_bytes};
  work.scatter = {testbed.reduce_scatter, rows_bytes};
  const double macs = layer.picks * tokens * layer.hidden * layer.hidden * layer.ratio / n;
  work.experts = {layer.is_mixtral ? testbed.mixtral_experts : testbed.simple_experts,
                  testbed.work_factor * macs,
                  layer.is_mixtral ? testbed.mixtral_calls : testbed.simple_calls};
  work.weights = backward ? work.experts : schedule::Stage{};
  work.dense_gather = {testbed.all_gather, dense_bytes};
  work.dense_scatter = {testbed.reduce_scatter, dense_bytes};
  const double kappa = layer.kv_heads / 32;
  work.attention = {backward ? testbed.attention_backward : testbed.attention_forward,
                    (tokens * layer.hidden * layer.hidden * (2 + 2 * kappa) +
                     2 * tokens * layer.length * layer.hidden) /
                        n};
  return work;
}

}  // namespace

Testbed testbed_a() {
  Testbed testbed;
  testbed.name = "A";
  testbed.devices_per_node = 8;
  testbed.lengths = {512, 1024, 2048};
  testbed.exchange = by_element(2.87e-1, 2.3201445e-6);
  testbed.all_gather = by_element(3.37e-1, 2.3477634e-7);
  testbed.reduce_scatter = by_element(3.95e-1, 2.2171110e-7);
  testbed.all_reduce = by_element(5.11e-1, 4.9511764e-6);
  testbed.simple_experts = by_work(0.7062, 7.657e-11);
  testbed.mixtral_experts = by_work(0.9567, 1.586e-10);
  testbed.work_factor = 2;  // fits of the whole expert by 2 k f B L M H / N
  testbed.attention_forward = by_work(0.82, 1.273e-10);
  testbed.attention_backward = by_work(2.095, 2.175e-10);
  return testbed;
}

Testbed testbed_b() {
  Testbed testbed;
  testbed.name = "B";
  testbed.devices_per_node = 4;
  testbed.lengths = {256, 512, 1024};
  testbed.exchange = by_element(1.75e-1, 4 * 3.06e-7);
  testbed.all_gather = by_element(3.20e-2, 4 * 1.68e-7);
  testbed.reduce_scatter = by_element(3.91e-2, 4 * 1.67e-7);
  testbed.all_reduce = by_element(8.37e-2, 4 * 5.99e-7);
  testbed.simple_experts = by_work(9.24e-2, 3 * 4.42e-11);
  testbed.mixtral_experts = testbed.simple_experts;
  testbed.simple_calls = 2;
  testbed.mixtral_calls = 3;
  testbed.attention_forward = by_work(2.66, 1.326e-10);
  testbed.attention_backward = by_work(5.11, 2.520e-10);
  return testbed;
}

std::vector<GridLayer> grid_of(const Testbed& testbed) {
  std::vector<GridLayer> grid;
  for (const double batch : {1.0, 2.0, 4.0}) {
    for (const double heads : {8.0, 16.0, 32.0}) {
      for (const double length : testbed.lengths) {
        for (const double hidden : {1024.0, 2048.0, 4096.0}) {
          for (const double ratio : {2.0, 3.0, 4.0}) {
            for (const double picks : {1.2, 2.4, 1.0}) {
              for (const bool is_mixtral : {false, true}) {
                grid.push_back({batch, heads, length, hidden, ratio, picks, is_mixtral});
              }
            }
          }
        }
      }
    }
  }
  return grid;
}

schedule::LayerWork work_of(const Testbed& testbed, const GridLayer& layer) {
  schedule::LayerWork work;
  work.forward = phase_of(testbed, layer, false);
  work.backward = phase_of(testbed, layer, true);
  const double elements =
      layer.hidden * layer.hidden * (2 + 2 * layer.kv_heads / 32) / testbed.devices_per_node;
  work.gradient = {testbed.all_reduce, elements * kElementBytes};
  work.devices_per_node = static_cast<std::int32_t>(testbed.devices_per_node);
  return work;
}

}  // namespace coterie::bench
