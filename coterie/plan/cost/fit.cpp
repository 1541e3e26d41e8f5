// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::cost {
namespace {

/// Sum of squares of relative errors of a + b n at the samples.
struct Line {
  double alpha_s = 0;
  double beta_s = 0;
};

Line fit_line(std::span<const Sample> samples) {
  double w = 0;
  double wn = 0;
  double wnn = 0;
  double wt = 0;
  double wnt = 0;
  for (const auto& [size, time] : samples) {
    const double weight = 1 / (time * time);
    w += weight;
    wn += weight * size;
    wnn += weight * size * size;
    wt += weight * time;
    wnt += weight * size * time;
  }
  const double determinant = w * wnn - wn * wn;
  const Line free = {(wnn * wt - wn * wnt) / determinant, (w * wnt - wn * wt) / determinant};
  if (free.beta_s < 0) {
    return {wt / w, 0};
  }
  return free.alpha_s < 0 ? Line{0, wnt / wnn} : free;
}

/// Heights at the knots of the continuous line that meets the samples best, by least squares of
/// relative errors on hat functions (a tridiagonal system); nothing if the samples do not fix it.
std::optional<std::vector<double>> fit_heights(std::span<const Sample> samples,
                                               const std::vector<double>& knots) {
  const std::size_t n = knots.size();
  std::vector<double> diagonal(n, 0);
  std::vector<double> beside(n, 0);  // [i]: between knots i and i + 1
  std::vector<double> right(n, 0);
  for (const auto& [size, time] : samples) {
    const auto next = std::upper_bound(knots.begin() + 1, knots.end() - 1, size);
    const auto i = static_cast<std::size_t>(next - knots.begin()) - 1;
    const double share = (size - knots[i]) / (knots[i + 1] - knots[i]);
    const double weight = 1 / (time * time);
    diagonal[i] += weight * (1 - share) * (1 - share);
    diagonal[i + 1] += weight * share * share;
    beside[i] += weight * share * (1 - share);
    right[i] += weight * (1 - share) * time;
    right[i + 1] += weight * share * time;
  }
  for (std::size_t i = 0; i + 1 < n; ++i) {
    if (!(diagonal[i] > 0)) {
      return std::nullopt;
    }
    const double ratio = beside[i] / diagonal[i];
    const double kept = diagonal[i + 1] - ratio * beside[i];
    if (!(kept > 1e-9 * diagonal[i + 1])) {
      return std::nullopt;
    }
    diagonal[i + 1] = kept;
    right[i + 1] -= ratio * right[i];
  }
  std::vector<double> heights(n);
  for (std::size_t i = n; i-- > 0;) {
    const double later = i + 1 < n ? beside[i] * heights[i + 1] : 0;
    heights[i] = (right[i] - later) / diagonal[i];
  }
  return heights;
}

/// The line through (knots, heights), flattened where it would fall; alpha not negative.
CostModel model_through(const std::vector<double>& knots, std::vector<double> heights,
                        const std::string& what) {
  for (std::size_t i = 1; i < heights.size(); ++i) {
    heights[i] = std::max(heights[i], heights[i - 1]);
  }
  const double first_slope = (heights[1] - heights[0]) / (knots[1] - knots[0]);
  if (heights[0] < first_slope * knots[0]) {  // alpha < 0: pass through the origin instead
    heights[0] = heights[1] * knots[0] / knots[1];
  }
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i + 1 < knots.size(); ++i) {
    const double beta = (heights[i + 1] - heights[i]) / (knots[i + 1] - knots[i]);
    pieces.push_back({i == 0 ? 0 : knots[i], heights[i] - beta * knots[i], beta});
  }
  pieces.front().alpha_s = std::max(0.0, pieces.front().alpha_s);
  return {std::move(pieces), {}, what};
}

double squared_error(const CostModel& model, std::span<const Sample> samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0, [&](double sum, const Sample& s) {
    const double error = model.time_s(s.size) / s.time_s - 1;
    return sum + error * error;
  });
}

std::vector<double> distinct_sizes(std::span<const Sample> samples) {
  std::vector<double> sizes;
  for (const Sample& sample : samples) {
    sizes.push_back(sample.size);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

/// One more bend, where it helps most; the model as it was if none helps.
std::pair<std::vector<double>, CostModel> add_bend(std::span<const Sample> samples,
                                                   const std::vector<double>& sizes,
                                                   std::vector<double> knots, CostModel model,
                                                   const std::string& what) {
  double least = squared_error(model, samples) * 0.75;  // a bend must be worth it
  std::vector<double> best_knots = knots;
  for (std::size_t i = 1; i + 1 < sizes.size(); ++i) {
    if (std::ranges::find(knots, sizes[i]) != knots.end()) {
      continue;
    }
    std::vector<double> tried = knots;
    tried.insert(std::upper_bound(tried.begin(), tried.end(), sizes[i]), sizes[i]);
    const auto heights = fit_heights(samples, tried);
    if (!heights) {
      continue;
    }
    CostModel candidate = model_through(tried, *heights, what);
    const double error = squared_error(candidate, samples);
    if (error < least) {
      least = error;
      best_knots = std::move(tried);
      model = std::move(candidate);
    }
  }
  return {std::move(best_knots), std::move(model)};
}

}  // namespace

FitQuality quality_of(const CostModel& model, std::span<const Sample> samples) {
  FitQuality fit;
  fit.num_points = static_cast<std::int32_t>(samples.size());
  fit.smallest_size = std::numeric_limits<double>::infinity();
  double mean = 0;
  for (const Sample& sample : samples) {
    mean += sample.time_s / static_cast<double>(samples.size());
    fit.smallest_size = std::min(fit.smallest_size, sample.size);
    fit.largest_size = std::max(fit.largest_size, sample.size);
  }
  double residual = 0;
  double total = 0;
  for (const Sample& sample : samples) {
    const double error = model.time_s(sample.size) - sample.time_s;
    residual += error * error;
    total += (sample.time_s - mean) * (sample.time_s - mean);
    fit.largest_relative_error =
        std::max(fit.largest_relative_error, std::abs(error) / sample.time_s);
  }
  fit.r_squared = total > 0 ? 1 - residual / total : residual > 0 ? 0 : 1;
  return fit;
}

CostModel fit_cost_model(std::span<const Sample> samples, const std::string& what,
                         const FitOptions& options) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    COTERIE_REQUIRE(std::isfinite(samples[i].size) && samples[i].size > 0 &&
                        std::isfinite(samples[i].time_s) && samples[i].time_s > 0,
                    what, ": sample ", i, " has size ", samples[i].size, ", time ",
                    samples[i].time_s, " s; both must be positive");
  }
  const std::vector<double> sizes = distinct_sizes(samples);
  COTERIE_REQUIRE(sizes.size() >= 2, what, ": ", sizes.size(),
                  " different sizes measured; a line needs two");
  const Line line = fit_line(samples);
  CostModel model(line.alpha_s, line.beta_s);
  std::vector<double> knots = {sizes.front(), sizes.back()};
  for (std::int32_t pieces = 1; pieces < options.max_pieces; ++pieces) {
    if (quality_of(model, samples).largest_relative_error <= options.tolerance) {
      break;
    }
    const std::size_t before = knots.size();
    std::tie(knots, model) = add_bend(samples, sizes, std::move(knots), std::move(model), what);
    if (knots.size() == before) {
      break;
    }
  }
  return {model.pieces(), quality_of(model, samples), what};
}

SelfCheck check_prediction(double predicted_s, double measured_s) {
  COTERIE_REQUIRE(
      std::isfinite(predicted_s) && predicted_s > 0 && std::isfinite(measured_s) && measured_s > 0,
      "self-check: predicted ", predicted_s, " s, measured ", measured_s,
      " s; both must be positive");
  SelfCheck check{predicted_s, measured_s, std::abs(predicted_s - measured_s) / measured_s,
                  Verdict::kGood};
  check.verdict = check.relative_error > kRefuseError ? Verdict::kRefuse
                  : check.relative_error > kWarnError ? Verdict::kWarn
                                                      : Verdict::kGood;
  return check;
}

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood: return "good";
    case Verdict::kWarn: return "warn";
    case Verdict::kRefuse: return "refuse";
  }
  return "unknown";
}

}  // namespace coterie::cost
