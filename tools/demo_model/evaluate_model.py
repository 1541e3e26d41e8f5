# SPDX-License-Identifier: Apache-2.0
"""Measures a trained demo model on text that it never saw; prints Markdown tables.

1. Held-out bits per byte a domain against `xz -9e` of the same text.
2. Devices per token (C_T) at 8 devices, contiguous and searched placement: searched on demo/text's
   fit samples within a load cap, measured on the held-out samples.
"""

import argparse
import json
import lzma
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

import placement_check as placement

DEMO_DOMAINS = ("novels", "code", "documentation", "dictionary")


def read_documents(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def cut_windows(ids, context, stride):
    """Yields (window padded to context + 1, first scored position, end of scored positions)."""
    scored, start, num_predictions = 0, 0, len(ids) - 1
    while scored < num_predictions:
        end = min(start + context, num_predictions)
        window = ids[start : end + 1] + [0] * (start + context - end)
        yield window, scored - start, end - start
        scored, start = end, start + stride


@torch.no_grad()
def bits_of_text(model, tokenizer, texts, context=1024, stride=512, batch=16):
    """Bits of all texts; each follows <|endoftext|>; windows overlap by context - stride."""
    windows = []
    for text in texts:
        windows += cut_windows([0] + tokenizer(text)["input_ids"], context, stride)
    total = 0.0
    for start in range(0, len(windows), batch):
        part = windows[start : start + batch]
        ids = torch.tensor([window for window, _, _ in part], device=model.device)
        logits = model(ids[:, :-1]).logits.float().transpose(1, 2)
        loss = F.cross_entropy(logits, ids[:, 1:], reduction="none").double()
        total += sum(row[a:b].sum().item() for row, (_, a, b) in zip(loss, part))
    return total / math.log(2)


@torch.no_grad()
def record_routing(model, tokenizer, text, context=1024):
    """Expert ids [layers, T, k] of consecutive windows."""
    ids = tokenizer(text)["input_ids"]
    rows = []
    for start in range(0, len(ids), context):
        window = torch.tensor([ids[start : start + context]], device=model.device)
        logits = model(window, output_router_logits=True).router_logits
        picks = [x.topk(model.config.num_experts_per_tok).indices for x in logits]
        rows.append(torch.stack(picks).cpu())
    return torch.cat(rows, dim=1).numpy()


def compare_with_xz(model, tokenizer, text_folder):
    print("\n| domain | held-out bytes | documents | xz -9e | model | ratio |")
    print("|---|---|---|---|---|---|")
    for path in sorted(text_folder.glob("*.heldout.jsonl")):
        texts = read_documents(path)
        raw = "\n".join(texts).encode()
        packed = lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)
        num_bytes = sum(len(text.encode()) for text in texts)
        bits = bits_of_text(model, tokenizer, texts) / num_bytes
        by_xz = 8 * len(packed) / len(raw)
        name = path.name.split(".")[0]
        print(
            f"| {name} | {num_bytes:,} | {len(texts)} | {by_xz:.3f} | {bits:.3f} "
            f"| {bits / by_xz:.2f} |",
            flush=True,
        )


def compare_placements(model, tokenizer, demo_text, num_devices=8, load_cap=1.10):
    routes = {
        part: [
            record_routing(model, tokenizer, (demo_text / f"{d}.{part}.txt").read_text("utf-8"))
            for d in DEMO_DOMAINS
        ]
        for part in ("fit", "heldout")
    }
    fit, heldout = (np.concatenate(routes[part], axis=1) for part in ("fit", "heldout"))
    print(f"\n{fit.shape[1]} fit tokens, {heldout.shape[1]} held-out tokens")
    print("| layer | contiguous | searched | ratio | load fit / held-out | hottest | coldest |")
    print("|---|---|---|---|---|---|---|")
    sums = np.zeros(2)
    for layer in range(len(fit)):
        device_of = placement.search(fit[layer], model.config.num_experts, num_devices, load_cap)
        linear = placement.contiguous(model.config.num_experts, num_devices)
        before = placement.devices_per_token(heldout[layer], linear)
        load = np.bincount(fit[layer].ravel(), minlength=model.config.num_experts)
        load = load / load.mean()
        if device_of is None:
            print(f"| {layer} | {before:.3f} | none within the cap | | | {load.max():.2f} | |")
            continue
        after = placement.devices_per_token(heldout[layer], device_of)
        sums += (before, after)
        loads = [placement.imbalance(x[layer], device_of, num_devices) for x in (fit, heldout)]
        print(
            f"| {layer} | {before:.3f} | {after:.3f} | {after / before:.3f} "
            f"| {loads[0]:.3f} / {loads[1]:.3f} | {load.max():.2f} | {load.min():.2f} |",
            flush=True,
        )
    before, after = sums / len(fit)
    print(f"| mean | {before:.3f} | {after:.3f} | {after / before:.3f} | | | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("demo/model"))
    parser.add_argument("--demo-text", type=Path, default=Path("demo/text"))
    parser.add_argument("--text", type=Path, default=Path("build/demo_model/text"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--skip-xz", action="store_true")
    parser.add_argument("--prompt", action="append", default=[])
    a = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    model = model.eval().to(a.device)
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    for prompt in a.prompt:
        torch.manual_seed(0)
        ids = torch.tensor([tokenizer(prompt)["input_ids"]], device=a.device)
        out = model.generate(
            ids, max_new_tokens=80, do_sample=True, temperature=0.7, top_p=0.9, pad_token_id=1
        )
        print("-----\n" + tokenizer.decode(out[0]))
    compare_placements(model, tokenizer, a.demo_text)
    if not a.skip_xz:
        compare_with_xz(model, tokenizer, a.text)


if __name__ == "__main__":
    main()
