// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/gates/gate_kinds.hpp"

namespace coterie::gates {

std::shared_ptr<Gate> make_gate(const GateOptions& options) {
  check_gate_options(options);
  switch (options.kind) {
    case GateKind::kTopkSoftmax: return make_topk_softmax_gate(options);
    default: break;
  }
  fail(ErrorCode::kUnsupported, options.name, ": a ", name_of(options.kind),
       " gate cannot be made from options");
}

}  // namespace coterie::gates
