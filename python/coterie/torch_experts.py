# SPDX-License-Identifier: Apache-2.0
"""The same experts in plain PyTorch: any device, dtype and back end of torch.distributed.

Slow and obvious next to the C++ core, and what the core is tested against; on CUDA with NCCL it is
what runs. A token travels once to each device that holds experts of it, and comes home as one
partial sum (Occult, section 4.1).
"""
import torch
import torch.distributed as dist


class _Exchange(torch.autograd.Function):
    """All-to-all of rows [sum(sends), W] -> [sum(receives), W]; the backward goes back."""

    @staticmethod
    def forward(ctx, rows, sends, receives, group):
        ctx.lists = sends, receives, group
        received = rows.new_empty((sum(receives), *rows.shape[1:]))
        if dist.get_world_size(group) == 1:
            return rows.clone()
        dist.all_to_all_single(received, rows.contiguous(), receives, sends, group=group)
        return received

    @staticmethod
    def backward(ctx, grad):
        sends, receives, group = ctx.lists
        return _Exchange.apply(grad, receives, sends, group), None, None, None


class _Scale(torch.autograd.Function):
    """Identity whose gradient is multiplied."""

    @staticmethod
    def forward(ctx, tensor, scale):
        ctx.scale = scale
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


def expert_sums(rows, ids, weights, up, down, act, place_of):
    """[m, H] sums over the picks of experts held. rows [m, H], ids [m, k], weights [m, k];
    place_of [E]: row of up and down, -1 if not held. Sums in the weights' type."""
    total = torch.zeros(rows.shape, dtype=weights.dtype, device=rows.device)
    places = torch.where(ids >= 0, place_of[ids.clamp(min=0)], -1)
    for place in range(up.shape[0]):
        token, pick = torch.where(places == place)
        gate, value = torch.nn.functional.linear(rows[token], up[place]).chunk(2, -1)
        out = torch.nn.functional.linear(act(gate) * value, down[place])
        total = total.index_add(0, token, out.to(total.dtype) * weights[token, pick, None])
    return total


class TorchExperts:
    """As ops.ExpertsCore, in PyTorch. Single copies of experts only."""

    def __init__(self, name, *, num_experts, experts_of_device, group=None, scale=1.0,
                 act=torch.nn.functional.silu):
        self.name, self.group, self.scale, self.act = name, group, scale, act
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.expert_ids = sorted(experts_of_device[self.rank])
        self.device_of = torch.full((num_experts,), -1)
        for device, experts in enumerate(experts_of_device):
            self.device_of[list(experts)] = device
        self.place_of = torch.full((num_experts,), -1)
        self.place_of[self.expert_ids] = torch.arange(len(self.expert_ids))
        self.num_tokens = self.num_replicas = self.bytes_sent = 0
        self.run = None

    def __call__(self, rows, ids, weights, up, down):
        if self.run is None:  # here, since it imports the compiler, which takes seconds
            self.run = torch.compiler.disable(self._run)
        return self.run(rows, ids, weights, up, down)

    def _run(self, rows, ids, weights, up, down):
        ids = ids.long()
        weights = weights.to(torch.float64 if rows.dtype == torch.float64 else torch.float32)
        up, down = _Scale.apply(up, self.scale), _Scale.apply(down, self.scale)
        place_of = self.place_of.to(rows.device)
        if self.size == 1:
            self.num_tokens += len(rows)
            self.num_replicas += len(rows)
            return expert_sums(rows, ids, weights, up, down, self.act, place_of).to(rows.dtype)
        device_of = self.device_of.to(rows.device)
        device = torch.where(ids >= 0, device_of[ids.clamp(min=0)], -1)  # [T, k]
        wants = torch.stack([(device == d).any(1) for d in range(self.size)])  # [N, T]
        to, token = torch.where(wants)  # device by device, tokens ascending
        mine = device[token] == to[:, None]
        sends = wants.sum(1).tolist()
        receives = self._sizes(sends, rows.device)
        sent_ids = torch.where(mine, ids[token], -1)
        got_ids = _Exchange.apply(sent_ids, sends, receives, self.group)
        got_rows = _Exchange.apply(rows[token], sends, receives, self.group)
        got_weights = _Exchange.apply(torch.where(mine, weights[token], 0), sends, receives,
                                      self.group)
        sums = expert_sums(got_rows, got_ids, got_weights, up, down, self.act, place_of)
        home = _Exchange.apply(sums, receives, sends, self.group)
        self._count(rows, sends)
        total = torch.zeros(rows.shape, dtype=home.dtype, device=rows.device)
        return total.index_add(0, token, home).to(rows.dtype)

    def _sizes(self, sends, device):
        sent = torch.tensor(sends, device=device)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        return received.tolist()

    def _count(self, rows, sends):
        away = sum(sends) - sends[self.rank]
        self.num_tokens += len(rows)
        self.num_replicas += sum(sends)
        self.bytes_sent += away * rows.shape[1] * rows.element_size()

    def statistics(self):
        return {"num_tokens": self.num_tokens, "num_replicas": self.num_replicas,
                "replicas": self.num_replicas / self.num_tokens if self.num_tokens else 0.0,
                "bytes_dispatch": self.bytes_sent}
