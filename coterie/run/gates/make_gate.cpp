// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/gates/gate_kinds.hpp"

namespace coterie::gates {

std::shared_ptr<Gate> make_gate(const GateOptions& options) {
  check_gate_options(options);
  switch (options.kind) {
    case GateKind::kTopkSoftmax: return make_topk_softmax_gate(options);
    case GateKind::kGshard: return make_gshard_gate(options);
    case GateKind::kSwitch: return make_switch_gate(options);
    case GateKind::kSigmoid: return make_sigmoid_gate(options);
    case GateKind::kDeepseek: return make_deepseek_gate(options);
    case GateKind::kXmoe: return make_xmoe_gate(options);
    case GateKind::kExpertChoice: return make_expert_choice_gate(options);
    case GateKind::kSoftMoe: return make_softmoe_gate(options);
    case GateKind::kCustom: break;
  }
  fail(ErrorCode::kBadInput, options.name, ": kind is ", name_of(options.kind),
       "; a gate of one's own is made by its class, not by make_gate");
}

}  // namespace coterie::gates
