# SPDX-License-Identifier: Apache-2.0
"""coterie similarity, prune and evaluate on the demo model, as a user calls them one after another."""
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


class Prune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        cls.trace = cls.folder / "trace.bin"
        cls.placement = cls.folder / "placement.json"
        cls.texts = ["--text", NOVELS, CODE, "--max-tokens", 512]
        cls.call("trace", "--model", MODEL, *cls.texts, "--weights", "--out", cls.trace)
        cls.call("place", "--trace", cls.trace, "--devices", 4, "--algorithm", "contiguous", "--out", cls.placement)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def call(cls, *arguments):
        done = coterie(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def prune(self, *more):
        return self.call("prune", "--trace", self.trace, "--placement", self.placement, "--out",
                         self.folder / "pruning.json", *more)

    def evaluate(self, *more):
        return self.call("evaluate", "--model", MODEL, *self.texts, "--placement", self.placement, "--pruning",
                         self.folder / "pruning.json", *more)

    def test_traffic_is_what_the_policy_predicts(self):
        layers = self.prune("--max-devices", 2)["layers"]
        self.assertEqual(len(layers), 6)
        document = self.evaluate()
        tokens = [domain["tokens"] for domain in document["domains"]]

        def mean(key):
            return sum(n * d[key] for n, d in zip(tokens, document["domains"])) / sum(tokens)
        self.assertLessEqual(mean("replicas"), 2)
        self.assertAlmostEqual(mean("unpruned_replicas"),
                               sum(layer["replicas_before"] for layer in layers) / 6, places=9)
        for domain in document["domains"]:
            change = domain["change"]
            self.assertLessEqual(change["low"], change["mean"])
            self.assertLessEqual(change["mean"], change["high"])
            self.assertAlmostEqual(domain["bits_per_byte"] - domain["unpruned_bits_per_byte"], change["mean"],
                                   places=9)
            self.assertNotEqual(change["mean"], 0)

    def test_no_limit_costs_nothing(self):
        for layer in self.prune("--max-devices", 4)["layers"]:
            self.assertEqual(layer["traffic_ratio"], 1)
            self.assertAlmostEqual(layer["kept_mass"], 1, places=12)
        for domain in self.evaluate()["domains"]:
            self.assertEqual(domain["bits_per_byte"], domain["unpruned_bits_per_byte"])

    def test_kept_mass_is_never_below_first_seen(self):
        mass = self.prune("--max-devices", 2)["layers"]
        first = self.prune("--max-devices", 2, "--device-choice", "first_seen")["layers"]
        for a, b in zip(mass, first):
            self.assertGreaterEqual(a["kept_mass"], b["kept_mass"])
            self.assertEqual(a["replicas_after"], b["replicas_after"])

    def test_mean_budget_keeps_more_than_a_uniform_one(self):
        uniform = self.prune("--max-devices", 2)["layers"]
        mean = sum(layer["replicas_after"] for layer in uniform) / 6
        fitted = self.prune("--max-devices", 4, "--mean-devices", mean)["layers"]
        self.assertAlmostEqual(sum(layer["replicas_after"] for layer in fitted) / 6, mean, places=2)
        self.assertLessEqual(sum(layer["replicas_after"] for layer in fitted) / 6, mean + 1e-9)
        self.assertGreater(sum(layer["kept_mass"] for layer in fitted), sum(layer["kept_mass"] for layer in uniform))

    def test_similarity_replaces(self):
        similarity = self.folder / "similarity.json"
        told = self.call("similarity", "--model", MODEL, *self.texts, "--out", similarity)
        self.assertEqual(len(told["layers"]), 6)
        self.prune("--max-devices", 2, "--replacement", "similarity", "--weights", "keep_sum")
        for domain in self.evaluate("--similarity", similarity)["domains"]:
            self.assertGreater(domain["bits_per_byte"], 0)
        done = coterie("evaluate", "--model", MODEL, *self.texts, "--placement", self.placement, "--pruning",
                       self.folder / "pruning.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("similarity", done.stderr)

    def test_outputs_are_compared(self):
        similarity = self.folder / "outputs.json"
        told = self.call("similarity", "--model", MODEL, "--text", CODE, "--max-tokens", 64, "--by", "outputs", "--out",
                         similarity)
        self.assertEqual((told["by"], told["measure"], told["tokens"]), ("outputs", "cosine", 64))
        tables = json.loads(similarity.read_text())
        self.assertEqual(tables["values"], "expert_outputs")
        for table in tables["tables"]:
            for i in range(64):
                self.assertAlmostEqual(table[i][i], 1, places=9)
            self.assertGreater(max(abs(table[0][j]) for j in range(1, 64)), 1e-3)
        self.prune("--max-devices", 2, "--replacement", "similarity")
        self.evaluate("--similarity", similarity)
        done = coterie("similarity", "--model", MODEL, "--text", CODE, "--by", "outputs", "--measure", "centred_cosine",
                       "--out", self.folder / "never.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("centred_cosine", done.stderr)

    def test_refusals(self):
        plain = self.folder / "plain.bin"
        self.call("trace", "--model", MODEL, *self.texts, "--out", plain)
        out = self.folder / "never.json"
        for arguments, parts in (
                (["prune", "--trace", plain, "--placement", self.placement, "--max-devices", 2, "--out", out],
                 ["plain.bin", "--weights"]),
                (["prune", "--trace", self.trace, "--placement", self.placement, "--max-devices", 2,
                  "--min-devices", 3, "--out", out], ["min_devices", "3"]),
                (["prune", "--trace", self.trace, "--placement", self.placement, "--max-devices", 2,
                  "--mean-devices", 0.5, "--out", out], ["0.5"]),
                (["evaluate", "--model", MODEL], ["--text"]),
                (["evaluate", "--model", MODEL, *self.texts, "--pruning", self.placement], ["--placement"]),
                (["similarity", "--model", MODEL, "--out", out], ["--text"])):
            done = coterie(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            for part in parts:
                self.assertIn(part, done.stderr)
            self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
