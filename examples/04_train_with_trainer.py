#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer: parallelize the model, add one callback, save with save_pretrained.

    torchrun --nproc-per-node 2 examples/04_train_with_trainer.py [OUT]
"""
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, OlmoeConfig, Trainer, TrainingArguments

import coterie

out = sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir() + "/coterie-example-04"


class CountingTexts(torch.utils.data.Dataset):
    """The next token is the next number."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = (torch.arange(32) + 7 * i) % 128
        return {"input_ids": ids, "labels": ids}


arguments = TrainingArguments(output_dir=out, max_steps=6, per_device_train_batch_size=4,
                              learning_rate=3e-3, logging_steps=1, save_strategy="no", report_to=[],
                              use_cpu=True, disable_tqdm=True, ddp_find_unused_parameters=False)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(OlmoeConfig(
    vocab_size=128, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_experts=8,
    num_attention_heads=4, num_key_value_heads=4, num_experts_per_tok=2))

coterie.parallelize(model)
trainer = Trainer(model=model, args=arguments, train_dataset=CountingTexts(),
                  callbacks=[coterie.trainer.ExpertParallelCallback()])
trainer.train()

losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert losses[-1] < losses[0], losses
coterie.save_pretrained(model, out + "/model")  # the whole model, from rank 0
if trainer.is_world_process_zero():
    again = AutoModelForCausalLM.from_pretrained(out + "/model")
    print(f"losses {losses[0]:.4f} -> {losses[-1]:.4f}; saved "
          f"{sum(p.numel() for p in again.parameters())} parameters", flush=True)
