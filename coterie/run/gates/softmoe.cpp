// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/run/gates/balance_loss.hpp"
#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/row_functions.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

/// SoftMoE (Puigcerver et al. 2023), eq. (1)-(3), in each sequence: L = x Phi [n, slots]; dispatch
/// = softmax of L over the tokens, combine = softmax of L over the slots. Slot j belongs to expert
/// j / slots_per_expert. With `normalise` (its section 2.3) tokens and slots are L2-normalised and
/// L is multiplied by a learned scale.
class SoftMoeGate final : public Gate {
 public:
  explicit SoftMoeGate(const GateOptions& options)
      : Gate(options),
        num_slots_(static_cast<std::int64_t>(options.num_experts) * options.slots_per_expert),
        weight_(new_weight("weight", num_slots_, options.hidden)) {
    if (options.normalise) {
      scale_ = register_parameter("scale", at::ones({1}, type()));
    }
  }

  [[nodiscard]] bool selects_within_sequence() const override { return true; }

  Routing forward(const TokenBatch& batch) override {
    const GateOptions& o = options();
    check_token_batch(batch, o.hidden, o.name);
    require_whole_sequences(batch, o.name + ": a gate that selects within a sequence");
    Routing routing;
    const at::Tensor raw = logits(batch);
    routing.usable = usable_tokens(batch, raw, routing.statistics);
    routing.logits = at::where(routing.usable.unsqueeze(1), raw, 0.0);
    mix(usable_by_sequence(batch, routing.usable), routing);
    routing.aux_loss =
        balance_loss(batch, {{}, routing.logits, {}, routing.usable, o.num_experts}, o.balance);
    detach_if_frozen(routing);
    return routing;
  }

 private:
  at::Tensor logits(const TokenBatch& batch) {
    const GateOptions& o = options();
    if (!o.normalise) {
      return router_linear(batch.x, weight_, o.name, execution());
    }
    const at::Tensor x = unit_rows(batch.x.to(weight_.scalar_type()));
    return scale_rows(router_linear(x, unit_rows(weight_), o.name, execution()), scale_);
  }

  void mix(const std::vector<std::vector<std::int64_t>>& sequences, Routing& routing) const {
    const GateOptions& o = options();
    const at::Tensor none = at::zeros_like(routing.logits.detach());
    routing.dispatch = none;
    routing.combine = none;
    std::int64_t num_sequences = 0;
    std::vector<at::Tensor> places;
    std::vector<at::Tensor> dispatch;
    std::vector<at::Tensor> combine;
    for (const std::vector<std::int64_t>& tokens : sequences) {
      if (!tokens.empty()) {
        places.push_back(at::tensor(tokens, at::kLong).to(none.device()));
        const at::Tensor rows = routing.logits.index_select(0, places.back());
        dispatch.push_back(at::softmax(rows, 0));
        combine.push_back(at::softmax(rows, 1));
        ++num_sequences;
      }
    }
    routing.statistics.picks_per_expert.assign(static_cast<std::size_t>(o.num_experts),
                                               num_sequences * o.slots_per_expert);
    if (num_sequences > 0) {
      const at::Tensor at = at::cat(places);
      routing.dispatch = none.index_copy(0, at, at::cat(dispatch));
      routing.combine = none.index_copy(0, at, at::cat(combine));
    }
  }

  std::int64_t num_slots_;
  at::Tensor weight_;
  at::Tensor scale_;
};

}  // namespace

std::shared_ptr<Gate> make_softmoe_gate(const GateOptions& options) {
  return std::make_shared<SoftMoeGate>(options);
}

}  // namespace coterie::gates
