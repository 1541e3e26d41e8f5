# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model on WORK/tokens and writes an OlmoeForCausalLM checkpoint to OUT/model.

Sequences are random windows of a domain's token stream; domains are drawn by MIXTURE. The balance
loss is global over the batch and weighs every domain alike, so experts may specialise while the
load over equal parts of all domains stays even. The learning rate warms up, stays, and falls
linearly to zero over the last part of --minutes (or of --steps, where that ends first).
"""

import argparse
import json
import lzma
import math
import time
from pathlib import Path

import numpy as np
import torch

from fast_olmoe import FastOlmoe

MIXTURE = {
    "novels": 0.11,
    "commentary": 0.14,
    "code": 0.40,
    "documentation": 0.26,
    "dictionary": 0.09,
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=Path, default=Path("build/demo_model/tokens"))
    parser.add_argument("--out", type=Path, default=Path("build/demo_model/trained"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--batch", type=int, default=96, help="sequences a step")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=300, help="steps")
    parser.add_argument("--decay", type=float, default=0.5, help="part of the run")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--balance", type=float, default=0.02, help="weight of the balance loss")
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=160)
    parser.add_argument("--inner", type=int, default=32)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def make_config(a):
    from transformers import OlmoeConfig

    return OlmoeConfig(
        vocab_size=4096,
        hidden_size=a.hidden,
        intermediate_size=a.inner,
        num_hidden_layers=a.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        router_aux_loss_coef=a.balance / 8,  # transformers sums over the k picks
        tie_word_embeddings=False,
        pad_token_id=1,
        eos_token_id=0,
        bos_token_id=None,
    )


def load_tokens(folder, split, device):
    streams = {}
    for domain in MIXTURE:
        raw = lzma.decompress((folder / f"{domain}.{split}.xz").read_bytes())
        tokens = np.frombuffer(raw, dtype="<u2").astype(np.int16)  # ids are below 4096
        streams[domain] = torch.from_numpy(tokens).to(device)
    return streams


class Sampler:
    """Random windows [batch, length + 1] and the balance weight of each sequence."""

    def __init__(self, streams, a):
        self.stream = torch.cat(list(streams.values()))
        self.batch, self.length = a.batch, a.length
        device = self.stream.device
        sizes = torch.tensor([len(s) for s in streams.values()], device=device)
        self.first = sizes.cumsum(0) - sizes
        self.room = (sizes - a.length - 1).float()
        self.share = torch.tensor([MIXTURE[d] for d in streams], device=device)
        self.window = torch.arange(a.length + 1, device=device)
        self.generator = torch.Generator(device).manual_seed(a.seed)

    def draw(self):
        domains = torch.multinomial(self.share, self.batch, True, generator=self.generator)
        uniform = torch.rand(self.batch, device=self.stream.device, generator=self.generator)
        starts = self.first[domains] + (uniform * self.room[domains]).long()
        return self.stream[starts[:, None] + self.window].long(), 1 / self.share[domains]


@torch.no_grad()
def evaluate(model, streams, sizes, split, a):
    """Bits per byte and each layer's expert load, a domain, on windows without overlap."""
    model.eval()
    bits, loads = {}, []
    for domain, stream in streams.items():
        num_windows = min((len(stream) - 1) // a.length, 2 * a.batch)
        starts = torch.arange(num_windows, device=stream.device) * a.length
        windows = stream[starts[:, None] + torch.arange(a.length + 1, device=stream.device)].long()
        total, load = 0.0, 0
        for part in windows.split(a.batch):
            loss, _, routes = model(part, torch.ones(len(part), device=part.device))
            total += loss.double().sum().item()
            load = load + torch.stack([r.flatten().bincount(minlength=64) for r in routes])
        size = sizes[f"{domain}.{split}"]
        bytes_seen = size["bytes"] * num_windows * a.length / size["tokens"]
        bits[domain] = round(total / math.log(2) / bytes_seen, 4)
        loads.append(load / load.sum(-1, keepdim=True))
    model.train()
    load = torch.stack(loads).mean(0) * 64
    return bits, [round(v, 2) for v in load.amax(-1).tolist() + load.amin(-1).tolist()]


def learning_rate(a, step, progress):
    return a.rate * min(1.0, (step + 1) / a.warmup, (1.0 - progress) / a.decay + 1e-3)


def make_optimizer(model, a):
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    plain = [p for n, p in model.named_parameters() if p.dim() == 1 or "embed" in n]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    fused = a.device == "cuda"
    return torch.optim.AdamW(
        groups, lr=a.rate, betas=(0.9, 0.95), weight_decay=a.weight_decay, fused=fused
    )


def main():
    a = parse_arguments()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    a.out.mkdir(parents=True, exist_ok=True)
    sizes = json.loads((a.tokens / "sizes.json").read_text())
    sampler = Sampler(load_tokens(a.tokens, "train", a.device), a)
    fit = load_tokens(a.tokens, "fit", a.device)
    model = FastOlmoe(make_config(a), a.dropout).to(a.device)
    if a.device == "cpu":
        model.compute_type = torch.float32
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    optimizer = make_optimizer(model, a)
    run = model if a.no_compile else torch.compile(model)
    log = open(a.out / "train_log.jsonl", "w", encoding="utf-8")
    start, step, evaluations, progress = None, 0, 0, 0.0
    while progress < 1.0:
        tokens, weights = sampler.draw()
        loss, balance, _ = run(tokens, weights)
        loss = loss.mean()
        (loss + a.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(a, step, progress)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if start is None:
            loss.item()  # compiling is not part of the budget
            start = time.time()
        if step % 20 == 0:
            loss.item()
        elapsed = time.time() - start
        progress = max(elapsed / 60 / a.minutes, step / a.steps)
        if progress * a.evaluations >= evaluations + 1 or step == 50 or progress >= 1.0:
            evaluations = int(progress * a.evaluations)
            bits, load = evaluate(model, fit, sizes, "fit", a)
            row = {"step": step, "seconds": round(elapsed, 1), "loss": round(loss.item(), 4)}
            row |= {"balance": round(balance.item(), 4), "bits_per_byte": bits, "load": load}
            row["tokens"] = step * a.batch * a.length
            print(json.dumps(row), file=log, flush=True)
            print(json.dumps(row), flush=True)
            if progress > 0.6:
                model.save_pretrained(a.out / "model")


if __name__ == "__main__":
    main()
