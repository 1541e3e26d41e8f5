// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/trainable_norm.hpp"

namespace coterie::models {

at::Tensor trained_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (x.is_cuda() && x.scalar_type() != at::kDouble) {  // one kernel, rounds once
    return at::rms_norm(x, weight.sizes(), weight, eps);
  }
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor wide = x.to(type);
  const at::Tensor normal = wide * at::rsqrt(wide.pow(2).mean(-1, true) + eps);
  return normal.to(x.scalar_type()) * weight;
}

TrainableNorm::TrainableNorm(ParameterStore& store, const std::string& prefix)
    : weight_(store.add_whole(*this, prefix, "weight", {store.config.model.hidden_size},
                              Beginning::kOnes)),
      eps_(store.config.model.rms_norm_eps) {
  if (store.config.is_gpt2()) {
    bias_ =
        store.add_whole(*this, prefix, "bias", {store.config.model.hidden_size}, Beginning::kZeros);
  }
}

at::Tensor TrainableNorm::forward(const at::Tensor& x) {
  return bias_.defined() ? at::layer_norm(x, weight_.sizes(), weight_, bias_, eps_)
                         : trained_rms_norm(x, weight_, eps_);
}

}  // namespace coterie::models
