// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/gradient_partition.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

constexpr std::array<std::string_view, 3> kMethodNames = {"greedy", "two_step", "fixed_pieces"};

void check_layers(std::span<const GradientLayer> layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    COTERIE_REQUIRE(std::isfinite(layers[i].bytes) && layers[i].bytes >= 0 &&
                        std::isfinite(layers[i].dense_window_s) && layers[i].dense_window_s >= 0,
                    "gradient partition: layer ", i, " has ", layers[i].bytes,
                    " bytes and a window of ", layers[i].dense_window_s, " s");
  }
}

}  // namespace

std::string_view name_of(GradientMethod method) {
  return kMethodNames.at(static_cast<std::size_t>(method));
}

GradientMethod gradient_method_of(std::string_view name) {
  const auto found = std::ranges::find(kMethodNames, name);
  COTERIE_REQUIRE(found != kMethodNames.end(), "no gradient method is called \"", name,
                  "\"; there are greedy, two_step, fixed_pieces");
  return static_cast<GradientMethod>(found - kMethodNames.begin());
}

Json to_json(const GradientPartition& partition) {
  return {{"dense_bytes", partition.dense_bytes},
          {"moe_bytes", partition.moe_bytes},
          {"last_bytes", partition.last_bytes},
          {"exposed_s", partition.exposed_s}};
}

double exposed_s(std::span<const GradientLayer> layers, const GradientPartition& partition,
                 const cost::CostModel& all_reduce) {
  COTERIE_REQUIRE(
      partition.dense_bytes.size() == layers.size() && partition.moe_bytes.size() == layers.size(),
      "gradient partition: made for ", partition.dense_bytes.size(), " layers instead of ",
      layers.size());
  double exposed = 0;
  double pool = 0;
  double produced = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double moe = partition.moe_bytes[i];
    const double dense = partition.dense_bytes[i];
    COTERIE_REQUIRE(moe >= 0 && dense >= 0 && moe + dense <= pool + 1e-9 * (1 + produced),
                    "gradient partition: layer ", i, " sends ", moe + dense, " bytes where ", pool,
                    " are ready");
    pool += layers[i].bytes - moe - dense;
    produced += layers[i].bytes;
    exposed += moe > 0 ? layers[i].moe_s(all_reduce.time_s(moe)) - layers[i].moe_s(0) : 0;
    exposed += std::max(0.0, all_reduce.time_s(dense) - layers[i].dense_window_s);
  }
  COTERIE_REQUIRE(std::abs(pool - partition.last_bytes) <= 1e-9 * (1 + produced),
                  "gradient partition: ", pool, " bytes are left and ", partition.last_bytes,
                  " are sent last");
  return exposed + all_reduce.time_s(partition.last_bytes);
}

double moe_window_s(const GradientLayer& layer) {
  const double bare_s = layer.moe_s(0);
  const double bound_s = bare_s * (1 + 1e-9);
  double low = 0;
  double high = bare_s;
  if (layer.moe_s(high) <= bound_s) {
    return high;
  }
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (layer.moe_s(middle) <= bound_s ? low : high) = middle;
  }
  return low;
}

GradientPartition partition_gradients(std::span<const GradientLayer> layers,
                                      const cost::CostModel& all_reduce,
                                      const GradientOptions& options) {
  check_layers(layers);
  switch (options.method) {
    case GradientMethod::kGreedy: return partition_greedy(layers, all_reduce);
    case GradientMethod::kTwoStep: return partition_two_step(layers, all_reduce, options.seed);
    case GradientMethod::kFixedPieces:
      COTERIE_REQUIRE(options.piece_bytes > 0, "gradient partition: pieces of ",
                      options.piece_bytes, " bytes");
      return partition_fixed_pieces(layers, all_reduce, options.piece_bytes);
  }
  fail(ErrorCode::kInternal, "gradient partition: no such method");
}

}  // namespace coterie::schedule
