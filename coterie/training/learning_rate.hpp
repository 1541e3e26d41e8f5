// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "coterie/base/json_forward.hpp"

namespace coterie {
class JsonReader;
}

namespace coterie::training {

enum class RateShape : std::uint8_t {
  kConstant,
  kLinear,     ///< falls evenly from the peak to the final rate
  kCosine,     ///< half a cosine from the peak to the final rate
  kTrapezoid,  ///< stays, then falls linearly over the last part of the run
};

/// The learning rate as a function of the step. Steps count from 0.
struct RateSchedule {
  RateShape shape = RateShape::kCosine;
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;
  double final_share = 0;    ///< the last rate as a part of the peak
  double decay_share = 0.5;  ///< kTrapezoid: the part of the run in which the rate falls

  /// With w = warmup_steps, n = num_steps (of the whole run), f = final_share, t = (step - w) / (n
  /// - w) in [0, 1]:
  ///   step < w:   peak (step + 1) / w
  ///   constant:   peak
  ///   linear:     peak (f + (1 - f) (1 - t))
  ///   cosine:     peak (f + (1 - f) (1 + cos(pi t)) / 2)      (arXiv:1608.03983, eq. 5)
  ///   trapezoid:  peak min(1, (step + 1) / w, (1 - step / n) / decay_share + f)
  [[nodiscard]] double at(std::int64_t step, std::int64_t num_steps) const;

  bool operator==(const RateSchedule&) const = default;
};

std::string name_of(RateShape shape);
Json to_json(const RateSchedule& schedule);
/// kBadInput names the key and the value: unknown key, wrong type, out of range.
RateSchedule read_rate_schedule(const JsonReader& reader);

}  // namespace coterie::training
