#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer on two ranks keeps its losses when its model becomes parallel.

The whole model and the parallel one go through the same Trainer, DDP and all; losses and gradient
norms agree to 1e-5 in fp32.
"""
import copy
import sys
import tempfile

from parallel_cases import (
    coterie, dist, run_ranks, run_tests, scattered_placement, tiny_model, tokens, torch,
    transformers,
)

try:
    import accelerate  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS = 4


class Texts(torch.utils.data.Dataset):
    """Rows of token ids; labels are the ids."""

    def __init__(self, count):
        self.rows = tokens(count, length=16, seed=7)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def train(model, folder, *callbacks):
    """[steps] this rank's exact losses (the log rounds them), and the dense weights at the end."""
    losses = []
    model.register_forward_hook(lambda module, args, out: losses.append(out.loss.item()))
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=2, learning_rate=1e-3,
        save_strategy="no", report_to=[], use_cpu=True, max_grad_norm=0.5, disable_tqdm=True,
        lr_scheduler_type="constant", seed=3, ddp_find_unused_parameters=False)
    transformers.Trainer(model=model, args=arguments, train_dataset=Texts(32),
                         callbacks=list(callbacks)).train()
    return losses, {n: p.detach() for n, p in model.named_parameters() if ".experts." not in n}


def switched(folder):
    whole = tiny_model()
    first = copy.deepcopy(whole)
    model = copy.deepcopy(whole)
    expected, wanted = train(whole, folder + "/whole")

    coterie.parallelize(model, placement=scattered_placement(model, dist.get_world_size()))
    clipping = coterie.trainer.ExpertParallelCallback()
    found, weights = train(model, folder + "/parallel", clipping)

    assert len(found) == len(expected) == STEPS
    for a, b in zip(found, expected):
        assert abs(a - b) <= 1e-5 * abs(b), (found, expected)
    assert clipping.last_norm > 0.5  # so clipping did something
    moved = dict(first.named_parameters())
    for name, weight in weights.items():
        step = (wanted[name] - moved[name]).abs().max().item()
        assert step > 1e-4, name
        worst = (weight - wanted[name]).abs().max().item()
        assert worst <= 0.05 * step, (name, worst, step)


def test_trainer_keeps_its_losses():
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(2, switched, folder)


if __name__ == "__main__":
    sys.exit(run_tests(sys.modules[__name__]))
