// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/place_trace.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/plan/placement/parallel.hpp"
#include "coterie/plan/placement/place_layer.hpp"
#include "coterie/plan/placement/slots.hpp"

namespace coterie::placement {
namespace {

constexpr std::array<std::pair<FitRows, std::string_view>, 4> kNames = {{
    {FitRows::kAll, "all"},
    {FitRows::kEven, "even-rows"},
    {FitRows::kFirst, "first-half"},
    {FitRows::kSequences, "sequences"},
}};

std::uint64_t hash_of(const routing::ExpertSets& sets) {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(sets.num_experts));
  hash.add(std::as_bytes(std::span(sets.offsets)));
  hash.add(std::as_bytes(std::span(sets.experts)));
  hash.add(std::as_bytes(std::span(sets.tokens)));
  return hash.value();
}

/// One layer's part of the result.
struct LayerResult {
  PlacedLayer placed;
  LayerComparison comparison;
  std::uint64_t fit_hash = 0;
};

LayerResult place_one(const routing::LayerTrace& layer, std::string_view algorithm,
                      const PlacementOptions& options, FitRows rows) {
  const auto fit = routing::select_sets(layer, selection_of(rows, false));
  COTERIE_REQUIRE(fit.num_tokens() > 0, "layer ", layer.layer,
                  ": the trace holds no row to fit a placement to");
  LayerResult result;
  result.fit_hash = hash_of(fit);
  result.placed.layer = layer.layer;
  result.placed.placement = place_layer(fit, algorithm, options, layer.layer);
  result.placed.fit = measure_placement(result.placed.placement, fit);
  const auto contiguous = contiguous_placement(fit.num_experts, options.num_devices);
  result.comparison.layer = layer.layer;
  result.comparison.contiguous_fit = measure_placement(contiguous, fit);
  result.comparison.bounds =
      routing::replica_bounds(fit, even_sizes(fit.num_experts, options.num_devices));
  if (rows != FitRows::kAll) {
    const auto held_out = routing::select_sets(layer, selection_of(rows, true));
    if (held_out.num_tokens() > 0) {
      result.placed.held_out = measure_placement(result.placed.placement, held_out);
      result.comparison.contiguous_held_out = measure_placement(contiguous, held_out);
    }
  }
  return result;
}

}  // namespace

std::string_view name_of(FitRows rows) {
  return std::ranges::find(kNames, rows, &decltype(kNames)::value_type::first)->second;
}

FitRows fit_rows_of(std::string_view name) {
  std::string names;
  for (const auto& [rows, text] : kNames) {
    if (text == name) {
      return rows;
    }
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  fail(ErrorCode::kBadInput, "there are no rows called \"", name, "\": ", names);
}

routing::Selection selection_of(FitRows rows, bool held_out) {
  routing::Selection selection;
  if (rows != FitRows::kAll) {
    selection.part = held_out ? routing::Part::kHeldOut : routing::Part::kFit;
  }
  selection.split = rows == FitRows::kFirst       ? routing::Split::kTime
                    : rows == FitRows::kSequences ? routing::Split::kSequence
                                                  : routing::Split::kParity;
  return selection;
}

PlacedTrace place_trace(const routing::Trace& trace, std::string_view algorithm,
                        const PlacementOptions& options, FitRows rows, Progress& progress) {
  find_algorithm(algorithm);
  const auto& layers = trace.header().layers;
  const auto num_layers = static_cast<std::int32_t>(layers.size());
  const std::int32_t layers_at_once = std::min(options.num_threads, num_layers);
  PlacementOptions inner = options;
  inner.num_threads = std::max(1, options.num_threads / std::max(1, layers_at_once));
  std::vector<LayerResult> results(layers.size());
  std::mutex mutex;  // of trace and progress
  std::int64_t done = 0;
  progress.begin("placing layers", num_layers);
  for_each_index(layers.size(), layers_at_once, [&](std::size_t slot) {
    routing::LayerTrace layer;
    {
      const std::scoped_lock lock(mutex);
      layer = trace.layer(slot);
    }
    results[slot] = place_one(layer, algorithm, inner, rows);
    const std::scoped_lock lock(mutex);
    progress.update(++done);
  });
  progress.end();

  PlacedTrace placed;
  placed.placement.algorithm = algorithm;
  placed.placement.options = options;
  placed.placement.options.num_threads = PlacementOptions{}.num_threads;  // of no consequence
  placed.placement.model_fingerprint = trace.header().model_fingerprint;
  placed.placement.fit_rows = name_of(rows);
  Hash hash;
  for (LayerResult& result : results) {
    hash.add(result.fit_hash);
    placed.placement.layers.push_back(std::move(result.placed));
    placed.comparisons.push_back(std::move(result.comparison));
  }
  placed.placement.trace_fingerprint = hash.hex();
  return placed;
}

}  // namespace coterie::placement
