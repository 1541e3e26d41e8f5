#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planning half in Python on the bundled model: trace, place, report, permute, export."""
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from parallel_cases import check_close, coterie, run_tests, tiny_model, torch, transformers

SOURCE = Path(os.environ.get("COTERIE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
MODEL = SOURCE / "demo/model"
TEXT = sorted((SOURCE / "demo/text").glob("**/*.txt"))[0]
CLUSTER = SOURCE / "bench/schedule_simulated/testbed_a.json"
NUM_TOKENS = 1024


def error_of(call, text, code):
    try:
        call()
    except coterie.Error as error:
        assert text in str(error) and error.code == code, (error.code, str(error))
        return
    raise AssertionError(f"nothing was refused: {text}")


def traced(folder):
    path = Path(folder) / "trace.bin"
    if not path.exists():
        coterie.trace(MODEL, TEXT, path, max_tokens=NUM_TOKENS, sequence_length=128)
    return coterie.open_trace(path)


def test_trace_equals_what_transformers_chooses():
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        ids = tokenizer(TEXT.read_text(), add_special_tokens=False)["input_ids"][:NUM_TOKENS]
        batches = torch.tensor(ids).view(-1, 128).split(4)
        profiled = coterie.profile(model, batches)
        assert profiled.layers == trace.layers and profiled.num_tokens == trace.num_tokens
        flips = 0
        for layer in trace.layers:
            a = np.sort(trace.ids(layer), axis=1)
            b = np.sort(profiled.ids(layer), axis=1)
            flips += int((a != b).any(axis=1).sum())
        assert flips <= 2, f"{flips} tokens are routed otherwise"
        masked = {"input_ids": batches[0], "attention_mask": torch.ones_like(batches[0])}
        masked["attention_mask"][1, 100:] = 0
        assert coterie.profile(model, [masked]).num_tokens == 4 * 128 - 28


def test_placement_report_verify_plan():
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(folder)
        placement = coterie.place(trace, 4, fit="sequences", num_starts=2)
        assert placement == coterie.place(trace, 4, fit="sequences", num_starts=2, num_threads=1)
        path = Path(folder) / "placement.json"
        placement.save(path)
        assert coterie.read_placement(path) == placement
        document = placement.to_json()
        assert document == json.loads(path.read_text())
        counted = coterie.verify(path, trace)
        for layer, figures in zip(counted["layers"], document["figures"]):
            assert abs(layer["fit"]["replicas"] - figures["fit"]["replicas"]) < 1e-9
        assert "devices a token" in repr(placement)
        report = coterie.report(trace, placement, fit="sequences")
        shown = report.to_json()
        assert "contiguous" in json.dumps(shown) and report.headline() in str(report)
        report.save(Path(folder) / "report.html")
        assert (Path(folder) / "report.html").read_text().startswith("<!")
        plans = coterie.plan(trace, placement, CLUSTER, model=MODEL, tokens=4096)
        assert plans[-1].schedule == "coterie"
        assert plans[-1].bound_s <= plans[-1].predicted_s <= plans[0].predicted_s
        edited = json.loads(path.read_text())
        edited["figures"][0]["fit"]["replicas"] += 0.5
        path.write_text(json.dumps(edited))
        error_of(lambda: coterie.verify(path, trace), "stated as", "bad_input")


def test_placements_of_other_engines():
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(folder)
        placement = coterie.place(trace, 4, num_starts=1)
        sglang = coterie.export_placement(placement, folder + "/sglang.json", "sglang")
        ranks = coterie.export_placement(placement, folder + "/ranks.json", "vllm-ranks")
        slots = coterie.export_placement(placement, folder + "/slots.json", "vllm")
        wanted = [entry["fit"] for entry in coterie.verify(placement, trace)["layers"]]
        for path, devices in ((sglang, 4), (ranks, 0)):
            found = coterie.verify(path, trace, devices=devices)
            assert [entry["fit"] for entry in found["layers"]] == wanted, found["kind"]
        maps = json.loads(sglang.read_text())["physical_to_logical_map"]
        assert maps == json.loads(slots.read_text())
        padded = coterie.export_placement(placement, folder + "/all.json", "sglang", num_layers=20)
        rows = json.loads(padded.read_text())["physical_to_logical_map"]
        assert len(rows) == 20 and rows[19] == list(range(placement.num_experts))
        uneven = coterie.placement_from({0: [[0, 1, 2], [3]]}, 4)
        error_of(lambda: coterie.export_placement(uneven, folder + "/no.json", "sglang"),
                 "[3, 1]", "bad_input")


def test_permuted_model_in_transformers_and_dcp():
    import torch.distributed.checkpoint as dcp

    with tempfile.TemporaryDirectory() as folder:
        placement = coterie.place(traced(folder), 4, num_starts=1)
        out = coterie.permute(MODEL, placement, folder + "/placed")
        before, after = (transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32).eval() for path in (MODEL, out))
        ids = torch.arange(5, 69).view(2, 32)
        with torch.no_grad():
            check_close(after(ids).logits, before(ids).logits, "logits", 1e-5)
        layer = placement.layers[0]
        order = placement.physical_to_logical(layer)
        block, old = after.model.layers[layer].mlp, before.model.layers[layer].mlp
        assert torch.equal(block.experts.down_proj, old.experts.down_proj[order])
        assert torch.equal(block.gate.weight, old.gate.weight[order])
        reader = dcp.HuggingFaceStorageReader(str(out))
        names = reader.read_metadata().state_dict_metadata
        wanted = [n for n in names if "mlp.experts" in n][:6] + [n for n in names if "gate" in n][:2]
        state = {n: torch.empty(names[n].size, dtype=names[n].properties.dtype) for n in wanted}
        dcp.load(state, storage_reader=reader, no_dist=True)
        from safetensors import safe_open
        for name in wanted:
            file = next(f for f in sorted(Path(out).glob("*.safetensors"))
                        if name in safe_open(f, "pt").keys())
            assert torch.equal(state[name], safe_open(file, "pt").get_tensor(name)), name


def test_layer_equals_the_obvious_loop():
    layer = coterie.nn.MoELayer(24, 16, 6, 2, aux_loss_coef=0.01, initializer_range=0.2)
    other = coterie.nn.MoELayer(24, 16, 6, 2, aux_loss_coef=0.01, initializer_range=0.2,
                                backend="torch")
    x = torch.randn(3, 5, 24, requires_grad=True)
    results = []
    for each in (layer, other):
        y, aux = each(x)
        gradients = torch.autograd.grad((y * y).sum() + aux, [x, *each.parameters()])
        results.append([y.detach(), aux.detach(), *gradients])
    for a, b in zip(*results):
        check_close(a, b, "layer")
    assert [n for n, _ in layer.named_parameters()] == [
        "gate.weight", "experts.gate_up_proj", "experts.down_proj"]
    double = coterie.nn.MoELayer(6, 4, 3, 2, dtype=torch.float64, initializer_range=0.5)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: double(x)[0], (x,))
    torch.library.opcheck(torch.ops.coterie.experts, (
        torch.randn(4, 24), torch.tensor([[0, 1], [2, -1], [5, 4], [0, 3]], dtype=torch.int32),
        torch.rand(4, 2), layer.experts.gate_up_proj.detach(), layer.experts.down_proj.detach(),
        layer.core.name, False), test_utils=("test_schema", "test_faketensor"))


def test_saved_state_may_be_copied():
    layer = coterie.nn.MoELayer(24, 16, 6, 2, initializer_range=0.2)
    x = torch.randn(7, 24)
    wanted = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = layer(x)[0].square().sum()
    for a, b in zip(torch.autograd.grad(loss, list(layer.parameters())), wanted):
        assert torch.equal(a, b)


def test_wrong_input_is_refused():
    error_of(lambda: coterie.trace_from({0: [[1, 99]]}, 16), "expert id 99", "bad_input")
    error_of(lambda: coterie.trace_from({0: [[1, 1]]}, 16), "row 0", "bad_input")
    error_of(lambda: coterie.trace_from({0: [[0.5, 1]]}, 16), "whole numbers", "bad_input")
    trace = coterie.trace_from({3: [[0, 1]] * 50 + [[2, 3]] * 50}, 4)
    placement = coterie.place(trace, 2)
    assert sorted(map(tuple, placement.experts_of_device(3))) == [(0, 1), (2, 3)]
    error_of(lambda: placement.experts_of_device(4), "layer 4", "bad_input")
    error_of(lambda: coterie.place(trace, 2, algorithm="none"), "none", "bad_input")
    error_of(lambda: coterie.place(coterie.trace_from({0: [[0]] * 9 + [[1]]}, 2), 2), "load",
             "infeasible")
    error_of(lambda: coterie.open_trace("no/such.file"), "no/such.file", "io")
    layer = coterie.nn.MoELayer(8, 8, 4, 2)
    experts = layer.experts
    error_of(lambda: layer.core(torch.randn(2, 8), torch.tensor([[0, 9], [1, 2]]),
                                torch.rand(2, 2), experts.gate_up_proj, experts.down_proj), "9",
             "bad_input")
    error_of(lambda: coterie.profile(tiny_model(), []), "no batch", "bad_input")


if __name__ == "__main__":
    sys.exit(run_tests(sys.modules[__name__]))
