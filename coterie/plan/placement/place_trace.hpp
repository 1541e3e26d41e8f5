// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/base/log.hpp"
#include "coterie/plan/placement/placement_file.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// Which rows of a trace a placement is fitted to; the others, if any, are held out.
enum class FitRows {
  kAll,        ///< every row; nothing is held out
  kEven,       ///< even rows of each text (imported CSV: of each file)
  kFirst,      ///< the first half of each domain
  kSequences,  ///< every other text of each domain
};

/// "all", "even-rows", "first-half", "sequences".
std::string_view name_of(FitRows rows);
/// kBadInput lists the names if there is none such.
FitRows fit_rows_of(std::string_view name);
/// The rows of the trace that FitRows fits to, or holds out.
routing::Selection selection_of(FitRows rows, bool held_out);

/// What a layer costs in checkpoint order, by chance, and at best.
struct LayerComparison {
  std::int32_t layer = 0;
  LayerFigures contiguous_fit;
  std::optional<LayerFigures> contiguous_held_out;
  routing::ReplicaBounds bounds;  ///< of the fitted rows and single copies
};

struct PlacedTrace {
  Placement placement;                       ///< figures filled in
  std::vector<LayerComparison> comparisons;  ///< one a layer
};

/// Places every MoE layer of a trace. Layers are read one at a time a thread, so that memory is
/// that of options.num_threads layers; the result does not depend on num_threads. Errors as
/// place_layer; kBadInput too if a layer has no rows.
PlacedTrace place_trace(const routing::Trace& trace, std::string_view algorithm,
                        const PlacementOptions& options, FitRows rows,
                        Progress& progress = NoProgress::instance());

}  // namespace coterie::placement
