# SPDX-License-Identifier: Apache-2.0
"""Trains the bundled model again on a GPU by the olmoe-demo recipe, beside the bundled weights.

    python3 retrain.py LIBRARY --source CHECKOUT --tokens FOLDER --out FOLDER [--steps N] [--seconds S]

FOLDER of tokens holds demo_tokens (docs/training.md). With fewer steps than the recipe's the rate's
schedule is that of so many steps.
"""

import argparse
import ctypes
import json
import time
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0, help="steps by what a probe takes")
    arguments = parser.parse_args()
    import torch  # loads the libraries that ours is linked with

    library = ctypes.CDLL(arguments.library)
    library.tg_error.restype = ctypes.c_char_p
    recipe = json.loads((arguments.source / "coterie/training/recipes/olmoe-demo.json").read_text())
    recipe["compute"] = {"dtype": "bf16", "device": "cuda"}
    recipe["batch"]["micro_sequences"] = recipe["batch"]["sequences"]
    recipe["checkpoint"]["every_steps"] = 0

    def train(name, changes):
        out = arguments.out / name
        document = recipe | changes
        texts = [json.dumps(document), str(arguments.tokens), str(arguments.source / "demo"), str(out), ""]
        if library.tg_train(*(t.encode() for t in texts), ctypes.c_int64(0)):
            raise RuntimeError(library.tg_error().decode())
        return [json.loads(line) for line in (out / "metrics.jsonl").open()]

    bundled = train("bundled", {"steps": 1, "start_from": "{demo}/model", "rate": recipe["rate"] | {"peak": 1e-30},
                                "evaluation": recipe["evaluation"] | {"every_steps": 1}})
    print("bundled", json.dumps([line for line in bundled if "held_out" in line]), flush=True)
    probe = train("probe", {"steps": 40, "evaluation": {"every_steps": 0, "sequences": 0}})
    seconds = sorted(line["seconds"] for line in probe if "seconds" in line)
    middle = seconds[len(seconds) // 2]
    print("probe: a step takes", middle, "s; last", json.dumps(probe[-1]), flush=True)
    steps = arguments.steps or recipe["steps"]
    if arguments.seconds:
        steps = min(steps, int(arguments.seconds / middle))
    start = time.time()
    every = max(1, min(1000, steps // 8))
    lines = train("again", {"steps": steps, "evaluation": recipe["evaluation"] | {"every_steps": every}})
    print("again:", steps, "steps in", time.time() - start, "s", flush=True)
    for line in lines:
        if "held_out" in line:
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
