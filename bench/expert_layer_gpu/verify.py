# SPDX-License-Identifier: Apache-2.0
"""Proves the GPU kernels right before anything is timed.

  python3 verify.py LIBRARY [--tiles wide|narrow|few] [--kernels hopper|generic] [--only NAME]

Every output is poisoned with NaN first. Products are held against fp32 sums (whole tensor within 6e-3,
worst row within 2e-2), small integers bit for bit.
"""
import argparse
import sys

import torch
import torch.nn.functional as F

from ours import ACTIVATIONS, DEVICE, PATHS, TILES, Layer, Library

BF16 = torch.bfloat16


def fail_unless(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def compare(got, want, what):
    got, want = got.float(), want.float()
    fail_unless(bool(torch.isfinite(got).all()), what, "not finite:", int((~torch.isfinite(got)).sum()), "elements of",
                got.numel(), "first", (~torch.isfinite(got)).nonzero()[:3].tolist())
    if want.numel() == 0:
        return 0.0
    whole = float((got - want).norm() / want.norm().clamp_min(1e-30))
    rows = (got - want).norm(dim=1) / want.norm(dim=1).clamp_min(1e-6 * float(want.norm()))
    fail_unless(whole <= 6e-3 and float(rows.max()) <= 2e-2, what, f"error {whole:.2e}, worst row {float(rows.max()):.2e}",
                "row", int(rows.argmax()), "bad rows", int((rows > 2e-2).sum()), "of", rows.numel())
    return whole


def make_routing(tokens, experts, top_k, seed, absent=0.0, only=None):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    ids = torch.rand(tokens, experts, device=DEVICE, generator=generator).topk(top_k, -1).indices.to(torch.int32)
    if only is not None:
        ids = ids.fill_(-1)
        ids[:, 0] = only
    if absent:
        ids[torch.rand(ids.shape, device=DEVICE, generator=generator) < absent] = -1
    weights = torch.softmax(torch.randn(tokens, top_k, device=DEVICE, generator=generator), -1)
    return ids.contiguous(), weights.contiguous()


def poisoned(*shape, dtype=BF16):
    return torch.full(shape, float("nan"), device=DEVICE, dtype=dtype)


class Lists:
    def __init__(self, library, sizes, ids, faults=None):
        pairs = ids.numel()
        self.offsets = torch.full((sizes.num_experts + 1,), -7, device=DEVICE, dtype=torch.int32)
        self.row_token = torch.full((max(pairs, 1),), -7, device=DEVICE, dtype=torch.int32)
        self.pos_of = torch.full(ids.shape, -7, device=DEVICE, dtype=torch.int32)
        memory = torch.empty(128 * sizes.num_experts * 4, device=DEVICE, dtype=torch.uint8)
        library.reindex(sizes, ids, self.offsets, self.row_token, self.pos_of, memory, faults)


def wanted_lists(ids, experts):
    """Stable sort by torch, on the host."""
    flat = ids.flatten().cpu().long()
    live = (flat >= 0).nonzero().flatten()
    order = live[torch.sort(flat[live], stable=True).indices]
    offsets = torch.zeros(experts + 1, dtype=torch.int32)
    offsets[1:] = torch.bincount(flat[live], minlength=experts).cumsum(0)
    pos = torch.full((flat.numel(),), -1, dtype=torch.int32)
    pos[order] = torch.arange(order.numel(), dtype=torch.int32)
    return offsets, (order // ids.shape[1]).to(torch.int32), pos.view(ids.shape)


SORTS = ((0, 8, 2), (1, 64, 8), (77, 3, 2), (1000, 64, 8), (5000, 1024, 16), (16384, 128, 8), (70000, 64, 8),
         (128, 128, 8), (129, 300, 8), (300001, 64, 4))


def test_reindex(library, how):
    for tokens, experts, top_k in SORTS:
        sizes = library.sizes(tokens, 64, 64, experts, top_k)
        ids, _ = make_routing(tokens, experts, top_k, 1, absent=0.1)
        lists = Lists(library, sizes, ids)
        offsets, row_token, pos = wanted_lists(ids, experts)
        fail_unless(torch.equal(lists.offsets.cpu(), offsets), "offsets", tokens, experts, top_k)
        fail_unless(torch.equal(lists.pos_of.cpu(), pos), "pos_of", tokens, experts, top_k)
        fail_unless(torch.equal(lists.row_token.cpu()[: row_token.numel()], row_token), "row_token", tokens, experts)


def test_faults(library, how):
    sizes = library.sizes(100, 64, 64, 16, 4)
    ids, _ = make_routing(100, 16, 4, 2)
    clean = ids.clone()
    faults = library.faults(sizes)
    Lists(library, sizes, ids, faults)
    library.check_faults(sizes, faults, ids)
    ids[40, 2], ids[70, 1], ids[50, 3] = 16, -2, ids[50, 0]
    lists = Lists(library, sizes, ids, faults)
    clean[40, 2], clean[70, 1], clean[50, 3] = -1, -1, -1
    fail_unless(torch.equal(lists.pos_of.cpu(), wanted_lists(clean, 16)[2]), "bad ids are not contained")
    try:
        library.check_faults(sizes, faults, ids)
    except RuntimeError as error:
        fail_unless("3 expert ids" in str(error) and "token 40, slot 2: 16" in str(error), error)
    else:
        raise AssertionError("bad ids went unnoticed")


def test_gate(library, how):
    for tokens, experts, top_k in ((1, 8, 2), (300, 64, 8), (257, 128, 8), (100, 200, 6), (65, 1024, 16), (33, 5, 5)):
        for sigmoid in (0, 1):
            for renormalise in (0, 1):
                sizes = library.sizes(tokens, 64, 64, experts, top_k)
                logits = torch.randn(tokens, experts, device=DEVICE)
                logits = torch.where(torch.rand_like(logits) < 0.3, (logits * 4).round() / 4, logits)  # ties
                bad = torch.zeros(tokens, dtype=torch.bool, device=DEVICE)
                if tokens > 60:
                    logits[13, 3], logits[57, 4] = float("nan"), float("inf")
                    logits[31] = float("-inf")
                    logits[32, 1:] = float("-inf")
                    bad[[13, 31, 57]] = True
                ids = torch.full((tokens, top_k), -7, device=DEVICE, dtype=torch.int32)
                weights = poisoned(tokens, top_k, dtype=torch.float32)
                faults = library.faults(sizes)
                library.topk_gate(sizes, logits, sigmoid, renormalise, ids, weights, faults)
                want = torch.sort(logits.cpu(), dim=1, descending=True, stable=True).indices[:, :top_k].to(torch.int32)
                want[bad.cpu()] = -1
                fail_unless(torch.equal(ids.cpu(), want), "gate ids", tokens, experts, top_k)
                score = torch.sigmoid(logits.double()) if sigmoid else torch.softmax(logits.double(), -1)
                picked = score.gather(1, ids.clamp_min(0).long())
                picked = picked / picked.sum(1, keepdim=True) if renormalise else picked
                picked[bad] = 0
                fail_unless(float((weights - picked).abs().max()) <= 2e-6, "gate weights", tokens, experts, sigmoid, renormalise,
                            float((weights - picked).abs().max()))
                try:
                    library.check_faults(sizes, faults, None)
                    fail_unless(not bool(bad.any()), "bad logits went unnoticed")
                except RuntimeError as error:
                    fail_unless("3 tokens" in str(error) and "token 13" in str(error), error)


def test_rows(library, how):
    for tokens, hidden, top_k in ((50, 2048, 8), (7, 72, 2), (33, 4096, 6), (9, 2048, 16)):
        sizes = library.sizes(tokens, hidden, 64, 32, top_k)
        ids, weights = make_routing(tokens, 32, top_k, 4, absent=0.2)
        lists = Lists(library, sizes, ids)
        rows = torch.randn(tokens * top_k, hidden, device=DEVICE).to(BF16)
        y = poisoned(tokens, hidden, dtype=torch.float32)
        library.merge_rows(sizes, rows, lists.pos_of, weights, y, 1)
        order = torch.where(lists.pos_of < 0, 1 << 30, lists.pos_of).sort(1).indices
        want = torch.zeros(tokens, hidden, device=DEVICE)
        for j in range(top_k):  # each term rounded, then added
            at = order[:, j:j + 1]
            row, weight = lists.pos_of.gather(1, at), weights.gather(1, at)
            term = weight * rows[row.clamp_min(0).flatten().long()].float()
            want = torch.where(row < 0, want, want + term)
        fail_unless(torch.equal(y, want), "merge", tokens, hidden, top_k)
        half = poisoned(tokens, hidden)
        library.merge_rows(sizes, rows, lists.pos_of, weights, half, 0)
        fail_unless(torch.equal(half, want.to(BF16)), "merge to bf16", tokens, hidden, top_k)
        index = torch.randint(-1, tokens, (99,), device=DEVICE, dtype=torch.int32)
        to = poisoned(99, hidden)
        library.gather_rows(sizes, rows, index, 99, to)
        fail_unless(torch.equal(to, torch.where(index[:, None] < 0, 0, rows[index.clamp_min(0).long()])), "gather")


def make_weights(experts, hidden, intermediate, integers=False):
    if integers:
        return (torch.randint(-2, 3, (experts, 2 * intermediate, hidden), device=DEVICE).to(BF16),
                torch.randint(-2, 3, (experts, hidden, intermediate), device=DEVICE).to(BF16))
    return (torch.randn(experts, 2 * intermediate, hidden, device=DEVICE).mul_(0.02).to(BF16),
            torch.randn(experts, hidden, intermediate, device=DEVICE).mul_(0.02).to(BF16))


def products(library, sizes, x, ids, gate_up, down):
    lists = Lists(library, sizes, ids)
    inner = poisoned(ids.numel(), sizes.intermediate, dtype=x.dtype)
    rows = poisoned(ids.numel(), sizes.hidden, dtype=x.dtype)
    library.grouped_up(sizes, x, lists.row_token, lists.offsets, gate_up, inner)
    library.grouped_down(sizes, inner, lists.offsets, down, rows)
    return lists, inner, rows


CASES = (  # tokens, hidden, intermediate, experts, top_k, share of absent pairs, the only expert
    (1, 64, 64, 2, 1, 0, None), (128, 128, 128, 1, 1, 0, None), (300, 256, 192, 7, 3, 0.1, None),
    (200, 520, 136, 5, 2, 0, None), (333, 72, 1000, 3, 2, 0, None), (500, 512, 768, 16, 4, 0, 5),
    (64, 2048, 1024, 64, 8, 0, None), (1000, 2048, 768, 128, 8, 0.05, None), (2100, 1024, 1408, 8, 2, 0, None),
    (5000, 192, 640, 2, 1, 0, 1),
    (0, 64, 64, 4, 2, 0, None), (50, 256, 256, 9, 4, 1.0, None),
)


def test_products(library, how):
    for tokens, hidden, intermediate, experts, top_k, absent, only in CASES:
        what = f"T={tokens} H={hidden} I={intermediate} E={experts} k={top_k}"
        sizes = library.sizes(tokens, hidden, intermediate, experts, top_k, **how)
        ids, weights = make_routing(tokens, experts, top_k, 3, absent, only)
        x = torch.randn(tokens, hidden, device=DEVICE).to(BF16)
        gate_up, down = make_weights(experts, hidden, intermediate)
        lists, inner, rows = products(library, sizes, x, ids, gate_up, down)
        torch.cuda.synchronize()
        fail_unless(not library.gave_up(), what, "a kernel waited in vain")
        limits = lists.offsets.tolist()
        live = limits[-1]
        want_inner, want_rows = torch.zeros(live, intermediate, device=DEVICE), torch.zeros(live, hidden, device=DEVICE)
        for e in range(experts):
            part = slice(limits[e], limits[e + 1])
            gate, up = (x[lists.row_token[part].long()].float() @ gate_up[e].float().t()).chunk(2, -1)
            want_inner[part] = F.silu(gate) * up
            want_rows[part] = inner[part].float() @ down[e].float().t()
        errors = compare(inner[:live], want_inner, what + " up"), compare(rows[:live], want_rows, what + " down")
        fail_unless(bool(inner[live:].isnan().all()) and bool(rows[live:].isnan().all()), what, "wrote past the live rows")
        layer = Layer(library, gate_up, down, top_k, tokens, **how)
        layer.memory.fill_(0xFF)
        y = layer(x, ids, weights, out=poisoned(tokens, hidden))
        merged = poisoned(tokens, hidden)
        library.merge_rows(sizes, rows, lists.pos_of, weights, merged, 0)
        fail_unless(torch.equal(y, merged), what, "the layer differs from its parts")
        print(f"  {what}: up {errors[0]:.1e} down {errors[1]:.1e}", flush=True)


def test_integers(library, how):
    """Sums of small integers are exact, so the down-projection must agree to the last bit."""
    sizes = library.sizes(700, 512, 384, 6, 2, **how)
    ids, _ = make_routing(700, 6, 2, 8)
    _, down = make_weights(6, 512, 384, integers=True)
    lists = Lists(library, sizes, ids)
    inner = torch.randint(-4, 5, (1400, 384), device=DEVICE).to(BF16)
    rows = poisoned(1400, 512)
    library.grouped_down(sizes, inner, lists.offsets, down, rows)
    limits = lists.offsets.tolist()
    for e in range(6):
        part = slice(limits[e], limits[e + 1])
        want = (inner[part].double() @ down[e].double().t()).to(BF16)
        fail_unless(torch.equal(rows[part], want), "integers of expert", e)


def test_integers_up(library, how):
    """The up-projection before its activation, bit for bit: `pre` holds its sums."""
    for tiles in ("wide", "narrow"):
        how = {**how, "tiles": tiles}
        sizes = library.sizes(700, 520, 384, 6, 2, **how)
        ids, _ = make_routing(700, 6, 2, 8, 0.1)
        gate_up, _ = make_weights(6, 520, 384, integers=True)
        x = torch.randint(-4, 5, (700, 520), device=DEVICE).to(BF16)
        lists = Lists(library, sizes, ids)
        inner, pre = poisoned(1400, 384), poisoned(1400, 768)
        library.up_full(sizes, x, None, 0, lists.row_token, lists.offsets, gate_up, None, 0, inner, 384, pre)
        limits = lists.offsets.tolist()
        for e in range(6):
            part = slice(limits[e], limits[e + 1])
            sums = x[lists.row_token[part].long()].double() @ gate_up[e].double().t()
            fail_unless(torch.equal(pre[part], sums.to(BF16)), tiles, "integers of expert", e)
            gate, up = sums.chunk(2, -1)
            compare(inner[part], F.silu(gate) * up, "hidden beside pre")
        fail_unless(bool(pre[limits[-1]:].isnan().all()), tiles, "wrote past the live rows")


def act(pre, activation):
    if activation == "swiglu":
        gate, up = pre.chunk(2, -1)
        return F.silu(gate) * up
    return F.gelu(pre, approximate="tanh" if activation == "gelu_tanh" else "none")


def test_everything(library, how):
    """Activations, biases, strides, two sources of rows, pre-activations, fp32 rows."""
    cases = [(BF16, "hopper", tiles) for tiles in ("wide", "narrow", "few", "automatic")]
    cases += [(dtype, "generic", "automatic") for dtype in (BF16, torch.float16, torch.float32)]
    if how["path"] == "generic":
        cases = cases[4:]
    tokens, more, hidden, intermediate, experts, top_k = 150, 40, 264, 136, 5, 2
    for dtype, path, tiles in cases:
        limit = 1e-5 if dtype == torch.float32 else 6e-3
        sizes = library.sizes(tokens, hidden, intermediate, experts, top_k, tiles=tiles, path=path, dtype=dtype)
        ids, _ = make_routing(tokens, experts, top_k, 3, 0.1)
        lists = Lists(library, sizes, ids)
        both = torch.randn(tokens + more, hidden, device=DEVICE).to(dtype)
        x, more_x = both[:tokens].contiguous(), both[tokens:].contiguous()
        row = torch.randint(0, tokens + more, lists.row_token.shape, device=DEVICE, dtype=torch.int32)
        limits = lists.offsets.tolist()
        for activation in ACTIVATIONS:
            width = intermediate * (2 if activation == "swiglu" else 1)
            gate_up = (torch.randn(experts, width, hidden, device=DEVICE) * 0.1).to(dtype)
            down = (torch.randn(experts, hidden, intermediate, device=DEVICE) * 0.1).to(dtype)
            for biased in ((False,) if activation == "swiglu" else (False, True)):
                up_bias = torch.randn(experts, width, device=DEVICE).to(dtype) if biased else None
                down_bias = torch.randn(experts, hidden, device=DEVICE).to(dtype)
                inner, pre = poisoned(tokens * top_k, 160, dtype=dtype), poisoned(tokens * top_k, width, dtype=dtype)
                again = poisoned(tokens * top_k, intermediate, dtype=dtype)
                library.up_full(sizes, x, more_x, more, row, lists.offsets, gate_up, up_bias, ACTIVATIONS.index(activation), inner, 160, pre)
                library.up_full(sizes, x, more_x, more, row, lists.offsets, gate_up, up_bias, ACTIVATIONS.index(activation), again,
                                intermediate, None)
                inner, gap = inner[:, :intermediate], inner[:, intermediate:]
                fail_unless(bool(gap.isnan().all()), "wrote between the rows")
                live = limits[-1]
                fail_unless(torch.equal(inner[:live], again[:live]), dtype, tiles, activation, "bits depend on pre or stride")
                rows = poisoned(tokens * top_k, 272, dtype=torch.float32)
                halves = poisoned(tokens * top_k, hidden, dtype=dtype)
                library.down_full(sizes, again, lists.offsets, down, down_bias, rows, 272, 1)
                library.down_full(sizes, again, lists.offsets, down, down_bias, halves, hidden, 0)
                fail_unless(bool(rows[:, hidden:].isnan().all()), "wrote between the fp32 rows")
                fail_unless(torch.equal(rows[:live, :hidden].to(dtype), halves[:live]), "fp32 rows differ from rounded ones")
                for e in range(experts):
                    part = slice(limits[e], limits[e + 1])
                    sums = both[row[part].long()].double() @ gate_up[e].double().t()
                    sums = sums + up_bias[e].double() if biased else sums
                    outs = again[part].double() @ down[e].double().t() + down_bias[e].double()
                    for name, got, want in (("pre", pre[part], sums), ("hidden", inner[part], act(sums, activation)),
                                            ("rows", rows[part, :hidden], outs)):
                        error = float((got.double() - want).norm() / want.norm().clamp_min(1e-30))
                        fail_unless(error <= (1e-5 if name == "rows" else limit), dtype, path, tiles, activation, name, "expert", e, f"error {error:.1e}")


def test_same_bits(library, how):
    """All tiles of the Hopper kernels give the same bits."""
    if how["path"] == "generic":
        return
    for hidden, intermediate in ((2048, 768), (264, 136)):
        gate_up, down = make_weights(8, hidden, intermediate)
        ids, _ = make_routing(61, 8, 3, 6)
        x = torch.randn(61, hidden, device=DEVICE).to(BF16)
        found = []
        for tiles in ("wide", "narrow", "few"):
            lists, inner, rows = products(library, library.sizes(61, hidden, intermediate, 8, 3, tiles=tiles), x, ids, gate_up, down)
            found.append((inner[: int(lists.offsets[-1])], rows[: int(lists.offsets[-1])]))
        for inner, rows in found[1:]:
            fail_unless(torch.equal(inner, found[0][0]) and torch.equal(rows, found[0][1]), "tiles differ", hidden, intermediate,
                        int((inner != found[0][0]).sum()), int((rows != found[0][1]).sum()), "of", inner.numel(), rows.numel())


def test_contained(library, how):
    """A token with NaN spoils no other token."""
    tokens, hidden, intermediate, experts, top_k = 70, 256, 192, 4, 2
    for tiles in ("wide", "narrow", "few"):
        how = {**how, "tiles": tiles}
        gate_up, down = make_weights(experts, hidden, intermediate)
        ids, weights = make_routing(tokens, experts, top_k, 5)
        x = torch.randn(tokens, hidden, device=DEVICE).to(BF16)
        layer = Layer(library, gate_up, down, top_k, tokens, **how)
        clean = layer(x, ids, weights)
        x[33] = float("nan")
        layer.memory.fill_(0xFF)
        y = layer(x, ids, weights, out=poisoned(tokens, hidden))
        fail_unless(bool(y[33].isnan().all()), "NaN vanished")
        keep = torch.arange(tokens, device=DEVICE) != 33
        fail_unless(torch.equal(y[keep], clean[keep]), tiles, "NaN spread")


def test_sources(library, how):
    """Gathers from two matrices, scatters with a stride."""
    sizes = library.sizes(50, 136, 64, 4, 2)
    both = torch.randn(90, 136, device=DEVICE).to(BF16)
    index = torch.randint(-1, 90, (77,), device=DEVICE, dtype=torch.int32)
    to = poisoned(77, 136)
    library.gather_two(sizes, both[:50].contiguous(), both[50:].contiguous(), 40, index, 77, to)
    fail_unless(torch.equal(to, torch.where(index[:, None] < 0, 0, both[index.clamp_min(0).long()])), "gather from two")
    target = torch.randperm(120, device=DEVICE)[:90].to(torch.int32)
    target[5] = -1
    wide = poisoned(120, 144)
    library.scatter_rows(sizes, both, target, 90, wide, 120, 144)
    want = poisoned(120, 144)
    kept = target >= 0
    want[target[kept].long(), :136] = both[kept]
    fail_unless(torch.equal(wide.view(torch.int16), want.view(torch.int16)), "scatter")


def test_generic_types(library, how):
    """The generic kernels in each type they know."""
    for dtype, limit in ((torch.float32, 1e-5), (torch.float16, 6e-3), (BF16, 6e-3)):
        for tokens, hidden, intermediate, experts, top_k in ((1, 8, 8, 1, 1), (333, 264, 104, 5, 2), (150, 128, 520, 9, 4)):
            sizes = library.sizes(tokens, hidden, intermediate, experts, top_k, path="generic", dtype=dtype)
            ids, weights = make_routing(tokens, experts, top_k, 3, 0.1)
            x = torch.randn(tokens, hidden, device=DEVICE).to(dtype)
            gate_up, down = (w.to(dtype) for w in make_weights(experts, hidden, intermediate))
            lists, inner, rows = products(library, sizes, x, ids, gate_up, down)
            limits = lists.offsets.tolist()
            for e in range(experts):
                part = slice(limits[e], limits[e + 1])
                gate, up = (x[lists.row_token[part].long()].double() @ gate_up[e].double().t()).chunk(2, -1)
                for got, want in ((inner[part], F.silu(gate) * up), (rows[part], inner[part].double() @ down[e].double().t())):
                    error = float((got.double() - want).norm() / want.norm().clamp_min(1e-30))
                    fail_unless(error <= limit, dtype, tokens, hidden, "expert", e, f"error {error:.1e}")
            layer = Layer(library, gate_up, down, top_k, tokens, path="generic")
            y, merged = layer(x, ids, weights, out=poisoned(tokens, hidden, dtype=dtype)), poisoned(tokens, hidden, dtype=torch.float32)
            library.merge_rows(sizes, rows, lists.pos_of, weights, merged, 1)
            fail_unless(torch.equal(y, merged.to(dtype)), dtype, "the layer differs from its parts")


def test_beyond_2_31(library, how):
    """R * H just over 2^31 elements: 64-bit offsets everywhere."""
    tokens, hidden, intermediate, experts, top_k = 66000, 2048, 64, 16, 16
    fail_unless(tokens * top_k * hidden > 2**31, "too small to prove anything")
    ids, weights = make_routing(tokens, experts, top_k, 9)
    x = torch.randn(tokens, hidden, device=DEVICE).to(BF16)
    gate_up, down = make_weights(experts, hidden, intermediate)
    y = Layer(library, gate_up, down, top_k, tokens, **how)(x, ids, weights, out=poisoned(tokens, hidden))
    fail_unless(bool(torch.isfinite(y).all()), "poison is left")
    for part in (slice(0, 40), slice(32980, 33020), slice(tokens - 40, tokens)):
        want = torch.zeros(40, hidden, device=DEVICE)
        for e in range(experts):
            gate, up = (x[part].float() @ gate_up[e].float().t()).chunk(2, -1)
            weight = torch.where(ids[part] == e, weights[part], 0).sum(1, keepdim=True)
            want += weight * ((F.silu(gate) * up).to(BF16).float() @ down[e].float().t())
        compare(y[part], want, f"tokens {part.start} to {part.stop}")


REPEATS = 30


def test_batch_invariance(library, how):
    """A token's bits do not depend on the others, nor on the run."""
    tokens, hidden, intermediate, experts, top_k = 1500, 2048, 1024, 16, 4
    gate_up, down = make_weights(experts, hidden, intermediate)
    ids, weights = make_routing(tokens, experts, top_k, 6)
    x = torch.randn(tokens, hidden, device=DEVICE).to(BF16)
    whole = Layer(library, gate_up, down, top_k, tokens, **how)
    first = whole(x, ids, weights)
    for _ in range(REPEATS):
        whole.memory.fill_(0xFF)
        fail_unless(torch.equal(whole(x, ids, weights, out=poisoned(tokens, hidden)), first), "another run gave other bits")
    for count in (1, 17, 200):
        part = Layer(library, gate_up, down, top_k, count, **how)
        y = part(x[:count].contiguous(), ids[:count].contiguous(), weights[:count].contiguous())
        fail_unless(torch.equal(y, first[:count]), "a batch of", count, "gave other bits")


TESTS = {name[5:]: value for name, value in list(globals().items()) if name.startswith("test_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--tiles", choices=TILES, default="automatic")
    parser.add_argument("--kernels", choices=PATHS, default="auto")
    parser.add_argument("--only", choices=TESTS, action="append")
    parser.add_argument("--small", action="store_true", help="few small cases, for compute-sanitizer")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs that must give the same bits")
    arguments = parser.parse_args()
    globals()["REPEATS"] = arguments.repeats
    if arguments.small:
        globals()["CASES"] = CASES[1:5]
        globals()["SORTS"] = ((1, 64, 8), (77, 3, 2), (300, 100, 8))
    library = Library(arguments.library)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    bad = 0
    for name in arguments.only or TESTS:
        try:
            TESTS[name](library, {"tiles": arguments.tiles, "path": arguments.kernels})
            torch.cuda.synchronize()
            fail_unless(not library.gave_up(), "a kernel waited in vain")
            print("pass", name, flush=True)
        except (AssertionError, RuntimeError) as error:
            bad += 1
            print("FAIL", name, str(error)[:400], flush=True)
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
