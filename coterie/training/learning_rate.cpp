// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "coterie/base/error.hpp"
#include "coterie/training/strict_object.hpp"

namespace coterie::training {
namespace {

const std::vector<std::string>& shape_names() {
  static const std::vector<std::string> names = {"constant", "linear", "cosine", "trapezoid"};
  return names;
}

constexpr std::int64_t kMaxSteps = std::int64_t{1} << 40U;

}  // namespace

double RateSchedule::at(std::int64_t step, std::int64_t num_steps) const {
  const auto now = static_cast<double>(step);
  const auto warmup = static_cast<double>(warmup_steps);
  const auto total = static_cast<double>(num_steps);
  const double risen = warmup_steps > 0 ? std::min(1.0, (now + 1) / warmup) : 1.0;
  if (shape == RateShape::kTrapezoid) {
    return peak * std::min(risen, std::max(0.0, 1 - now / total) / decay_share + final_share);
  }
  if (step < warmup_steps || shape == RateShape::kConstant) {
    return peak * risen;
  }
  const double left = total > warmup ? std::clamp((now - warmup) / (total - warmup), 0.0, 1.0) : 1;
  const double height =
      shape == RateShape::kLinear ? 1 - left : (1 + std::cos(std::numbers::pi * left)) / 2;
  return peak * (final_share + (1 - final_share) * height);
}

std::string name_of(RateShape shape) {
  return shape_names().at(static_cast<std::size_t>(shape));
}

Json to_json(const RateSchedule& schedule) {
  return {{"shape", name_of(schedule.shape)},
          {"peak", schedule.peak},
          {"warmup_steps", schedule.warmup_steps},
          {"final_share", schedule.final_share},
          {"decay_share", schedule.decay_share}};
}

RateSchedule read_rate_schedule(const JsonReader& reader) {
  RateSchedule schedule;
  StrictObject object(reader);
  auto shape = static_cast<std::size_t>(schedule.shape);
  object.read_choice("shape", shape, shape_names());
  schedule.shape = static_cast<RateShape>(shape);
  object.read("peak", schedule.peak, 0, 1e6);
  object.read("warmup_steps", schedule.warmup_steps, 0, kMaxSteps);
  object.read("final_share", schedule.final_share, 0, 1);
  object.read("decay_share", schedule.decay_share, 1e-9, 1);
  object.finish();
  return schedule;
}

}  // namespace coterie::training
