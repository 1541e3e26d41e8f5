# SPDX-License-Identifier: Apache-2.0
"""Times forward and backward of the expert layer of one shape beside torch's grouped_mm, after proving it equal.

  python3 measure_backward.py LIBRARY BASELINES SHAPE --out FILE [--cases 16384,16384:zipf,4096:one] [--kernels auto]

A case is tokens[:routing], as in measure.py; each is a line of FILE, and cases that FILE holds already are
left out, so that a broken run goes on where it stopped. One step: forward, then the gradients of token rows,
routing weights and both weight matrices (bf16, overwritten). Eager back-to-back steps in groups of about 45
ms, the median of three; systems in two opposite orders, the two medians averaged. TFLOP/s count 18 T k d n;
floor = the larger of FLOPs over a large product's rate and bytes over the read-only rate, both of this run:
weights twice, their gradients once, token rows four times, pre-activations twice. Memory is that of one step
above its start: what forward leaves behind (beside its rows), and the peak, gradients included.
"""
import argparse
import hashlib
import json
import os
import statistics
import sys
import time

import torch

from backward import TrainingLayer, experts, matrix
from measure import ceilings, load, parse_case, routings
from ours import DEVICE, PATHS, Library
from verify import BF16, Lists, compare, fail_unless, poisoned
from verify_backward import wanted_layer

CASES = "1024,4096,16384,16384:zipf,16384:one,65536"
MIXTRAL_CASES = "1024,4096,8192,8192:zipf,8192:one,65536"


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
                                   matrix(pre), matrix(grad_pre), matrix(inner), dots, pairs, 0, None),
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


def measure(base, library, shape, case, matrices, rates, arguments):
    d, n, count, k = base.SHAPES[shape]
    tokens, kind = case
    k = 1 if kind == "one" else k
    gate_up, down = matrices
    (x, ids, weights), = routings(base, case, shape, [11])
    grad_y = torch.randn_like(x)
    ids32, weights32 = ids.to(torch.int32), weights.float()
    layer = TrainingLayer(library, gate_up, down, k, tokens, arguments.kernels)
    errors = prove(layer, x, ids32, weights32, grad_y)
    torch.cuda.empty_cache()
    leaf, leaf_weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    makers = {"gmm+glue": base.GroupedFused, "gmm": base.Grouped}
    if tokens * k * d > 2**30:
        del makers["gmm"]  # its tensors of R rows would not fit beside the others
    peers = {name: make(gate_up, down, k) for name, make in makers.items() if not arguments.peers or name in arguments.peers}
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
    parts, part_rates = parts_us(base, library, layer, x, ids32, weights32, grad_y)
    mean = {name: statistics.mean(t) for name, t in times.items()}
    flops = 18 * tokens * k * d * n
    size = 3 * 6 * int(ids.unique().numel()) * d * n + 2 * (4 * tokens * d + 2 * tokens * k * 2 * n)
    floor = max(flops / rates["product"], size / rates["read"]) / 1e9
    mine = mean["ours"]
    print(f"{shape} T={tokens} {kind} errors y dx dw dWup dWdown {errors}: ours {mine:.3f} ms, {flops / mine / 1e9:.0f} TFLOP/s, "
          f"{size / mine / 1e9:.2f} TB/s, {floor / mine:.3f} of the floor | " +
          ", ".join(f"{name} {t:.3f} ms {flops / t / 1e9:.0f} ({t / mine:.3f}x)" for name, t in mean.items() if name != "ours"), flush=True)
    print(f"   forward with pre {forward_ms:.3f} ms {flops / 3 / forward_ms / 1e9:.0f}; us: " +
          ", ".join(f"{name} {us:.0f}" + (f" ({part_rates[name]:.0f})" if name in part_rates else "") for name, us in parts.items()), flush=True)
    print("   GiB kept / peak: " + ", ".join(f"{name} {a:.3f} / {b:.3f}" for name, (a, b) in kept.items()), flush=True)
    return {"shape": shape, "tokens": tokens, "routing": kind, "errors": errors, "ms": mean, "runs_ms": times, "forward_ms": forward_ms,
            "floor_ms": floor, "parts_us": parts, "gib": kept, "library": arguments.hash}


def cases_left(arguments):
    """Those that are asked for and not yet in the file."""
    done = set()
    if os.path.exists(arguments.out):
        with open(arguments.out) as file:
            lines = [json.loads(line) for line in file if line.strip()]
        done = {(r["shape"], r["tokens"], r["routing"]) for r in lines if "tokens" in r and r["library"] == arguments.hash}
    cases = arguments.cases or (MIXTRAL_CASES if arguments.shape == "mixtral" else CASES)
    return [c for c in map(parse_case, cases.split(",")) if (arguments.shape, *c) not in done]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("baselines")
    parser.add_argument("shape")
    parser.add_argument("--cases")
    parser.add_argument("--out", required=True)
    parser.add_argument("--kernels", choices=PATHS, default="auto")
    parser.add_argument("--peers", type=lambda text: text.split(","), help="only these of gmm+glue and gmm")
    parser.add_argument("--seconds", type=float, default=500, help="start nothing new after so long")
    arguments = parser.parse_args()
    start = time.time()
    base, library = load(arguments.baselines), Library(arguments.library)
    with open(arguments.library, "rb") as file:
        arguments.hash = hashlib.sha256(file.read()).hexdigest()[:12]
    cases = cases_left(arguments)
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
        matrices = base.make_weights(*base.SHAPES[arguments.shape][:3])
        for case in cases:
            if time.time() - start > arguments.seconds:
                fail_unless(False, "out of time before", case, "- call again to go on")
            keep(measure(base, library, arguments.shape, case, matrices, rates, arguments))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
