# SPDX-License-Identifier: Apache-2.0
"""A mixture-of-experts layer for models of one's own."""
import torch
import torch.distributed as dist
import torch.nn.functional as F

from ._error import fail
from .ops import DTYPES, ExpertsCore
from .torch_experts import TorchExperts


class TopKRouter(torch.nn.Module):
    """Softmax over all experts, the k best: weight [E, H].

    forward(x [T, H]) -> logits [T, E], weights [T, k] fp32 (fp64 of fp64), ids
    [T, k]. norm_topk_prob: weights of
    a token sum to 1.
    """

    def __init__(self, hidden_size, num_experts, top_k, norm_topk_prob=True, dtype=None):
        super().__init__()
        self.top_k, self.norm_topk_prob = top_k, norm_topk_prob
        self.weight = torch.nn.Parameter(torch.empty(num_experts, hidden_size, dtype=dtype))

    def forward(self, x):
        logits = F.linear(x, self.weight)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        weights, ids = torch.topk(torch.softmax(logits, -1, dtype=dtype), self.top_k, -1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, ids


def load_balancing_loss(logits, ids):
    """Switch's auxiliary loss over this rank's tokens: E * sum_e (picks of e / tokens) * mean
    probability of e. logits [T, E], ids [T, k]; a scalar, 0 without tokens."""
    num_experts = logits.shape[-1]
    picks = F.one_hot(ids.clamp(min=0), num_experts).sum(1).float()
    tokens = max(1, logits.shape[0])
    return num_experts * (picks.sum(0) / tokens
                          * torch.softmax(logits.float(), -1).sum(0) / tokens).sum()


class Experts(torch.nn.Module):
    """This rank's experts: gate_up_proj [n, 2I, H], down_proj [n, H, I], ids ascending."""

    def __init__(self, num_held, hidden_size, intermediate_size, dtype=None):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(
            torch.empty(num_held, 2 * intermediate_size, hidden_size, dtype=dtype))
        self.down_proj = torch.nn.Parameter(
            torch.empty(num_held, hidden_size, intermediate_size, dtype=dtype))


class MoELayer(torch.nn.Module):
    """y = sum over the chosen experts e of weight_e * down_e(silu(gate_e x) * up_e x).

    A torch.nn.Module over the same C++ core as parallelize, so autograd, checkpointing,
    torch.compile, FSDP2 (`ignored_params=set(layer.experts.parameters())`) and state dicts work as
    for any module. Names of parameters are transformers': gate.weight [E, H],
    experts.gate_up_proj [n, 2I, H], experts.down_proj [n, H, I] of the n experts that this rank
    holds (`expert_ids`).

    forward(x [..., H]) -> (y [..., H], aux): aux is the auxiliary loss times aux_loss_coef (None if
    that is 0). All ranks of `group` call forward and backward together; a rank may have no token.
    Weights are drawn for whole experts by global id from `seed`, so they do not depend on the
    layout. The gate's gradient is this rank's: reduce it as the rest of the model. The experts'
    gradients are complete: gradients="mean" those of the mean of the ranks' losses, "sum" of their
    sum.

    router: a module forward(x [T, H]) -> (logits, weights [T, k], ids [T, k]) instead of softmax
    top-k. experts_of_device: [ranks][...] expert ids, such as placement.experts_of_device(layer).
    """

    def __init__(self, hidden_size, intermediate_size, num_experts, top_k, *, norm_topk_prob=True,
                 aux_loss_coef=0.0, router=None, group=None, experts_of_device=None,
                 gradients="mean", backend="auto", dtype=None, device="cpu", seed=0,
                 initializer_range=0.02, name="MoE layer", chunks=1, recompute=False):
        super().__init__()
        dtype = dtype or torch.get_default_dtype()
        if group is None and dist.is_available() and dist.is_initialized():
            group = dist.group.WORLD
        size = 1 if group is None else dist.get_world_size(group)
        if not 1 <= top_k <= num_experts:
            fail("bad_input", f"{name}: top_k {top_k} is outside [1, {num_experts}]")
        if experts_of_device is None:
            cuts = [num_experts * d // size for d in range(size + 1)]
            if num_experts < size:
                fail("bad_input", f"{name}: {num_experts} experts for {size} ranks")
            experts_of_device = [list(range(a, b)) for a, b in zip(cuts, cuts[1:])]
        if backend == "auto":
            is_core = torch.device(device).type == "cpu" and dtype in DTYPES
            backend = "core" if is_core else "torch"
        scale = 1.0 / size if gradients == "mean" else 1.0
        if backend == "core":
            core = ExpertsCore(name, hidden=hidden_size, intermediate=intermediate_size,
                               num_experts=num_experts, dtype=dtype, group=group,
                               experts_of_device=experts_of_device, chunks=chunks,
                               recompute=recompute, scale=scale)
        else:
            core = TorchExperts(name, num_experts=num_experts,
                                experts_of_device=experts_of_device, group=group, scale=scale)
        object.__setattr__(self, "core", core)
        self.hidden_size, self.num_experts, self.top_k = hidden_size, num_experts, top_k
        self.aux_loss_coef = aux_loss_coef
        self.gate = router or TopKRouter(hidden_size, num_experts, top_k, norm_topk_prob, dtype)
        self.experts = Experts(len(core.expert_ids), hidden_size, intermediate_size, dtype)
        self.reset_parameters(seed, initializer_range, router is None)
        self.to(device)

    @property
    def expert_ids(self):
        """Global ids of the experts that this rank holds."""
        return list(self.core.expert_ids)

    @torch.no_grad()
    def reset_parameters(self, seed=0, initializer_range=0.02, gate=True):
        """Draws the weights anew."""
        generator = torch.Generator()

        def draw(shape, number):
            generator.manual_seed((seed << 20) + number)
            return torch.empty(shape).normal_(0, initializer_range, generator=generator)

        if gate:
            self.gate.weight.copy_(draw(self.gate.weight.shape, 0))
        for place, expert in enumerate(self.core.expert_ids):
            for which, weight in enumerate((self.experts.gate_up_proj, self.experts.down_proj)):
                weight[place].copy_(draw(weight.shape[1:], 1 + 2 * expert + which))

    def forward(self, x):
        rows = x.reshape(-1, self.hidden_size)
        logits, weights, ids = self.gate(rows)
        y = self.core(rows, ids, weights, self.experts.gate_up_proj, self.experts.down_proj)
        aux = None
        if self.aux_loss_coef:
            aux = self.aux_loss_coef * load_balancing_loss(logits, ids)
        return y.view(x.shape), aux

    def extra_repr(self):
        return (f"hidden_size={self.hidden_size}, num_experts={self.num_experts}, "
                f"top_k={self.top_k}, held={len(self.core.expert_ids)}")
