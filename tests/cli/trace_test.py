# SPDX-License-Identifier: Apache-2.0
"""`coterie trace` on the demo model: what it prints, what it refuses. COTERIE_BIN: the command."""
import json
import os
import resource
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo/model"
TEXT = ROOT / "demo/text"


def coterie(*arguments, limit_bytes=None):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then write() fails, as on a full disk
    return subprocess.run([os.environ["COTERIE_BIN"], *map(str, arguments)], capture_output=True,
                          text=True, preexec_fn=limit if limit_bytes else None)


class Trace(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.out = self.folder / "trace.bin"

    def refused(self, parts, *arguments, **more):
        done = coterie("trace", *arguments, "--out", self.out, **more)
        self.assertEqual(done.returncode, 2, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertEqual([p for p in self.folder.iterdir() if "trace.bin" in p.name], [])

    def test_json_tells_domains_and_bits_per_byte(self):
        done = coterie("trace", "--model", MODEL, "--text", TEXT / "novels.fit.txt", "--domain",
                       f"code={TEXT / 'code.fit.txt'}", "--max-tokens", 600, "--loss", "--json",
                       "--out", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        document = json.loads(done.stdout)
        self.assertEqual(document["tokens"], 1200)
        self.assertEqual([d["domain"] for d in document["domains"]], ["novels.fit", "code"])
        for domain in document["domains"]:
            self.assertTrue(1.0 < domain["bits_per_byte"] < 4.0, domain)
        self.assertGreater(self.out.stat().st_size, 1200 * 6 * 8 * 2)

    def test_threads_do_not_change_a_byte(self):
        traces = []
        for threads in (1, 3):
            done = coterie("trace", "--model", MODEL, "--text", TEXT / "novels.fit.txt",
                           "--max-tokens", 200, "--threads", threads, "--weights", "--out", self.out)
            self.assertEqual(done.returncode, 0, done.stderr)
            traces.append(self.out.read_bytes())
        self.assertEqual(traces[0], traces[1])

    def test_bad_text_is_refused(self):
        bad = self.folder / "bad.txt"
        for content, part in ((b"", "empty"), (b"caf\xe9 x", "0xE9")):
            bad.write_bytes(content)
            self.refused([str(bad), part], "--model", MODEL, "--text", bad)
        self.refused(["nowhere.txt"], "--model", MODEL, "--text", self.folder / "nowhere.txt")
        self.refused(["NAME=FILE"], "--model", MODEL, "--domain", "prose")
        self.refused(["--text"], "--model", MODEL)

    def test_damaged_models_are_refused(self):
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        weights = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(weights[:-1])
        self.refused([str(model / "model.safetensors"), "truncated", str(len(weights)),
                      str(len(weights) - 1)], "--model", model, "--text", TEXT / "code.fit.txt")
        (model / "model.safetensors").unlink()
        self.refused([str(model)], "--model", model, "--text", TEXT / "code.fit.txt")
        self.refused(["nothing"], "--model", self.folder / "nothing", "--text",
                     TEXT / "code.fit.txt")

    def test_a_full_disk_and_a_missing_folder_leave_nothing(self):
        common = ("--model", MODEL, "--text", TEXT / "code.fit.txt", "--max-tokens", 2000)
        self.refused([str(self.out)], *common, limit_bytes=4096)
        done = coterie("trace", *common, "--out", self.folder / "no/such/trace.bin")
        self.assertEqual(done.returncode, 2, done.stderr)


if __name__ == "__main__":
    unittest.main()
