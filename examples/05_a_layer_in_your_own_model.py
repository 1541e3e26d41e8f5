#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coterie.nn.MoELayer in a model of one's own, with FSDP2 for the dense part and torch.compile.

    torchrun --nproc-per-node 2 examples/05_a_layer_in_your_own_model.py
"""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import coterie.nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.dense = torch.nn.Linear(width, width)
        self.moe = coterie.nn.MoELayer(width, 2 * width, num_experts=8, top_k=2, aux_loss_coef=0.01)

    def forward(self, x):
        y, aux = self.moe(self.norm(x + torch.relu(self.dense(x))))
        return x + y, aux


model = torch.nn.ModuleList([Block(32), Block(32)])
experts = {p for block in model for p in block.moe.experts.parameters()}
for block in model:
    block.moe = torch.compile(block.moe, fullgraph=True, backend="aot_eager")
    fully_shard(block, ignored_params=experts)  # all but the experts is sharded and reduced by FSDP
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)

generator = torch.Generator().manual_seed(rank)
x = torch.randn(64, 32, generator=generator)
losses = []
for step in range(8):
    y, loss = x, 0.0
    for block in model:
        y, aux = block(y)
        loss = loss + aux
    loss = loss + (y - x.roll(1, dims=1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"rank {rank} holds experts {model[0].moe.expert_ids}: {losses[0]:.4f} -> {losses[-1]:.4f}",
      flush=True)
assert losses[-1] < 0.9 * losses[0]
dist.destroy_process_group()
