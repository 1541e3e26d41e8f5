// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/plan/routing/trace.hpp"

namespace coterie::routing {

/// How rows are parted into those a placement is fitted on and those held out.
enum class Split {
  kTime,      ///< of each domain the first rows are fitted on
  kSequence,  ///< whole sequences, spread evenly over each domain
  kParity,    ///< even positions (of an imported CSV: even rows) are fitted on
};

enum class Part { kAll, kFit, kHeldOut };

/// Which rows of a layer to count. Padding and warm-up rows never take part.
struct Selection {
  Part part = Part::kAll;
  Split split = Split::kParity;
  double fit_share = 0.5;                    ///< of kTime and kSequence, in (0, 1)
  std::optional<std::uint16_t> domain = {};  ///< only this one
  std::uint64_t max_rows = 0;                ///< a random sample of so many rows; 0: all
  std::uint64_t seed = 0;                    ///< of the sample
};

/// Rows that statistics leave out.
struct DroppedRows {
  std::uint64_t padding = 0;
  std::uint64_t warm_up = 0;
  std::uint64_t without_expert = 0;  ///< rows that count but hold no expert at all

  bool operator==(const DroppedRows&) const = default;
};
Json to_json(const DroppedRows& dropped);

DroppedRows count_dropped(const LayerTrace& layer);

/// Numbers of the selected rows, ascending. Deterministic. The split does not depend on `domain`.
std::vector<std::uint32_t> select_rows(const LayerTrace& layer, const Selection& selection);

/// The expert sets of the selected rows. A layer of counted sets has no rows to part: it gives all
/// its sets for kAll and kFit and none for kHeldOut, and `domain` and `max_rows` do not apply.
ExpertSets select_sets(const LayerTrace& layer, const Selection& selection = {});

}  // namespace coterie::routing
