# SPDX-License-Identifier: Apache-2.0
"""The C++ classes that the package gives out. Arrays are NumPy's."""
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

version: str

class Trace:
    """Which experts tokens chose, layer by layer; layers are read when they are asked for."""

    @property
    def num_experts(self) -> int: ...
    @property
    def top_k(self) -> int: ...
    @property
    def layers(self) -> list[int]:
        """Numbers of the MoE layers in the model, ascending."""
    @property
    def domains(self) -> list[str]: ...
    @property
    def model_type(self) -> str: ...
    @property
    def model_fingerprint(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    def ids(self, layer: int) -> npt.NDArray[np.int32]:
        """[tokens, top_k] expert ids, -1: none."""
    def expert_loads(self, layer: int) -> npt.NDArray[np.int64]:
        """[num_experts] tokens that chose each expert."""
    def save(self, path: str | PathLike[str]) -> None:
        """A binary trace, or JSON lines if the name ends in .jsonl."""
    def to_json(self) -> dict[str, Any]:
        """The header."""

class Placement:
    """Where the experts of every MoE layer live."""

    @property
    def num_devices(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def layers(self) -> list[int]: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def model_fingerprint(self) -> str: ...
    def experts_of_device(self, layer: int) -> list[list[int]]:
        """[num_devices][...] expert ids, ascending on each device."""
    def physical_to_logical(self, layer: int) -> list[int]:
        """[slots] expert ids, device after device."""
    def has_single_copies(self) -> bool: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def to_json(self) -> dict[str, Any]:
        """What a placement file holds."""

class Plan:
    """One schedule of all MoE layers on a cluster."""

    @property
    def schedule(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def predicted_s(self) -> float:
        """Seconds of a step's MoE blocks, forward and backward."""
    @property
    def bound_s(self) -> float:
        """What no schedule can beat."""
    def save(self, path: str | PathLike[str]) -> None: ...
    def to_json(self) -> dict[str, Any]: ...

class Report:
    """Placements compared on a trace."""

    def text(self) -> str: ...
    def headline(self) -> str: ...
    def html(self) -> str: ...
    def save(self, path: str | PathLike[str]) -> None:
        """An HTML page that needs nothing else."""
    def to_json(self) -> dict[str, Any]: ...
