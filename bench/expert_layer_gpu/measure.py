# SPDX-License-Identifier: Apache-2.0
"""Times the forward expert layer of one shape beside its peers, after proving it equal.

  python3 measure.py LIBRARY BASELINES SHAPE --out FILE [--cases 16384,16384:zipf,4096:one] [--kernels auto]

A case is tokens[:routing]: uniform, zipf (popularity rank^-1.1), one (every token on one expert, k = 1).
Each case is a line of FILE; cases that FILE holds already are left out, so that a broken run goes on
where it stopped. BASELINES is the file with the peers, their routing and timers.

Up to 256 tokens: one CUDA graph of eight layer calls on eight routings (seeds 100 to 107, one token:
disjoint experts), so that weights come from memory; above: eager calls back to back in groups of 35
ms, the median of three. All systems in two opposite orders, the two medians averaged. bf16;
TFLOP/s count 6 T k d n; floor = the larger of FLOPs over a large product's rate and bytes over the
read-only rate, both of this run.
"""
import argparse
import hashlib
import importlib.util
import json
import os
import statistics
import sys
import time

import torch

from ours import DEVICE, PATHS, Layer, Library
from verify import Lists, compare, fail_unless

BF16 = torch.bfloat16
SMALL = 256
CASES = "1,4,16,64,256,1024,4096,16384,65536,16384:zipf,4096:zipf,16384:one"
MIXTRAL_CASES = "1,4,16,64,256,1024,4096,8192,65536,8192:zipf,8192:one"


def load(path):
    spec = importlib.util.spec_from_file_location("baselines", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def dense_call(rows, gate_up, down):
    """Two plain products of the same work."""
    a = torch.randn(rows, gate_up.shape[2], device=DEVICE).to(BF16)
    b = torch.randn(rows, down.shape[2], device=DEVICE).to(BF16)
    w1, w2 = gate_up.detach()[0].t(), down.detach()[0].t()
    return lambda: (a @ w1, b @ w2)


def routings(base, case, shape, seeds):
    """(x, ids, weights) for each seed."""
    d, _, experts, k = base.SHAPES[shape]
    tokens, kind = case
    found = []
    for seed in seeds:
        x = torch.randn(tokens, d, device=DEVICE).to(BF16)
        if kind == "one":
            ids = torch.full((tokens, 1), 5 % experts, device=DEVICE)
            weights = torch.ones(tokens, 1, device=DEVICE, dtype=BF16)
        else:
            disjoint = seed - 100 if tokens == 1 else None
            ids, weights = base.routing(tokens, experts, k, seed, 1.1 if kind == "zipf" else 0.0, disjoint=disjoint)
        found.append((x, ids, weights))
    return found


def peers_of(base, gate_up, down, k, tokens, names):
    """Systems of BASELINES that load here, by name; what does not load says why."""
    makers = {"gmm+glue": lambda: base.GroupedFused(gate_up, down, k), "gmm": lambda: base.Grouped(gate_up, down, k),
              "hf-gmm": lambda: base.HF(gate_up, down, k, "grouped_mm"), "vllm": lambda: base.VLLM(gate_up, down, k)}
    if tokens <= 64:
        makers["hf-bmm"] = lambda: base.HF(gate_up, down, k, "batched_mm")
    peers = {}
    if tokens * k * gate_up.shape[1] >= 2**31:
        del makers["vllm"]  # its offsets are 32-bit: it reads outside of its memory and takes the process with it
    for name, make in makers.items():
        if names and name not in names:
            continue
        try:
            peers[name] = make()
        except Exception as error:  # a peer that is absent is a row less, not a failure
            print(f"   without {name}: {type(error).__name__} {str(error)[:100]}", flush=True)
    return peers


def best_vllm(base, peer, call, timer, configurations):
    """The fastest of its default and some tile configurations, which stays set."""
    best = (timer(call), None)
    for configuration in configurations:
        peer.set(configuration)
        try:
            best = min(best, (timer(call), configuration), key=lambda pair: pair[0])
        except Exception as error:
            print("   vllm", list(configuration.values()), type(error).__name__, flush=True)
    peer.set(best[1])
    return best[1]


def parts_us(base, library, layer, x, ids, weights):
    """Device time of each of our steps, each alone in a graph of ten."""
    s = layer.sizes
    lists = Lists(library, s, ids)
    inner = torch.empty(ids.numel(), s.intermediate, device=DEVICE, dtype=BF16)
    rows = torch.empty(ids.numel(), s.hidden, device=DEVICE, dtype=BF16)
    y = torch.empty_like(x)
    memory = torch.empty(128 * s.num_experts * 4, device=DEVICE, dtype=torch.uint8)
    steps = {
        "sort": lambda: library.reindex(s, ids, lists.offsets, lists.row_token, lists.pos_of, memory, None),
        "up": lambda: library.grouped_up(s, x, lists.row_token, lists.offsets, layer.gate_up, inner),
        "down": lambda: library.grouped_down(s, inner, lists.offsets, layer.down, rows),
        "merge": lambda: library.merge_rows(s, rows, lists.pos_of, weights, y, 0),
    }
    count = 10 if ids.numel() * s.hidden * s.intermediate < 2**40 else 2
    return {name: base.graph_ms([step] * count, groups=3, reps=2) * 1e3 for name, step in steps.items()}


def prove(layer, base, x, ids, weights, matrices):
    """Our result against fp32, output and workspace poisoned."""
    layer.memory.fill_(0xFF)
    y = layer(x, ids.to(torch.int32), weights.float(), out=torch.full_like(x, float("nan")))
    return compare(y, base.reference(x, ids, weights, *matrices), "layer")


def measure(base, library, shape, case, matrices, rates, arguments):
    d, n, experts, k = base.SHAPES[shape]
    tokens, kind = case
    k = 1 if kind == "one" else k
    small = tokens <= SMALL
    sets = routings(base, case, shape, range(100, 108) if small else [11])
    gate_up, down = (w.detach() for w in matrices)
    layer = Layer(library, gate_up, down, k, tokens, path=arguments.kernels)
    error = prove(layer, base, *sets[0], (gate_up, down))
    torch.cuda.empty_cache()
    ours = [(x, ids.to(torch.int32), weights.float()) for x, ids, weights in sets]
    calls = {"ours": [lambda s=s: layer(*s) for s in ours]}
    peers = peers_of(base, *matrices, k, tokens, arguments.peers)
    for name, peer in peers.items():
        calls[name] = [lambda peer=peer, s=(x, *base.ids(peer, ids, weights)): peer(*s) for x, ids, weights in sets]
    if not small:
        calls["dense"] = [dense_call(tokens * k, gate_up, down)]
    timer = (lambda fns: base.graph_ms(fns) * 1e3) if small else (lambda fns: base.loop_ms(fns[0]) * 1e3)
    times = {name: [] for name in calls}
    chosen = None
    with torch.no_grad():
        if "vllm" in peers and not arguments.quick:
            chosen = best_vllm(base, peers["vllm"], calls["vllm"], timer, base.V_SMALL if small else base.V_LARGE[:2])
        for order in (list(calls), list(calls)[::-1]):
            for name in order:
                try:
                    times[name].append(timer(calls[name]))
                except Exception as problem:
                    print(f"   {name}: {type(problem).__name__} {str(problem)[:100]}", flush=True)
                    torch.cuda.empty_cache()
        parts = parts_us(base, library, layer, *ours[0])
    us = {name: statistics.mean(t) for name, t in times.items() if t}
    active = statistics.mean(int(ids.unique().numel()) for _, ids, _ in sets)
    flops, weight_bytes = 6 * tokens * k * d * n, 6 * active * d * n
    size = weight_bytes + 2 * (2 * tokens * d + 2 * tokens * k * (n + d))
    floor = max(flops / rates["product"] / 1e6, size / rates["read"] / 1e6)
    result = {"shape": shape, "tokens": tokens, "routing": kind, "error": error, "active": active, "us": us, "runs_us": times,
              "parts_us": parts, "floor_us": floor, "weights_us": weight_bytes / rates["read"] / 1e6, "vllm_tiles": chosen,
              "kernels": library.path_of(layer.sizes), "library": arguments.hash}
    report(result, flops, weight_bytes)
    return result


def report(result, flops, weight_bytes):
    mine = result["us"]["ours"]
    print(f"{result['shape']} T={result['tokens']} {result['routing']} ({result['active']:.1f} experts, {result['kernels']}): "
          f"ours {mine:.1f} us, {flops / mine / 1e6:.0f} TFLOP/s, {weight_bytes / mine / 1e6:.2f} TB/s of weights, "
          f"{result['floor_us'] / mine:.3f} of the floor, error {result['error']:.1e} | " +
          ", ".join(f"{name} {t:.1f} ({t / mine:.2f}x)" for name, t in result["us"].items() if name != "ours"), flush=True)
    print("   us: " + ", ".join(f"{step} {t:.1f}" for step, t in result["parts_us"].items()), flush=True)


def parse_case(text):
    tokens, _, kind = text.partition(":")
    return int(tokens), kind or "uniform"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("baselines")
    parser.add_argument("shape")
    parser.add_argument("--cases")
    parser.add_argument("--out", required=True)
    parser.add_argument("--kernels", choices=PATHS, default="auto")
    parser.add_argument("--peers", type=lambda text: text.split(","), help="only these (default: all that load)")
    parser.add_argument("--quick", action="store_true", help="vLLM's kernel with its default tiles only")
    parser.add_argument("--seconds", type=float, default=540, help="start nothing new after so long")
    arguments = parser.parse_args()
    start = time.time()
    base, library = load(arguments.baselines), Library(arguments.library)
    with open(arguments.library, "rb") as file:
        arguments.hash = hashlib.sha256(file.read()).hexdigest()[:12]
    done = set()
    if os.path.exists(arguments.out):
        with open(arguments.out) as file:
            lines = [json.loads(line) for line in file if line.strip()]
        done = {(r["shape"], r["tokens"], r["routing"]) for r in lines if "tokens" in r and r["library"] == arguments.hash}
    cases = [parse_case(c) for c in (arguments.cases or (MIXTRAL_CASES if arguments.shape == "mixtral" else CASES)).split(",")]
    cases = [c for c in cases if (arguments.shape, *c) not in done]
    if not cases:
        return
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "library", arguments.hash, flush=True)
    with open(arguments.out, "a") as out:
        def keep(result):
            out.write(json.dumps(result) + "\n")
            out.flush()
        rates = ceilings(base)
        keep({"shape": arguments.shape, "ceilings": rates, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__})
        matrices = base.make_weights(*base.SHAPES[arguments.shape][:3], False)
        for case in cases:
            if time.time() - start > arguments.seconds:
                fail_unless(False, "out of time before", case, "- call again to go on")
            keep(measure(base, library, arguments.shape, case, matrices, rates, arguments))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
