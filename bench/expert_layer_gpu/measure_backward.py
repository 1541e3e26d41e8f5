# SPDX-License-Identifier: Apache-2.0
"""Times forward and backward of the expert layer beside torch's grouped_mm, after proving it equal.

  python3 measure_backward.py LIBRARY BASELINES [--shapes olmoe,...] [--tokens 1024,...] [--zipf S]

One step: forward, then the gradients of token rows, routing weights and both weight matrices (bf16,
overwritten). Eager back-to-back steps in groups of about 45 ms, the median of three; systems in two
opposite orders, the two medians averaged. TFLOP/s count 18 T k d n. Memory is that of one step
above its start: what forward leaves behind (beside its rows), and the peak, gradients included.
"""
import argparse
import json
import statistics
import sys
import time

import torch

from backward import TrainingLayer, experts, matrix
from measure import ceilings, load
from ours import DEVICE, PATHS, Library
from verify import BF16, Lists, compare, fail_unless, poisoned
from verify_backward import wanted_layer


def prove(layer, x, ids, weights, grad_y):
    """Holds one step against fp32, outputs poisoned; the errors of y, dx, dw, dW."""
    want_y, (want_x, want_w, want_up, want_down) = wanted_layer(x, ids, weights, layer.gate_up, layer.down, grad_y)
    y, pre = layer.forward(x, ids, weights)
    grads = [poisoned(*layer.gate_up.shape), poisoned(*layer.down.shape)]
    got = layer.backward(grad_y, x, pre, ids, weights, grads, torch.full_like(x, float("nan")))
    error = float((got[1] - want_w).norm() / want_w.norm())
    fail_unless(error <= 6e-3, "gradient of routing weights: error", error)
    errors = [compare(y, want_y, "y"), compare(got[0], want_x, "dx"), error]
    for name, have, want in (("dW up", got[2], want_up), ("dW down", got[3], want_down)):
        live = want.abs().amax((1, 2)) > 0
        fail_unless(bool((have[~live] == 0).all()), name, "of experts without rows is not zero")
        errors.append(max(compare(have[e], want[e], f"{name} {e}") for e in live.nonzero().flatten().tolist()))
    return [round(e, 5) for e in errors]


def parts_us(base, library, layer, x, ids, weights, grad_y):
    """Device time of each kernel of backward alone, several in a graph."""
    s, call = layer.sizes, layer.call
    lists = Lists(library, s, ids)
    pairs = ids.numel()
    rows = lambda n: torch.empty(pairs, n, device=DEVICE, dtype=BF16)
    grad_pre, inner, grad_rows = rows(2 * s.intermediate), rows(s.intermediate), rows(s.hidden)
    _, pre = layer.forward(x, ids, weights)
    row_weights = torch.empty(pairs, device=DEVICE)
    dots = torch.empty((s.intermediate + 255) // 256, pairs, device=DEVICE)
    grads = [torch.empty_like(w) for w in (layer.gate_up, layer.down)]
    grad_x, grad_w = torch.empty_like(x), torch.empty_like(weights)
    call("weights_of_rows", weights, lists.pos_of, pairs, row_weights)
    steps = {
        "dgrad down": lambda: call("down_backward", matrix(grad_y), None, lists.row_token, lists.offsets, row_weights, experts(layer.down),
                                   matrix(pre), matrix(grad_pre), matrix(inner), dots, pairs, 0),
        "dW down": lambda: call("weight_gradient", matrix(grad_y), None, lists.row_token, matrix(inner), None, None, lists.offsets, experts(grads[1])),
        "dW up": lambda: call("weight_gradient", matrix(grad_pre), None, None, matrix(x), None, lists.row_token, lists.offsets, experts(grads[0])),
        "dgrad up": lambda: call("up_backward", matrix(grad_pre), lists.offsets, experts(layer.gate_up), matrix(grad_rows)),
        "merge": lambda: library.merge_rows(s, grad_rows, lists.pos_of, None, grad_x, 0),
        "dots": lambda: call("sum_row_dots", dots, dots.shape[0], pairs, lists.pos_of, pairs, grad_w),
    }
    work = 2 * pairs * s.hidden * s.intermediate
    flops = {"dgrad down": work, "dW down": work, "dW up": 2 * work, "dgrad up": 2 * work}
    count = 10 if pairs < 40000 else 4
    times = {name: base.graph_ms([step] * count, groups=3, reps=2) * 1e3 for name, step in steps.items()}
    return times, {name: flops[name] / times[name] / 1e6 for name in flops}


def memory(step):
    """GiB kept between forward and backward, and at the peak, above the start."""
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    forward, backward = step
    y, state = forward()
    kept = torch.cuda.memory_allocated() - start - y.numel() * y.element_size()
    grads = backward(y, state)
    peak = torch.cuda.max_memory_allocated() - start
    del grads
    return kept / 2**30, peak / 2**30


def measure(base, library, shape, tokens, weights_of, arguments):
    d, n, count, k = base.SHAPES[shape]
    gate_up, down = weights_of
    zipf, quick = arguments.zipf, arguments.quick
    x, grad_y = (torch.randn(tokens, d, device=DEVICE).to(BF16) for _ in range(2))
    ids, weights = base.routing(tokens, count, k, 11, zipf)
    ids32, weights32 = ids.to(torch.int32), weights.float()
    layer = TrainingLayer(library, gate_up, down, k, tokens, arguments.kernels)
    errors = prove(layer, x, ids32, weights32, grad_y)
    torch.cuda.empty_cache()
    leaf, leaf_weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    peers = {"gmm+glue": base.GroupedFused(gate_up, down, k), "gmm": base.Grouped(gate_up, down, k)}
    if quick:
        del peers["gmm"]
    inputs = (leaf, gate_up, down, leaf_weights)

    def ours():
        y, pre = layer.forward(x, ids32, weights32)
        return layer.backward(grad_y, x, pre, ids32, weights32)
    calls = {"ours": ours}
    halves = {"ours": (lambda: layer.forward(x, ids32, weights32), lambda y, pre: layer.backward(grad_y, x, pre, ids32, weights32))}
    for name, peer in peers.items():
        calls[name] = lambda peer=peer: torch.autograd.grad(peer(leaf, ids, leaf_weights), inputs, grad_y)
        halves[name] = (lambda peer=peer: (peer(leaf, ids, leaf_weights), None), lambda y, _: torch.autograd.grad(y, inputs, grad_y))
    times = {name: [] for name in calls}
    for order in (list(calls), list(calls)[::-1]):
        for name in order:
            times[name].append(base.loop_ms(calls[name], target=45))
    forward_ms = base.loop_ms(lambda: layer.forward(x, ids32, weights32), target=20)
    kept = {name: memory(step) for name, step in halves.items()}
    torch.cuda.empty_cache()
    parts, rates = parts_us(base, library, layer, x, ids32, weights32, grad_y)
    mean = {name: statistics.mean(t) for name, t in times.items()}
    flops = 18 * tokens * k * d * n
    print(f"{shape} T={tokens}{' zipf' if zipf else ''} errors y dx dw dWup dWdown {errors}: " + " | ".join(
        f"{name} {t:.3f} ms {flops / t / 1e9:.0f}" for name, t in mean.items()) + f" | ratio {mean['gmm+glue'] / mean['ours']:.3f}", flush=True)
    print(f"   forward with pre {forward_ms:.3f} ms {flops / 3 / forward_ms / 1e9:.0f}; us: " +
          ", ".join(f"{name} {us:.0f}" + (f" ({rates[name]:.0f})" if name in rates else "") for name, us in parts.items()), flush=True)
    print("   GiB kept / peak: " + ", ".join(f"{name} {a:.3f} / {b:.3f}" for name, (a, b) in kept.items()), flush=True)
    return {"shape": shape, "tokens": tokens, "zipf": zipf, "errors": errors, "ms": mean, "runs_ms": times, "forward_ms": forward_ms,
            "parts_us": parts, "gib": kept}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("baselines")
    parser.add_argument("--shapes", default="olmoe,qwen3-30b,v2-lite,mixtral")
    parser.add_argument("--tokens", default="1024,4096,16384")
    parser.add_argument("--zipf", type=float, default=0.0)
    parser.add_argument("--kernels", choices=PATHS, default="auto")
    parser.add_argument("--out")
    parser.add_argument("--quick", action="store_true", help="leave out plain grouped_mm and the ceilings")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing new after so long")
    arguments = parser.parse_args()
    start = time.time()
    base, library = load(arguments.baselines), Library(arguments.library)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    results = [] if arguments.quick else [{"ceilings": ceilings(base)}]
    for shape in arguments.shapes.split(","):
        weights = base.make_weights(*base.SHAPES[shape][:3])
        for tokens in map(int, arguments.tokens.split(",")):
            tokens = min(tokens, 8192) if shape == "mixtral" else tokens
            if time.time() - start > arguments.seconds:
                print("out of time before", shape, tokens, flush=True)
                continue
            results.append(measure(base, library, shape, tokens, weights, arguments))
            torch.cuda.empty_cache()
        del weights
        torch.cuda.empty_cache()
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
