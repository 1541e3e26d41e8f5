# SPDX-License-Identifier: Apache-2.0
"""Times the expert layer beside torch's grouped_mm, one shape at a time, after proving it equal.

  python3 measure.py LIBRARY BASELINES [--shapes olmoe,...] [--tokens 1024,...] [--tiles wide,narrow]

BASELINES is the file that holds the peers (routing, weights, grouped_mm plain and with fused glue).
Eager back-to-back calls in groups of about 35 ms, the median of three; systems in two opposite
orders, the two medians averaged; up to 256 tokens, and for our parts, replays of a CUDA graph. bf16,
uniform routing unless --zipf. TFLOP/s count 6 T k d n.
"""
import argparse
import importlib.util
import json
import statistics
import sys
import time

import torch

from ours import DEVICE, Layer, Library
from verify import Lists, compare, fail_unless

BF16 = torch.bfloat16


def load(path):
    spec = importlib.util.spec_from_file_location("baselines", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dense_call(tokens, top_k, gate_up, down):
    """Two plain products of the same work."""
    rows = tokens * top_k
    a = torch.randn(rows, gate_up.shape[2], device=DEVICE).to(BF16)
    b = torch.randn(rows, down.shape[2], device=DEVICE).to(BF16)
    w1, w2 = gate_up.detach()[0].t(), down.detach()[0].t()
    return lambda: (a @ w1, b @ w2)


def parts_us(base, library, layer, x, ids, weights):
    """Device time of each of our steps, each alone in a graph of ten."""
    s = layer.sizes
    lists = Lists(library, s, ids)
    pairs = ids.numel()
    inner = torch.empty(pairs, s.intermediate, device=DEVICE, dtype=BF16)
    rows = torch.empty(pairs, s.hidden, device=DEVICE, dtype=BF16)
    y = torch.empty_like(x)
    memory = torch.empty(128 * s.num_experts * 4, device=DEVICE, dtype=torch.uint8)
    steps = {
        "sort": lambda: library.reindex(s, ids, lists.offsets, lists.row_token, lists.pos_of, memory, None),
        "up": lambda: library.grouped_up(s, x, lists.row_token, lists.offsets, layer.gate_up, inner),
        "down": lambda: library.grouped_down(s, inner, lists.offsets, layer.down, rows),
        "merge": lambda: library.merge_rows(s, rows, lists.pos_of, weights, y, 0),
    }
    return {name: base.graph_ms([step] * 10, groups=3, reps=2) * 1e3 for name, step in steps.items()}


def ceilings(base):
    """Copy (read + write) and read-only rates of 4 GiB in TB/s, and a large dense product."""
    source = torch.empty(2**32, dtype=torch.uint8, device=DEVICE).random_()
    target = torch.empty_like(source)
    copy = 2 * 2**32 / base.loop_ms(lambda: target.copy_(source)) / 1e9
    wide = source.view(torch.int64)
    read = 2**32 / base.loop_ms(lambda: wide.max()) / 1e9
    del target, source, wide
    a, b = (torch.randn(8192, 8192, device=DEVICE).to(BF16) for _ in range(2))
    product = 2 * 8192**3 / base.loop_ms(lambda: a @ b) / 1e9
    print(f"ceilings: copy {copy:.2f} TB/s, read {read:.2f} TB/s (torch max), 8192^3 {product:.0f} TFLOP/s", flush=True)
    return {"copy": copy, "read": read, "product": product}


def measure(base, library, shape, tokens, tiles, zipf, weights_of):
    d, n, experts, k = base.SHAPES[shape]
    gate_up, down = weights_of
    x = torch.randn(tokens, d, device=DEVICE).to(BF16)
    ids, weights = base.routing(tokens, experts, k, 11, zipf)
    ids32, weights32 = ids.to(torch.int32), weights.float()
    layers = {f"ours-{c}": Layer(library, gate_up, down, k, tokens, c) for c in tiles}
    few = min(tokens, 256)  # equality first
    want = base.reference(x[:few], ids[:few], weights[:few], gate_up.detach(), down.detach())
    errors = {}
    for name, layer in layers.items():
        y = torch.full_like(x, float("nan"))
        layer(x, ids32, weights32, out=y)
        fail_unless(bool(torch.isfinite(y).all()), name, "left poison")
        errors[name] = compare(y[:few], want, name)
    calls = {name: (lambda layer=layer: layer(x, ids32, weights32)) for name, layer in layers.items()}
    glue, plain = base.GroupedFused(gate_up, down, k), base.Grouped(gate_up, down, k)
    calls["gmm+glue"] = lambda: glue(x, ids, weights)
    calls["gmm"] = lambda: plain(x, ids, weights)
    calls["dense"] = dense_call(tokens, k, gate_up, down)
    times = {name: [] for name in calls}
    with torch.no_grad():
        for order in (list(calls), list(calls)[::-1]):
            for name in order:
                times[name].append(base.loop_ms(calls[name]))
        graphs = {name: base.graph_ms([calls[name]] * 4, groups=3, reps=3) for name in calls if tokens <= 4096}
        parts = {name: parts_us(base, library, layer, x, ids32, weights32) for name, layer in layers.items()}
    flops = 6 * tokens * k * d * n
    result = {"shape": shape, "tokens": tokens, "zipf": zipf, "errors": errors, "parts_us": parts,
              "ms": {name: statistics.mean(t) for name, t in times.items()}, "runs_ms": times, "graph_ms": graphs}
    print(f"{shape} T={tokens}{' zipf' if zipf else ''}: " + " | ".join(
        f"{name} {t:.3f} ms {flops / t / 1e9:.0f}" + (f" (graph {graphs[name]:.3f} {flops / graphs[name] / 1e9:.0f})" if name in graphs else "")
        for name, t in result["ms"].items()), flush=True)
    for name, part in parts.items():
        up, down_ = 4 * tokens * k * d * n / part["up"] / 1e6, 2 * tokens * k * d * n / part["down"] / 1e6
        print(f"   {name} us: " + ", ".join(f"{step} {us:.1f}" for step, us in part.items()) +
              f"  (up {up:.0f}, down {down_:.0f} TFLOP/s; error {errors[name]:.1e})", flush=True)
    return result


def measure_decode(base, library, shape, tokens, tiles, weights_of):
    """One graph of eight layer calls on eight routings, so that weights come from memory."""
    d, n, experts, k = base.SHAPES[shape]
    gate_up, down = weights_of
    sets = []
    for i in range(base.SETS):
        x = torch.randn(tokens, d, device=DEVICE).to(BF16)
        ids, weights = base.routing(tokens, experts, k, 100 + i, disjoint=i if tokens == 1 else None)
        sets.append((x, ids, weights, ids.to(torch.int32), weights.float()))
    active = statistics.mean(int(s[1].unique().numel()) for s in sets)
    layers = {f"ours-{c}": Layer(library, gate_up, down, k, tokens, c) for c in tiles}
    calls, errors = {}, {}
    for name, layer in layers.items():
        want = base.reference(*sets[0][:3], gate_up.detach(), down.detach())
        y = torch.full_like(sets[0][0], float("nan"))
        layer(sets[0][0], sets[0][3], sets[0][4], out=y)
        errors[name] = compare(y, want, name)
        calls[name] = [lambda s=s, layer=layer: layer(s[0], s[3], s[4]) for s in sets]
    glue = base.GroupedFused(gate_up, down, k)
    calls["gmm+glue"] = [lambda s=s: glue(*s[:3]) for s in sets]
    times = {name: [] for name in calls}
    with torch.no_grad():
        for order in (list(calls), list(calls)[::-1]):
            for name in order:
                times[name].append(base.graph_ms(calls[name]) * 1e3)
    size = active * 3 * d * n * 2
    print(f"{shape} T={tokens} ({active:.1f} experts, {size / 1e6:.0f} MB): " + " | ".join(
        f"{name} {statistics.mean(t):.1f} us {size / statistics.mean(t) / 1e6:.2f} TB/s" for name, t in times.items()), flush=True)
    parts = {name: parts_us(base, library, layer, sets[0][0], *sets[0][3:]) for name, layer in layers.items()}
    for name, part in parts.items():
        print(f"   {name} us: " + ", ".join(f"{step} {us:.1f}" for step, us in part.items()), flush=True)
    return {"shape": shape, "tokens": tokens, "active": active, "errors": errors, "parts_us": parts, "graph_us": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("baselines")
    parser.add_argument("--shapes", default="olmoe,qwen3-30b,v2-lite,mixtral")
    parser.add_argument("--tokens", default="1024,4096,16384")
    parser.add_argument("--tiles", default="automatic")
    parser.add_argument("--zipf", type=float, default=0.0)
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing new after so long")
    arguments = parser.parse_args()
    start = time.time()
    base, library = load(arguments.baselines), Library(arguments.library)
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    results = [{"ceilings": ceilings(base)}]
    for shape in arguments.shapes.split(","):
        weights = base.make_weights(*base.SHAPES[shape][:3], False)
        for tokens in map(int, arguments.tokens.split(",")):
            tokens = min(tokens, 8192) if shape == "mixtral" else tokens
            if time.time() - start > arguments.seconds:
                print("out of time before", shape, tokens, flush=True)
                continue
            tiles = arguments.tiles.split(",")
            if tokens <= 256:
                results.append(measure_decode(base, library, shape, tokens, tiles, weights))
            else:
                results.append(measure(base, library, shape, tokens, tiles, arguments.zipf, weights))
            torch.cuda.empty_cache()
        del weights
        torch.cuda.empty_cache()
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
