# SPDX-License-Identifier: Apache-2.0
"""The backward kernels of run/kernels on torch tensors, through ctypes and raw pointers."""
import ctypes

import torch

from ours import ACTIVATIONS, DEVICE, PATHS, TYPES

VOID = ctypes.c_void_p


class How(ctypes.Structure):
    _fields_ = [("path", ctypes.c_int64), ("watchdog", VOID), ("stream", VOID)]


class Matrix(ctypes.Structure):
    _fields_ = [("data", VOID)] + [(name, ctypes.c_int64) for name in ("rows", "columns", "stride", "type")]


class Experts(ctypes.Structure):
    _fields_ = [("data", VOID)] + [(name, ctypes.c_int64) for name in ("num_experts", "rows", "columns", "type", "accumulate")]


class LayerBackward(ctypes.Structure):
    _fields_ = [("grad_y", VOID), ("x", VOID), ("pre", VOID), ("ids", VOID), ("weights", VOID), ("top_k", ctypes.c_int64),
                ("gate_up", VOID), ("down", VOID), ("reuse_pre", ctypes.c_int64), ("grad_x", VOID), ("grad_weights", VOID),
                ("grad_gate_up", VOID), ("grad_down", VOID), ("workspace", VOID), ("workspace_bytes", ctypes.c_int64),
                ("activation", ctypes.c_int64), ("down_bias", VOID), ("grad_up_bias", VOID), ("grad_down_bias", VOID)]


def matrix(t):
    return None if t is None else Matrix(t.data_ptr(), t.shape[0], t.shape[1], t.stride(0), TYPES.index(t.dtype))


def experts(t, accumulate=False):
    """[E, rows, columns]; biases are [E, columns]."""
    shape = t.shape if t.dim() == 3 else (t.shape[0], 1, t.shape[1])
    return Experts(t.data_ptr(), *shape, TYPES.index(t.dtype), accumulate)


class Backward:
    """Calls by name; tensors are passed as pointers, Matrix and Experts by reference."""

    def __init__(self, library, path="auto"):
        self.library = library
        library.library.layer_backward_workspace_bytes.restype = ctypes.c_int64
        self.path = PATHS.index(path)

    def __call__(self, name, *arguments):
        function = getattr(self.library.library, name)
        function.restype = ctypes.c_char_p
        how = How(self.path, self.library.watchdog.data_ptr(), torch.cuda.current_stream().cuda_stream)
        message = function(ctypes.byref(how), *[
            VOID(a.data_ptr()) if isinstance(a, torch.Tensor)
            else ctypes.byref(a) if isinstance(a, ctypes.Structure)
            else a if a is None else ctypes.c_int64(a) for a in arguments])
        if message is not None:
            raise RuntimeError(f"{name}: {message.decode()}")


class TrainingLayer:
    """Forward that keeps pre-activations, and backward, with their workspaces: what one training step of a layer does. `biases`: of the
    up-projection and of the down-projection, [E, P] and [E, H]."""

    def __init__(self, library, gate_up, down, top_k, num_tokens, path="auto", reuse_pre=True, dtype=torch.bfloat16, accumulate=False,
                 activation="swiglu", biases=(None, None)):
        count, _, hidden = gate_up.shape
        self.call = Backward(library, path)
        self.gate_up, self.down, self.top_k = gate_up.detach(), down.detach(), top_k
        self.reuse_pre, self.dtype, self.accumulate = reuse_pre, dtype, accumulate
        self.activation, self.biases = ACTIVATIONS.index(activation), biases
        self.sizes = library.sizes(num_tokens, hidden, down.shape[2], count, top_k, path=path)
        self.library = library

    def forward(self, x, ids, weights, faults=None):
        """Rows and what backward needs."""
        y = torch.empty_like(x)
        pre = torch.empty(x.shape[0] * self.top_k, self.gate_up.shape[1], device=DEVICE, dtype=x.dtype)
        memory = self.library.workspace(self.sizes)
        self.call("layer_forward", matrix(x), ids, weights, self.top_k, experts(self.gate_up), experts(self.down), matrix(y), matrix(pre),
                  memory, memory.numel(), self.activation, *self.biases, faults)
        return y, pre

    def backward(self, grad_y, x, pre, ids, weights, grads=None, grad_x=None):
        """Gradients of x, routing weights, gate_up, down, and of biases if there are any."""
        grad_x = torch.empty_like(x) if grad_x is None else grad_x
        grad_weights = torch.empty_like(weights)
        grads = grads or [torch.empty_like(w, dtype=self.dtype) for w in (self.gate_up, self.down, *self.biases) if w is not None]
        parts = [matrix(grad_y), matrix(x), matrix(pre), experts(self.gate_up), experts(self.down), matrix(grad_x)]
        parts += [experts(g, self.accumulate) for g in grads]
        at = [ctypes.addressof(part) for part in parts]
        bias = None if self.biases[1] is None else self.biases[1].data_ptr()
        task = LayerBackward(at[0], at[1], at[2], ids.data_ptr(), weights.data_ptr(), self.top_k, at[3], at[4], self.reuse_pre, at[5],
                             grad_weights.data_ptr(), at[6], at[7], None, 0, self.activation, bias, *at[8:])
        size = self.library.library.layer_backward_workspace_bytes(ctypes.byref(task))
        memory = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        task.workspace, task.workspace_bytes = memory.data_ptr(), size
        self.call("layer_backward", task)
        return grad_x, grad_weights, *grads
