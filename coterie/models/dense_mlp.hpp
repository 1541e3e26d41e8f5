// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coterie/models/parameter_store.hpp"

namespace coterie::models {

/// GPT-2's feed-forward part, its width spread over the model group.
class DenseMlp : public torch::nn::Module {
 public:
  /// kBadInput where the width does not divide by the model group.
  DenseMlp(ParameterStore& store, const std::string& prefix);
  /// x [T, H], all tokens of the data coordinate -> partial sums [T, H], without `output_bias`.
  at::Tensor forward(const at::Tensor& x);
  [[nodiscard]] at::Tensor output_bias() const { return down_->bias; }

 private:
  std::shared_ptr<WeightHolder> up_;    // [H, width here]
  std::shared_ptr<WeightHolder> down_;  // [width here, H]
};

}  // namespace coterie::models
