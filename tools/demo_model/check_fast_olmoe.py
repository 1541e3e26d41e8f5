# SPDX-License-Identifier: Apache-2.0
"""Checks fast_olmoe.py: logits of a saved model under transformers, and grouped products."""

import argparse
import tempfile

import torch
import torch.nn.functional as F

from fast_olmoe import FastOlmoe, grouped_product
from train_model import make_config


def check_against_transformers(device):
    """Loss of every token equals OlmoeForCausalLM's on the same bf16-rounded weights."""
    from transformers import OlmoeForCausalLM

    arguments = argparse.Namespace(**{"layers": 2, "hidden": 64, "inner": 16, "balance": 0.0})
    model = FastOlmoe(make_config(arguments)).to(device).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 3).bfloat16())
    model.compute_type = torch.float32 if device == "cpu" else torch.bfloat16
    tokens = torch.randint(0, 4096, (3, 65), device=device)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        reference = OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
        logits = reference(tokens[:, :-1]).logits
        expected = F.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        loss, _, _ = model(tokens, torch.ones(3, device=device))
    difference = (loss.flatten() - expected).abs()
    # In bf16 a near-tie may choose another expert: judge the median there.
    error = (difference.max() if device == "cpu" else difference.median()).item()
    print(f"transformers, {device}: |difference| of a token's loss {error:.2e}")
    assert error < (1e-4 if device == "cpu" else 0.1), error


def check_grouped_product(device):
    """Product and both gradients against one product an expert, with empty and ragged groups."""
    torch.manual_seed(1)
    sizes = torch.randint(0, 90, (64,))
    sizes[5] = sizes[63] = 0
    ends = sizes.cumsum(0).to(torch.int32)
    rows = torch.randn(int(ends[-1]), 160).to(device, torch.bfloat16).requires_grad_()
    weight = (torch.randn(64, 64, 160) / 12).to(device).requires_grad_()
    out = grouped_product(rows, weight, ends.to(device))
    seed = torch.randn_like(out)
    actual = (out, *torch.autograd.grad(out, (rows, weight), seed))
    double_rows = rows.detach().double().cpu().requires_grad_()
    double_weight = weight.detach().double().cpu().requires_grad_()
    out = grouped_product(double_rows, double_weight, ends)
    expected = (
        out,
        *torch.autograd.grad(out, (double_rows, double_weight), seed.double().cpu()),
    )
    for name, got, want in zip(("product", "rows", "weight"), actual, expected):
        error = ((got.double().cpu() - want).norm() / want.norm()).item()
        print(f"grouped {name}, {device}: relative error {error:.2e}")
        assert error < 2e-2, (name, error)


if __name__ == "__main__":
    for name in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
        check_against_transformers(name)
        check_grouped_product(name)
