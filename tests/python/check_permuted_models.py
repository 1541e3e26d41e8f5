#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds transformers' logits of permuted models against those of the originals.

PERMUTED/NAME was made from RANDOM/NAME, whose logits are in RANDOM/NAME.expected.safetensors. They
must agree to 1e-6 of the largest logit, and the experts really have moved. Exits with 77 without
transformers.
"""
import sys
from pathlib import Path

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, logging
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LIMIT = 1e-6


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})
    return found


def difference(folder, expected):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    worst = 0.0
    n = 0
    while f"tokens.{n}" in expected:
        with torch.no_grad():
            logits = model(expected[f"tokens.{n}"].unsqueeze(0), use_cache=False).logits[0]
        wanted = expected[f"logits.{n}"]
        worst = max(worst, ((logits - wanted).abs().max() / wanted.abs().max()).item())
        n += 1
    assert n > 0
    return worst


def main():
    logging.disable_progress_bar()
    random, permuted = Path(sys.argv[1]), Path(sys.argv[2])
    folders = sorted(path for path in permuted.iterdir() if path.is_dir())
    if not folders:
        print("skipped: no permuted models")
        return 77
    failed = False
    for folder in folders:
        before, after = tensors_of(random / folder.name), tensors_of(folder)
        assert before.keys() == after.keys(), folder
        moved = sum(not torch.equal(before[name], after[name]) for name in before)
        worst = difference(folder, load_file(random / f"{folder.name}.expected.safetensors"))
        failed |= worst > LIMIT or moved < 5
        print(f"{folder.name:18} {moved:4} of {len(before)} tensors moved, "
              f"max |difference| = {worst:.2e} of max |logit|")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
