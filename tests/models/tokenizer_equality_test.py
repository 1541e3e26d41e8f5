# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer gives the ids and texts of Hugging Face's `tokenizers`. COTERIE_PROBE: the probe."""
import json
import os
import random
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

    def check_streams(self, tokenizer, tokenizer_json, seed):
        """Ids one by one: texts, texts cut anywhere, and ids at random."""
        rng = random.Random(seed)
        lists = [[]]
        for line in texts.PARAGRAPHS + texts.random_texts(40, seed):
            ids = tokenizer.encode(line).ids
            lists += [ids, ids[rng.randrange(len(ids) + 1):], ids[:rng.randrange(len(ids) + 1)]]
        known = list(tokenizer.get_vocab().values())
        special = [tokenizer.token_to_id(token) for token in texts.BYTES if tokenizer.token_to_id(token) is not None]
        for count in range(150):
            lists.append([rng.choice(special if special and rng.random() < 0.6 else known) for _ in range(count % 30)])
        for ids, answer in zip(lists, probe(tokenizer_json, lists), strict=True):
            wanted = tokenizer.decode(ids)
            tokens = [tokenizer.id_to_token(i) for i in ids]
            self.assertEqual(answer["text"], wanted, tokens)
            self.assertEqual("".join(answer["pushed"]), wanted, tokens)
            self.assertEqual("".join(answer["pushed_with_special"]),
                             tokenizer.decode(ids, skip_special_tokens=False), tokens)

    def test_sentencepiece_files(self):
        lines = texts.PARAGRAPHS + ["\n".join(texts.PARAGRAPHS), "[INST] a lazy dog  <mask> <s>x[INST]\u2581 \u2581y",
                                    "\u2581", " \u2581", "lazy dog lazy dogs", "<0x41><0xZZ>", "<unk>\u00ff\U0001f600"]
        for seed, name in enumerate(texts.sentencepiece_kinds()):
            with self.subTest(kind=name):
                document = texts.train_sentencepiece(name)
                tokenizer = Tokenizer.from_str(document)
                self.check(tokenizer, document, lines + texts.random_texts(COUNT, 70 + seed))
                self.check_streams(tokenizer, document, seed)

    def test_streams_of_every_kind(self):
        for seed, name in enumerate(texts.kinds()):
            with self.subTest(kind=name):
                tokenizer = texts.train(name)
                self.check_streams(tokenizer, tokenizer.to_str(), seed)

    def test_streams_hold_nothing_back_that_is_whole(self):
        # A character of several tokens comes with its last one; ASCII comes at once.
        tokenizer = texts.train("gpt2")
        ids = tokenizer.encode("plain \U0001f3f3 text").ids
        pushed = probe(tokenizer.to_str(), [ids])[0]["pushed"]
        self.assertIn("", pushed[:-1])
        self.assertEqual(pushed[-1], "")
        self.assertFalse(any("\ufffd" in part for part in pushed))
        document = texts.train_sentencepiece("mixtral")
        tokenizer = Tokenizer.from_str(document)
        ids = tokenizer.encode("plain \U0001f3f3 text").ids
        pushed = probe(document, [ids])[0]["pushed"]
        self.assertEqual(pushed[-1], "")
        self.assertTrue(any("\U0001f3f3" in part for part in pushed))

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
