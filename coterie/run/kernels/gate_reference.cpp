// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "coterie/run/kernels/gate_rows.hpp"

namespace coterie::kernels {

bool gate_row_reference(std::span<const float> logits, bool renormalise,
                        std::span<std::int32_t> ids, std::span<float> weights) {
  if (std::any_of(logits.begin(), logits.end(), [](float v) { return std::isnan(v); })) {
    return false;
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit_of = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit_of(a) > logit_of(b); });
  const double highest = logit_of(order.front());
  if (std::isinf(highest)) {
    return false;
  }
  double sum = 0.0;
  double kept = 0.0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double term = std::exp(static_cast<double>(logit_of(order[i])) - highest);
    sum += term;
    kept += i < ids.size() ? term : 0.0;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = order[i];
    weights[i] = static_cast<float>(std::exp(static_cast<double>(logit_of(order[i])) - highest) /
                                    (renormalise ? kept : sum));
  }
  return true;
}

}  // namespace coterie::kernels
