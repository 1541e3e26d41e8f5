#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/upcycle: a tiny random Llama and the mixtures made of it give equal logits. 77: skipped."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, logging
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOOL = Path(__file__).resolve().parent.parent.parent / "tools/upcycle"
COTERIE = sys.argv[1] if len(sys.argv) > 1 else ""


def upcycle(dense, out, *words):
    return subprocess.run([sys.executable, TOOL, dense, "--out", out, "--dtype", "float32", *words],
                          capture_output=True, text=True)


def logits(folder, tokens):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def main():
    logging.disable_progress_bar()
    torch.manual_seed(3)
    sizes = dict(vocab_size=97, hidden_size=36, intermediate_size=48, num_hidden_layers=3, num_attention_heads=6,
                 num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2, bos_token_id=None,
                 eos_token_id=None)
    tokens = torch.randint(97, (2, 40))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        for tied in (False, True):
            dense = scratch / f"dense{tied}"
            LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied)).save_pretrained(dense)
            wanted = logits(dense, tokens)
            for router in ("equal", "groups"):
                out = scratch / f"moe{tied}{router}"
                done = upcycle(dense, out, "--experts", "16", "--top-k", "4", "--router", router, "--noise", "0")
                assert done.returncode == 0, done.stderr
                error = (logits(out, tokens) - wanted).abs().max() / wanted.abs().max()
                assert error < 2e-5, (tied, router, error)
                if COTERIE:  # our reader takes it too
                    text = subprocess.run([COTERIE, "inspect", out, "--json"], capture_output=True, text=True)
                    assert text.returncode == 0, text.stderr
            other = scratch / f"noisy{tied}"
            done = upcycle(dense, other, "--experts", "16", "--top-k", "4", "--router", "normal")
            assert done.returncode == 0, done.stderr
            assert (logits(other, tokens) - wanted).abs().max() > 1e-3, "experts do not matter"
        recipe = scratch / "recipe.json"
        done = upcycle(dense, scratch / "again", "--experts", "8", "--top-k", "4", "--recipe", recipe, "--data", TOOL)
        assert done.returncode == 0, done.stderr
        assert json.loads(recipe.read_text())["model"]["num_local_experts"] == 8
        for words, part in ((["--experts", "10", "--top-k", "4"], "does not divide"),
                            (["--experts", "10", "--top-k", "5"], "intermediate_size 48")):
            done = upcycle(dense, scratch / "refused", *words)
            assert done.returncode != 0 and part in done.stderr, done.stderr
            assert not (scratch / "refused").exists()
    print("logits equal")


if __name__ == "__main__":
    main()
