#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny random models with transformers in fp64, a batch, its loss and all gradients.

For each case: OUT/CASE/ (config.json, safetensors) and OUT/CASE.expected.safetensors with token ids
tokens.N [T] of N sequences, `loss` (mean over all target tokens of all sequences) and every gradient
under the parameter's name in transformers ("gradient folder": OUT/CASE.gradients/model.safetensors).
Exits with 77 where transformers is missing, which ctest counts as skipped.
"""
import hashlib
import shutil
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import save_file
    from transformers import (MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM,
                              Qwen3MoeConfig, Qwen3MoeForCausalLM, logging)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SIZES = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=64, num_experts_per_tok=2, initializer_range=0.15,
             attn_implementation="eager", experts_implementation="eager")
LENGTHS = (13, 1, 29, 8, 8)

CASES = {
    "mixtral": (MixtralForCausalLM, MixtralConfig, dict(
        intermediate_size=24, num_key_value_heads=2, num_local_experts=8, sliding_window=10,
        bos_token_id=None, eos_token_id=None)),
    "mixtral_tied": (MixtralForCausalLM, MixtralConfig, dict(
        intermediate_size=24, num_key_value_heads=4, num_local_experts=8, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None)),
    "olmoe": (OlmoeForCausalLM, OlmoeConfig, dict(
        intermediate_size=24, num_key_value_heads=4, num_experts=8, clip_qkv=1.5, pad_token_id=None,
        eos_token_id=None)),
    "olmoe_norm": (OlmoeForCausalLM, OlmoeConfig, dict(
        intermediate_size=24, num_key_value_heads=2, num_experts=8, norm_topk_prob=True,
        pad_token_id=None, eos_token_id=None)),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, dict(
        intermediate_size=24, moe_intermediate_size=24, num_key_value_heads=2, num_experts=8,
        head_dim=16, norm_topk_prob=True, decoder_sparse_step=1, eos_token_id=None)),
}


def make(name, out):
    model_class, config_class, changes = CASES[name]
    torch.manual_seed(sum(map(ord, name)))
    model = model_class(config_class(**SIZES, **changes)).double().train()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(out / name)
    generator = torch.Generator().manual_seed(7)
    expected = {}
    loss = torch.zeros((), dtype=torch.float64)
    num_targets = 0
    for n, length in enumerate(LENGTHS):
        tokens = torch.randint(model.config.vocab_size, (1, length), generator=generator)
        expected[f"tokens.{n}"] = tokens[0]
        logits = model(tokens, use_cache=False).logits[0]
        loss = loss + torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:],
                                                        reduction="sum")
        num_targets += length - 1
    loss = loss / num_targets
    loss.backward()
    expected["loss"] = loss.detach().reshape(1)
    save_file(expected, out / f"{name}.expected.safetensors")
    folder = out / f"{name}.gradients"
    folder.mkdir()
    save_file({key: parameter.grad.contiguous() for key, parameter in model.named_parameters()},
              folder / "model.safetensors", {"format": "pt"})


def main():
    logging.disable_progress_bar()
    out = Path(sys.argv[1])
    done = out / "done"
    key = hashlib.sha256(repr((Path(__file__).read_bytes(), torch.__version__)).encode()).hexdigest()
    if not (done.exists() and done.read_text() == key):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for name in CASES:
            make(name, out)
        done.write_text(key)
    print(f"{len(CASES)} models in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
