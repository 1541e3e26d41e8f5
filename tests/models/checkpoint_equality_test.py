# SPDX-License-Identifier: Apache-2.0
"""Our safetensors files are those of the Python package, and both refuse the same damage.

COTERIE_PROBE: the built checkpoint_probe.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
         torch.int16, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]


def probe(*arguments):
    done = subprocess.run([os.environ["COTERIE_PROBE"], *map(str, arguments)], capture_output=True,
                          text=True, errors="replace")
    return done.returncode, done.stdout + done.stderr


def random_tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for index, kind in enumerate(TYPES):
        for shape in [(), (3,), (2, 0, 4), (5, 7), (1, 2, 3, 4)]:
            raw = torch.randint(0, 2 if kind == torch.bool else 100, shape, generator=generator)
            tensors[f"layers.{index}.{'x'.join(map(str, shape))}.weight"] = raw.to(kind)
    tensors['quote " and \\ and \u00e9'] = torch.arange(6.0)
    return tensors


def same(a, b):
    return (a.keys() == b.keys() and
            all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and
                a[k].reshape(-1).view(torch.uint8).equal(b[k].reshape(-1).view(torch.uint8))
                for k in a))


def file_of(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def damaged_files():
    """Name -> bytes. Whether each is sound is for both readers to say."""
    entry = lambda kind, shape, offsets: {"dtype": kind, "shape": shape, "data_offsets": offsets}
    good = file_of({"w": entry("F32", [2, 2], [0, 16])}, bytes(16))
    files = {
        "good": good,
        "metadata only": file_of({"__metadata__": {"format": "pt"}}, b""),
        "no tensors": file_of({}, b""),
        "one byte cut": good[:-1],
        "eight bytes more": good + bytes(8),
        "empty": b"",
        "length only": good[:8],
        "header cut": good[:20],
        "huge header": struct.pack("<Q", 2**63) + good[8:],
        "no JSON": file_of(b"{hello}", b""),
        "no object": file_of(b"[1, 2]", b""),
        "unknown type": file_of({"w": entry("F31", [1], [0, 4])}, bytes(4)),
        "negative size": file_of({"w": entry("F32", [-1], [0, 4])}, bytes(4)),
        "overflow": file_of({"w": entry("F32", [2**62, 2**62], [0, 16])}, bytes(16)),
        "short for its shape": file_of({"w": entry("F32", [2, 2], [0, 12])}, bytes(12)),
        "long for its shape": file_of({"w": entry("F32", [2], [0, 12])}, bytes(12)),
        "gap": file_of({"a": entry("F32", [1], [0, 4]), "b": entry("F32", [1], [8, 12])},
                       bytes(12)),
        "overlap": file_of({"a": entry("F32", [2], [0, 8]), "b": entry("F32", [2], [4, 12])},
                           bytes(12)),
        "end before begin": file_of({"w": entry("F32", [1], [4, 0])}, bytes(4)),
        "no shape": file_of({"w": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)),
        "metadata number": file_of({"__metadata__": {"a": 1}}, b""),
        "a name twice": file_of(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                                b'"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)),
    }
    generator = random.Random(7)
    header_end = 8 + struct.unpack("<Q", good[:8])[0]
    for number in range(200):  # one byte of the header changed
        at = generator.randrange(header_end)
        files[f"byte {at}, change {number}"] = (
            good[:at] + bytes([good[at] ^ (1 << generator.randrange(8))]) + good[at + 1:])
    return files


class Equality(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self.scratch.name)
        self.addCleanup(self.scratch.cleanup)

    def test_files_go_there_and_back(self):
        tensors = random_tensors(1)
        save_file(tensors, self.folder / "model.safetensors", {"format": "pt"})
        (self.folder / "out").mkdir()
        code, text = probe("copy", self.folder, self.folder / "out")
        self.assertEqual(code, 0, text)
        self.assertTrue(same(load_file(self.folder / "out/model.safetensors"), tensors))
        with safe_open(self.folder / "out/model.safetensors", "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})

    def test_shards_go_there_and_back(self):
        tensors = random_tensors(2)
        save_file(tensors, self.folder / "model.safetensors", {"format": "pt"})
        (self.folder / "out").mkdir()
        self.assertEqual(probe("copy", self.folder, self.folder / "out", 500)[0], 0)
        index = json.loads((self.folder / "out/model.safetensors.index.json").read_text())
        found = {}
        for file in sorted(set(index["weight_map"].values())):
            part = load_file(self.folder / "out" / file)
            self.assertTrue(all(index["weight_map"][name] == file for name in part))
            found.update(part)
        self.assertTrue(same(found, tensors))
        self.assertEqual(index["metadata"]["total_size"],
                         sum(t.numel() * t.element_size() for t in tensors.values()))
        # and back through our reader
        (self.folder / "back").mkdir()
        self.assertEqual(probe("copy", self.folder / "out", self.folder / "back")[0], 0)
        self.assertTrue(same(load_file(self.folder / "back/model.safetensors"), tensors))

    def test_both_readers_give_the_same_verdict(self):
        files = damaged_files()
        theirs = {}
        for number, (name, data) in enumerate(files.items()):
            path = self.folder / f"{number}.safetensors"
            path.write_bytes(data)
            try:
                with safe_open(path, "pt") as file:
                    for key in file.keys():
                        file.get_tensor(key)
                theirs[name] = True
            except Exception:  # the package raises several kinds
                theirs[name] = False
        theirs["a name twice"] = False  # ours alone: the package keeps the last one
        paths = [self.folder / f"{number}.safetensors" for number in range(len(files))]
        code, text = probe("check", *paths)
        self.assertEqual(code, 0, text)
        ours = [line for line in text.split("\n") if line.startswith(("ok ", "refused "))]
        self.assertEqual(len(ours), len(files))
        for path, name, line in zip(paths, files, ours):
            with self.subTest(name=name, theirs=theirs[name], ours=line):
                self.assertEqual(line.startswith("ok "), theirs[name])
                if not theirs[name]:
                    self.assertIn(f"refused 2: {path}", line)
        refused = list(theirs.values()).count(False)
        self.assertGreater(refused, 50)


if __name__ == "__main__":
    unittest.main()
