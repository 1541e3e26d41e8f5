// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coterie/models/parameter_store.hpp"

namespace coterie::models {

/// x / sqrt(mean(x^2) + eps) * weight along the last axis, computed in at least fp32.
at::Tensor trained_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// The family's norm of rows [T, H]: RMSNorm, or GPT-2's LayerNorm with a bias.
class TrainableNorm : public torch::nn::Module {
 public:
  TrainableNorm(ParameterStore& store, const std::string& prefix);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;  // [H]
  at::Tensor bias_;    // [H], LayerNorm only
  double eps_;
};

}  // namespace coterie::models
