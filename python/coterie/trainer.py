# SPDX-License-Identifier: Apache-2.0
"""The one line more that transformers' Trainer needs."""
from transformers import TrainerCallback

from ._training import clip_grad_norm_, save_pretrained


class ExpertParallelCallback(TrainerCallback):
    """Clips the gradients of a parallel model by the norm of the whole model.

    Trainer would clip each rank by the norm of what that rank holds, and replicated weights would
    drift apart. Takes over `args.max_grad_norm` while training; `last_norm` is the norm of the last
    step. Whole checkpoints are written by `coterie.save_pretrained(model, folder)`; use
    save_strategy="no".
    """

    def __init__(self):
        self.max_norm = 0.0
        self.last_norm = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.max_norm, args.max_grad_norm = args.max_grad_norm, 0.0

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.max_norm and self.max_norm > 0:
            self.last_norm = float(clip_grad_norm_(model, self.max_norm))

    def on_train_end(self, args, state, control, **kwargs):
        args.max_grad_norm = self.max_norm


__all__ = ["ExpertParallelCallback", "save_pretrained"]
