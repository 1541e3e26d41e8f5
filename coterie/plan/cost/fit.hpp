// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "coterie/plan/cost/cost_model.hpp"

namespace coterie::cost {

/// A measured operation.
struct Sample {
  double size = 0;    ///< bytes or floating-point operations, > 0
  double time_s = 0;  ///< > 0

  bool operator==(const Sample&) const = default;
};

struct FitOptions {
  /// One line is kept if no point is further off than this; else pieces are added.
  double tolerance = 0.05;
  std::int32_t max_pieces = 4;
};

/// Fits time = alpha + size beta by least squares of the *relative* error (a small transfer counts
/// as much as a large one), alpha and beta not negative. Where one line misses a point by more than
/// the tolerance, a continuous line of up to `max_pieces` pieces, bent at measured sizes and not
/// falling, is fitted instead: the bend that takes most of the squared error away comes first.
/// Points may repeat a size. kBadInput naming `what` for fewer than two different sizes and for
/// sizes or times that are not positive.
CostModel fit_cost_model(std::span<const Sample> samples, const std::string& what,
                         const FitOptions& options = {});

/// How well `model` meets the samples.
FitQuality quality_of(const CostModel& model, std::span<const Sample> samples);

/// What a prediction of something that was not fitted to says about a profile.
enum class Verdict {
  kGood,
  kWarn,    ///< off by more than 10%: say so
  kRefuse,  ///< off by more than 25%: plans made from this profile mean nothing
};

struct SelfCheck {
  double predicted_s = 0;
  double measured_s = 0;
  double relative_error = 0;  ///< |predicted - measured| / measured
  Verdict verdict = Verdict::kGood;

  bool operator==(const SelfCheck&) const = default;
};

inline constexpr double kWarnError = 0.10;
inline constexpr double kRefuseError = 0.25;

/// kBadInput if a time is not positive.
SelfCheck check_prediction(double predicted_s, double measured_s);

/// "good", "warn", "refuse".
std::string_view name_of(Verdict verdict);

}  // namespace coterie::cost
