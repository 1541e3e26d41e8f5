#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain training loop on two ranks, and the same loop with experts shared out: equal losses.

    torchrun --nproc-per-node 2 examples/03_train_in_plain_pytorch.py
"""
import copy

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, OlmoeConfig

import coterie

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same weights on all ranks
config = OlmoeConfig(vocab_size=128, hidden_size=64, intermediate_size=48, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=4, num_experts=8,
                     num_experts_per_tok=2, max_position_embeddings=64)
whole = AutoModelForCausalLM.from_config(config)
model = copy.deepcopy(whole)

coterie.parallelize(model)  # before the optimizer: it keeps this rank's experts only
optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3) for m in (whole, model)]


def batch(step, of_rank):
    generator = torch.Generator().manual_seed(1000 * step + of_rank)
    start = torch.randint(0, 128, (4, 1), generator=generator)
    return (start + torch.arange(32)) % 128  # the next token is the next number


for step in range(5):
    # What a data-parallel loop computes: the mean over the ranks.
    losses = [whole(input_ids=batch(step, r), labels=batch(step, r)).loss for r in range(size)]
    (sum(losses) / size).backward()
    torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)

    loss = model(input_ids=batch(step, rank), labels=batch(step, rank)).loss
    loss.backward()
    coterie.reduce_gradients(model)  # dense weights; DDP does the same, experts need nothing
    coterie.clip_grad_norm_(model, 1.0)  # torch's own would see this rank's experts only

    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(f"step {step}: {loss.item():.6f}, whole model {losses[0].item():.6f}", flush=True)
    assert abs(loss.item() - losses[rank].item()) < 1e-5 * losses[rank].item()
dist.destroy_process_group()
