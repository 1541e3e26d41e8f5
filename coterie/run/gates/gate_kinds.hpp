// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "coterie/run/gates/gate.hpp"

/// The members of the family, for make_gate alone.
namespace coterie::gates {

std::shared_ptr<Gate> make_topk_softmax_gate(const GateOptions& options);

}  // namespace coterie::gates
