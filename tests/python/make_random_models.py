#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny random models with transformers, and what transformers computes with them.

For each case: OUT/CASE/ (config.json, safetensors), and OUT/CASE.expected.safetensors with token ids
tokens.N [T] of N sequences, logits.N [T, V] (fp32), router ids.L [T', k] and weights.L of each layer
over all sequences. Exits with 77 where transformers is missing, which ctest counts as skipped.
"""
import hashlib
import json
import shutil
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import (AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM, OlmoeConfig,
                              OlmoeForCausalLM, logging)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SIZES = dict(vocab_size=131, hidden_size=48, intermediate_size=40, num_hidden_layers=3,
             num_attention_heads=6, num_key_value_heads=6, max_position_embeddings=256,
             num_experts_per_tok=3, initializer_range=0.15)
LENGTHS = (37, 1, 200, 8)


def olmoe(seed, stored=None, layout=None, **changes):
    return dict(seed=seed, stored=stored, layout=layout, config=OlmoeConfig(
        **{**SIZES, "num_experts": 12, "pad_token_id": None, "eos_token_id": None, **changes}),
        model=OlmoeForCausalLM)


def mixtral(seed, stored=None, layout=None, **changes):
    return dict(seed=seed, stored=stored, layout=layout, config=MixtralConfig(
        **{**SIZES, "num_local_experts": 6, "bos_token_id": None, "eos_token_id": None, **changes}),
        model=MixtralForCausalLM)


CASES = {
    "olmoe_seed0": olmoe(0),
    "olmoe_seed1": olmoe(1),
    "olmoe_norm": olmoe(2, norm_topk_prob=True),
    "olmoe_norm_gqa": olmoe(3, norm_topk_prob=True, num_key_value_heads=2),
    "olmoe_gqa_clip": olmoe(4, num_key_value_heads=3, clip_qkv=0.5),
    "olmoe_bias": olmoe(5, attention_bias=True),
    "olmoe_tied": olmoe(6, tie_word_embeddings=True),
    "olmoe_top1": olmoe(7, num_experts_per_tok=1, norm_topk_prob=True),
    "olmoe_all_experts": olmoe(8, num_experts_per_tok=12),
    "olmoe_sharded": olmoe(9, layout="sharded"),
    "olmoe_fused": olmoe(9, layout="fused"),
    "olmoe_bf16": olmoe(10, stored=torch.bfloat16),
    "olmoe_f16": olmoe(11, stored=torch.float16),
    "olmoe_square": olmoe(12, hidden_size=48, intermediate_size=48, num_experts=300,
                          num_experts_per_tok=8),
    "mixtral_seed0": mixtral(0, num_key_value_heads=2),
    "mixtral_seed1": mixtral(1),
    "mixtral_head_dim": mixtral(2, num_key_value_heads=3, head_dim=20),
    "mixtral_window": mixtral(3, sliding_window=24),
    "mixtral_tied_fused": mixtral(4, tie_word_embeddings=True, layout="fused"),
    "mixtral_theta": mixtral(5, rope_parameters={"rope_theta": 500.0, "rope_type": "default"}),
}


def randomize(model):
    """Norms and biases too: values that would hide a mistake (ones, zeros) go."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)


def fuse(folder):
    """Rewrites per-expert tensors as transformers 5 holds them in memory."""
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    is_mixtral = config["model_type"] == "mixtral"
    count = config.get("num_local_experts", config.get("num_experts"))
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}.{'block_sparse_moe' if is_mixtral else 'mlp'}."
        gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
        take = lambda kind: [tensors.pop(f"{base}experts.{e}.{kind}.weight") for e in range(count)]
        fused = f"model.layers.{layer}.mlp."
        tensors[fused + "experts.gate_up_proj"] = torch.cat(
            [torch.stack(take(gate)), torch.stack(take(up))], dim=1).contiguous()
        tensors[fused + "experts.down_proj"] = torch.stack(take(down))
        tensors[fused + "gate.weight"] = tensors.pop(base + "gate.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def expected_of(model, seed):
    generator = torch.Generator().manual_seed(seed + 1000)
    routers = []
    hooks = [module.register_forward_hook(lambda _, __, out: routers.append((out[2], out[1])))
             for name, module in model.named_modules() if name.endswith(".mlp.gate")]
    num_layers = len(hooks)
    tensors = {}
    chosen = {layer: ([], []) for layer in range(num_layers)}
    for n, length in enumerate(LENGTHS):
        tokens = torch.randint(model.config.vocab_size, (1, length), generator=generator)
        routers.clear()
        with torch.no_grad():
            logits = model(tokens, use_cache=False).logits
        assert len(routers) == num_layers
        tensors[f"tokens.{n}"] = tokens[0]
        tensors[f"logits.{n}"] = logits[0].float().contiguous()
        for layer, (ids, weights) in enumerate(routers):
            chosen[layer][0].append(ids)
            chosen[layer][1].append(weights.float())
    for layer, (ids, weights) in chosen.items():
        tensors[f"ids.{layer}"] = torch.cat(ids).to(torch.int64)
        tensors[f"weights.{layer}"] = torch.cat(weights)
    return tensors


def make(case, name, out):
    torch.manual_seed(case["seed"])
    model = case["model"](case["config"]).eval()
    randomize(model)
    folder = out / name
    if case["stored"]:
        model.to(case["stored"])
    shard = {"max_shard_size": "60KB"} if case["layout"] == "sharded" else {}
    model.save_pretrained(folder, **shard)
    if case["layout"] == "fused":
        fuse(folder)
    # What was stored, computed in fp32.
    reference = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval() \
        if case["layout"] != "fused" else model.float()
    save_file(expected_of(reference, case["seed"]), out / f"{name}.expected.safetensors")


def main():
    logging.disable_progress_bar()
    out = Path(sys.argv[1])
    wanted = sys.argv[2:] or list(CASES)
    done = out / "done"
    key = hashlib.sha256(repr((Path(__file__).read_bytes(), wanted, torch.__version__)).encode()).hexdigest()
    if not (done.exists() and done.read_text() == key):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for name in wanted:
            make(CASES[name], name, out)
        done.write_text(key)
    print(f"{len(wanted)} models in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
