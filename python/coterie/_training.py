# SPDX-License-Identifier: Apache-2.0
"""What a training loop needs around a parallel model: gradients, their norm, whole checkpoints."""
from pathlib import Path

import torch
import torch.distributed as dist

from ._error import fail
from .parallel import parallelism_of


def _unwrapped(model):
    while not hasattr(model, "_coterie"):
        model = model.module if hasattr(model, "module") else model._orig_mod
    return model


def _dense(model, parallelism):
    experts = {id(p) for layer in parallelism.layers for _, p in layer.parameters()}
    return [p for p in model.parameters() if p.requires_grad and id(p) not in experts]


def reduce_gradients(model, group=None, expert_data_group=None):
    """Reduces the gradients of everything but the experts over the ranks, in place.

    What DDP would do; for loops without it. Call it once a step, after the last backward, on all
    ranks. With parallelize(gradients="mean") gradients become those of the mean of the ranks'
    losses, with "sum" of their sum. A parameter without gradient counts as zero.

    group: ranks with different tokens; None: the group of parallelize.
    expert_data_group: where several expert groups share the work, the ranks that hold the same
    experts: their experts' gradients are reduced over it too.
    """
    parallelism = parallelism_of(model)
    if group is None:
        group = parallelism.group
    mean = parallelism.gradients == "mean"
    if group is not None:
        _all_reduce([p for p in _dense(model, parallelism)], group, mean)
    if expert_data_group is not None:
        experts = [p for layer in parallelism.layers for _, p in layer.parameters()
                   if p.requires_grad]
        _all_reduce(experts, expert_data_group, mean)


def _all_reduce(parameters, group, mean, bucket_bytes=64 << 20):
    size = dist.get_world_size(group)
    if size == 1:
        return
    bucket, used = [], 0
    for i, parameter in enumerate(parameters):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        used += parameter.grad.nbytes
        last = i + 1 == len(parameters)
        if last or used >= bucket_bytes or parameters[i + 1].dtype != parameter.dtype:
            flat = torch.cat([g.reshape(-1) for g in bucket])
            dist.all_reduce(flat, group=group)
            if mean:
                flat /= size
            for grad, part in zip(bucket, flat.split([g.numel() for g in bucket])):
                grad.copy_(part.view_as(grad))
            bucket, used = [], 0


@torch.no_grad()
def clip_grad_norm_(model, max_norm):
    """As torch.nn.utils.clip_grad_norm_ for the whole model: returns its norm, the same on all
    ranks. torch's own would see this rank's experts only and let the ranks drift apart.
    Collective. Gradients must have been reduced."""
    parallelism = parallelism_of(model)
    dense = [p.grad for p in _dense(model, parallelism) if p.grad is not None]
    square = sum((g.double().square().sum() for g in dense),
                 torch.zeros((), dtype=torch.float64))
    own = torch.zeros((), dtype=torch.float64)
    grads = list(dense)
    rank = 0 if parallelism.group is None else dist.get_rank(parallelism.group)
    for layer in parallelism.layers:
        first = {}
        for device, experts in enumerate(layer.experts_of_device):
            for expert in experts:
                first.setdefault(expert, device)  # a copy counts once
        counted = torch.tensor([first[e] == rank for e in layer.expert_ids])
        for _, p in layer.parameters():
            if p.grad is not None:
                grads.append(p.grad)
                own += p.grad[counted.to(p.grad.device)].double().square().sum().cpu()
    if parallelism.group is not None:
        device = grads[0].device if grads else "cpu"
        own = own.to(device)
        dist.all_reduce(own, group=parallelism.group)
    norm = (square.cpu() + own.cpu()).sqrt()
    factor = float(max_norm) / (float(norm) + 1e-6)
    if factor < 1:
        for g in grads:
            g.mul_(factor)
    return norm


@torch.no_grad()
def full_state_dict(model, rank=0):
    """The state dict of the whole model on rank `rank` of the group (None: on all), {} elsewhere.

    Names, shapes and values are those of the model before parallelize. Collective.
    """
    parallelism = parallelism_of(model)
    model = _unwrapped(model)
    group = parallelism.group
    own_rank = 0 if group is None else dist.get_rank(group)
    wanted = rank is None or own_rank == rank
    state = dict(model.state_dict()) if wanted else {}
    for layer in parallelism.layers:
        for name, shard in layer.parameters():
            whole = _whole(shard, layer, group, own_rank, wanted)
            if wanted:
                state[name] = whole
    return state


def _whole(shard, layer, group, own_rank, wanted):
    num_experts = 1 + max(e for experts in layer.experts_of_device for e in experts)
    whole = shard.new_empty((num_experts, *shard.shape[1:])) if wanted else None
    for device, experts in enumerate(layer.experts_of_device):
        if device == own_rank:
            part = shard.detach().contiguous()
        else:
            part = shard.new_empty((len(experts), *shard.shape[1:]))
        if group is not None and dist.get_world_size(group) > 1:
            dist.broadcast(part, group=group, group_src=device)
        if wanted:
            whole[torch.tensor(experts, device=whole.device)] = part
    return whole


def save_pretrained(model, folder, **options):
    """Writes the whole model as transformers' save_pretrained does, from the group's first rank.

    Collective; returns when the files are there. `from_pretrained(folder)` gives the model that was
    parallelized, with the weights it has now.
    """
    parallelism = parallelism_of(model)
    group = parallelism.group
    state = full_state_dict(model)
    problem = [None]
    if group is None or dist.get_rank(group) == 0:
        try:
            _unwrapped(model).save_pretrained(Path(folder), state_dict=state, **options)
        except Exception as error:  # told to all ranks, which would wait otherwise
            problem = [f"{folder}: {error}"]
    if group is not None:
        dist.broadcast_object_list(problem, group=group, group_src=0)
    if problem[0]:
        fail("io", problem[0])
