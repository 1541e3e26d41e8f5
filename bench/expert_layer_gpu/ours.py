# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels of run/kernels on torch tensors, through ctypes and raw pointers."""
import ctypes
import os

import torch

DEVICE = "cuda"
TYPES = (torch.float32, torch.bfloat16, torch.float16)  # in the order of kernels::DType
TILES = ("automatic", "wide", "narrow", "few")  # in the order of kernels::cuda::Tiles
PATHS = ("auto", "hopper", "generic")  # in the order of kernels::cuda::Path
ACTIVATIONS = ("swiglu", "gelu", "gelu_tanh")  # in the order of kernels::Activation


class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in
                ("num_tokens", "hidden", "intermediate", "num_experts", "top_k", "tiles", "path", "type")]
    _fields_ += [("watchdog", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


class Library:
    """Calls by name; a message from the library becomes a RuntimeError."""

    def __init__(self, path):
        self.library = ctypes.CDLL(os.path.abspath(path))
        self.library.workspace_bytes.restype = ctypes.c_int64
        self.watchdog = torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def sizes(self, num_tokens, hidden, intermediate, num_experts, top_k, tiles="automatic", path="auto",
              dtype=torch.bfloat16):
        return Sizes(num_tokens, hidden, intermediate, num_experts, top_k, TILES.index(tiles), PATHS.index(path), TYPES.index(dtype),
                     self.watchdog.data_ptr(), torch.cuda.current_stream().cuda_stream)

    def __getattr__(self, name):
        function = getattr(self.library, name)
        function.restype = ctypes.c_char_p

        def call(sizes, *arguments):
            sizes.stream = torch.cuda.current_stream().cuda_stream
            message = function(ctypes.byref(sizes), *[
                ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor)
                else a if a is None else ctypes.c_int64(a) for a in arguments])
            if message is not None:
                raise RuntimeError(f"{name}: {message.decode()}")
        setattr(self, name, call)
        return call

    def path_of(self, sizes):
        """Which kernels run with these sizes, and why."""
        function = self.library.path_of
        function.restype = ctypes.c_char_p
        return function(ctypes.byref(sizes)).decode()

    def workspace(self, sizes):
        size = self.library.workspace_bytes(ctypes.byref(sizes))
        return torch.empty(size, dtype=torch.uint8, device=DEVICE)

    def faults(self, sizes):
        record = torch.zeros(40, dtype=torch.uint8, device=DEVICE)
        self.reset_faults(sizes, record)
        return record

    def gave_up(self):
        """Whether a kernel's wait ran out (debug builds); clears the mark."""
        block = int(self.watchdog.item())
        self.watchdog.zero_()
        return block != 0


class Layer:
    """One expert layer with its workspace: (x, ids int32, weights fp32) -> merged rows."""

    def __init__(self, library, gate_up, down, top_k, num_tokens, tiles="automatic", path="auto"):
        experts, doubled, hidden = gate_up.shape
        self.library, self.gate_up, self.down = library, gate_up.detach(), down.detach()
        self.sizes = library.sizes(num_tokens, hidden, doubled // 2, experts, top_k, tiles, path, gate_up.dtype)
        self.memory = library.workspace(self.sizes)

    def __call__(self, x, ids, weights, out=None, faults=None):
        y = torch.empty_like(x) if out is None else out
        self.library.expert_layer(self.sizes, x, ids, weights, self.gate_up, self.down, y, self.memory,
                                  self.memory.numel(), faults)
        return y
