# SPDX-License-Identifier: Apache-2.0
"""Proves the backward kernels right before anything is timed.

  python3 verify_backward.py LIBRARY [--kernels hopper|generic] [--only NAME] [--repeats N]

Every output is poisoned with NaN first, and so is every row past the live ones that a kernel might
touch. Results are held against fp64 (whole tensor within 6e-3, worst row, of a weight gradient the
worst row of each expert, within 2e-2), small integers bit for bit.
"""
import argparse
import sys

import torch
import torch.nn.functional as F

from backward import Backward, TrainingLayer, experts, matrix
from ours import ACTIVATIONS, DEVICE, PATHS, Library
from verify import BF16, Lists, act, compare, fail_unless, make_routing, make_weights, poisoned

REPEATS = 20
SHAPES = (  # tokens, hidden, intermediate, experts, top_k, absent
    (1, 8, 8, 1, 1, 0.0), (333, 264, 104, 5, 2, 0.1), (150, 128, 520, 9, 4, 0.1), (200, 192, 64, 40, 2, 0.5), (1000, 2048, 1024, 16, 4, 0.0),
    (700, 512, 1408, 6, 3, 0.0), (300, 64, 136, 300, 4, 0.1), (5000, 128, 384, 3, 1, 0.0))
LIMITS = {torch.float32: 1e-5}


class Case:
    """Rows of a layer: lists, inputs, and buffers with poison past the live rows."""

    def __init__(self, library, shape, dtype=BF16, activation="swiglu", seed=3):
        self.tokens, self.hidden, self.inner, self.experts, self.top_k, absent = shape
        self.dtype, self.activation = dtype, activation
        sizes = library.sizes(self.tokens, self.hidden, self.inner, self.experts, self.top_k)
        self.ids, self.weights = make_routing(self.tokens, self.experts, self.top_k, seed, absent)
        self.lists = Lists(library, sizes, self.ids)
        self.limits = self.lists.offsets.tolist()
        self.live, self.pairs = self.limits[-1], self.ids.numel()
        self.token = self.lists.row_token[: self.live].long()
        self.width = self.inner * (2 if activation == "swiglu" else 1)
        gate_up, down = make_weights(self.experts, self.hidden, self.inner)
        self.gate_up, self.down = gate_up[:, : self.width].contiguous().to(dtype), down.to(dtype)
        self.x = torch.randn(self.tokens, self.hidden, device=DEVICE).to(dtype)
        self.grad_y = torch.randn(self.tokens, self.hidden, device=DEVICE).to(dtype)
        self.pre = self.rows(torch.randn(self.live, self.width, device=DEVICE) * 1.5)
        self.row_weights = torch.full((self.pairs,), float("nan"), device=DEVICE)
        flat = self.lists.pos_of.flatten().long()
        self.row_weights[flat[flat >= 0]] = self.weights.flatten()[flat >= 0]

    def rows(self, live):
        """`live` rows followed by poison."""
        full = poisoned(self.pairs, live.shape[1], dtype=self.dtype)
        full[: self.live] = live.to(self.dtype)
        return full

    def parts(self):
        return [(e, slice(a, b)) for e, (a, b) in enumerate(zip(self.limits, self.limits[1:])) if b > a]

    def wanted_down(self):
        """grad_pre, weighted hidden and dots in fp64."""
        pre = self.pre[: self.live].double().requires_grad_()
        if self.activation == "swiglu":
            gate, up = pre.chunk(2, -1)
            hidden = F.silu(gate) * up
        else:
            hidden = F.gelu(pre, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        value = torch.zeros_like(hidden)
        for e, part in self.parts():
            value[part] = self.grad_y[self.token[part]].double() @ self.down[e].double()
        weight = self.row_weights[: self.live].double()[:, None]
        grad_pre, = torch.autograd.grad(hidden, pre, weight * value)
        return grad_pre, (weight * hidden).detach(), (value * hidden).sum(1).detach()


def close(got, want, what, dtype=BF16, limit=None):
    limit = limit or LIMITS.get(dtype)
    if limit is None:
        return compare(got, want, what)
    fail_unless(bool(torch.isfinite(got).all()), what, "not finite")
    error = float((got.double() - want).norm() / want.norm().clamp_min(1e-30))
    fail_unless(error <= limit, what, f"error {error:.2e}")
    return error


def explain(got, want):
    """Where a tensor differs, for a person: by blocks of 64 x 64."""
    bad = ((got.double() - want).abs() > 0.05 * want.abs().max().clamp_min(1e-30)) | ~torch.isfinite(got)
    rows = torch.nn.functional.pad(bad, (0, -bad.shape[1] % 64, 0, -bad.shape[0] % 64))
    blocks = rows.view(rows.shape[0] // 64, 64, rows.shape[1] // 64, 64).sum((1, 3))
    ratio = float((got.double() * want).sum() / (want * want).sum().clamp_min(1e-30)) if bool(torch.isfinite(got).all()) else float("nan")
    return f"{int(bad.sum())} of {bad.numel()} bad, projection {ratio:.3f}, blocks of 64 {blocks[:4, :8].tolist()}"


def check(got, want, what, dtype=BF16):
    try:
        return close(got, want, what, dtype)
    except AssertionError as error:
        raise AssertionError(f"{error} | {explain(got, want)}") from None


def test_lists(call, library):
    case = Case(library, SHAPES[1])
    got = torch.full_like(case.row_weights, float("nan"))
    call("weights_of_rows", case.weights, case.lists.pos_of, case.pairs, got)
    fail_unless(torch.equal(got[: case.live], case.row_weights[: case.live]), "weights of rows")
    parts = torch.randn(3, case.pairs, device=DEVICE)
    dots = poisoned(case.tokens, case.top_k, dtype=torch.float32)
    call("sum_row_dots", parts, 3, case.pairs, case.lists.pos_of, case.pairs, dots)
    pos = case.lists.pos_of.long()
    want = torch.where(pos >= 0, (parts[0] + parts[1] + parts[2])[pos.clamp_min(0)], 0.0)
    fail_unless(torch.equal(dots, want), "sums of dots")


def run_down(call, case, in_place=False, split=0, bias=None):
    grad_pre = case.pre.clone() if in_place else poisoned(case.pairs, case.width, dtype=case.dtype)
    hidden = poisoned(case.pairs, case.inner, dtype=case.dtype)
    dots = poisoned((case.inner + 255) // 256 + (bias is not None), case.pairs, dtype=torch.float32)
    first, more = (case.grad_y[:split].clone(), case.grad_y[split:].clone()) if split else (case.grad_y, None)
    call("down_backward", matrix(first), matrix(more), case.lists.row_token, case.lists.offsets, case.row_weights, experts(case.down),
         matrix(grad_pre if in_place else case.pre), matrix(grad_pre), matrix(hidden), dots, case.pairs, ACTIVATIONS.index(case.activation), bias)
    return grad_pre, hidden, dots


def test_down_backward(call, library):
    for shape in SHAPES:
        for activation in ACTIVATIONS:
            case = Case(library, shape, activation=activation)
            grad_pre, hidden, dots = run_down(call, case)
            want_pre, want_hidden, want_dots = case.wanted_down()
            n = case.live
            errors = [check(grad_pre[:n], want_pre, f"grad_pre {shape} {activation}"), check(hidden[:n], want_hidden, f"hidden {shape} {activation}")]
            whole = float((dots[:, :n].sum(0).double() - want_dots).norm() / want_dots.norm())
            fail_unless(whole <= 6e-3, "dots", shape, activation, f"error {whole:.2e}")
            if call.path != PATHS.index("generic"):
                fail_unless(bool(torch.isnan(grad_pre[n:]).all() and torch.isnan(hidden[n:]).all()), "rows past the live ones were written", shape)
            again, _, _ = run_down(call, case, in_place=True)
            fail_unless(torch.equal(again[:n], grad_pre[:n]), "in place differs", shape)
            if case.tokens > 10:
                split, _, _ = run_down(call, case, split=case.tokens // 3)
                fail_unless(torch.equal(split[:n], grad_pre[:n]), "two sources differ", shape)
        print(f"  down {shape}: {errors[0]:.1e} {errors[1]:.1e} dots {whole:.1e}")


def test_bias(call, library):
    """Gradients of biases, and their part in the routing weights' gradient."""
    for dtype in (BF16,) + ((torch.float32, torch.float16) if call.path == PATHS.index("generic") else ()):
        for shape in SHAPES:
            case = Case(library, shape, dtype, activation="gelu")
            bias = torch.randn(case.experts, case.hidden, device=DEVICE).to(dtype)
            _, _, dots = run_down(call, case, bias=bias)
            segment = torch.cat([torch.full((part.stop - part.start,), e, device=DEVICE) for e, part in case.parts()])
            want = (case.grad_y[case.token].double() * bias[segment].double()).sum(1)
            error = float((dots[-1, : case.live].double() - want).norm() / want.norm())
            fail_unless(error <= 1e-5, "dots of biases", dtype, shape, f"error {error:.1e}")
            fail_unless(bool(dots[-1, case.live:].isnan().all()), "dots past the live rows were written", shape)
            cut = case.tokens // 3
            for rows, a, a_rows, weights in ((case.pre, case.pre[: case.live], None, None),
                                             (case.grad_y, case.grad_y[case.token], case.lists.row_token, case.row_weights)):
                scaled = a.double() if weights is None else a.double() * weights[: case.live, None].double()
                want = torch.zeros(case.experts, a.shape[1], device=DEVICE, dtype=torch.float64)
                want.index_add_(0, segment, scaled)
                for out in (dtype, torch.float32):
                    got = poisoned(case.experts, a.shape[1], dtype=out)
                    run = lambda to, accumulate=False, first=rows, more=None: call(
                        "bias_gradient", matrix(first), matrix(more), a_rows, weights, case.lists.offsets, experts(to, accumulate))
                    run(got)
                    error = float((got.double() - want).norm() / want.norm())
                    fail_unless(error <= (1e-5 if out == torch.float32 else 6e-3), "bias", dtype, out, shape, f"error {error:.1e}")
                    empty = torch.bincount(segment, minlength=case.experts) == 0
                    fail_unless(bool((got[empty] == 0).all()), "bias of an expert without rows", shape)
                    before = torch.randn(want.shape, device=DEVICE).to(out)
                    sums = before.clone()
                    run(sums, True)
                    fail_unless(torch.equal(sums[empty], before[empty]), "accumulate touched an expert without rows")
                    error = float((sums.double() - want - before.double()).norm() / want.norm())
                    fail_unless(error <= (1e-5 if out == torch.float32 else 6e-3), "accumulated bias", dtype, out, shape, f"error {error:.1e}")
                    if a_rows is not None and case.tokens > 10:
                        two = poisoned(case.experts, a.shape[1], dtype=out)
                        run(two, first=rows[:cut].clone(), more=rows[cut:].clone())
                        fail_unless(torch.equal(two, got), "two sources differ", shape)


def test_up_backward(call, library):
    for shape in SHAPES:
        case = Case(library, shape)
        got = poisoned(case.pairs, case.hidden)
        call("up_backward", matrix(case.pre), case.lists.offsets, experts(case.gate_up), matrix(got))
        want = torch.zeros(case.live, case.hidden, device=DEVICE, dtype=torch.float64)
        for e, part in case.parts():
            want[part] = case.pre[part].double() @ case.gate_up[e].double()
        check(got[: case.live], want, f"grad_rows {shape}")
        fail_unless(bool(torch.isnan(got[case.live:]).all()), "rows past the live ones were written", shape)


def wanted_gradient(case, a, b):
    want = torch.zeros(case.experts, a.shape[1], b.shape[1], device=DEVICE, dtype=torch.float64)
    for e, part in case.parts():
        want[e] = a[part].double().t() @ b[part].double()
    return want


def weight_gradient(call, case, a, a_rows, b, b_rows, out, accumulate=False, more_a=None, more_b=None):
    call("weight_gradient", matrix(a), matrix(more_a), a_rows, matrix(b), matrix(more_b), b_rows, case.lists.offsets, experts(out, accumulate))
    return out


def check_gradient(got, want, what, dtype=BF16):
    for e in range(want.shape[0]):
        if want[e].abs().max() == 0:
            fail_unless(bool((got[e] == 0).all()), what, "expert without rows:", e)
        else:
            check(got[e], want[e], f"{what} expert {e}", dtype)


def test_weight_gradient(call, library):
    for shape in SHAPES:
        case = Case(library, shape)
        x_rows, y_rows = case.x[case.token], case.grad_y[case.token]
        inner = case.rows(torch.randn(case.live, case.inner, device=DEVICE))
        list_ = case.lists.row_token
        up, down = wanted_gradient(case, case.pre, x_rows), wanted_gradient(case, y_rows, inner)
        for dtype in (BF16, torch.float32):
            like = lambda w: poisoned(*w.shape, dtype=dtype)
            got_up = weight_gradient(call, case, case.pre, None, case.x, list_, like(up))
            check_gradient(got_up, up, f"dW up {dtype} {shape}")
            got_down = weight_gradient(call, case, case.grad_y, list_, inner, None, like(down))
            check_gradient(got_down, down, f"dW down {dtype} {shape}")
            if case.tokens > 10:
                cut = case.tokens // 3
                two = weight_gradient(call, case, case.grad_y[:cut].clone(), list_, inner, None, like(down), more_a=case.grad_y[cut:].clone())
                fail_unless(torch.equal(two, got_down), "two sources differ", shape)
            for got, want, task in ((got_up, up, (case.pre, None, case.x, list_)), (got_down, down, (case.grad_y, list_, inner, None))):
                before = torch.randn(want.shape, device=DEVICE).to(dtype)
                sums = weight_gradient(call, case, *task, before.clone(), accumulate=True)
                empty = want.abs().amax((1, 2)) == 0
                fail_unless(torch.equal(sums[empty], before[empty]), "accumulate touched an expert without rows")
                close(sums.flatten(0, 1), (want + before.double()).flatten(0, 1), f"accumulated {dtype} {shape}")


def test_integers(call, library):
    """Small integers, bit for bit."""
    case = Case(library, (900, 512, 256, 6, 2, 0.05))
    ints = lambda *s: torch.randint(-3, 4, s, device=DEVICE).to(BF16)
    case.gate_up, case.x, case.grad_y = ints(*case.gate_up.shape), ints(*case.x.shape), ints(*case.grad_y.shape)
    pre, inner = case.rows(ints(case.live, case.width)), case.rows(ints(case.live, case.inner))
    rows = poisoned(case.pairs, case.hidden)
    call("up_backward", matrix(pre), case.lists.offsets, experts(case.gate_up), matrix(rows))
    for e, part in case.parts():
        fail_unless(torch.equal(rows[part], (pre[part].double() @ case.gate_up[e].double()).to(BF16)), "integers: rows of expert", e)
    list_ = case.lists.row_token
    want = wanted_gradient(case, pre, case.x[case.token])
    got = weight_gradient(call, case, pre, None, case.x, list_, poisoned(*want.shape, dtype=torch.float32))
    fail_unless(torch.equal(got.double(), want), "integers: dW up")
    got = weight_gradient(call, case, pre, None, case.x, list_, poisoned(*want.shape))
    fail_unless(torch.equal(got, want.to(BF16)), "integers: dW up, bf16")
    want = wanted_gradient(case, case.grad_y[case.token], inner)
    got = weight_gradient(call, case, case.grad_y, list_, inner, None, poisoned(*want.shape, dtype=torch.float32))
    fail_unless(torch.equal(got.double(), want), "integers: dW down")


def test_types(call, library):
    """The generic kernels in each type they know."""
    if call.path != PATHS.index("generic"):
        return
    for dtype in (torch.float32, torch.float16):
        for shape in SHAPES[:3]:
            case = Case(library, shape, dtype)
            n = case.live
            grad_pre, hidden, _ = run_down(call, case)
            want_pre, want_hidden, _ = case.wanted_down()
            check(grad_pre[:n], want_pre, f"grad_pre {dtype} {shape}", dtype)
            check(hidden[:n], want_hidden, f"hidden {dtype} {shape}", dtype)
            want = wanted_gradient(case, case.pre, case.x[case.token])
            got = weight_gradient(call, case, case.pre, None, case.x, case.lists.row_token, poisoned(*want.shape, dtype=dtype))
            check_gradient(got, want, f"dW {dtype} {shape}", dtype)


def wanted_layer(x, ids, weights, gate_up, down, grad_y, activation="swiglu", biases=()):
    """Rows and gradients by autograd in fp32: x, weights, gate_up, down, biases."""
    leaves = [t.detach().float().requires_grad_() for t in (x, weights, gate_up, down, *biases)]
    a, w, g, d = leaves[:4]
    y = torch.zeros_like(a)
    for e in range(g.shape[0]):
        t, j = (ids == e).nonzero(as_tuple=True)
        pre = a[t] @ g[e].t() + (leaves[4][e] if biases else 0)
        rows = act(pre, activation) @ d[e].t() + (leaves[5][e] if biases else 0)
        y = y.index_add(0, t, rows * w[t, j][:, None])
    return y.detach(), torch.autograd.grad(y, leaves, grad_y.float())


def test_layer(call, library):
    """A whole step against autograd, with and without memory reuse, overwritten and accumulated."""
    path = PATHS[call.path]
    for shape in ((300, 512, 256, 8, 2, 0.1), (1024, 2048, 1024, 64, 8, 0.0), (4000, 256, 128, 4, 2, 0.0), (64, 1024, 2816, 2, 2, 0.0)):
        tokens, hidden, inner, count, top_k, absent = shape
        gate_up, down = make_weights(count, hidden, inner)
        ids, weights = make_routing(tokens, count, top_k, 5, absent)
        x, grad_y = (torch.randn(tokens, hidden, device=DEVICE).to(BF16) for _ in range(2))
        want_y, (want_x, want_w, want_up, want_down) = wanted_layer(x, ids, weights, gate_up, down, grad_y)
        first = None
        for reuse in (False, True):
            layer = TrainingLayer(library, gate_up, down, top_k, tokens, path, reuse_pre=reuse)
            y, pre = layer.forward(x, ids, weights)
            check(y, want_y.double(), f"y {shape}")
            grads = [poisoned(*gate_up.shape), poisoned(*down.shape)]
            got = layer.backward(grad_y, x, pre, ids, weights, grads, poisoned(tokens, hidden))
            check(got[0], want_x.double(), f"dx {shape}")
            error = float((got[1] - want_w).norm() / want_w.norm())
            fail_unless(error <= 6e-3 and bool((got[1][ids < 0] == 0).all()), "dw", shape, f"error {error:.1e}")
            check_gradient(got[2], want_up.double(), f"dW up {shape}")
            check_gradient(got[3], want_down.double(), f"dW down {shape}")
            first = first or [g.clone() for g in got]
            fail_unless(all(torch.equal(a, b) for a, b in zip(first, got)), "reuse of memory changes bits", shape)
        before = [torch.randn(w.shape, device=DEVICE) for w in (gate_up, down)]
        layer = TrainingLayer(library, gate_up, down, top_k, tokens, path, dtype=torch.float32, accumulate=True)
        _, pre = layer.forward(x, ids, weights)
        got = layer.backward(grad_y, x, pre, ids, weights, [b.clone() for b in before])
        for g, b, want in zip(got[2:], before, (want_up, want_down)):
            close((g - b).flatten(0, 1), want.double().flatten(0, 1), f"accumulated {shape}")


def test_gelu_layer(call, library):
    """Steps with experts of GPT-2's kind: no gate, biases."""
    tokens, hidden, inner, count, top_k = 500, 264, 392, 6, 2
    for activation in ACTIVATIONS[1:]:
        gate_up, down = make_weights(count, hidden, inner)
        gate_up = gate_up[:, :inner].contiguous()
        biases = [torch.randn(count, n, device=DEVICE).mul_(0.3).to(BF16) for n in (inner, hidden)]
        ids, weights = make_routing(tokens, count - 1, top_k, 5, 0.1)  # the last expert without rows
        x, grad_y = (torch.randn(tokens, hidden, device=DEVICE).to(BF16) for _ in range(2))
        want_y, want = wanted_layer(x, ids, weights, gate_up, down, grad_y, activation, biases)
        for reuse in (False, True):
            layer = TrainingLayer(library, gate_up, down, top_k, tokens, PATHS[call.path], reuse, activation=activation, biases=biases)
            y, pre = layer.forward(x, ids, weights)
            check(y, want_y.double(), f"y {activation}")
            grads = [poisoned(*w.shape) for w in (gate_up, down, *biases)]
            got = layer.backward(grad_y, x, pre, ids, weights, grads, poisoned(tokens, hidden))
            check(got[0], want[0].double(), f"dx {activation}")
            error = float((got[1] - want[1]).norm() / want[1].norm())
            fail_unless(error <= 6e-3 and bool((got[1][ids < 0] == 0).all()), "dw", activation, f"error {error:.1e}")
            for i, name in ((2, "dW up"), (3, "dW down")):
                check_gradient(got[i], want[i].double(), f"{name} {activation}")
            for i, name in ((4, "db up"), (5, "db down")):
                check(got[i][:-1], want[i][:-1].double(), f"{name} {activation}")
                fail_unless(bool((got[i][-1] == 0).all()), name, "of the expert without rows")


def test_bad_ids(call, library):
    """Ids outside of [-1, E) and repeated ones count for nothing, in forward and backward."""
    tokens, hidden, inner, count, top_k = 400, 256, 136, 8, 3
    gate_up, down = make_weights(count, hidden, inner)
    ids, weights = make_routing(tokens, count, top_k, 5)
    x, grad_y = (torch.randn(tokens, hidden, device=DEVICE).to(BF16) for _ in range(2))
    bad, clean = ids.clone(), ids.clone()
    for token, slot, value in ((11, 0, count), (200, 2, -2), (300, 1, 2**30), (399, 2, int(ids[399, 0]))):
        bad[token, slot], clean[token, slot] = value, -1
    layer = TrainingLayer(library, gate_up, down, top_k, tokens, PATHS[call.path], reuse_pre=False)
    found = []
    for these in (bad, clean):
        faults = library.faults(layer.sizes)
        y, pre = layer.forward(x, these, weights, faults)
        found.append((y, *layer.backward(grad_y, x, pre, these, weights)))
        try:
            library.check_faults(layer.sizes, faults, these)
            fail_unless(these is clean, "bad ids went unnoticed")
        except RuntimeError as error:
            fail_unless(these is bad and "4 expert ids" in str(error) and "token 11, slot 0: 8" in str(error), error)
    fail_unless(all(torch.equal(a, b) for a, b in zip(*found)), "bad ids are not contained")


def test_repeats(call, library):
    """The same input, the same bits, whatever lies in the workspace."""
    tokens, hidden, inner, count, top_k = 1500, 1024, 512, 16, 4
    gate_up, down = make_weights(count, hidden, inner)
    ids, weights = make_routing(tokens, count, top_k, 5, 0.05)
    x, grad_y = (torch.randn(tokens, hidden, device=DEVICE).to(BF16) for _ in range(2))
    layer = TrainingLayer(library, gate_up, down, top_k, tokens, PATHS[call.path])
    _, saved = layer.forward(x, ids, weights)
    first = [g.clone() for g in layer.backward(grad_y, x, saved.clone(), ids, weights)]
    for i in range(REPEATS):
        grads = [poisoned(*gate_up.shape), poisoned(*down.shape)]
        got = layer.backward(grad_y, x, saved.clone(), ids, weights, grads, poisoned(tokens, hidden))
        fail_unless(all(torch.equal(a, b) for a, b in zip(first, got)), "run", i, "gave other bits")


def test_beyond_2_31(call, library):
    """R * H just over 2^31 elements: 64-bit offsets everywhere."""
    tokens, hidden, inner, count, top_k = 66000, 2048, 64, 16, 16
    fail_unless(tokens * top_k * hidden > 2**31, "too small to prove anything")
    gate_up, down = make_weights(count, hidden, inner)
    ids, weights = make_routing(tokens, count, top_k, 9)
    x, grad_y = (torch.randn(tokens, hidden, device=DEVICE).to(BF16) for _ in range(2))
    layer = TrainingLayer(library, gate_up, down, top_k, tokens, PATHS[call.path])
    _, pre = layer.forward(x, ids, weights)
    grads = [poisoned(*gate_up.shape), poisoned(*down.shape)]
    got = layer.backward(grad_y, x, pre, ids, weights, grads, poisoned(tokens, hidden))
    fail_unless(all(bool(torch.isfinite(g).all()) for g in got), "poison is left")
    for part in (slice(0, 40), slice(32980, 33020), slice(tokens - 40, tokens)):
        _, want = wanted_layer(x[part], ids[part], weights[part], gate_up, down, grad_y[part])
        check(got[0][part], want[0].double(), f"dx of tokens {part.start} to {part.stop}")
    weight = torch.where(ids == count - 1, weights, 0).sum(1, keepdim=True)
    gate, up = (x.float() @ gate_up[-1].float().t()).chunk(2, -1)
    check(got[3][-1], (grad_y.float().t() @ (weight * F.silu(gate) * up)).double(), "dW down of the last expert")


TESTS = {name[5:]: value for name, value in list(globals().items()) if name.startswith("test_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--kernels", dest="path", choices=PATHS, default="auto")
    parser.add_argument("--only", choices=TESTS, action="append")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs that must give the same bits")
    arguments = parser.parse_args()
    globals()["REPEATS"] = arguments.repeats
    library = Library(arguments.library)
    call = Backward(library, arguments.path)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    bad = 0
    for name in arguments.only or TESTS:
        try:
            TESTS[name](call, library)
            torch.cuda.synchronize()
            fail_unless(not library.gave_up(), "a kernel waited in vain")
            print("pass", name, flush=True)
        except (AssertionError, RuntimeError) as error:
            bad += 1
            print("FAIL", name, str(error)[:700], flush=True)
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
