#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes random inputs of transformers' routers, and what transformers computes with them.

For each case OUT/CASE.safetensors: x [T, H], weight [E, H], bias [E] (where the router has one), mask [T]
(int64: 0 is padding), logits [T, E], dense [T, E] (routing weights at their experts), aux (balance loss of
the batch over real tokens), aux_sequences (its mean over the sequences), and the gradients grad_x and
grad_weight of sum(dense * direction over real tokens) + 0.5 * aux. The metadata hold the gate's options as
Coterie reads them. Exits with 77 where transformers is missing, which ctest counts as skipped.
"""
import json
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import save_file
    from transformers import DeepseekV3Config, MixtralConfig, OlmoeConfig, Qwen3MoeConfig
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
    from transformers.models.mixtral import modeling_mixtral
    from transformers.models.olmoe import modeling_olmoe
    from transformers.models.qwen3_moe import modeling_qwen3_moe
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SEQUENCES, LENGTH = 4, 25


def mixtral(E, k):
    config = MixtralConfig(hidden_size=32, num_local_experts=E, num_experts_per_tok=k)
    return (modeling_mixtral.MixtralTopKRouter(config), modeling_mixtral.load_balancing_loss_func,
            dict(kind="topk_softmax", renormalise=True))


def olmoe(E, k, norm):
    config = OlmoeConfig(hidden_size=32, num_experts=E, num_experts_per_tok=k, norm_topk_prob=norm)
    return (modeling_olmoe.OlmoeTopKRouter(config), modeling_olmoe.load_balancing_loss_func,
            dict(kind="topk_softmax", renormalise=norm))


def qwen3(E, k, norm):
    config = Qwen3MoeConfig(hidden_size=32, num_experts=E, num_experts_per_tok=k, norm_topk_prob=norm)
    return (modeling_qwen3_moe.Qwen3MoeTopKRouter(config), modeling_qwen3_moe.load_balancing_loss_func,
            dict(kind="topk_softmax", renormalise=norm))


def deepseek(E, k, groups, kept, norm, scaling):
    config = DeepseekV3Config(hidden_size=32, n_routed_experts=E, num_experts_per_tok=k, n_group=groups,
                              topk_group=kept, norm_topk_prob=norm, routed_scaling_factor=scaling)
    return (DeepseekV3TopkRouter(config), None,
            dict(kind="deepseek", renormalise=norm, selection_bias=True, num_groups=groups,
                 num_groups_kept=kept, scaling=scaling))


CASES = {
    "mixtral_8_2": lambda: mixtral(8, 2),
    "mixtral_5_5": lambda: mixtral(5, 5),
    "olmoe_64_8": lambda: olmoe(64, 8, False),
    "olmoe_64_8_norm": lambda: olmoe(64, 8, True),
    "olmoe_300_1": lambda: olmoe(300, 1, False),
    "qwen3_128_8_norm": lambda: qwen3(128, 8, True),
    "qwen3_12_3": lambda: qwen3(12, 3, False),
    "deepseek_256_8": lambda: deepseek(256, 8, 8, 4, True, 2.5),
    "deepseek_16_4": lambda: deepseek(16, 4, 4, 1, False, 1.0),
    "deepseek_8_2_one_group": lambda: deepseek(8, 2, 1, 1, True, 1.5),
}


def make(name, seed):
    torch.manual_seed(seed)
    router, balance_loss, options = CASES[name]()
    E, k, T = router.num_experts, router.top_k, SEQUENCES * LENGTH
    with torch.no_grad():
        router.weight.normal_(0, 0.4)
    tensors = {}
    if hasattr(router, "e_score_correction_bias"):
        router.e_score_correction_bias.normal_(0, 0.2)
        tensors["bias"] = router.e_score_correction_bias.clone()
    x = torch.randn(T, 32, requires_grad=True)
    # Left padding: 0, 1, 2 and 20 tokens of it.
    padding = torch.tensor([0, 1, 2, 20])
    mask = (torch.arange(LENGTH)[None, :] >= padding[:, None]).long()
    logits, weights, ids = router(x)
    dense = torch.zeros(T, E).scatter(1, ids, weights.float())
    direction = torch.sin(torch.arange(T * E, dtype=torch.float32)).view(T, E)
    loss = (dense * direction * mask.view(T, 1)).sum()
    if balance_loss is not None:
        tensors["aux"] = balance_loss((logits,), E, k, mask)
        tensors["aux_sequences"] = torch.stack(
            [balance_loss((one,), E, k, mask[s:s + 1])
             for s, one in enumerate(logits.view(SEQUENCES, LENGTH, E))]).mean()
        loss = loss + 0.5 * tensors["aux"]
    loss.backward()
    tensors.update(x=x, weight=router.weight, mask=mask.view(T), logits=logits, dense=dense,
                   grad_x=x.grad, grad_weight=router.weight.grad)
    options.update(name=name, hidden=32, num_experts=E, top_k=k)
    return ({key: value.detach().contiguous() for key, value in tensors.items()},
            {"options": json.dumps(options), "sequence_length": str(LENGTH)})


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(CASES):
        tensors, metadata = make(name, number)
        save_file(tensors, out / f"{name}.safetensors", metadata)
    print(f"{len(CASES)} routers in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
