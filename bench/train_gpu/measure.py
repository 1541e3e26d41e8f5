# SPDX-License-Identifier: Apache-2.0
"""Proves that the trainer equals transformers on one GPU, then times both, taking turns.

    python3 measure.py LIBRARY [--out FILE.json] [--only prove,time,profile]
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import time

import torch

OLMOE = {
    "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": 50304,
    "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64,
    "num_experts_per_tok": 8, "norm_topk_prob": False, "hidden_act": "silu", "clip_qkv": None,
    "attention_bias": False, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
    "initializer_range": 0.02, "router_aux_loss_coef": 0.01,
}
SMALL = OLMOE | {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 64,
                 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                 "num_experts": 16, "num_experts_per_tok": 4, "max_position_embeddings": 256}


MIDDLE = OLMOE | {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 512,
                  "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8}


class Ours:
    """A model of the library."""

    def __init__(self, library, config, **options):
        self.library = library
        handle = ctypes.c_int()
        config = config | {"initializer_range": 1e-30}  # weights are given
        self.call("tg_make", json.dumps(config).encode(), json.dumps(options).encode(),
                  ctypes.byref(handle))
        self.handle = handle.value

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name}: {self.library.tg_error().decode()}")

    def piece(self, name, tensor, direction):
        assert tensor.is_contiguous(), name
        index = tensor.device.index if tensor.is_cuda else -1
        self.call("tg_piece", self.handle, name.encode(), ctypes.c_void_p(tensor.data_ptr()),
                  -1 if index is None else index, direction)

    def load(self, state):
        for name, tensor in pieces(state):
            self.piece(name, tensor.contiguous(), 0)

    def gradient(self, name, like):
        found = torch.empty_like(like).contiguous()
        self.piece(name, found, 2)
        return found

    def forward_backward(self, ids):
        losses = (ctypes.c_double * 2)()
        self.call("tg_forward_backward", self.handle, ctypes.c_void_p(ids.data_ptr()),
                  ctypes.c_int64(ids.shape[0]), ctypes.c_int64(ids.shape[1] - 1), losses)
        return losses[0]

    def make_optimizer(self, master):
        self.call("tg_make_optimizer", self.handle, int(master), ctypes.c_double(0.1))

    def step(self, rate, limit=0.0):
        self.call("tg_optimizer_step", self.handle, ctypes.c_double(rate), ctypes.c_double(limit))

    def bytes(self):
        found = (ctypes.c_int64 * 2)()
        self.call("tg_bytes", self.handle, found)
        return found[0], found[1]

    def drop(self):
        self.call("tg_drop", self.handle)


def pieces(state):
    """Checkpoint names of transformers' tensors, fused experts taken apart."""
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            half = tensor.shape[1] // 2
            for e in range(tensor.shape[0]):
                base = name[: -len("gate_up_proj")] + f"{e}."
                yield base + "gate_proj.weight", tensor[e, :half]
                yield base + "up_proj.weight", tensor[e, half:]
        elif name.endswith("experts.down_proj"):
            for e in range(tensor.shape[0]):
                yield name[: -len("down_proj")] + f"{e}.down_proj.weight", tensor[e]
        else:
            yield name, tensor


def theirs(config, dtype, experts="grouped_mm", attention="sdpa"):
    from transformers import OlmoeConfig, OlmoeForCausalLM

    made = OlmoeConfig(**{k: v for k, v in config.items() if k not in ("architectures", "model_type")})
    made._attn_implementation = attention
    made._experts_implementation = experts
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = OlmoeForCausalLM(made)
    torch.set_default_dtype(torch.float32)
    return model.train()


def their_loss(model, ids):
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def loss_as_shipped(model, ids):
    """The loss as a user of transformers gets it: labels in, loss out (it shifts by itself)."""
    return model(input_ids=ids[:, :-1], labels=ids[:, :-1], use_cache=False).loss


def error(found, wanted):
    wanted = wanted.double()
    return ((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-300)).item()


def compare(library, config, dtype, shape, experts, **options):
    torch.manual_seed(3)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    model = theirs(config, types[dtype], experts)
    ids = torch.randint(0, config["vocab_size"], (shape[0], shape[1] + 1))
    ours = Ours(library, config, dtype=dtype, device="cuda", **options)
    ours.load({k: v.detach().float() if k.endswith("mlp.gate.weight") else v.detach()
               for k, v in model.state_dict().items()})
    truth = None
    if dtype == "bf16":  # the same weights in fp32: what both round
        truth = theirs(config, torch.float32, "eager")
        truth.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
        their_loss(truth, ids.cuda()).backward()
    loss = their_loss(model, ids.cuda())
    loss.backward()
    found = ours.forward_backward(ids)
    wanted = dict(pieces({k: p.grad for k, p in (truth or model).named_parameters()}))
    theirs_too = dict(pieces({k: p.grad for k, p in model.named_parameters()}))
    sums = {}
    for name, right in wanted.items():
        kind = name.split(".experts.")[1].split(".", 1)[1] if ".experts." in name else \
            ".".join(name.split(".")[-2:])
        gate = name.endswith("mlp.gate.weight")
        got = ours.gradient(name, right.float() if gate else theirs_too[name])
        row = sums.setdefault(kind, [0.0, 0.0, 0.0])
        for place, value in enumerate((got.double() - right.double(),
                                       theirs_too[name].double() - right.double(), right.double())):
            row[place] += value.square().sum().item()
    table = {kind: [(a / max(c, 1e-300)) ** 0.5, (b / max(c, 1e-300)) ** 0.5]
             for kind, (a, b, c) in sums.items()}
    again = ours.forward_backward(ids)
    ours.drop()
    return {"dtype": dtype, "experts": experts, "options": options, "loss_ours": found,
            "loss_transformers": loss.item(), "loss_error": abs(found - loss.item()) / loss.item(),
            "loss_again_equal": found == again, "gradient_errors_ours_transformers": table,
            "worst": max(a for a, _ in table.values())}


def timed(function):
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def ceiling():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(5):
        c = a @ b
    rates = []
    for _ in range(3):
        ms = timed(lambda: [torch.mm(a, b, out=c) for _ in range(26)])
        rates.append(26 * 2 * 8192**3 / ms / 1e9)
    return statistics.median(rates)


def copy_rate():
    a = torch.empty(2**31, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    b.copy_(a)
    return 10 * 2 * a.numel() / timed(lambda: [b.copy_(a) for _ in range(10)]) / 1e9


def flops_a_step(config, sequences, length):
    """As docs/training.md counts them: three times forward, causal attention as half of the square."""
    h, layers, k = config["hidden_size"], config["num_hidden_layers"], config["num_experts_per_tok"]
    active = layers * (4 * h * h + config["num_experts"] * h + 3 * k * h * config["intermediate_size"])
    active += h * config["vocab_size"]
    return 3 * sequences * length * (2 * active + 2 * layers * h * length)


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "all": [round(v, 3) for v in values]}


def profile(function, steps=2):
    from torch.profiler import ProfilerActivity, profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            function()
        torch.cuda.synchronize()
    rows = [(e.key, e.self_device_time_total / 1e3 / steps, e.count / steps)
            for e in found.key_averages() if e.self_device_time_total > 0]
    rows.sort(key=lambda row: -row[1])
    return rows


GROUPS = [("attention", ("flash", "cudnn", "fmha", "sdpa")),
          ("experts", ("coterie::kernels::cuda", "grouped", "Grouped")),
          ("loss", ("cross_entropy",)), ("optimizer", ("adamw",)),
          ("norms", ("rms", "layer_norm", "LayerNorm", "layernorm", "GammaBeta")),
          ("rotary", ("rotary",)), ("products", ("gemm", "nvjet", "cutlass", "cublas"))]


def grouped(rows):
    table = {}
    for name, ms, _ in rows:
        special = [g for g in ("cross_entropy", "adamw", "rotary") if g in name]
        kind = {"cross_entropy": "loss", "adamw": "optimizer", "rotary": "rotary"}[special[0]] if special \
            else next((g for g, words in GROUPS if any(w in name for w in words)), "elementwise and others")
        table[kind] = table.get(kind, 0) + ms
    return {k: round(v, 3) for k, v in sorted(table.items(), key=lambda x: -x[1])}


class Side:
    """One contestant: its step, its optimizer, its memory."""

    def __init__(self, name, step, optimizer, state_bytes):
        self.name, self.step, self.optimizer, self.state_bytes = name, step, optimizer, state_bytes
        self.times, self.optimizer_times = [], []


def ours_side(library, name, config, ids, master, **options):
    ours = Ours(library, config, dtype="bf16", device="cuda", **options)
    model = theirs(config, torch.bfloat16)
    ours.load({k: v.detach().float() if k.endswith("mlp.gate.weight") else v.detach()
               for k, v in model.state_dict().items()})
    del model
    torch.cuda.empty_cache()
    ours.make_optimizer(master)
    parameters, states = ours.bytes()

    def optimize():
        ours.step(1e-4)

    return Side(name, lambda: ours.forward_backward(ids), optimize, 2 * parameters + states), ours


def their_side(config, ids, as_shipped):
    model = theirs(config, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    on_gpu = ids.cuda()

    def step():
        optimizer.zero_grad(set_to_none=True)
        (loss_as_shipped if as_shipped else their_loss)(model, on_gpu).backward()

    numel = sum(p.numel() for p in model.parameters())
    return Side("transformers", step, optimizer.step, 2 * 4 * numel), model


def measure(sides, rounds):
    for side in sides:
        side.step(), side.optimizer(), side.step(), side.optimizer()
    for _ in range(rounds):
        for side in sides:
            for _ in range(2):
                side.times.append(timed(side.step))
                side.optimizer_times.append(timed(side.optimizer))


def peak_of(side):
    """Bytes above what lies there between two steps without gradients, and gradients apart."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    side.step(), side.optimizer()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def run_timing(library, results, rounds):
    config, (sequences, length) = OLMOE, (4, 4096)
    torch.manual_seed(5)
    ids = torch.randint(0, config["vocab_size"], (sequences, length + 1))
    flops = flops_a_step(config, sequences, length)
    before = ceiling()
    results["device_copy_TB_s"] = copy_rate()
    makers = [lambda: ours_side(library, "ours", config, ids, False),
              lambda: ours_side(library, "ours, fp32 master weights", config, ids, True),
              lambda: their_side(config, ids, True)]
    sides, held, peaks = [], [], {}
    for make in makers:
        torch.cuda.empty_cache()
        base = torch.cuda.memory_allocated()
        side, model = make()
        side.step(), side.optimizer()
        peaks[side.name] = (peak_of(side) - base - side.state_bytes) / 2**30
        sides.append(side), held.append(model)
    measure(sides, rounds)
    results["ceiling_TFLOP_s"] = {"before": before, "after": ceiling()}
    top = statistics.mean(results["ceiling_TFLOP_s"].values())
    results["flops_a_step"] = flops
    for side in sides:
        whole = [a + b for a, b in zip(side.times, side.optimizer_times)]
        results[side.name] = {
            "forward_backward_ms": spread(side.times), "optimizer_ms": spread(side.optimizer_times),
            "step_ms": spread(whole), "share_of_ceiling": flops / statistics.median(whole) / 1e9 / top,
            "memory_above_states_GiB": peaks[side.name]}
    base = results["transformers"]
    for side in sides[:-1]:
        own = results[side.name]
        own["speedup_forward_backward"] = base["forward_backward_ms"]["median"] / own["forward_backward_ms"]["median"]
        own["memory_ratio"] = own["memory_above_states_GiB"] / base["memory_above_states_GiB"]
    for side in (sides[0], sides[-1]):
        rows = profile(lambda: (side.step(), side.optimizer()))
        results[side.name]["kernels_ms"] = grouped(rows)
        results[side.name]["kernels"] = [(n[:110], round(ms, 3), c) for n, ms, c in rows[:45]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--only", default="prove,time")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.library)
    library.tg_error.restype = ctypes.c_char_p
    import transformers

    results = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
               "transformers_version": transformers.__version__,
               "driver": subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                        capture_output=True, text=True).stdout.strip()}
    parts = arguments.only.split(",")

    def save():
        if arguments.out:
            with open(arguments.out, "w") as file:
                json.dump(results, file, indent=1)

    if "prove" in parts:
        results["proof"] = []
        for case in (("fp32", SMALL, (3, 100), "eager", {}),
                     ("fp32", SMALL, (3, 100), "eager", {"loss_chunk": 64}),
                     ("bf16", SMALL, (3, 100), "eager", {}),
                     ("bf16", SMALL, (3, 100), "eager", {"grouped_mm": True}),
                     ("bf16", MIDDLE, (2, 512), "grouped_mm", {})):
            try:
                found = compare(library, case[1], case[0], case[2], case[3], **case[4])
            except Exception as problem:  # the rest is still worth knowing
                found = {"case": str(case[:1] + case[2:]), "failed": repr(problem)[:2000]}
            results["proof"].append(found)
            print(json.dumps(found), flush=True)
            torch.cuda.empty_cache()
            save()
    if "time" in parts:
        run_timing(library, results, arguments.rounds)
        save()
        for name in ("ours", "ours, fp32 master weights", "transformers"):
            short = {k: v for k, v in results[name].items() if k != "kernels"}
            print(name, json.dumps(short), flush=True)
            for row in results[name].get("kernels", [])[:28]:
                print("   ", row)
        print({k: results[k] for k in ("ceiling_TFLOP_s", "device_copy_TB_s", "flops_a_step")})


if __name__ == "__main__":
    main()
