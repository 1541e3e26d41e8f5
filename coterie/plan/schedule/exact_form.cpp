// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/exact_form.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace coterie::schedule {
namespace {

/// alpha + beta / r: the time of one chunk of r, by the line through the whole and the empty stage.
struct ChunkLine {
  double alpha = 0;
  double beta = 0;  ///< seconds of all tokens, latency left out
  [[nodiscard]] double at(double chunks) const { return alpha + beta / chunks; }
};

ChunkLine line_of(const Stage& stage) {
  if (stage.size <= 0) {
    return {};
  }
  const double alpha = stage.calls * stage.model.alpha_s();
  return {alpha, stage.time_s() - alpha};
}

struct Lines {
  ChunkLine a, g, s, e;
};

Lines lines_of(const PhaseWork& work) {
  const ChunkLine inputs = line_of(work.experts);
  const ChunkLine weights = line_of(work.weights);
  return {line_of(work.dispatch),
          line_of(work.gather),
          line_of(work.scatter),
          {inputs.alpha + weights.alpha, inputs.beta + weights.beta}};
}

/// Each case's time is u r + v / r + w.
struct Hyperbola {
  double u = 0;
  double v = 0;
  double w = 0;
};

std::vector<Hyperbola> cases_of(const Lines& lines, double gradient_s) {
  const auto& [a, g, s, e] = lines;
  return {{2 * a.alpha, 0, 2 * a.beta + gradient_s},
          {e.alpha, 2 * a.beta + g.beta + s.beta, 2 * a.alpha + g.alpha + s.alpha + e.beta},
          {2 * a.alpha, g.beta + s.beta, 2 * a.beta + g.alpha + s.alpha},
          {g.alpha + s.alpha, 2 * a.beta, 2 * a.alpha + g.beta + s.beta}};
}

}  // namespace

ChunkTimes chunk_times(const PhaseWork& work, int num_chunks) {
  const double share = 1.0 / num_chunks;
  return {work.dispatch.time_s(share), work.gather.time_s(share),
          work.experts.time_s(share) + work.weights.time_s(share), work.scatter.time_s(share),
          work.combine.time_s(share)};
}

double exact_two_streams(const ChunkTimes& t, int num_chunks, double gradient_s) {
  const double more = num_chunks - 1;
  const double links = num_chunks * (t.dispatch + t.combine) + gradient_s;
  const double local = t.dispatch + t.gather + more * std::max(t.dispatch, t.gather) + t.scatter +
                       t.combine + more * std::max(t.scatter, t.combine);
  const double through = t.dispatch + t.gather + t.experts + t.scatter + t.combine +
                         more * std::max({t.dispatch, t.gather, t.experts, t.scatter, t.combine});
  return std::max({links, local, through});
}

double exact_one_stream(const ChunkTimes& t, int num_chunks, double gradient_s) {
  const double r = num_chunks;
  const double x = t.dispatch + t.gather;
  const double y = t.scatter + t.combine;
  return std::max({r * (x + y) + gradient_s, x + t.experts + r * y, x + r * t.experts + y,
                   r * x + t.experts + y});
}

double algorithm_1_time(const PhaseWork& work, double gradient_s, double chunks) {
  const Lines lines = lines_of(work);
  const double a = lines.a.at(chunks);
  const double g = lines.g.at(chunks);
  const double s = lines.s.at(chunks);
  const double e = lines.e.at(chunks);
  const double f1 = 2 * chunks * a + gradient_s;
  const double f2 = 2 * a + g + s + chunks * e;
  const double f3 = 2 * chunks * a + g + s;
  const double f4 = 2 * a + chunks * (g + s);
  return std::max({f1, f2, a > g ? f3 : f4});
}

int algorithm_1(const PhaseWork& work, double gradient_s, int most_chunks) {
  const std::vector<Hyperbola> cases = cases_of(lines_of(work), gradient_s);
  std::vector<double> candidates = {1};
  for (const Hyperbola& one : cases) {
    if (one.u > 0 && one.v > 0) {
      candidates.push_back(std::sqrt(one.v / one.u));
    }
    for (const Hyperbola& other : cases) {  // u r^2 + w r + v = 0 of the difference
      const double u = one.u - other.u;
      const double v = one.v - other.v;
      const double w = one.w - other.w;
      const double root = w * w - 4 * u * v;
      if (u != 0 && root >= 0) {
        candidates.push_back((-w + std::sqrt(root)) / (2 * u));
        candidates.push_back((-w - std::sqrt(root)) / (2 * u));
      } else if (u == 0 && w != 0) {
        candidates.push_back(-v / w);
      }
    }
  }
  double best_real = 1;
  double least = algorithm_1_time(work, gradient_s, 1);
  for (const double candidate : candidates) {
    if (std::isfinite(candidate)) {
      const double chunks = std::clamp(candidate, 1.0, static_cast<double>(most_chunks));
      const double time = algorithm_1_time(work, gradient_s, chunks);
      if (time < least) {
        least = time;
        best_real = chunks;
      }
    }
  }
  const int low = static_cast<int>(std::floor(best_real));
  const int high = std::min(most_chunks, low + 1);
  return algorithm_1_time(work, gradient_s, high) < algorithm_1_time(work, gradient_s, low) ? high
                                                                                            : low;
}

}  // namespace coterie::schedule
