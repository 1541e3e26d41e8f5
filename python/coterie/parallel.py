# SPDX-License-Identifier: Apache-2.0
"""Makes the experts of a transformers model expert-parallel, in place."""
import dataclasses
import os
import re
import weakref

import torch
import torch.distributed as dist

from . import _core
from ._error import Error, fail
from .ops import DTYPES, ExpertsCore
from .planning import contiguous_placement, place, read_placement
from .torch_experts import TorchExperts

IMPLEMENTATION = "coterie"
_WEIGHTS = ("gate_up_proj", "down_proj")


@dataclasses.dataclass
class ParallelExperts:
    """One layer's experts module after `parallelize`."""

    name: str  #: of the module in the model, "model.layers.3.mlp.experts"
    layer: int  #: number of the layer in the model
    module: torch.nn.Module
    experts_of_device: list  #: [ranks][...] global ids, ascending
    core: object  #: ExpertsCore or TorchExperts

    @property
    def expert_ids(self):
        """Global ids of the experts that this rank holds, in the order of its weights' rows."""
        return self.core.expert_ids

    def parameters(self):
        """(name in the model, parameter) of this rank's shards."""
        return [(f"{self.name}.{w}", getattr(self.module, w)) for w in _WEIGHTS]


@dataclasses.dataclass
class Parallelism:
    """What `parallelize` did to a model; kept as `model._coterie`."""

    group: object  #: process group, None: this process alone
    gradients: str
    placement: _core.Placement
    layers: list  #: of ParallelExperts

    def __deepcopy__(self, memo):
        fail("unsupported", "a parallel model cannot be copied; copy it before parallelize")


def _experts_forward(module, hidden_states, top_k_index, top_k_weights):
    """The function in transformers' registry: [N, H], [N, k], [N, k] -> [N, H]."""
    core = getattr(module, "_coterie_core", None)
    if core is None:
        fail("bad_input", 'experts_implementation is "coterie", but coterie.parallelize(model) has '
                          "not been called")
    dtype = module.down_proj.dtype
    ids = torch.where(top_k_index >= module.num_experts, -1, top_k_index)
    y = core(hidden_states.to(dtype), ids, top_k_weights, module.gate_up_proj, module.down_proj)
    return y.to(hidden_states.dtype)


def _register():
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    if IMPLEMENTATION not in ALL_EXPERTS_FUNCTIONS:
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _experts_forward)


def find_experts(model):
    """[(name, module)] of the experts modules of a transformers model, in layer order."""
    found = []
    for name, module in model.named_modules():
        if hasattr(module, "num_experts") and all(
                isinstance(getattr(module, w, None), torch.nn.Parameter) for w in _WEIGHTS):
            found.append((name, module))
    return found


def layer_number(name):
    """Number of the layer in a module's name: its last whole number."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    if not numbers:
        fail("unsupported", f"{name}: no layer number in the name of this experts module")
    return int(numbers[-1])


def _check_module(name, module):
    for flag, expected in (("is_transposed", False), ("has_bias", False), ("has_gate", True),
                           ("is_concatenated", True)):
        if getattr(module, flag, expected) != expected:
            fail("unsupported", f"{name}: experts with {flag}={getattr(module, flag)}")
    act = type(getattr(module, "act_fn", None)).__name__
    if act not in ("SiLU", "SiLUActivation"):
        fail("unsupported", f"{name}: activation {act}; experts must be SwiGLU (SiLU)")
    if "_apply_gate" in vars(type(module)) and (
            type(module)._apply_gate.__module__ != "transformers.integrations.moe"):
        fail("unsupported", f"{name}: {type(module).__name__} has a gate function of its own")
    for weight in _WEIGHTS:
        tensor = getattr(module, weight)
        if tensor.dim() != 3 or tensor.shape[0] != module.num_experts:
            fail("bad_input", f"{name}.{weight}: shape {list(tensor.shape)} is not "
                              f"[{module.num_experts}, ...]; is it sharded already?")
        if hasattr(tensor, "device_mesh"):
            fail("unsupported", f"{name}.{weight} is a DTensor; call parallelize before fully_shard "
                                "and without transformers' own expert parallelism")
        if tensor.is_meta:
            fail("unsupported", f"{name}.{weight} is on the meta device; load the weights first")


def _make_placement(placement, stats, layers, num_experts, size):
    """On one rank: the Placement that the words or files stand for."""
    if isinstance(placement, _core.Placement):
        return placement
    if placement in (None, "contiguous"):
        return contiguous_placement(layers, num_experts, size)
    if placement in ("coactivation", "coterie", "occult", "load_only", "random", "round_robin"):
        if stats is None:
            fail("bad_input", f'placement "{placement}" needs stats: a Trace, or the file of one')
        algorithm = "coterie" if placement == "coactivation" else placement
        return place(stats, size, algorithm=algorithm)
    if isinstance(placement, (str, os.PathLike)):
        return read_placement(placement)
    fail("bad_input", f"placement: {type(placement).__name__} is neither a Placement, a file nor a "
                      "name of an algorithm")


def _agree(group, make):
    """make() on the group's first rank, its result (or error) on all."""
    if group is None:
        return make()
    answer = [None]
    if dist.get_rank(group) == 0:
        try:
            answer = [("ok", make().to_json())]
        except Error as error:
            answer = [("error", error)]
    dist.broadcast_object_list(answer, group=group, group_src=0)
    kind, value = answer[0]
    if kind == "error":
        raise value
    maps = {}
    for layer, slots, cuts in zip(value["layers"], value["physical_to_logical_map"],
                                  value["device_slot_offsets"]):
        maps[layer] = [slots[a:b] for a, b in zip(cuts, cuts[1:])]
    return _core.placement_of_map(maps, value["num_experts"], value["model_fingerprint"])


def _check_replicas(model, group):
    """All ranks must start from the same weights."""
    sums = torch.stack([p.detach().double().sum().cpu() for p in model.parameters()])
    gathered = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, sums, group=group)
    names = [name for name, _ in model.named_parameters()]
    for rank, other in enumerate(gathered):
        if len(other) != len(sums):
            fail("bad_input", f"rank {rank} has {len(other)} parameters, this one {len(sums)}")
        differs = torch.where((other != sums) & ~(other.isnan() & sums.isnan()))[0]
        if len(differs):
            fail("bad_input", f"{names[differs[0]]} differs between this rank and rank {rank} of "
                              "the group; load the same checkpoint, or seed alike, on all ranks")


def parallelize(model, group=None, placement="contiguous", stats=None, *, gradients="mean",
                backend="auto", chunks=1, recompute=False, check=True, timeout=600.0):
    """Makes the experts of a transformers model expert-parallel, in place, and returns the model.

    Rank r of `group` keeps the experts that `placement` gives to device r; each rank goes on with
    its own tokens, as in data parallelism. A token travels once to each rank that holds experts of
    it. Outputs are those of the whole model (1e-5 in fp32). All ranks of the group call forward and
    backward together; a rank may have no tokens.

    model: any transformers model whose experts go through its registry
        (`@use_experts_implementation`) and are SwiGLU without biases, fully loaded, the same on all
        ranks. Call it before DistributedDataParallel, fully_shard, torch.compile and the optimizer.
    group: process group of torch.distributed; None: the default group if there is one, else this
        process alone.
    placement: "contiguous", a Placement, a placement file, or "coactivation" with `stats` (a Trace
        or its file). Worked out on the group's first rank and sent to the others.
    gradients: "mean": the experts' gradients are those of the mean of the ranks' losses, as DDP
        makes them; "sum": of their sum. The core does this in the backward: nothing must be reduced
        for experts. Everything else in the model is replicated: reduce it by DDP (which is told to
        leave experts alone), by FSDP2 (`ignored_params`) or by `reduce_gradients`.
    backend: "core" (C++; CPU tensors in fp64, fp32, bf16), "torch" (any device and dtype), "auto".
    chunks: parts of a batch; recompute: keep no rows for the backward. Results do not depend on
        either. timeout: seconds that a rank waits for another one.
    check: compare a checksum of all weights over the ranks first.

    Errors name the module and the value: "unsupported" for experts of another kind, "bad_input" for
    a placement that does not fit.
    """
    if getattr(model, "_coterie", None) is not None:
        fail("bad_input", "the model is parallel already")
    if gradients not in ("mean", "sum"):
        fail("bad_input", f'gradients: "{gradients}" is neither mean nor sum')
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    size = 1 if group is None else dist.get_world_size(group)
    rank = 0 if group is None else dist.get_rank(group)
    if rank < 0:
        fail("bad_input", "this process is not in the group")
    found = find_experts(model)
    if not found:
        fail("unsupported", f"{type(model).__name__} has no experts that transformers dispatches "
                            "(modules with num_experts, gate_up_proj, down_proj)")
    for name, module in found:
        _check_module(name, module)
    numbers = [layer_number(name) for name, _ in found]
    if len(set(numbers)) != len(numbers):
        fail("unsupported", f"two experts modules share a layer number: {[n for n, _ in found]}")
    if check and size > 1:
        _check_replicas(model, group)
    num_experts = found[0][1].num_experts
    placed = _agree(group, lambda: _make_placement(placement, stats, numbers, num_experts, size))
    if placed.num_devices != size:
        fail("bad_input", f"the placement is for {placed.num_devices} devices, the group has {size} "
                          "ranks")
    missing = sorted(set(numbers) - set(placed.layers))
    if missing:
        fail("bad_input", f"the placement lacks layer {missing[0]}, which has experts; it has "
                          f"{placed.layers}")
    _register()
    layers = [_take_part(name, module, placed, group, rank, dict(
        scale=1.0 / size if gradients == "mean" else 1.0, backend=backend, chunks=chunks,
        recompute=recompute, timeout=timeout)) for name, module in found]
    model.set_experts_implementation(IMPLEMENTATION)
    parallelism = Parallelism(group, gradients, placed, layers)
    object.__setattr__(model, "_coterie", parallelism)
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    model._ddp_params_and_buffers_to_ignore = ignored + [
        name for layer in layers for name, _ in layer.parameters()]
    return model


def _take_part(name, module, placed, group, rank, options):
    """Builds the layer's core and keeps this rank's rows of its weights."""
    layer = layer_number(name)
    devices = placed.experts_of_device(layer)
    if placed.num_experts != module.num_experts:
        fail("bad_input", f"{name}: {module.num_experts} experts, the placement has "
                          f"{placed.num_experts}")
    weight = module.down_proj
    backend = options["backend"]
    if backend == "auto":
        backend = "core" if weight.device.type == "cpu" and weight.dtype in DTYPES else "torch"
    if backend == "core":
        core = ExpertsCore(name, hidden=weight.shape[1], intermediate=weight.shape[2],
                           num_experts=module.num_experts, dtype=weight.dtype, group=group,
                           experts_of_device=devices, chunks=options["chunks"],
                           recompute=options["recompute"], timeout=options["timeout"],
                           scale=options["scale"])
    elif backend == "torch":
        if sum(len(experts) for experts in devices) != module.num_experts:
            fail("unsupported", f"{name}: backend torch serves placements without copies")
        core = TorchExperts(name, num_experts=module.num_experts, experts_of_device=devices,
                            group=group, scale=options["scale"])
    else:
        fail("bad_input", f'backend: "{backend}" is neither auto, core nor torch')
    ids = torch.tensor(core.expert_ids, device=weight.device)
    for key in _WEIGHTS:
        whole = getattr(module, key)
        shard = torch.nn.Parameter(whole.detach()[ids].clone(), whole.requires_grad)
        setattr(module, key, shard)
    object.__setattr__(module, "_coterie_core", core)
    return ParallelExperts(name, layer, module, [sorted(d) for d in devices], core)


def parallelism_of(model):
    """What `parallelize` left on a model, through DDP, torch.compile and other wrappers."""
    seen = model
    while seen is not None:
        found = getattr(seen, "_coterie", None)
        if found is not None:
            return found
        seen = getattr(seen, "module", None) or getattr(seen, "_orig_mod", None)
    fail("bad_input", f"{type(model).__name__}: coterie.parallelize has not been called on it")


def parallel_experts(model):
    """[ParallelExperts] of a parallel model, in layer order."""
    return list(parallelism_of(model).layers)


def local_experts(model):
    """set of this rank's expert parameters: `ignored_params` of FSDP2's fully_shard."""
    return {p for layer in parallelism_of(model).layers for _, p in layer.parameters()}


def statistics(model):
    """{layer number: dict} of tokens, rows sent (replicas a token) and bytes since the start."""
    return {layer.layer: layer.core.statistics() for layer in parallelism_of(model).layers}
