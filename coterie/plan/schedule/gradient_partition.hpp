// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/plan/cost/cost.hpp"
#include "coterie/plan/schedule/layer_work.hpp"

namespace coterie::schedule {

/// A generalised layer as gradients see it: one MoE part, then the dense part (backward order).
struct GradientLayer {
  double bytes = 0;           ///< dense gradients that are complete when the layer's backward ends
  double dense_window_s = 0;  ///< all-reduce time that the dense part hides
  /// Seconds of the MoE part with an all-reduce of so many seconds in it, chunks re-planned: flat
  /// up to the MoE window, then rising. Not falling.
  std::function<double(double gradient_s)> moe_s;
};

/// Where the gradients of a whole backward pass are sent. A layer can send what layers before it
/// (in backward order) have produced.
struct GradientPartition {
  std::vector<double> dense_bytes;  ///< [num_layers] beside each dense part
  std::vector<double> moe_bytes;    ///< [num_layers] in each MoE part
  double last_bytes = 0;            ///< after the last layer, beside nothing
  double exposed_s = 0;             ///< time that gradients add to the backward pass

  bool operator==(const GradientPartition&) const = default;
};
Json to_json(const GradientPartition& partition);

/// The layers of a model as gradients see them, from their work (given in forward order; the result
/// is in backward order). A MoE part's time is that of FSMoE's schedule with the best chunk count
/// in 1..most_chunks, by the exact form, or by the simulator where there is contention. The result
/// keeps copies of what it needs.
std::vector<GradientLayer> gradient_layers_of(std::span<const LayerWork> works,
                                              const cost::Contention& contention,
                                              std::int32_t most_chunks = 16);

enum class GradientMethod : std::uint8_t {
  kGreedy,       ///< ours: dense windows, MoE windows, then the remainder where it costs least
  kTwoStep,      ///< FSMoE, section 5.3: windows, then differential evolution for the rest
  kFixedPieces,  ///< Lina: pieces of one size, as soon as there are any
};
/// "greedy", "two_step", "fixed_pieces".
std::string_view name_of(GradientMethod method);
/// kBadInput lists the names if there is none such.
GradientMethod gradient_method_of(std::string_view name);

struct GradientOptions {
  GradientMethod method = GradientMethod::kGreedy;
  double piece_bytes = 30e6;  ///< of kFixedPieces
  std::uint64_t seed = 0;     ///< of kTwoStep

  bool operator==(const GradientOptions&) const = default;
};

/// Partitions the gradients of `layers` (backward order). Every byte is sent exactly once. The same
/// input gives the same bytes on every rank. kBadInput for negative or infinite numbers.
GradientPartition partition_gradients(std::span<const GradientLayer> layers,
                                      const cost::CostModel& all_reduce,
                                      const GradientOptions& options = {});

/// What a partition adds to the backward pass: for each layer what the MoE part grows by and what
/// the dense part's piece takes beyond its window, and the last piece. kBadInput if a layer sends
/// what is not there yet, or bytes are lost.
double exposed_s(std::span<const GradientLayer> layers, const GradientPartition& partition,
                 const cost::CostModel& all_reduce);

/// The largest all-reduce time that a MoE part hides.
double moe_window_s(const GradientLayer& layer);

/// The parts of partition_gradients, one file each.
GradientPartition partition_greedy(std::span<const GradientLayer> layers,
                                   const cost::CostModel& all_reduce);
GradientPartition partition_two_step(std::span<const GradientLayer> layers,
                                     const cost::CostModel& all_reduce, std::uint64_t seed);
GradientPartition partition_fixed_pieces(std::span<const GradientLayer> layers,
                                         const cost::CostModel& all_reduce, double piece_bytes);

}  // namespace coterie::schedule
