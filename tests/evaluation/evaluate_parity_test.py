# SPDX-License-Identifier: Apache-2.0
"""coterie evaluate against transformers: log-likelihoods of choices as lm-evaluation-harness computes them,
answers written greedily."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import transformers
except ImportError:
    print("skipped: no torch or transformers")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo/model"
CHOICES = [
    ("It was a bright cold day in", ["April", "the morning", "zebra"], 0),
    ("import os\nimport ", ["sys", "banana"], 0),
    ("NAME\n       git-log - ", ["Show commit logs", "a river in France"], 0),
    ("She said that she ", ["would", "had never", "were"], 1),
    ("", ["The", "xylophone"], 0),
    ("Gr\u00fc\u00dfe aus ", ["M\u00fcnchen", "K\u00f6ln am Rhein"], 1),
]
TARGETS = [("The cat sat on the", "mat"), ("def add(a, b):\n    return", "a + b")]


def encode_pair(tokenizer, context, continuation):
    """The harness's rule: trailing white space moves over, both are encoded together."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    whole = tokenizer.encode(context + continuation, add_special_tokens=False)
    before = len(tokenizer.encode(context, add_special_tokens=False))
    return whole[:before], whole[before:]


def main():
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    prefix = next(i for t in ("<|endoftext|>", "</s>", "<s>")
                  if (i := tokenizer.get_vocab().get(t)) is not None)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "choices.jsonl").write_text("".join(
            json.dumps({"context": c, "choices": o, "answer": a}) + "\n" for c, o, a in CHOICES))
        (folder / "targets.jsonl").write_text("".join(
            json.dumps({"context": c, "target": t, "max_new_tokens": 8}) + "\n" for c, t in TARGETS))
        done = subprocess.run([os.environ["COTERIE_BIN"], "evaluate", "--model", MODEL, "--task",
                               folder / "choices.jsonl", folder / "targets.jsonl", "--items", folder / "items.jsonl",
                               "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        items = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]

    correct = normalised = 0
    for (context, options, answer), item in zip(CHOICES, items):
        sums = []
        for option in options:
            head, tail = ([prefix], tokenizer.encode(" " + option, add_special_tokens=False)) if context == "" \
                else encode_pair(tokenizer, context, " " + option)
            with torch.no_grad():
                logits = model(torch.tensor([head + tail])).logits[0].double().log_softmax(-1)
            sums.append(sum(float(logits[len(head) + i - 1, t]) for i, t in enumerate(tail)))
        for ours, theirs in zip(item["log_likelihoods"], sums):
            assert abs(ours - theirs) < 1e-3, (context, ours, theirs)
        best = max(range(len(options)), key=lambda i: sums[i])
        best_normalised = max(range(len(options)), key=lambda i: sums[i] / len(options[i]))
        correct += best == answer
        normalised += best_normalised == answer
    task = document["tasks"][0]
    assert abs(task["acc"] - correct / len(CHOICES)) < 1e-12, task
    assert abs(task["acc_norm"] - normalised / len(CHOICES)) < 1e-12, task

    for (context, _), item in zip(TARGETS, items[len(CHOICES):]):
        ids = tokenizer.encode(context, add_special_tokens=False)
        start = len(ids)
        for _ in range(8):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        expected = tokenizer.decode(ids[start:]).split("\n")[0]
        assert item["text"] == expected, (item["text"], expected)
    print("equal:", len(CHOICES), "questions with choices,", len(TARGETS), "with targets")


if __name__ == "__main__":
    main()
