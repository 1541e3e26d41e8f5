# SPDX-License-Identifier: Apache-2.0
"""The experts of a layer as operators of PyTorch: fake kernels, autograd, and the call itself."""
import itertools

import torch

from . import _core
from ._error import fail

_numbers = itertools.count()
_scale_of_layer = {}
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


@torch.library.register_fake("coterie::experts")
def _experts_fake(rows, ids, weights, up, down, layer, keep):
    return torch.empty_like(rows), rows.new_empty((1,), dtype=torch.uint8)


@torch.library.register_fake("coterie::experts_backward")
def _experts_backward_fake(grad_y, rows, ids, weights, up, down, state, layer):
    return (torch.empty_like(rows), torch.empty_like(weights), torch.empty_like(up),
            torch.empty_like(down))


def _setup(ctx, inputs, output):
    rows, ids, weights, up, down, ctx.layer, _ = inputs
    ctx.save_for_backward(rows, ids, weights, up, down, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad_y, _grad_state):
    rows, ids, weights, up, down, state = ctx.saved_tensors
    grads = torch.ops.coterie.experts_backward(
        grad_y.contiguous(), rows, ids, weights, up, down, state, ctx.layer)
    scale = _scale_of_layer.get(ctx.layer, 1.0)
    grad_up, grad_down = grads[2], grads[3]
    if scale != 1.0:
        grad_up, grad_down = grad_up * scale, grad_down * scale
    return grads[0], None, grads[1], grad_up, grad_down, None, None


torch.library.register_autograd("coterie::experts", _backward, setup_context=_setup)


class ExpertsCore:
    """This process's part of one layer in the C++ core; goes when the object goes.

    expert_ids: global ids of the experts held, ascending. `scale` multiplies the gradients of the
    experts' weights, which the core sums over all ranks' losses.
    """

    def __init__(self, name, *, hidden, intermediate, num_experts, kind="swiglu",
                 dtype=torch.float32, group=None, experts_of_device=(), chunks=1, recompute=False,
                 timeout=600.0, scale=1.0):
        if dtype not in DTYPES:
            fail("unsupported", f"{name}: dtype {dtype}; Coterie's kernels know float64, float32 "
                                "and bfloat16")
        self.name = f"{name} (layer object {next(_numbers)})"
        self.expert_ids = _core.make_layer(
            self.name, hidden, intermediate, num_experts, kind, DTYPES[dtype],
            "" if group is None else group.group_name,
            [list(experts) for experts in experts_of_device], chunks, recompute, timeout)
        self.group = group
        _scale_of_layer[self.name] = scale

    def __call__(self, rows, ids, weights, up, down):
        """y [T, H] of rows [T, H], ids [T, k] (-1: none), weights [T, k]; this rank's experts up
        [n, 2I, H] and down [n, H, I]. Collective: every rank of the group calls it, T may be 0."""
        weight_dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
        keep = torch.is_grad_enabled() and any(
            t.requires_grad for t in (rows, weights, up, down))
        return torch.ops.coterie.experts(rows, ids.to(torch.int32), weights.to(weight_dtype), up,
                                         down, self.name, keep)[0]

    def statistics(self):
        """dict: tokens and rows sent since the start, bytes that have left this rank."""
        return _core.layer_statistics(self.name)

    def __deepcopy__(self, memo):
        fail("unsupported", f"{self.name}: a parallel layer cannot be copied; copy the model first")

    def __del__(self):
        name = getattr(self, "name", None)
        if name is not None and _core is not None:
            _core.remove_layer(name)
            _scale_of_layer.pop(name, None)
