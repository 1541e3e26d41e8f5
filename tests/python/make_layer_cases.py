#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes random MoE modules of transformers, and what transformers computes with them.

For each case OUT/CASE.safetensors: x [T, H], the parameters gate.weight, experts.gate_up_proj,
experts.down_proj (and bias [E] where the router has one), y [T, H] (without shared experts), and the gradients
grad.NAME of sum(y * sin(0, 1, 2, ...)). The metadata hold the gate's options and the experts' width.
Exits with 77 where transformers is missing, which ctest counts as skipped.
"""
import json
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import save_file
    from transformers import DeepseekV3Config, MixtralConfig, OlmoeConfig, Qwen3MoeConfig
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

H, I, T = 32, 24, 60


def softmax(block, renormalise):
    return block, dict(kind="topk_softmax", renormalise=renormalise)


def deepseek(E, k, groups, kept, norm, scaling):
    config = DeepseekV3Config(hidden_size=H, moe_intermediate_size=I, n_routed_experts=E, num_experts_per_tok=k,
                              n_group=groups, topk_group=kept, norm_topk_prob=norm, routed_scaling_factor=scaling,
                              n_shared_experts=1)
    return DeepseekV3MoE(config), dict(kind="deepseek", renormalise=norm, selection_bias=True, num_groups=groups,
                                       num_groups_kept=kept, scaling=scaling)


CASES = {
    "mixtral": lambda: softmax(MixtralSparseMoeBlock(MixtralConfig(
        hidden_size=H, intermediate_size=I, num_local_experts=8, num_experts_per_tok=2)), True),
    "olmoe": lambda: softmax(OlmoeSparseMoeBlock(OlmoeConfig(
        hidden_size=H, intermediate_size=I, num_experts=16, num_experts_per_tok=4, norm_topk_prob=False)), False),
    "qwen3_moe": lambda: softmax(Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(
        hidden_size=H, moe_intermediate_size=I, num_experts=12, num_experts_per_tok=3, norm_topk_prob=True)), True),
    "deepseek_v3": lambda: deepseek(16, 4, 4, 2, True, 2.5),
    "deepseek_v3_plain": lambda: deepseek(8, 2, 1, 1, False, 1.0),
}


def make(name, seed):
    torch.manual_seed(seed)
    block, options = CASES[name]()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.3)
    parameters = {key: value for key, value in block.named_parameters() if not key.startswith("shared")}
    tensors = {key: value.detach().clone() for key, value in parameters.items()}
    if hasattr(block.gate, "e_score_correction_bias"):
        block.gate.e_score_correction_bias.normal_(0, 0.2)
        tensors["bias"] = block.gate.e_score_correction_bias.clone()
    x = torch.randn(1, T, H, requires_grad=True)
    y = block(x)
    y = (y[0] if isinstance(y, tuple) else y).view(T, H)
    if hasattr(block, "shared_experts"):
        y = y - block.shared_experts(x).view(T, H)
    (y * torch.sin(torch.arange(T * H, dtype=torch.float32)).view(T, H)).sum().backward()
    tensors.update({"grad." + key: value.grad for key, value in parameters.items()})
    tensors.update({"x": x.detach()[0], "y": y, "grad.x": x.grad[0]})
    options.update(name=name, hidden=H, num_experts=block.gate.weight.shape[0],
                   top_k=block.gate.top_k)
    return ({key: value.detach().contiguous() for key, value in tensors.items()},
            {"options": json.dumps(options), "intermediate": str(I)})


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(CASES):
        tensors, metadata = make(name, number)
        save_file(tensors, out / f"{name}.safetensors", metadata)
    print(f"{len(CASES)} layers in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
