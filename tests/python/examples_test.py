#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every Python example as its head says; each asserts what it claims."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from parallel_cases import run_tests

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("0*.py"))


def run(example, folder):
    command = [sys.executable]
    if "torchrun" in example.read_text().split('"""')[1]:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(example)], cwd=folder, text=True, timeout=240,
                          capture_output=True, env={**os.environ, "TMPDIR": folder})
    assert done.returncode == 0, f"{example.name}:\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), f"{example.name} says nothing"


def test_examples():
    assert len(EXAMPLES) == 5
    for example in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            run(example, folder)


if __name__ == "__main__":
    sys.exit(run_tests(sys.modules[__name__]))
