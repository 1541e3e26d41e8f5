# SPDX-License-Identifier: Apache-2.0
"""Signatures of the package; the functions' docstrings say what they mean."""
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch.distributed import ProcessGroup

from . import nn as nn
from . import trainer as trainer
from ._core import Placement as Placement
from ._core import Plan as Plan
from ._core import Report as Report
from ._core import Trace as Trace

_Path = str | PathLike[str]
_Paths = _Path | Iterable[_Path]

__version__: str

class Error(RuntimeError):
    code: Literal["bad_input", "io", "infeasible", "unsupported", "peer", "internal"]
    exit_code: int
    def __init__(self, code: str, exit_code: int, message: str) -> None: ...

class ParallelExperts:
    name: str
    layer: int
    module: torch.nn.Module
    experts_of_device: list[list[int]]
    core: Any
    @property
    def expert_ids(self) -> list[int]: ...
    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]: ...

def parallelize(
    model: torch.nn.Module,
    group: ProcessGroup | None = None,
    placement: Placement | _Path | None = "contiguous",
    stats: Trace | _Path | None = None,
    *,
    gradients: Literal["mean", "sum"] = "mean",
    backend: Literal["auto", "core", "torch"] = "auto",
    chunks: int = 1,
    recompute: bool = False,
    check: bool = True,
    timeout: float = 600.0,
) -> torch.nn.Module: ...
def parallel_experts(model: torch.nn.Module) -> list[ParallelExperts]: ...
def local_experts(model: torch.nn.Module) -> set[torch.nn.Parameter]: ...
def statistics(model: torch.nn.Module) -> dict[int, dict[str, Any]]: ...
def reduce_gradients(
    model: torch.nn.Module,
    group: ProcessGroup | None = None,
    expert_data_group: ProcessGroup | None = None,
) -> None: ...
def clip_grad_norm_(model: torch.nn.Module, max_norm: float) -> torch.Tensor: ...
def full_state_dict(model: torch.nn.Module, rank: int | None = 0) -> dict[str, torch.Tensor]: ...
def save_pretrained(model: torch.nn.Module, folder: _Path, **options: Any) -> None: ...
def profile(
    model: torch.nn.Module,
    dataloader: Iterable[Any],
    *,
    max_tokens: int | None = None,
    gather: bool = True,
) -> Trace: ...
def trace(
    model: _Path,
    text: _Paths | Mapping[str, _Paths],
    out: _Path,
    *,
    max_tokens: int = 0,
    sequence_length: int = 512,
    weights: bool = False,
    dtype: Literal["fp32", "bf16"] = "fp32",
    num_threads: int = 0,
    progress: Any = None,
) -> Trace: ...
def open_trace(
    files: _Paths, *, num_experts: int = 0, top_k: int = 0, num_layers: int = 0
) -> Trace: ...
def trace_from(
    ids: Mapping[int, npt.ArrayLike | torch.Tensor],
    num_experts: int,
    *,
    sequence_length: int = 512,
    model_type: str = "",
    source: str = "arrays",
) -> Trace: ...
def place(
    trace: Trace | _Paths,
    devices: int,
    *,
    algorithm: str = "coterie",
    nodes: int = 1,
    num_redundant_experts: int = 0,
    load_cap: float | None = 1.10,
    objective: Literal["mean", "bottleneck"] = "mean",
    seed: int = 0,
    num_starts: int = 8,
    num_threads: int = 0,
    fit: Literal["all", "even-rows", "first-half", "sequences"] = "all",
    progress: Any = None,
) -> Placement: ...
def read_placement(path: _Path) -> Placement: ...
def placement_from(
    devices: Mapping[int, Sequence[Sequence[int]]],
    num_experts: int,
    *,
    model_fingerprint: str = "",
) -> Placement: ...
def contiguous_placement(layers: Iterable[int], num_experts: int, devices: int) -> Placement: ...
def verify(
    placement: Placement | _Path, trace: Trace | _Paths | None = None, *, devices: int = 0
) -> dict[str, Any]: ...
def plan(
    trace: Trace | _Paths,
    placement: Placement | _Path,
    cluster: _Path,
    *,
    model: Any = None,
    tokens: float,
    schedules: Sequence[str] = (),
    engine: str = "",
    **block: float,
) -> list[Plan]: ...
def report(
    trace: Trace | _Paths,
    placement: Placement | _Path,
    *,
    title: str = "Expert placement",
    fit: Literal["all", "even-rows", "first-half", "sequences"] = "all",
    baselines: Iterable[str] | Mapping[str, Placement] = ("contiguous",),
) -> Report: ...
def permute(
    model: _Path, placement: Placement | _Path, out: _Path, *, progress: Any = None
) -> Path: ...
def export_placement(
    placement: Placement | _Path,
    path: _Path,
    engine: Literal["sglang", "vllm", "vllm-ranks"],
    *,
    num_layers: int | None = None,
) -> Path: ...
