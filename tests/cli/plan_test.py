# SPDX-License-Identifier: Apache-2.0
"""coterie plan, simulate and verify of a cluster profile, as a user calls them."""
import copy
import json
import os
import subprocess
import tempfile
import unittest
import xml.dom.minidom
from pathlib import Path

COTERIE = os.environ["COTERIE_BIN"]
SHARED = Path(os.environ.get("COTERIE_SHARED_DIR", "")) / "data" / "routing"
SCHEDULES = ["sequential", "deepspeed_moe", "pipe_moe", "tutel_improved", "pipe_moe_lina", "fsmoe_one_stream",
             "fsmoe", "coterie"]


def run(*arguments):
    return subprocess.run([COTERIE, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def line(alpha, per_second):
    return {"pieces": [{"from_size": 0, "alpha_s": alpha, "beta_s": 1 / per_second}]}


def profile():
    names = ["inter_node", "intra_node", "compute"]
    factors = {a: {b: 2 if a == b else 1.3 if "compute" not in (a, b) else 1.05 for b in names} for a in names}
    engine = {"name": "nccl", "exchange": line(3e-5, 10e9), "local_exchange": line(2e-5, 150e9),
              "all_gather": line(2e-5, 150e9), "reduce_scatter": line(2e-5, 150e9),
              "all_reduce": line(6e-5, 8e9), "contention": factors}
    return {"format": "coterie-cluster-profile", "version": 1, "name": "made", "source": "made for a test",
            "num_nodes": 4, "devices_per_node": 2, "products": line(2e-5, 300e12),
            "attention": line(4e-5, 250e12), "backward_attention": 2, "engines": [engine], "checks": []}


class PlanTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name)
        self.trace = self.folder / "made.csv"
        rows = ["token_id,occurrences,x0,x1"]
        for token in range(240):  # pairs (0,8), (1,9), ... work together
            first = token % 8
            rows.append(f"{token},1,{first},{first + 8 if token % 10 else (first + 1) % 8}")
        self.trace.write_text("\n".join(rows) + "\n")
        self.placement = self.folder / "placement.json"
        self.cluster = self.folder / "cluster.json"
        self.write_cluster(profile())
        done = run("place", "--trace", self.trace, "--devices", 8, "--starts", 2, "--out", self.placement)
        self.assertEqual(done.returncode, 0, done.stderr)

    def write_cluster(self, document):
        self.cluster.write_text(json.dumps(document))

    def plan(self, *more, sizes=("--hidden", 2048, "--intermediate", 1024, "--tokens", 4096)):
        return run("plan", "--placement", self.placement, "--trace", self.trace, "--cluster", self.cluster,
                   *sizes, *more)

    def simulate(self, *more):
        return run("simulate", "--cluster", self.cluster, "--hidden", 2048, "--intermediate", 1024, "--tokens",
                   4096, "--experts", 64, "--top-k", 8, *more)

    def refused(self, result, *parts):
        self.assertEqual(result.returncode, 2, result.stdout)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_every_schedule_is_shown_and_ours_is_the_fastest(self):
        result = self.plan("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual([s["schedule"] for s in document["schedules"]], SCHEDULES)
        times = {s["schedule"]: s["predicted_s"] for s in document["schedules"]}
        self.assertLessEqual(times["coterie"], min(times.values()) * (1 + 1e-9))
        self.assertGreater(times["deepspeed_moe"], times["sequential"])
        self.assertGreaterEqual(times["coterie"], document["bound"]["time_s"] * (1 - 1e-9))
        for each in document["schedules"]:
            plan = each["layers"][0]
            self.assertAlmostEqual(sum(plan["forward"]["shares"]), 1)
            self.assertIn("D1", plan["forward"]["lane_orders"]["inter"])
        ranked = [a["speed_up"] for a in document["advice"]]
        self.assertEqual(ranked, sorted(ranked, reverse=True))
        gradients = document["gradients"]
        sent = gradients["greedy"]
        self.assertAlmostEqual(sum(sent["dense_bytes"] + sent["moe_bytes"]) + sent["last_bytes"], gradients["bytes"])
        self.assertLessEqual(sent["exposed_s"], gradients["fixed_pieces"]["exposed_s"] * (1 + 1e-9))
        self.assertIn("Tutel/PipeMoE", self.plan().stdout)

    def test_a_better_placement_is_predicted_to_be_faster(self):
        ours = json.loads(self.plan("--json").stdout)
        done = run("place", "--trace", self.trace, "--devices", 8, "--algorithm", "contiguous", "--out",
                   self.placement)
        self.assertEqual(done.returncode, 0, done.stderr)
        contiguous = json.loads(self.plan("--json").stdout)
        self.assertLess(ours["loads"][0]["node_replicas"], contiguous["loads"][0]["node_replicas"])
        self.assertLess(ours["schedules"][-1]["predicted_s"], contiguous["schedules"][-1]["predicted_s"])

    def test_writes_plan_chart_and_trace(self):
        out, chart, events = (self.folder / name for name in ("plan.json", "plan.svg", "events.json"))
        result = self.plan("--schedule", "fsmoe", "coterie", "--out", out, "--chart", chart, "--trace-events", events)
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(out.read_text())
        self.assertEqual((plan["format"], plan["version"], plan["schedule"]), ("coterie-plan", 1, "coterie"))
        self.assertTrue(xml.dom.minidom.parse(str(chart)).getElementsByTagName("rect"))
        trace = json.loads(events.read_text())["traceEvents"]
        self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in trace if e["ph"] == "X"), 1e6 * plan["predicted_s"],
                               delta=1)
        first = out.read_bytes()
        self.plan("--schedule", "fsmoe", "coterie", "--out", out)
        self.assertEqual(out.read_bytes(), first)

    def test_sharded_experts_and_a_model_folder(self):
        done = run("place", "--trace", self.trace, "--devices", 4, "--starts", 2, "--out", self.placement)
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.folder / "config.json").write_text(json.dumps({
            "hidden_size": 2048, "intermediate_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4,
            "num_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers": 3}))
        model = ("--model", self.folder, "--tokens", 4096)
        result = self.plan("--expert-sharding", "--json", sizes=model)
        self.assertEqual(result.returncode, 0, result.stderr)
        load = json.loads(result.stdout)["loads"][0]
        self.assertEqual(load["node_replicas"], load["device_replicas"])
        result = run("simulate", "--cluster", self.cluster, *model, "--devices", 8, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["num_layers"], 3)

    def test_bad_input_is_exit_2_and_writes_nothing(self):
        before = {p.name for p in self.folder.iterdir()}
        out = self.folder / "plan.json"
        self.refused(self.plan("--schedule", "tutel", "--out", out), "tutel", "fsmoe_one_stream")
        self.refused(self.plan("--max-chunks", 0), "--max-chunks")
        self.refused(self.plan("--engine", "mpi"), "mpi", "nccl")
        self.refused(self.plan(sizes=("--tokens", 4096)), "--hidden")
        self.refused(self.plan(sizes=("--hidden", 1, "--intermediate", 1, "--tokens", -5)), "--tokens")
        self.refused(self.plan("--out", self.cluster), "--out")
        bad = profile()
        bad["devices_per_node"] = 3
        self.write_cluster(bad)
        self.refused(self.plan("--out", out), "8 devices", "3")
        bad = profile()
        bad["version"] = 7
        self.write_cluster(bad)
        self.refused(self.plan("--out", out), "cluster.json", "/version", "7")
        self.cluster.write_text("{")
        self.refused(self.plan("--out", out), "cluster.json")
        self.assertEqual({p.name for p in self.folder.iterdir()}, before)

    def test_a_pipe_is_refused_and_not_waited_for(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        sizes = ("--hidden", 64, "--intermediate", 64, "--tokens", 64)
        self.refused(run("verify", pipe), "pipe", "regular file")
        self.refused(run("verify", self.folder), self.folder.name, "regular file")
        self.refused(run("plan", "--placement", pipe, "--trace", self.trace, "--cluster", self.cluster, *sizes),
                     "pipe", "regular file")
        self.refused(run("plan", "--placement", self.placement, "--trace", pipe, "--cluster", self.cluster, *sizes),
                     "pipe", "regular file")

    def test_sizes_that_no_model_has_are_refused_at_once(self):
        sizes = ("--intermediate", 1024, "--tokens", 4096)
        self.refused(self.plan(sizes=("--hidden", 1e9, *sizes)), "--hidden", "1e+09")
        sizes = ("--hidden", 2048, *sizes)
        for flag, value in (("--kv-share", 1e12), ("--kv-share", "nan"), ("--shared-intermediate", "inf"),
                            ("--gradient-bytes", 1e9)):
            self.refused(self.plan(flag, value, sizes=sizes), flag)

    def test_outputs_that_cannot_be_or_would_destroy_are_refused_before_any_is_written(self):
        config = self.folder / "config.json"
        config.write_text(json.dumps({"hidden_size": 2048, "intermediate_size": 1024}))
        before = config.read_text()
        model = ("--model", self.folder, "--tokens", 4096)
        self.refused(self.plan("--out", config, sizes=model), "--out", "input")
        self.refused(self.plan("--chart", self.cluster), "--chart", "input")
        self.assertEqual(config.read_text(), before)
        out = self.folder / "plan.json"
        self.refused(self.plan("--out", out, "--chart", out), "--chart", "--out")
        self.refused(self.plan("--out", out, "--chart", self.folder / "none" / "chart.svg"), "--chart", "none")
        self.refused(self.plan("--out", out, "--trace-events", self.folder), "--trace-events", "folder")
        self.assertFalse(out.exists())
        here = [COTERIE, "simulate", "--cluster", "cluster.json", "--hidden", "64", "--intermediate", "64", "--tokens",
                "64", "--experts", "8", "--top-k", "2", "--layers", "1", "--devices", "8", "--chart", "new.svg"]
        done = subprocess.run(here, capture_output=True, text=True, cwd=self.folder, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([*here, "--trace-events", "./new.svg"], capture_output=True, text=True,
                              cwd=self.folder, timeout=300)
        self.refused(done, "--trace-events", "--chart")

    def test_a_profile_without_any_cost_is_refused(self):
        free = profile()
        nothing = {"pieces": [{"from_size": 0, "alpha_s": 0, "beta_s": 0}]}
        free.update(products=nothing, attention=nothing)
        free["engines"][0].update({key: nothing for key in ("exchange", "local_exchange", "all_gather",
                                                            "reduce_scatter", "all_reduce")})
        self.write_cluster(free)
        self.refused(self.plan("--json"), "cluster.json", "no time")
        self.refused(self.simulate("--layers", 1, "--devices", 8), "cluster.json", "no time")

    def test_a_bad_factor_is_named_once(self):
        bad = profile()
        bad["engines"][0]["contention"]["compute"]["compute"] = 0.5
        self.write_cluster(bad)
        result = run("verify", self.cluster)
        self.refused(result, "/engines/0/contention/compute/compute: expected a number in [1, 1000], found 0.5")

    def test_prune_of_a_mean_that_is_no_number_or_another_model_is_refused(self):
        header = {"format": "coterie-trace", "version": 1, "model_type": "", "model_fingerprint": "ab",
                  "num_experts": 4, "top_k": 2, "layers": [0], "domains": ["x"], "has_weights": True,
                  "shared_tokens": True, "source": ""}
        row = {"sequence": 0, "domain": "x", "experts": [[0, 2]], "weights": [[0.6, 0.4]]}

        def write(fingerprint):
            lines = [{**header, "model_fingerprint": fingerprint}, {**row, "position": 0}, {**row, "position": 1},
                     {"end_of_trace": 2}]
            self.trace.write_text("\n".join(map(json.dumps, lines)) + "\n")

        write("ab")
        done = run("place", "--trace", self.trace, "--devices", 2, "--algorithm", "contiguous", "--out",
                   self.placement)
        self.assertEqual(done.returncode, 0, done.stderr)
        out = self.folder / "pruning.json"
        prune = ("prune", "--trace", self.trace, "--placement", self.placement, "--max-devices", 2, "--out", out)
        self.assertEqual(run(*prune).returncode, 0)
        out.unlink()
        for mean in ("nan", "inf", -1e300, 0):
            self.refused(run(*prune, "--mean-devices", mean), "mean of")
        write("cd")
        self.refused(run(*prune), "fingerprint ab", "cd")
        self.refused(self.plan(), "fingerprint ab", "cd")
        self.assertFalse(out.exists())

    def test_a_profile_is_known_whatever_its_first_key(self):
        document = profile()
        last = {key: document[key] for key in reversed(document)}
        last["source"] = "x" * 500
        self.write_cluster(last)
        self.assertEqual(run("verify", self.cluster).returncode, 0)

    def test_a_profile_that_is_off_is_refused_or_warned_of(self):
        off = profile()
        off["checks"] = [{"what": "layer forward", "predicted_s": 1.4e-3, "measured_s": 1e-3}]
        self.write_cluster(off)
        self.refused(self.plan(), "layer forward", "40.0 %")
        self.refused(run("verify", self.cluster), "layer forward")
        off["checks"][0]["predicted_s"] = 1.15e-3
        self.write_cluster(off)
        result = self.plan()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("15.0 %", result.stderr)
        verified = run("verify", self.cluster, "--json")
        self.assertEqual(verified.returncode, 0, verified.stderr)
        self.assertEqual(json.loads(verified.stdout)["findings"][0]["verdict"], "warn")

    def test_simulates_thousands_of_devices(self):
        result = self.simulate("--layers", 8, "--devices", 2048, "--schedule", "coterie", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual((document["num_devices"], document["num_nodes"]), (2048, 1024))
        self.assertGreater(document["runs"][0]["waiting"], 0)
        again = self.simulate("--layers", 8, "--devices", 2048, "--schedule", "coterie", "--json")
        self.assertEqual(again.stdout, result.stdout)
        even = self.simulate("--layers", 8, "--devices", 2048, "--schedule", "coterie", "--json", "--load-spread", 0,
                             "--jitter", 0)
        self.assertAlmostEqual(json.loads(even.stdout)["runs"][0]["waiting"], 0)
        self.assertIn("ours", self.simulate("--layers", 2, "--devices", 8).stdout)

    def test_simulate_refuses_what_cannot_be(self):
        self.refused(self.simulate("--layers", 2, "--devices", 7), "7 devices")
        self.refused(self.simulate("--layers", 0, "--devices", 8), "--layers")
        self.refused(self.simulate("--layers", 2, "--devices", 8, "--node-replicas", 9), "--node-replicas")
        self.refused(self.simulate("--layers", 2, "--devices", 8, "--load-spread", -1), "--load-spread")
        self.refused(self.simulate("--layers", -3, "--devices", 8), "--layers", "-3")
        self.refused(self.simulate("--layers", 10000, "--devices", 1 << 20), "--layers", "10000", "--devices")
        self.refused(self.simulate("--layers", 2, "--devices", 8, "--seed", -1), "--seed", "-1")
        for experts in (-64, 2147483647):
            self.refused(run("simulate", "--cluster", self.cluster, "--hidden", 64, "--intermediate", 64, "--tokens",
                             64, "--experts", experts, "--top-k", 8, "--layers", 1, "--devices", 8),
                         "--experts", str(experts))
        single = copy.deepcopy(profile())
        single["num_nodes"] = 1
        self.write_cluster(single)
        self.refused(self.simulate("--layers", 2, "--devices", 8), "1 node")

    @unittest.skipUnless(SHARED.is_dir(), "no real routing data beside the repository")
    def test_real_routing(self):
        layers = SHARED / "olmoe-1b-7b_wikipedia_layer0.csv"
        done = run("place", "--trace", layers, "--devices", 8, "--load-cap", "none", "--starts", 1, "--out",
                   self.placement)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.trace = layers
        result = self.plan("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertAlmostEqual(json.loads(result.stdout)["loads"][0]["picks"], 8)


if __name__ == "__main__":
    unittest.main()
