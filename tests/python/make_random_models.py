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
    import transformers
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


def of_family(name, seed, stored=None, layout=None, **changes):
    """Families whose experts have a width of their own; dense layers and shared experts included."""
    sizes = {**SIZES, "intermediate_size": 56, "moe_intermediate_size": 40, "pad_token_id": None,
             "bos_token_id": None, "eos_token_id": None, **changes}
    return dict(seed=seed, stored=stored, layout=layout,
                config=getattr(transformers, name + "Config")(**sizes),
                model=getattr(transformers, name + "ForCausalLM"))


def qwen2(seed, **changes):
    return of_family("Qwen2Moe", seed, **{"num_experts": 12, "num_key_value_heads": 2,
                                          "shared_expert_intermediate_size": 28, **changes})


def qwen3(seed, **changes):
    return of_family("Qwen3Moe", seed, **{"num_experts": 12, "num_key_value_heads": 3, "head_dim": 16,
                                          "norm_topk_prob": True, **changes})


LATENT = dict(kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, n_shared_experts=2,
              first_k_dense_replace=1, n_routed_experts=12)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
        "beta_fast": 32, "beta_slow": 1}


def deepseek_v2(seed, **changes):
    return of_family("DeepseekV2", seed, **{**LATENT, "q_lora_rank": None, **changes})


def deepseek_v3(seed, **changes):
    return of_family("DeepseekV3", seed, **{**LATENT, "q_lora_rank": 24, "n_group": 4, "topk_group": 2,
                                            "num_mtp_layers": 0, **changes})


def glm4(seed, **changes):
    return of_family("Glm4Moe", seed, **{
        "num_key_value_heads": 2, "head_dim": 16, "n_shared_experts": 1, "n_routed_experts": 12,
        "first_k_dense_replace": 1, "attention_bias": True, "num_mtp_layers": 0, **changes})


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
    "qwen2_seed0": qwen2(0),
    "qwen2_sparse": qwen2(1, num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3],
                          norm_topk_prob=True, qkv_bias=False),
    "qwen3_seed0": qwen3(0),
    "qwen3_bias_fused": qwen3(1, attention_bias=True, mlp_only_layers=[1], layout="fused"),
    "deepseek_seed0": qwen2(2, qkv_bias=False, num_key_value_heads=6, mlp_only_layers=[0],
                            shared_expert_intermediate_size=80, layout="deepseek"),
    "deepseek_v2_lite": deepseek_v2(0, rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}),
    "deepseek_v2_groups": deepseek_v2(1, q_lora_rank=24, topk_method="group_limited_greedy", n_group=4,
                                      topk_group=2, routed_scaling_factor=4.0),
    "deepseek_v2_bias": deepseek_v2(2, q_lora_rank=24, attention_bias=True, routed_scaling_factor=2.0),
    "deepseek_v3_seed0": deepseek_v3(0, rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}),
    "deepseek_v3_plain": deepseek_v3(1, q_lora_rank=None, n_group=1, topk_group=1, rope_interleave=False,
                                     norm_topk_prob=False, first_k_dense_replace=0),
    "deepseek_v3_bf16": deepseek_v3(2, stored=torch.bfloat16),
    "deepseek_v3_fp8": deepseek_v3(3, layout="fp8"),
    "glm4_seed0": glm4(0),
    "glm4_qk_norm": glm4(1, use_qk_norm=True, attention_bias=False, routed_scaling_factor=2.5, n_group=2,
                         topk_group=1, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 5000.0,
                                          "partial_rotary_factor": 0.25}),
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
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.1)


def fuse(folder):
    """Rewrites per-expert tensors as transformers 5 holds them in memory."""
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    is_mixtral = config["model_type"] == "mixtral"
    count = config.get("num_local_experts", config.get("num_experts"))
    for layer in range(config["num_hidden_layers"]):
        if layer in config.get("mlp_only_layers", []):
            continue
        base = f"model.layers.{layer}.{'block_sparse_moe' if is_mixtral else 'mlp'}."
        gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
        take = lambda kind: [tensors.pop(f"{base}experts.{e}.{kind}.weight") for e in range(count)]
        fused = f"model.layers.{layer}.mlp."
        tensors[fused + "experts.gate_up_proj"] = torch.cat(
            [torch.stack(take(gate)), torch.stack(take(up))], dim=1).contiguous()
        tensors[fused + "experts.down_proj"] = torch.stack(take(down))
        tensors[fused + "gate.weight"] = tensors.pop(base + "gate.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class AlwaysOpen(torch.nn.Module):
    """A gate whose sigmoid is 1."""

    def forward(self, x):
        return torch.full_like(x[..., :1], 100.0)


def as_deepseek(model, folder):
    """DeepSeek-V1, which transformers has not: Qwen2-MoE's layers with the shared gate held open."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "shared_expert_gate"):
            layer.mlp.shared_expert_gate = AlwaysOpen()
    tensors = load_file(folder / "model.safetensors")
    save_file({name.replace(".shared_expert.", ".shared_experts."): tensor for name, tensor in tensors.items()
               if "shared_expert_gate" not in name}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = {key: config[key] for key in SIZES if key in config}
    (folder / "config.json").write_text(json.dumps({
        **kept, "model_type": "deepseek", "moe_intermediate_size": 40, "n_routed_experts": 12,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "softmax",
        "norm_topk_prob": False, "rms_norm_eps": config["rms_norm_eps"], "rope_theta": 10000.0,
        "rope_scaling": None, "hidden_act": "silu", "aux_loss_alpha": 0.001, "seq_aux": True}))


BLOCK = 16


def to_fp8(folder):
    """Projections as F8_E4M3 with a scale a block, as DeepSeek-V3 is stored; first with the values that
    these stand for, so that transformers can load the folder. Returns what finishes the job."""
    tensors = load_file(folder / "model.safetensors")
    stored = dict(tensors)
    for name, matrix in tensors.items():
        if "_proj" not in name or not name.endswith(".weight") or matrix.dim() != 2:
            continue
        rows, columns = matrix.shape
        grid = (-(-rows // BLOCK), -(-columns // BLOCK))
        padded = torch.zeros(grid[0] * BLOCK, grid[1] * BLOCK)
        padded[:rows, :columns] = matrix
        blocks = padded.view(grid[0], BLOCK, grid[1], BLOCK)
        scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / 448
        spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
        stored[name] = (matrix / spread).to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scales
        tensors[name] = stored[name].float() * spread
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    def finish():
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                         "weight_block_size": [BLOCK, BLOCK]}
        (folder / "config.json").write_text(json.dumps(config))
    return finish


def bf16_spread(folder, tokens):
    """Largest difference of two attention back ends in bf16, over the largest logit."""
    logits = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=name)
              .eval()(tokens, use_cache=False).logits.float() for name in ("eager", "sdpa")]
    return (logits[0] - logits[1]).abs().max() / logits[0].abs().max()


def expected_of(model, seed):
    generator = torch.Generator().manual_seed(seed + 1000)
    routers = []
    numbers = [int(name.split(".")[2]) for name, _ in model.named_modules() if name.endswith(".mlp.gate")]
    hooks = [module.register_forward_hook(lambda _, __, out: routers.append((out[2], out[1])))
             for name, module in model.named_modules() if name.endswith(".mlp.gate")]
    tensors = {}
    chosen = {layer: ([], []) for layer in numbers}
    for n, length in enumerate(LENGTHS):
        tokens = torch.randint(model.config.vocab_size, (1, length), generator=generator)
        routers.clear()
        with torch.no_grad():
            logits = model(tokens, use_cache=False).logits
        assert len(routers) == len(numbers)
        tensors[f"tokens.{n}"] = tokens[0]
        tensors[f"logits.{n}"] = logits[0].float().contiguous()
        for layer, (ids, weights) in zip(numbers, routers):
            chosen[layer][0].append(ids)
            chosen[layer][1].append(weights.float())
    for hook in hooks:
        hook.remove()
    for n in (0, 3):  # and what greedy decoding with a cache makes of two prompts
        prompt = tensors[f"tokens.{n}"][None]
        with torch.no_grad():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12,
                                 do_sample=False, pad_token_id=0)
        tensors[f"greedy.{n}"] = out[0, prompt.shape[1]:].contiguous()
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
    finish = lambda: None
    if case["layout"] == "fused":
        fuse(folder)
    elif case["layout"] == "deepseek":
        as_deepseek(model, folder)
    elif case["layout"] == "fp8":
        finish = to_fp8(folder)
    # What was stored, computed in fp32.
    reference = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval() \
        if case["layout"] not in ("fused", "deepseek") else model.float()
    tensors = expected_of(reference, case["seed"])
    if case["stored"] == torch.bfloat16:
        with torch.no_grad():
            tensors["bf16_spread"] = bf16_spread(folder, tensors["tokens.2"][None]).reshape(1)
    finish()
    save_file(tensors, out / f"{name}.expected.safetensors")


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
