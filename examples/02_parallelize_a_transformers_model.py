#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three lines make a transformers model expert-parallel.

    torchrun --nproc-per-node 2 examples/02_parallelize_a_transformers_model.py

Each rank computes its own text; the experts are shared out. The logits are those of the whole model.
"""
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

import coterie

folder = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "demo/model"
dist.init_process_group("gloo")
tokenizer = AutoTokenizer.from_pretrained(folder)
prompts = ["The function returns", "It was a dark and stormy"]
inputs = tokenizer(prompts[dist.get_rank() % 2], return_tensors="pt").input_ids

whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
coterie.parallelize(model)  # or placement="placement.json", or "coactivation" with stats=trace

with torch.no_grad():
    found, expected = model(inputs).logits, whole(inputs).logits
difference = ((found - expected).abs().max() / expected.abs().max()).item()
figures = coterie.statistics(model)[0]
print(f"rank {dist.get_rank()}: {len(coterie.parallel_experts(model)[0].expert_ids)} experts a layer, "
      f"{figures['replicas']:.2f} devices a token, logits differ by {difference:.1e}", flush=True)
assert difference < 1e-5

# Generation works too, as long as all ranks make equally many steps.
out = model.generate(inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)
assert torch.equal(out, whole.generate(inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False))
dist.destroy_process_group()
