// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "coterie/run/gates/gate.hpp"

/// The members of the family, for make_gate alone.
namespace coterie::gates {

std::shared_ptr<Gate> make_topk_softmax_gate(const GateOptions& options);
std::shared_ptr<Gate> make_gshard_gate(const GateOptions& options);
std::shared_ptr<Gate> make_switch_gate(const GateOptions& options);
std::shared_ptr<Gate> make_sigmoid_gate(const GateOptions& options);
std::shared_ptr<Gate> make_deepseek_gate(const GateOptions& options);
std::shared_ptr<Gate> make_xmoe_gate(const GateOptions& options);
std::shared_ptr<Gate> make_expert_choice_gate(const GateOptions& options);
std::shared_ptr<Gate> make_softmoe_gate(const GateOptions& options);

}  // namespace coterie::gates
