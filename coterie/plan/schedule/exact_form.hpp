// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/plan/schedule/layer_work.hpp"

namespace coterie::schedule {

/// Seconds of one chunk's steps, all chunks equal.
struct ChunkTimes {
  double dispatch = 0;
  double gather = 0;
  double experts = 0;
  double scatter = 0;
  double combine = 0;
};

/// Of one of `num_chunks` equal chunks.
ChunkTimes chunk_times(const PhaseWork& work, int num_chunks);

/// Exact time of the MoE part with two communication streams in FIFO order and a gradient of
/// `gradient_s` seconds between the last D and the first C, without contention:
///   max { r(d + c) + G,  [d + g + (r-1)max(d,g)] + [s + c + (r-1)max(s,c)],
///         d + g + e + s + c + (r-1)max(d,g,e,s,c) }
/// The longest paths of the dependency graph; FSMoE's four cases are this with d = c and g = s.
double exact_two_streams(const ChunkTimes& times, int num_chunks, double gradient_s);

/// The same with one communication stream (D1 AG1) .. (Dr AGr) G (RS1 C1) .. (RSr Cr), x = d + g
/// and y = s + c: max { r(x + y) + G,  x + e + ry,  x + re + y,  rx + e + y } (PipeMoE).
double exact_one_stream(const ChunkTimes& times, int num_chunks, double gradient_s);

/// FSMoE's Algorithm 1 (section 4.3): the chunk count whose predicted time is smallest, where the
/// prediction is the largest of the four cases' f1, f2, f3 (if a > g) or f4. Found at the cases'
/// stationary points and crossings over real r, then rounded to the better neighbour in
/// [1, most_chunks]. It knows neither that C may cost other than D nor contention, and tests t_rs
/// only within f2 and f4.
int algorithm_1(const PhaseWork& work, double gradient_s, int most_chunks);

/// The paper's prediction for `chunks` (real) equal chunks: max(f1, f2, a > g ? f3 : f4).
double algorithm_1_time(const PhaseWork& work, double gradient_s, double chunks);

}  // namespace coterie::schedule
