# SPDX-License-Identifier: Apache-2.0
"""Writes demo/text/<domain>.{fit,heldout}.txt from the documents that were never trained on."""

import argparse
import json
from pathlib import Path

DEMO_DOMAINS = ("novels", "code", "documentation", "dictionary")
SAMPLE_BYTES = {"fit": 64 * 1024, "heldout": 48 * 1024}
MAX_BYTES_PER_DOCUMENT = 8 * 1024


def beginning(text, num_bytes):
    """Whole lines from the start of `text`, at most num_bytes of UTF-8."""
    kept, size = [], 0
    for line in text.splitlines(keepends=True):
        size += len(line.encode())
        if size > num_bytes:
            break
        kept.append(line)
    return "".join(kept)


def sample(path, num_bytes):
    """Beginnings of documents; returns the text and the names of its documents."""
    pieces, names, size = [], [], 0
    with open(path, encoding="utf-8") as lines:
        for document in map(json.loads, lines):
            piece = beginning(document["text"], min(MAX_BYTES_PER_DOCUMENT, num_bytes - size))
            if len(piece) < 200:
                break
            pieces.append(piece.strip("\n") + "\n")
            names.append(document["name"])
            size += len(pieces[-1].encode()) + 1
    return "\n".join(pieces), names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("build/demo_model/text"))
    parser.add_argument("--out", type=Path, default=Path("demo/text"))
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    for domain in DEMO_DOMAINS:
        for part, num_bytes in SAMPLE_BYTES.items():
            text, names = sample(a.text / f"{domain}.{part}.jsonl", num_bytes)
            (a.out / f"{domain}.{part}.txt").write_text(text, encoding="utf-8")
            packages = ", ".join(sorted({name.split(":")[0] for name in names}))
            print(f"| {domain}.{part} | {len(text.encode()):,} | {len(names)} | {packages} |")


if __name__ == "__main__":
    main()
