# SPDX-License-Identifier: Apache-2.0
"""coterie finetune on the demo model, as a user calls it: tune under a policy, go on from the result."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo/model"
NOVELS = ROOT / "demo/text/novels.heldout.txt"
CODE = ROOT / "demo/text/code.heldout.txt"


def coterie(*arguments):
    return subprocess.run([os.environ["COTERIE_BIN"], *map(str, arguments)], capture_output=True, text=True,
                          timeout=500)


class Finetune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        texts = ["--text", NOVELS, CODE, "--max-tokens", 256]
        trace = cls.folder / "trace.bin"
        cls.placement = cls.folder / "placement.json"
        cls.policy = cls.folder / "pruning.json"
        cls.call("trace", "--model", MODEL, *texts, "--weights", "--out", trace)
        cls.call("place", "--trace", trace, "--devices", 4, "--algorithm", "contiguous", "--out", cls.placement)
        cls.call("prune", "--trace", trace, "--placement", cls.placement, "--max-devices", 2, "--out", cls.policy)
        cls.lines = cls.folder / "notes.jsonl"
        with cls.lines.open("w") as out:
            for paragraph in NOVELS.read_text("utf-8")[:6000].split("\n\n"):
                out.write(json.dumps({"text": paragraph + "\n"}) + "\n")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def call(cls, *arguments):
        done = coterie(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def finetune(self, model, out, *more):
        return self.call("finetune", model, "--data", self.lines, "--steps", 2, "--batch", 2, "--sequence-length", 64,
                         "--warmup", 0, "--rate", 1e-3, "--profile-tokens", 256, "--out", out, *more)

    def test_tune_and_go_on_from_the_result(self):
        one = self.folder / "one"
        document = self.finetune(MODEL, one, "--placement", self.placement, "--pruning", self.policy)
        self.assertTrue(document["complete"])
        drift = json.loads((one / "drift.json").read_text())
        self.assertEqual(len(drift["layers"]), 6)
        for layer in drift["layers"]:
            self.assertGreater(layer["token_distance"], 0)
            self.assertLess(layer["token_distance"], 0.9)
        # The rows that steps sent keep to the budget.
        steps = [json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()]
        replicas = [step["replicas_per_token"] for step in steps if "replicas_per_token" in step]
        self.assertEqual(len(replicas), 2)
        self.assertLessEqual(max(replicas), 2)
        # What was written fits the tuned model, and no other.
        self.call("evaluate", "--model", one / "model", "--text", CODE, "--max-tokens", 256, "--placement",
                  one / "placement.json", "--pruning", one / "pruning.json")
        refused = coterie("evaluate", "--model", one / "model", "--text", CODE, "--placement", self.placement)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        two = self.folder / "two"
        self.finetune(one / "model", two, "--placement", one / "placement.json", "--pruning", one / "pruning.json",
                      "--mode", "experts_only")
        self.assertTrue((two / "model/config.json").exists())

    def test_lora(self):
        out = self.folder / "lora"
        self.finetune(MODEL, out, "--mode", "lora", "--lora-rank", 2)
        self.assertEqual(json.loads((out / "adapter/adapter_config.json").read_text())["r"], 2)
        self.assertTrue((out / "adapter/adapter_model.safetensors").exists())
        self.call("evaluate", "--model", out / "model", "--text", CODE, "--max-tokens", 256)

    def test_refusals(self):
        out = self.folder / "never"
        bad = self.folder / "bad.jsonl"
        bad.write_text('{"text": "fine"}\n{"other": 1}\n')
        for arguments, parts in (
                (["--data", bad], ["bad.jsonl", "line 2", "text"]),
                (["--data", self.lines, "--pruning", self.policy], ["--placement"]),
                (["--data", self.folder / "absent.txt"], ["absent.txt"]),
                ([], ["--data"])):
            done = coterie("finetune", MODEL, *arguments, "--steps", 1, "--out", out)
            self.assertEqual(done.returncode, 2, done.stderr)
            for part in parts:
                self.assertIn(part, done.stderr)
            self.assertFalse((out / "model").exists())


if __name__ == "__main__":
    unittest.main()
