# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of `coterie train` is a model of transformers: it loads whole, and its held-out loss is the
one that was logged. COTERIE_BIN: the command."""
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError:
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 32
SETTINGS = {
    "steps": 4, "rate.warmup_steps": 1, "batch.sequence_length": LENGTH, "batch.sequences": 4,
    "evaluation.sequences": 8, "compute.peak_gflops": 1, "model.num_hidden_layers": 2,
}
SMALLER = {
    "mixtral-toy": {"model.hidden_size": 64, "model.intermediate_size": 96},
    "olmoe-demo": {"data.order": "shuffled", "data.separator": "<|endoftext|>"} | {
        f"data.{part}": [{"name": "novels", "files": [f"{{demo}}/text/novels.{end}.txt"]}]
        for part, end in (("sources", "fit"), ("held_out", "heldout"))},
}


def train(name, folder):
    words = [os.environ["COTERIE_BIN"], "train", name, "--json", "--quiet", "--out", str(folder)]
    for key, value in (SETTINGS | SMALLER[name]).items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)



def main():
    torch.set_grad_enabled(False)
    for name in SMALLER:
        with tempfile.TemporaryDirectory() as scratch:
            result = train(name, Path(scratch) / "run")
            model, info = AutoModelForCausalLM.from_pretrained(
                result["checkpoint"], dtype=torch.float32, output_loading_info=True)
            for kind, names in info.items():
                assert not names, f"{name}: {kind}: {names}"
            tokenizer = AutoTokenizer.from_pretrained(result["checkpoint"])
            source = result["held_out"]["sources"][0]
            text = (ROOT / "demo/text" / f"{source['name']}.heldout.txt").read_text("utf-8")
            count = 2 if name == "mixtral-toy" else 8  # of 4 sources, or of one
            ids = [0] + tokenizer(text)["input_ids"][: LENGTH * count + 1]
            windows = torch.tensor([ids[s : s + LENGTH + 1] for s in range(0, LENGTH * count, LENGTH)])
            logits = model(windows[:, :-1]).logits.double().log_softmax(-1)
            loss = -logits.gather(2, windows[:, 1:, None]).mean().item()
            assert math.isclose(loss, source["loss"], rel_tol=1e-5), (name, loss, source)
            print(f"{name}: loss {loss:.6f} in transformers, {source['loss']:.6f} here")


if __name__ == "__main__":
    main()
