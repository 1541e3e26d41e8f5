# SPDX-License-Identifier: Apache-2.0
"""coterie place and coterie verify, as a user calls them."""
import json
import os
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path

COTERIE = os.environ["COTERIE_BIN"]
SHARED = Path(os.environ.get("COTERIE_SHARED_DIR", "")) / "data" / "routing"


def run(*arguments):
    return subprocess.run([COTERIE, *map(str, arguments)], capture_output=True, text=True, timeout=300)


class PlaceTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name)
        self.trace = self.folder / "made.csv"
        rows = ["token_id,occurrences,x0,x1"]
        for token in range(240):  # pairs (0,4), (1,5), (2,6), (3,7) work together
            first = token % 4
            rows.append(f"{token},1,{first},{first + 4 if token % 10 else (first + 1) % 4}")
        self.trace.write_text("\n".join(rows) + "\n")
        self.out = self.folder / "placement.json"

    def place(self, *more):
        return run("place", "--trace", self.trace, "--devices", 4, "--out", self.out, "--starts", 2, *more)

    def test_finds_the_pairs_and_verifies(self):
        result = self.place("--load-cap", "none", "--fit", "even-rows")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("replicas", result.stdout)
        placement = json.loads(self.out.read_text())
        slots = placement["physical_to_logical_map"][0]
        self.assertEqual(sorted(tuple(slots[i:i + 2]) for i in range(0, 8, 2)), [(0, 4), (1, 5), (2, 6), (3, 7)])
        verified = run("verify", self.out, "--trace", self.trace, "--json")
        self.assertEqual(verified.returncode, 0, verified.stderr)
        self.assertTrue(json.loads(verified.stdout)["passed"])

    def test_json_and_same_bytes_for_any_threads(self):
        result = self.place("--json", "--threads", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertLess(document["layers"][0]["fit"]["replicas"],
                        document["layers"][0]["contiguous_fit"]["replicas"])
        first = self.out.read_bytes()
        self.assertEqual(self.place("--threads", 3).returncode, 0)
        self.assertEqual(self.out.read_bytes(), first)

    def test_ep_size_is_an_alias(self):
        result = run("place", "--trace", self.trace, "--ep-size", 2, "--out", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_verify_catches_changed_figures_and_maps(self):
        self.assertEqual(self.place().returncode, 0)
        placement = json.loads(self.out.read_text())
        placement["figures"][0]["fit"]["replicas"] += 0.01
        self.out.write_text(json.dumps(placement))
        result = run("verify", self.out, "--trace", self.trace)
        self.assertEqual(result.returncode, 2)
        self.assertIn("replicas", result.stderr)
        placement["physical_to_logical_map"][0][0] = placement["physical_to_logical_map"][0][7]
        self.out.write_text(json.dumps(placement))
        self.assertEqual(run("verify", self.out).returncode, 2)

    def refused(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse(self.out.exists())
        self.assertEqual([p.name for p in self.folder.iterdir() if p != self.trace], [])

    def test_bad_input_is_exit_2_and_writes_nothing(self):
        self.refused(self.place("--load-cap", "much"), 2, "--load-cap")
        self.refused(self.place("--load-cap", "0.5"), 2, "0.5")
        self.refused(self.place("--algorithm", "best"), 2, "best", "occult")
        self.refused(self.place("--fit", "odd"), 2, "odd")
        self.refused(self.place("--nodes", 3), 2, "3 nodes")
        self.refused(self.place("--experts", 6), 2)
        self.refused(run("place", "--trace", self.trace, "--devices", 9, "--out", self.out), 2, "9 devices")
        self.refused(run("place", "--trace", self.folder / "none.csv", "--devices", 2, "--out", self.out), 2,
                     "none.csv")

    def test_infeasible_cap_is_exit_3(self):
        rows = ["token_id,occurrences,x0,x1"] + [f"{t},1,0,{1 + t % 15}" for t in range(150)]
        self.trace.write_text("\n".join(rows) + "\n")
        self.refused(self.place(), 3, "layer 0", "expert 0", "--num-redundant-experts")
        self.assertEqual(self.place("--num-redundant-experts", 4).returncode, 0)
        self.assertEqual(run("verify", self.out, "--trace", self.trace).returncode, 0)

    def test_unwritable_folder(self):
        if os.geteuid() == 0:
            out = Path("/proc/placement.json")  # root may write anywhere else
        else:
            locked = self.folder / "locked"
            locked.mkdir()
            locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
            out = locked / "placement.json"
        result = run("place", "--trace", self.trace, "--devices", 2, "--out", out)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("placement.json", result.stderr)

    @unittest.skipUnless(SHARED.is_dir(), "no real routing data beside the repository")
    def test_real_files(self):
        layers = SHARED / "llama-moe-3.5b_coactivation.csv"
        result = run("place", "--trace", layers, "--devices", 4, "--load-cap", "none", "--starts", 2,
                     "--out", self.out, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(result.stdout)["layers"]), 32)
        domains = [SHARED / f"olmoe-1b-7b_{d}_layer0.csv" for d in ("arxiv", "book", "github", "wikipedia")]
        self.out.unlink()
        self.refused(run("place", "--trace", *domains, "--devices", 16, "--fit", "even-rows", "--out", self.out),
                     3, "expert 41", "1.33", "--num-redundant-experts")


if __name__ == "__main__":
    unittest.main()
