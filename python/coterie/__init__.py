# SPDX-License-Identifier: Apache-2.0
"""Coterie: expert-parallel mixture-of-experts models, with experts where they work together.

Three lines for a Hugging Face model, in any program that torchrun starts::

    import coterie
    model = AutoModelForCausalLM.from_pretrained(folder)
    coterie.parallelize(model, placement="placement.json")

and the planning half, which needs no process group::

    trace = coterie.trace(folder, "my.txt", "trace.bin")   # or coterie.profile(model, dataloader)
    placement = coterie.place(trace, devices=8)
    print(coterie.report(trace, placement))
    coterie.permute(folder, placement, folder + "-placed")

Errors of the library are `coterie.Error`, with `code` and `exit_code`.
"""
import torch as _torch  # noqa: F401  (first: it loads the libraries that _core is linked with)

from . import _core
from ._error import Error

_core.set_error_type(Error)

from ._core import Placement, Plan, Report, Trace  # noqa: E402
from ._training import clip_grad_norm_, full_state_dict, reduce_gradients, save_pretrained  # noqa: E402
from .parallel import (  # noqa: E402
    ParallelExperts, local_experts, parallel_experts, parallelize, statistics,
)
from .planning import (  # noqa: E402
    contiguous_placement, export_placement, open_trace, permute, place, placement_from,
    plan, read_placement, report, trace, trace_from, verify,
)
from .profiling import profile  # noqa: E402

__version__ = _core.version

__all__ = [
    "Error", "ParallelExperts", "Placement", "Plan", "Report", "Trace", "clip_grad_norm_",
    "contiguous_placement", "export_placement", "full_state_dict", "local_experts", "nn",
    "open_trace", "parallel_experts", "parallelize", "permute", "place", "placement_from", "plan",
    "profile", "read_placement", "reduce_gradients", "report", "save_pretrained", "statistics",
    "trace", "trace_from", "trainer", "verify",
]


def __getattr__(name):  # rooms that bring more than torch with them, or are rarely wanted
    if name in ("nn", "trainer"):
        import importlib

        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
