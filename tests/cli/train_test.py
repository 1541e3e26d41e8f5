# SPDX-License-Identifier: Apache-2.0
"""`coterie train` from the outside: layouts, resuming, signals, refusals. COTERIE_BIN: the command."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

# The toys, made small enough to train in a second.
SMALL = {
    "steps": 6, "compute.dtype": "fp64", "rate.warmup_steps": 2,
    "batch.sequence_length": 24, "batch.sequences": 8, "batch.micro_sequences": 2,
    "evaluation.every_steps": 3, "evaluation.sequences": 8, "checkpoint.every_steps": 3,
    "compute.peak_gflops": 1,
}
MIXTRAL = SMALL | {
    "model.hidden_size": 32, "model.intermediate_size": 48, "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4, "model.num_key_value_heads": 2, "model.head_dim": 8,
}
GPT2 = SMALL | {
    "model.n_embd": 32, "model.n_layer": 2, "model.n_head": 4, "model.n_inner": 48,
    "model.moe_intermediate_size": 48,
}


def settings(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def command(*arguments):
    return [os.environ["COTERIE_BIN"], "train", *map(str, arguments)]


def train(*arguments):
    return subprocess.run(command(*arguments, "--json", "--quiet"), capture_output=True, text=True)


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses_of(run):
    return [row["loss"] for row in rows_of(run) if "loss" in row]


class Train(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def trained(self, name, *arguments):
        done = train(*arguments, "--out", self.folder / name)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return json.loads(done.stdout)

    def assert_near(self, left, right, limit):
        self.assertEqual(len(left), len(right))
        for a, b in zip(left, right):
            self.assertLess(abs(a - b), limit * abs(b))

    def test_layouts_give_the_same_losses(self):
        for recipe, small in (("mixtral-toy", MIXTRAL), ("gpt2-moe-toy", GPT2)):
            one = self.trained(f"{recipe}1", recipe, *settings(small))
            self.assertTrue(one["complete"])
            expected = losses_of(self.folder / f"{recipe}1")
            self.assertEqual(len(expected), 6)
            self.assertLess(expected[-1], expected[0])
            for ranks in (2, 4):
                result = self.trained(f"{recipe}{ranks}", recipe, *settings(small), "--nproc", ranks,
                                      "--engine", "fake")
                name = f"{recipe}{ranks}"
                self.assert_near(losses_of(self.folder / name), expected, 1e-9)
                self.assertAlmostEqual(result["held_out"]["loss"], one["held_out"]["loss"], 9)
                rows = rows_of(self.folder / name)
                self.assertEqual(rows[0]["num_tokens"], 8 * 24)
                self.assertGreater(rows[0]["bytes_sent"], 0)
                self.assertTrue(all(1 <= value <= 8 for value in rows[0]["imbalance"]))

    def test_a_checkpoint_of_ep_4_goes_on_anywhere(self):
        small = MIXTRAL | {"compute.dtype": "fp32"}
        self.trained("whole", "mixtral-toy", *settings(small), "--nproc", 4, "--engine", "fake")
        half = self.trained("half", "mixtral-toy", *settings(small), "--nproc", 4, "--engine", "fake",
                            "--stop-after", 3)
        self.assertFalse(half["complete"])
        expected = losses_of(self.folder / "whole")[3:]
        for ranks in (1, 2, 4, 8):
            layout = {"layout.data": ranks, "layout.expert": ranks}
            self.trained(f"on{ranks}", "--resume", half["checkpoint"], *settings(layout), "--nproc", ranks,
                         "--engine", "fake")
            losses = losses_of(self.folder / f"on{ranks}")
            if ranks == 4:
                self.assertEqual(losses, expected)  # to the last bit
            self.assert_near(losses[:1], expected[:1], 1e-5)

    def test_other_parallelism_trains_alike(self):
        self.trained("one", "mixtral-toy", *settings(MIXTRAL))
        expected = losses_of(self.folder / "one")
        for number, layout in enumerate((
                {"data": 2, "model": 2, "expert": 2, "expert_shard": 2},
                {"data": 2, "pipeline": 2, "expert": 2}, {"model": 2, "expert": 2}, {"data": 2})):
            sets = settings(MIXTRAL | {f"layout.{key}": value for key, value in layout.items()})
            self.trained(f"layout{number}", "mixtral-toy", *sets, "--engine", "fake")
            self.assert_near(losses_of(self.folder / f"layout{number}"), expected, 1e-9)

    def test_processes_are_started_and_interrupted_cleanly(self):
        for ranks in (1, 2):
            out = self.folder / f"run{ranks}"
            started = subprocess.Popen(
                command("mixtral-toy", *settings(MIXTRAL | {"steps": 100000, "evaluation.every_steps": 0}),
                        "--nproc", ranks, "--out", out, "--json", "--quiet"),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.wait_for_steps(out, 2)
            started.send_signal(signal.SIGINT)
            output, errors = started.communicate(timeout=120)
            self.assertEqual(started.returncode, 0, errors)
            result = json.loads(output)
            self.assertFalse(result["complete"])
            self.assertGreaterEqual(result["last_step"], 2)
            self.assertTrue(result["checkpoint"].endswith(f"step-{result['last_step']:08d}"))
            steps = result["last_step"] + 2
            done = train("--resume", out, "--set", f"steps={steps}", "--nproc", ranks)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["last_step"], steps)

    def wait_for_steps(self, out, count):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            path = out / "metrics.jsonl"
            if path.exists() and path.read_text().count("\n") >= count:
                return
            time.sleep(0.02)
        self.fail("no steps were made")

    def test_killed_it_goes_on_from_the_last_checkpoint(self):
        out = self.folder / "run"
        started = subprocess.Popen(
            command("mixtral-toy", *settings(MIXTRAL | {"steps": 100000, "checkpoint.every_steps": 1}), "--out",
                    out, "--quiet"), stdout=subprocess.DEVNULL)
        self.wait_for_steps(out, 5)
        started.kill()
        started.wait()
        latest = (out / "checkpoints" / "latest").read_text().strip()
        done = train("--resume", out, "--stop-after", int(latest.removeprefix("step-")) + 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["first_step"], int(latest.removeprefix("step-")))

    def test_recipes_are_listed_and_printed_whole(self):
        names = [recipe["name"] for recipe in json.loads(train("--list").stdout)["recipes"]]
        self.assertIn("mixtral-toy", names)
        for name in names:
            printed = subprocess.run(command("--print-config", name), capture_output=True, text=True)
            self.assertEqual(printed.returncode, 0, printed.stderr)
            path = self.folder / f"{name}.json"
            path.write_text(printed.stdout)
            again = subprocess.run(command("--print-config", path), capture_output=True, text=True)
            self.assertEqual(again.stdout, printed.stdout)

    def test_the_plan_names_its_parts(self):
        done = train("mixtral-toy", "--plan")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertEqual(plan["total_bytes"], sum(item["bytes"] for item in plan["items"]))
        half = json.loads(train("mixtral-toy", "--plan", "--nproc", 2).stdout)
        self.assertLess(half["total_bytes"], plan["total_bytes"])

    def test_the_plan_of_full_widths_needs_no_text(self):
        # Parameters of one of 8 ranks, which hold an expert of every mixture each: elements of 2 bytes.
        mixtral = 4 * (3 * 4096 * 14336 + 8 * 4096 + 2 * 4096 * (4096 + 1024) + 2 * 4096) + 4096 * (2 * 32000 + 1)
        attention, mlp = 4 * 1600 * 1600 + 4 * 1600, 2 * 1600 * 6400 + 1600 + 6400
        gpt2 = 48 * (attention + 4 * 1600 + mlp) + 24 * 8 * 1600 + 1600 * (50257 + 1024 + 2)
        for recipe, expected in (("mixtral", mixtral), ("gpt2-moe", gpt2)):
            done = train(recipe, "--plan")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("train.txt", done.stderr)
            items = {item["name"]: item["bytes"] for item in json.loads(done.stdout)["items"]}
            self.assertAlmostEqual(items["parameters"] / (2 * expected), 1, 3, recipe)
            self.assertAlmostEqual(items["gradients"] / (2 * expected), 1, 3, recipe)
            if recipe == "mixtral":
                # Two moments and a master copy of 4 bytes each; of dense parameters an eighth.
                experts = 4 * 3 * 4096 * 14336
                self.assertAlmostEqual(items["optimizer"] / (12 * (experts + (expected - experts) / 8)), 1, 2)

    def test_bf16_learns_and_goes_on_bit_for_bit(self):
        for recipe, small in (("mixtral-toy", MIXTRAL), ("gpt2-moe-toy", GPT2)):
            small = small | {"compute.dtype": "bf16", "steps": 12, "rate.peak": 0.01, "checkpoint.every_steps": 6}
            ranks = ("--nproc", 2, "--engine", "fake")
            self.trained(f"{recipe}w", recipe, *settings(small), *ranks)
            whole = losses_of(self.folder / f"{recipe}w")
            self.assertLess(whole[-1], whole[0] - 0.5)
            half = self.trained(f"{recipe}h", recipe, *settings(small), *ranks, "--stop-after", 6)
            self.trained(f"{recipe}r", "--resume", half["checkpoint"], *ranks)
            self.assertEqual(losses_of(self.folder / f"{recipe}r"), whole[6:])  # masters come back too
            # Small steps are not lost, as they would be in bf16 alone: 2^-9 of a weight is more than they are.
            fp32 = self.trained(f"{recipe}f", recipe, *settings(small | {"compute.dtype": "fp32"}), *ranks)
            self.assertTrue(fp32["complete"])
            self.assert_near(whole[-1:], losses_of(self.folder / f"{recipe}f")[-1:], 0.03)

    def test_wrong_input_is_refused_before_anything_starts(self):
        (self.folder / "bad.json").write_text('{"format": "coterie.recipe", "stepz": 3}')
        for words, parts in (
                (("no-such-recipe",), ("no-such-recipe", "mixtral-toy")),
                ((self.folder / "bad.json",), ("bad.json",)),
                (("mixtral-toy", "--set", "optimizer.beta3=1"), ("optimizer.beta3",)),
                (("mixtral-toy", "--set", "compute.dtype=fp8"), ("dtype", "fp8")),
                (("mixtral-toy", "--set", "layout.data=2", "--nproc", 3), ("2", "3")),
                (("mixtral-toy", "--set", "model.colour=3"), ("colour",)),
                (("mixtral-toy", "--set", 'data.sources.0.files=["none.txt"]'), ("none.txt",)),
                (("--resume", self.folder), ("no checkpoint",)),
                ((), ("recipe",))):
            out = self.folder / "out"
            done = train(*words, "--out", out)
            self.assertEqual(done.returncode, 2, (words, done.stdout, done.stderr))
            for part in parts:
                self.assertIn(part, done.stderr, words)
            self.assertFalse(out.exists(), words)

    def test_a_run_is_never_written_over(self):
        self.trained("run", "mixtral-toy", *settings(MIXTRAL | {"steps": 1}))
        done = train("mixtral-toy", *settings(MIXTRAL), "--out", self.folder / "run")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--resume", done.stderr)


if __name__ == "__main__":
    unittest.main()
