// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/noise.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/select.hpp"

namespace coterie::gates {
namespace {

/// The best expert, weight = its softmax probability: Switch Transformer, eq. (1)-(2). In training
/// the router (not the expert) may see x * uniform(1 - jitter, 1 + jitter), its section 2.4.
class SwitchGate final : public PickingGate {
 public:
  explicit SwitchGate(const GateOptions& options)
      : PickingGate(options), weight_(new_weight("weight", options.num_experts, options.hidden)) {}

 protected:
  at::Tensor logits(const TokenBatch& batch) override {
    const GateOptions& o = options();
    if (o.jitter == 0.0 || !batch.training) {
      return router_linear(batch.x, weight_, o.name, execution());
    }
    const at::Tensor noise = uniform_noise(batch, o.hidden, o.noise_stream);
    const at::Tensor factor =
        (1.0 - o.jitter + 2.0 * o.jitter * noise)
            .to(weight_.options().dtype(
                batch.x.scalar_type() == at::kDouble ? at::kDouble : weight_.scalar_type()));
    return router_linear(batch.x * factor, weight_, o.name, execution());
  }

  Choice choose(const TokenBatch& /*batch*/, const at::Tensor& logits,
                const at::Tensor& /*usable*/) override {
    const at::Tensor ids = select_top_k(logits, 1, execution());
    const at::Tensor probabilities = at::softmax(logits, 1);
    return {ids, probabilities.gather(1, ids), probabilities, {probabilities, probabilities}};
  }

 private:
  at::Tensor weight_;
};

}  // namespace

std::shared_ptr<Gate> make_switch_gate(const GateOptions& options) {
  return std::make_shared<SwitchGate>(options);
}

}  // namespace coterie::gates
