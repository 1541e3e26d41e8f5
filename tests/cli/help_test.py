# SPDX-License-Identifier: Apache-2.0
"""The command line is frozen: each command's --help is tests/golden/help_COMMAND.txt.

After a change that is meant, `./dev golden` (COTERIE_UPDATE_GOLDEN=1) rewrites the files; the change then
shows in review.
"""
import os
import re
import subprocess
import unittest
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def help_of(*command):
    done = subprocess.run([os.environ["COTERIE_BIN"], *command, "--help"], capture_output=True, text=True, check=True)
    return done.stdout


def commands():
    listing = help_of().split("Subcommands:")[1].split("\n\n")[0]
    return re.findall(r"^  (\w+) ", listing, re.M)


class Help(unittest.TestCase):
    def test_every_command_says_what_it_always_said(self):
        texts = {"coterie": help_of()} | {name: help_of(name) for name in commands()}
        for name, text in texts.items():
            path = GOLDEN / f"help_{name}.txt"
            if os.environ.get("COTERIE_UPDATE_GOLDEN") == "1":
                path.write_text(text)
            with self.subTest(command=name):
                self.assertTrue(path.exists(), f"{path} is missing: ./dev golden")
                self.assertEqual(text, path.read_text(), "the command line changed: ./dev golden if it was meant")

    def test_every_command_has_examples_and_json(self):
        for name in commands():
            with self.subTest(command=name):
                self.assertIn("Examples:", help_of(name))
                self.assertIn("--json", help_of(name))

    def test_no_command_went_away(self):
        frozen = {path.stem.removeprefix("help_") for path in GOLDEN.glob("help_*.txt")} - {"coterie"}
        self.assertEqual(frozen, set(commands()))


if __name__ == "__main__":
    unittest.main()
