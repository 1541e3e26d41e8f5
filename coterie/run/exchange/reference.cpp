// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/reference.hpp"

#include <vector>

#include "coterie/run/exchange/row_sums.hpp"

namespace coterie::exchange {
namespace {

using kernels::DType;
using kernels::MatrixView;

MatrixView row_view(std::vector<float>& row) {
  const auto columns = static_cast<std::int64_t>(row.size());
  return {row.data(), 1, columns, columns, DType::kFloat32};
}

/// Rounds a row as travelling in `type` would.
void round_row(std::vector<float>& row, DType type) {
  if (type == DType::kFloat32) {
    return;
  }
  std::vector<std::uint16_t> rounded(row.size());
  const auto columns = static_cast<std::int64_t>(row.size());
  const MatrixView view{rounded.data(), 1, columns, columns, type};
  copy_row(row_view(row), 0, view, 0);
  copy_row(view, 0, row_view(row), 0);
}

/// The weight with which a token's expert is served on a device; null if it is not.
const float* weight_on(const TokenRouting& routing, const PlacementIndex& index, std::int64_t token,
                       std::int32_t device, std::int32_t expert) {
  for (std::int32_t i = 0; i < routing.top_k; ++i) {
    if (routing.expert_ids[routing.pick(token, i)] == expert &&
        routing.device(index, token, i) == device) {
      return &routing.weights[routing.pick(token, i)];
    }
  }
  return nullptr;
}

}  // namespace

void reference_exchange(const TokenRouting& routing, const PlacementIndex& index,
                        const ExchangeOptions& options, kernels::ConstMatrixView x,
                        const ExpertFunction& expert_function, MatrixView y) {
  const auto hidden = static_cast<std::size_t>(x.columns);
  const bool is_classical = options.form == ExchangeForm::kPerExpert;
  std::vector<float> out(hidden);
  for (std::int64_t token = 0; token < routing.num_tokens; ++token) {
    std::vector<float> result(hidden, 0.0F);
    for (std::int32_t device = 0; device < index.num_devices(); ++device) {
      std::vector<float> partial(hidden, 0.0F);
      for (const std::int32_t expert : index.experts_of(device)) {
        const float* weight = weight_on(routing, index, token, device, expert);
        if (weight == nullptr) {
          continue;
        }
        expert_function(expert, x, token, out);
        if (is_classical) {
          round_row(out, options.partial_type);
        }
        for (std::size_t c = 0; c < hidden; ++c) {
          partial[c] += *weight * out[c];
        }
      }
      if (!is_classical) {
        round_row(partial, options.partial_type);
      }
      for (std::size_t c = 0; c < hidden; ++c) {
        result[c] += partial[c];
      }
    }
    copy_row(row_view(result), 0, y, token);
  }
}

}  // namespace coterie::exchange
