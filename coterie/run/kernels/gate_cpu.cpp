// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "coterie/run/kernels/gate_rows.hpp"

namespace coterie::kernels {
namespace {

/// Puts the ids.size() highest logits in descending order, ties by id: insertion into a short list,
/// where an expert passes only those that are strictly lower. Sound for any number of experts.
void select_highest(std::span<const float> logits, std::span<std::int32_t> ids) {
  const std::size_t k = ids.size();
  std::size_t held = 0;
  for (std::size_t expert = 0; expert < logits.size(); ++expert) {
    const float logit = logits[expert];
    if (held == k && !(logit > logits[static_cast<std::size_t>(ids[k - 1])])) {
      continue;
    }
    std::size_t place = held < k ? held++ : k - 1;
    while (place > 0 && logit > logits[static_cast<std::size_t>(ids[place - 1])]) {
      ids[place] = ids[place - 1];
      --place;
    }
    ids[place] = static_cast<std::int32_t>(expert);
  }
}

}  // namespace

bool gate_row_cpu(std::span<const float> logits, bool renormalise, std::span<std::int32_t> ids,
                  std::span<float> weights) {
  for (const float logit : logits) {
    if (std::isnan(logit)) {
      return false;
    }
  }
  select_highest(logits, ids);
  const float highest = logits[static_cast<std::size_t>(ids[0])];
  if (std::isinf(highest)) {
    return false;
  }
  double kept = 0.0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    weights[i] = std::exp(logits[static_cast<std::size_t>(ids[i])] - highest);
    kept += static_cast<double>(weights[i]);
  }
  double sum = kept;
  if (!renormalise) {
    sum = 0.0;
    for (const float logit : logits) {
      sum += static_cast<double>(std::exp(logit - highest));
    }
  }
  for (float& weight : weights) {
    weight = static_cast<float>(static_cast<double>(weight) / sum);
  }
  return true;
}

}  // namespace coterie::kernels
