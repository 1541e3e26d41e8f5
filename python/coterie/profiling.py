# SPDX-License-Identifier: Apache-2.0
"""Records which experts a transformers model chooses."""
import torch
import torch.distributed as dist

from ._error import fail
from .parallel import find_experts, layer_number
from .planning import trace_from


class _Recorder:
    """Hooks on experts modules: their arguments are hidden states, ids and weights."""

    def __init__(self, model):
        self.ids = {}
        self.handles = [module.register_forward_pre_hook(self._hook(layer_number(name)),
                                                         with_kwargs=True)
                        for name, module in find_experts(model)]
        if not self.handles:
            fail("unsupported", f"{type(model).__name__} has no experts that transformers dispatches")

    def _hook(self, layer):
        def record(module, args, kwargs):
            ids = args[1] if len(args) > 1 else kwargs["top_k_index"]
            ids = torch.where(ids >= module.num_experts, -1, ids)
            self.ids.setdefault(layer, []).append(ids.to(torch.int32).cpu())
        return record

    def close(self):
        for handle in self.handles:
            handle.remove()


def _inputs(batch):
    """(keyword arguments, attention mask or None) of a batch of a dataloader."""
    if isinstance(batch, torch.Tensor):
        return {"input_ids": batch}, None
    if isinstance(batch, (list, tuple)):
        return {"input_ids": batch[0]}, None
    batch = {k: v for k, v in batch.items() if k != "labels"}
    return batch, batch.get("attention_mask")


@torch.no_grad()
def profile(model, dataloader, *, max_tokens=None, gather=True):
    """A Trace of what a transformers model chooses on batches.

    dataloader: yields input_ids [B, S], (input_ids, ...), or dicts with input_ids and perhaps
    attention_mask: padding is left out. max_tokens: stop after the batch that reaches it. The model
    runs in eval mode, without gradients; its mode is put back. If it is parallel, all ranks call
    this with equally many batches, and with `gather` each gets the trace of all ranks' tokens.
    """
    modules = find_experts(model)
    was_training = model.training
    model.eval()
    recorder = _Recorder(model)
    length, rows, done, keep = 1, {}, 0, None
    try:
        device = next(model.parameters()).device
        for batch in dataloader:
            inputs, mask = _inputs(batch)
            inputs = {k: v.to(device) if isinstance(v, torch.Tensor) else v
                      for k, v in inputs.items()}
            recorder.ids.clear()
            model(**inputs, use_cache=False)
            length = max(length, inputs["input_ids"].shape[-1])
            keep = None if mask is None else mask.reshape(-1).bool().cpu()
            for layer, parts in recorder.ids.items():
                ids = torch.cat(parts)
                rows.setdefault(layer, []).append(ids if keep is None else ids[keep])
            done = sum(len(part) for part in rows[min(rows)])
            if max_tokens is not None and done >= max_tokens:
                break
    finally:
        recorder.close()
        model.train(was_training)
    if not rows:
        fail("bad_input", "the dataloader gave no batch")
    ids = {layer: torch.cat(parts) for layer, parts in rows.items()}
    parallel = getattr(model, "_coterie", None)
    if gather and parallel is not None and parallel.group is not None:
        everybody = [None] * dist.get_world_size(parallel.group)
        dist.all_gather_object(everybody, ids, group=parallel.group)
        ids = {layer: torch.cat([part[layer] for part in everybody]) for layer in ids}
    return trace_from(ids, modules[0][1].num_experts, sequence_length=length,
                      model_type=getattr(model.config, "model_type", ""), source="coterie.profile")
