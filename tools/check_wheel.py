#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds a wheel of coterie against its promises: under 30 MB, imports in under 1 s beyond torch.

    tools/check_wheel.py coterie-*.whl      (with a Python that has torch)

The wheel is unpacked into a folder of its own, so nothing is installed. Prints one JSON line; ends
with 1 if a promise is broken.
"""
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MOST_BYTES = 30e6
MOST_SECONDS = 1.0
PROGRAM = """
import time
import torch
began = time.perf_counter()
import coterie
seconds = time.perf_counter() - began
trace = coterie.trace_from({0: [[0, 1]] * 8 + [[2, 3]] * 8}, 4)
placement = coterie.place(trace, 2)
assert sorted(map(tuple, placement.experts_of_device(0))) == [(0, 1), (2, 3)]
layer = coterie.nn.MoELayer(8, 8, 4, 2)
layer(torch.ones(3, 8))[0].sum().backward()
print(seconds, coterie.__version__, coterie.__file__)
"""


def main():
    wheel = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        unpacked = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
        times = []
        for _ in range(3):
            answer = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, text=True,
                                    env={**os.environ, "PYTHONPATH": folder}, check=True,
                                    stdout=subprocess.PIPE).stdout.split()
            assert answer[2].startswith(folder), answer
            times.append(float(answer[0]))
    figures = {"wheel": wheel.name, "wheel_bytes": wheel.stat().st_size,
               "installed_bytes": unpacked, "import_s": sorted(times)[1], "version": answer[1]}
    print(json.dumps(figures))
    return 0 if unpacked < MOST_BYTES and figures["import_s"] < MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
