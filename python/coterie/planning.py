# SPDX-License-Identifier: Apache-2.0
"""The planning half: traces, placements, plans, reports. Nothing here needs a process group."""
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from . import _core
from ._error import fail


def _files(files):
    return [Path(f) for f in ([files] if isinstance(files, (str, os.PathLike)) else files)]


def _threads(num_threads):
    return num_threads or max(1, os.cpu_count() or 1)


def _as_trace(trace):
    return trace if isinstance(trace, _core.Trace) else open_trace(trace)


def _as_placement(placement):
    return placement if isinstance(placement, _core.Placement) else read_placement(placement)


def trace(model, text, out, *, max_tokens=0, sequence_length=512, weights=False, dtype="fp32",
          num_threads=0, progress=None):
    """Runs the model in folder `model` over text and records the experts that tokens choose.

    text: a UTF-8 file, several, or {domain: file or files}. out: trace file to write.
    max_tokens: of each file, 0 for all. dtype: "fp32" or "bf16", how weights are kept; sums are
    fp32. progress: None or an object with begin(what, total), update(done), end(), warn(text).
    Returns the Trace. For the families that the C++ decoder knows; `profile` serves any
    transformers model.
    """
    texts = text if isinstance(text, dict) else {f.stem: f for f in _files(text)}
    pairs = [(domain, file) for domain, files in texts.items() for file in _files(files)]
    _core.record_trace(Path(model), pairs, Path(out), max_tokens, sequence_length, weights, dtype,
                       num_threads, progress)
    return open_trace(out)


def open_trace(files, *, num_experts=0, top_k=0, num_layers=0):
    """Opens routing written by Coterie, vLLM, SGLang or others (docs/file_formats.md)."""
    return _core.open_trace(_files(files), num_experts, top_k, num_layers)


def trace_from(ids, num_experts, *, sequence_length=512, model_type="", source="arrays"):
    """A Trace of arrays: {layer number: ids}, each an integer array or tensor [tokens, top_k].

    -1 means no expert. Error "bad_input" names layer and row of an id out of range, and of an
    expert that stands twice in a row.
    """
    layers = {}
    for layer, rows in ids.items():
        if isinstance(rows, torch.Tensor):
            rows = rows.detach().cpu().numpy()
        rows = np.asarray(rows)
        if not np.issubdtype(rows.dtype, np.integer):
            fail("bad_input", f"layer {layer}: ids are {rows.dtype}, not whole numbers")
        layers[int(layer)] = rows.astype(np.int64, copy=False)
    return _core.trace_of_arrays(layers, int(num_experts), int(sequence_length), model_type, source)


def place(trace, devices, *, algorithm="coterie", nodes=1, num_redundant_experts=0, load_cap=1.10,
          objective="mean", seed=0, num_starts=8, num_threads=0, fit="all", progress=None):
    """Chooses the device of every expert so that a token meets few devices.

    trace: a Trace or its file. fit: "all", "even-rows", "first-half" or "sequences": the rows that
    count; the rest is held out and measured. load_cap: largest load of a device over the mean
    (None: no cap). Deterministic for a seed, whatever num_threads. Error "infeasible" if the cap
    cannot be kept. Returns a Placement; print it, `save` it, pass it on.
    """
    placement, _ = _core.place(_as_trace(trace), algorithm, devices, nodes, num_redundant_experts,
                               load_cap, objective, seed, num_starts, _threads(num_threads), fit,
                               progress)
    return placement


def read_placement(path):
    """Reads and checks a placement file of Coterie."""
    return _core.read_placement(Path(path))


def placement_from(devices, num_experts, *, model_fingerprint=""):
    """A Placement of {layer number: [[expert ids of device 0], [of device 1], ...]}."""
    lists = {int(layer): [[int(e) for e in experts] for experts in of_layer]
             for layer, of_layer in devices.items()}
    return _core.placement_of_map(lists, int(num_experts), model_fingerprint)


def contiguous_placement(layers, num_experts, devices):
    """Experts in checkpoint order, for the layers with these numbers."""
    return _core.contiguous_placement(list(layers), num_experts, devices)


def verify(placement, trace=None, *, devices=0):
    """Checks a placement, a Placement or a file (Coterie's, SGLang's, vLLM's), by code of its own.

    With a trace, devices a token and loads are counted by brute force and held against what the
    file states. devices: for files that do not say it. Returns the counted figures as a dict;
    Error "bad_input" names layer and breach.
    """
    trace = None if trace is None else _as_trace(trace)
    if not isinstance(placement, _core.Placement):
        return _core.verify(Path(placement), trace, devices)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "placement.json"
        placement.save(path)
        return _core.verify(path, trace, devices)


def _block_of(config):
    """Sizes of a decoder block, from a config (an object, a dict, a folder or a config.json)."""
    if isinstance(config, (str, os.PathLike)):
        path = Path(config)
        config = json.loads((path / "config.json" if path.is_dir() else path).read_text())
    if not isinstance(config, dict):
        config = config.to_dict()
    get = lambda *keys: next((config[k] for k in keys if config.get(k)), 0)  # noqa: E731
    width = get("moe_intermediate_size", "intermediate_size")
    heads = get("num_attention_heads")
    return {
        "hidden": get("hidden_size"),
        "intermediate": width,
        "shared_intermediate": get("shared_expert_intermediate_size")
        or get("n_shared_experts") * width,
        "kv_share": get("num_key_value_heads") / heads if heads and get("num_key_value_heads") else 1,
    }


def plan(trace, placement, cluster, *, model=None, tokens, schedules=(), engine="", **block):
    """Predicts schedules of the MoE layers on a cluster.

    cluster: profile file (docs/file_formats.md). model: folder, config.json or config object that
    gives the sizes of the block; or give hidden=, intermediate=, shared_intermediate=, kv_share=,
    sequence_length= yourself. tokens: of a device and step. Returns a list of Plan, from the
    plainest schedule to Coterie's; each prints its step time and its distance to the bound.
    """
    sizes = _block_of(model) if model is not None else {}
    sizes.update(block)
    return _core.plan(_as_trace(trace), _as_placement(placement), Path(cluster),
                      float(sizes.get("hidden", 0)), float(sizes.get("intermediate", 0)),
                      float(tokens), float(sizes.get("sequence_length", 0)),
                      float(sizes.get("shared_intermediate", 0)), float(sizes.get("kv_share", 1)),
                      list(schedules), engine)


def report(trace, placement, *, title="Expert placement", fit="all", baselines=("contiguous",)):
    """Compares a placement with baselines on a trace.

    baselines: names of algorithms (placed now) or {name: Placement}. fit: which rows count as
    fitted; the rest is shown as held out. Returns a Report: print it, or `save("report.html")`.
    """
    trace, placement = _as_trace(trace), _as_placement(placement)
    if not isinstance(baselines, dict):
        baselines = {name: place(trace, placement.num_devices, algorithm=name, load_cap=None,
                                 fit=fit) for name in baselines}
    named = list(baselines.items()) + [("coterie" if "coterie" not in baselines else "chosen",
                                        placement)]
    return _core.make_report(trace, named, title, fit)


def permute(model, placement, out, *, progress=None):
    """Writes the checkpoint in folder `model` with experts re-ordered, to the new folder `out`.

    Engines that give each device equally many experts in checkpoint order (transformers, vLLM,
    SGLang, Megatron) then place them as `placement` says. The function of the model is unchanged.
    Streams tensor by tensor; nothing appears at `out` unless all went well.
    """
    _core.permute_checkpoint(Path(model), _as_placement(placement), Path(out), progress)
    return Path(out)


def export_placement(placement, path, engine, *, num_layers=None):
    """Writes a placement as another engine reads it.

    engine: "sglang": {"physical_to_logical_map": [layers][slots]} for --init-expert-location;
    "vllm": [layers][slots], the list of EPLB's initial expert maps; "vllm-ranks":
    {"expert_to_ep_rank": [layers][experts]}. num_layers: of the whole model, for engines that count
    dense layers too (SGLang does); these get experts in order. Devices must hold equally many
    slots. Coterie's `verify` reads the first and the last back.
    """
    placement = _as_placement(placement)
    numbers = placement.layers
    rows = {layer: placement.experts_of_device(layer) for layer in numbers}
    for layer, devices in rows.items():
        if len({len(experts) for experts in devices}) != 1:
            fail("bad_input", f"layer {layer}: devices hold {[len(d) for d in devices]} experts; "
                              f"{engine} needs equally many")
    wanted = numbers if num_layers is None else list(range(num_layers))
    if num_layers is not None and numbers[-1] >= num_layers:
        fail("bad_input", f"the placement has layer {numbers[-1]}, the model {num_layers} layers")
    order = list(range(placement.num_experts))
    slots = [placement.physical_to_logical(i) if i in rows else _padded(order, rows[numbers[0]])
             for i in wanted]
    if engine == "sglang":
        document = {"physical_to_logical_map": slots}
    elif engine == "vllm":
        document = slots
    elif engine == "vllm-ranks":
        document = {"expert_to_ep_rank": [_ranks(rows.get(i), placement, i) for i in wanted]}
    else:
        fail("bad_input", f'engine "{engine}": there are sglang, vllm, vllm-ranks')
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(document) + "\n")
    os.replace(partial, path)
    return path


def _padded(order, devices):
    """Experts in order for a dense layer, as many slots as the others have."""
    num_slots = sum(len(experts) for experts in devices)
    return (order * (num_slots // len(order) + 1))[:num_slots]


def _ranks(devices, placement, layer):
    if devices is None:
        share = -(-placement.num_experts // placement.num_devices)
        return [expert // share for expert in range(placement.num_experts)]
    ranks = [-1] * placement.num_experts
    for rank, experts in enumerate(devices):
        for expert in experts:
            if ranks[expert] >= 0:
                fail("bad_input", f"layer {layer}: expert {expert} has copies, which "
                                  "expert_to_ep_rank cannot say")
            ranks[expert] = rank
    return ranks
