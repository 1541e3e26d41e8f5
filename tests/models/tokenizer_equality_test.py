# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer gives the ids and texts of Hugging Face's `tokenizers`. COTERIE_PROBE: the probe."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
try:
    import tokenizer_texts as texts
    from tokenizers import Tokenizer
except ImportError:
    print("skipped: the Python package `tokenizers` is not here")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("COTERIE_FUZZ_TEXTS", "250"))


def probe(tokenizer_json, lines):
    """What our tokenizer says to each text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(tokenizer_json)
        asked = "".join(json.dumps(line) + "\n" for line in lines)
        done = subprocess.run([os.environ["COTERIE_PROBE"], path], input=asked.encode(), capture_output=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return [json.loads(line) for line in done.stdout.split(b"\n") if line]


class Equality(unittest.TestCase):
    def check(self, tokenizer, tokenizer_json, lines):
        answers = probe(tokenizer_json, lines)
        self.assertEqual(len(answers), len(lines))
        for line, answer in zip(lines, answers):
            ids = tokenizer.encode(line).ids
            self.assertEqual(answer["ids"], ids, (line, tokenizer.encode(line).tokens))
            self.assertEqual(answer["plain"], tokenizer.encode(line, add_special_tokens=False).ids, line)
            self.assertEqual(answer["text"], tokenizer.decode(ids), line)
            self.assertEqual(answer["with_special"], tokenizer.decode(ids, skip_special_tokens=False), line)

    def test_every_kind(self):
        lines = texts.PARAGRAPHS + ["\n".join(texts.PARAGRAPHS), " <mask> dog dogs <r>  x<mask><r>\n y"]
        for seed, name in enumerate(texts.kinds()):
            with self.subTest(kind=name):
                tokenizer = texts.train(name)
                self.check(tokenizer, tokenizer.to_str(), lines + texts.random_texts(COUNT, seed))

    def test_merges_written_as_strings(self):
        tokenizer = texts.train("qwen")
        self.check(tokenizer, texts.merges_as_strings(tokenizer.to_str()), texts.PARAGRAPHS)

    def test_the_bundled_model(self):
        path = ROOT / "demo/model/tokenizer.json"
        if not path.exists():
            self.skipTest("demo/model/tokenizer.json is not here")
        tokenizer = Tokenizer.from_file(str(path))
        self.check(tokenizer, path.read_text(), texts.PARAGRAPHS + texts.random_texts(COUNT, 99))


if __name__ == "__main__":
    unittest.main()
