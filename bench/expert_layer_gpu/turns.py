# SPDX-License-Identifier: Apache-2.0
"""Times cases of one shape, or ours and grouped_mm with glue, in turns.

  python3 turns.py LIBRARY BASELINES SHAPE [--cases 16384,16384:zipf,65536] [--pass step|forward] [--peer] [--turns 6]

A GPU at its power limit slows down as it heats, so numbers taken one after the other differ by more than the
kernels do. Here everything is measured once in each turn, every second turn backwards. Groups of 60 ms; it
prints median, mean, least and most of ours, and with --peer the same of gmm+glue, the ratio of the means and
the least and most ratio of a turn. Proves nothing: measure.py and measure_backward.py do.
"""
import argparse
import statistics
import sys

import torch

from backward import TrainingLayer
from measure import load, parse_case, routings
from ours import Layer, Library


def ours_call(library, matrices, case, k, forward):
    """A call without arguments of our layer, or of a step of it."""
    x, ids, weights, grad_y = case
    gate_up, down = (w.detach() for w in matrices)
    ids, weights = ids.to(torch.int32), weights.float()
    if forward:
        layer = Layer(library, gate_up, down, k, x.shape[0])
        return lambda: layer(x, ids, weights)
    layer = TrainingLayer(library, gate_up, down, k, x.shape[0])

    def step():
        _, pre = layer.forward(x, ids, weights)
        return layer.backward(grad_y, x, pre, ids, weights)
    return step


def peer_call(base, matrices, case, k, forward):
    x, ids, weights, grad_y = case
    peer = base.GroupedFused(*matrices, k)
    if forward:
        def call():
            with torch.no_grad():
                return peer(x, ids, weights)
        return call
    leaf, leaf_weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    inputs = (leaf, *matrices, leaf_weights)
    return lambda: torch.autograd.grad(peer(leaf, ids, leaf_weights), inputs, grad_y)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("baselines")
    parser.add_argument("shape")
    parser.add_argument("--cases", default="16384,16384:zipf,65536")
    parser.add_argument("--pass", dest="which", choices=("step", "forward"), default="step")
    parser.add_argument("--peer", action="store_true", help="gmm+glue, too")
    parser.add_argument("--turns", type=int, default=6)
    arguments = parser.parse_args()
    base, library = load(arguments.baselines), Library(arguments.library)
    torch.manual_seed(0)
    d, n, count, top_k = base.SHAPES[arguments.shape]
    matrices = base.make_weights(d, n, count)
    forward = arguments.which == "forward"
    calls, works = {}, {}
    for case in map(parse_case, arguments.cases.split(",")):
        (x, ids, weights), = routings(base, case, arguments.shape, [11])
        k = 1 if case[1] == "one" else top_k
        data = (x, ids, weights, torch.randn_like(x))
        calls[case, "ours"] = ours_call(library, matrices, data, k, forward)
        if arguments.peer:
            calls[case, "gmm+glue"] = peer_call(base, matrices, data, k, forward)
        works[case] = (6 if forward else 18) * case[0] * k * d * n
    times = {key: [] for key in calls}
    for turn in range(arguments.turns):
        for key in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            times[key].append(base.loop_ms(calls[key], target=60))
    for (case, name), ms in times.items():
        line = (f"{arguments.shape} {arguments.which} T={case[0]} {case[1]} {name}: median {statistics.median(ms):.3f} ms "
                f"{works[case] / statistics.median(ms) / 1e9:.0f} TFLOP/s, mean {statistics.mean(ms):.3f} ({min(ms):.3f} to {max(ms):.3f})")
        if name != "ours":
            mine = times[case, "ours"]
            ratios = [b / a for a, b in zip(mine, ms)]
            line += f", over ours {statistics.mean(ms) / statistics.mean(mine):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
