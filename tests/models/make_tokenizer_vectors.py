#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer_vectors.json: small tokenizers and what `tokenizers` makes of texts."""
import json
from pathlib import Path

import tokenizer_texts as texts

KINDS = ["gpt2_prefix", "neox", "llama3", "olmo2", "digits", "inverted", "characters"]


def main():
    lines = texts.PARAGRAPHS + texts.random_texts(12, 5)
    cases = []
    for kind in KINDS:
        tokenizer = texts.train(kind, vocab_size=420)
        cases.append({"kind": kind, "tokenizer": json.loads(tokenizer.to_str()),
                      "ids": [tokenizer.encode(line).ids for line in lines],
                      "decoded": [tokenizer.decode(tokenizer.encode(line).ids) for line in lines]})
    path = Path(__file__).resolve().parents[1] / "golden/tokenizer_vectors.json"
    path.write_text(json.dumps({"texts": lines, "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
