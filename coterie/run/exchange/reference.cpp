// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/reference.hpp"

#include <algorithm>
#include <vector>

namespace coterie::exchange {
namespace {

using kernels::DType;
using kernels::MatrixView;

/// Rounds a row as travelling in `type` would.
void round_row(std::vector<float>& row, DType type) {
  if (type == DType::kBfloat16) {
    for (float& value : row) {
      value = kernels::from_bfloat16(kernels::to_bfloat16(value));
    }
  }
}

/// Writes a row of results in the type of y.
void store_row(const std::vector<float>& row, const MatrixView& y, std::int64_t token) {
  if (y.type == DType::kFloat32) {
    std::copy(row.begin(), row.end(), y.row<float>(token));
  } else {
    std::transform(row.begin(), row.end(), y.row<std::uint16_t>(token), kernels::to_bfloat16);
  }
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
    store_row(result, y, token);
  }
}

}  // namespace coterie::exchange
