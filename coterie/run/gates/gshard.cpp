// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/noise.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/row_functions.hpp"
#include "coterie/run/gates/select.hpp"

namespace coterie::gates {
namespace {

/// weights = softmax(KeepTopK(H, k)), H_i = (x W)_i + N(0, 1) softplus((x W_noise)_i): Shazeer et
/// al. 2017, eq. (3)-(5), as FSMoE calls GShard's gate. Without noise outside training.
class GshardGate final : public PickingGate {
 public:
  explicit GshardGate(const GateOptions& options)
      : PickingGate(options), weight_(new_weight("weight", options.num_experts, options.hidden)) {
    if (options.noise) {
      noise_weight_ = new_weight("noise_weight", options.num_experts, options.hidden);
    }
  }

 protected:
  at::Tensor logits(const TokenBatch& batch) override {
    const GateOptions& o = options();
    const at::Tensor clean = router_linear(batch.x, weight_, o.name, execution());
    if (!o.noise || !batch.training) {
      return clean;
    }
    const at::Tensor width =
        row_softplus(router_linear(batch.x, noise_weight_, o.name, execution()));
    return clean + normal_noise(batch, o.num_experts, o.noise_stream).to(width.options()) * width;
  }

  Choice choose(const TokenBatch& /*batch*/, const at::Tensor& logits,
                const at::Tensor& /*usable*/) override {
    const at::Tensor ids = select_top_k(logits, options().top_k, execution());
    const at::Tensor probabilities = at::softmax(logits, 1);
    return {ids,
            at::softmax(logits.gather(1, ids), 1),
            probabilities,
            {probabilities, probabilities, true}};
  }

 private:
  at::Tensor weight_;
  at::Tensor noise_weight_;
};

}  // namespace

std::shared_ptr<Gate> make_gshard_gate(const GateOptions& options) {
  return std::make_shared<GshardGate>(options);
}

}  // namespace coterie::gates
