# SPDX-License-Identifier: Apache-2.0
"""Collects the demo model's text from Debian packages and splits it by document.

Writes, a domain, WORK/text/<domain>.{train,fit,heldout}.jsonl (one {"name", "text"} a line) and
WORK/text/sources.json. No document of `fit` or `heldout` is in `train`, and none is in both.
Run as any user on Debian 12: packages are downloaded and unpacked, never installed.
"""

import argparse
import hashlib
import json
import re
import subprocess
import unicodedata
from pathlib import Path

import read_packages as read

# domain: (package, licence of the text by the package's copyright file, reader, cap in bytes)
SOURCES = {
    "novels": [
        ("r-cran-janeaustenr", "public domain text, MIT package", read.read_novels, None),
        ("r-cran-tokenizers", "public domain text, MIT package", read.read_novels, None),
    ],
    "commentary": [
        ("sword-comm-mhcc", "public domain", read.read_commentary, None),
        ("sword-comm-tdavid", "public domain", read.read_commentary, None),
    ],
    "code": [
        ("libpython3.11-minimal", "PSF", read.read_python, None),
        ("libpython3.11-stdlib", "PSF", read.read_python, None),
        ("libpython3.11-testsuite", "PSF", read.read_python, 5_000_000),
        ("python3-sympy", "BSD-3-clause", read.read_python, 7_000_000),
        ("python3-networkx", "BSD-3-clause", read.read_python, None),
        ("python3-sklearn", "BSD-3-clause, BSD-2-clause, PSF", read.read_python, 7_000_000),
        ("python3-sqlalchemy", "MIT", read.read_python, None),
        ("python3-twisted", "MIT", read.read_python, 7_000_000),
        ("python3-sphinx", "BSD-2-clause, BSD-3-clause, MIT", read.read_python, None),
    ],
    "documentation": [
        ("python3.11-doc", "PSF", read.read_rst, None),
        ("python-sklearn-doc", "BSD-3-clause", read.read_rst, None),
        ("python-sqlalchemy-doc", "MIT", read.read_rst, None),
        ("python-dask-doc", "BSD-3-clause", read.read_rst, None),
        ("python-flask-doc", "BSD-3-clause", read.read_rst, None),
        ("sphinx-doc", "BSD-2-clause", read.read_rst, None),
    ],
    "dictionary": [
        ("dict-jargon", "public domain", read.read_dict, None),
        ("dict-devil", "public domain", read.read_dict, None),
        ("sword-dict-strongs-greek", "public domain", read.read_sword_dictionary, None),
        ("sword-dict-strongs-hebrew", "public domain", read.read_sword_dictionary, None),
    ],
}
# Share of a domain's documents in each of the two splits that are never trained on.
HELDOUT_SHARE = {
    "novels": 0.05,
    "commentary": 0.04,
    "code": 0.015,
    "documentation": 0.03,
    "dictionary": 0.05,
}


def unpack(packages, folder):
    """Downloads and unpacks `packages` below `folder`; what is there already is kept."""
    debs, trees = folder / "deb", folder / "tree"
    debs.mkdir(parents=True, exist_ok=True)
    missing = [p for p in packages if not list(debs.glob(f"{p}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "download", *missing], cwd=debs, check=True)
    for package in packages:
        if not (trees / package).is_dir():
            deb = next(debs.glob(f"{package}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", deb, trees / package], check=True)


def clean(text):
    """NFC, unix line ends, no control characters, no trailing blanks, at most 2 empty lines."""
    text = unicodedata.normalize("NFC", text.removeprefix("\ufeff"))
    text = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(8)
    text = "".join(c for c in text if c == "\n" or unicodedata.category(c) != "Cc")
    text = re.sub(r"[ \u00a0]+\n", "\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def is_prose_or_code(text):
    """False for stubs, data tables, minified text and text in a broken encoding."""
    size = len(text)
    if not 500 <= size <= 200_000 or "\ufffd" in text:
        return False
    digits = sum(c.isdigit() for c in text)
    longest = max(len(line) for line in text.split("\n"))
    return digits < 0.15 * size and (longest < 1000 or " " * 4 + "def " not in text)


def skeleton(text):
    """Identifies copies that differ only in numbers and blanks."""
    return hashlib.sha256(re.sub(r"[\s\d]+", " ", text).encode()).digest()


def draw(name):
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def choose_split(name, share):
    """One split for all pieces (NAME#PART) of a document."""
    number = draw(name.split("#")[0])
    return "fit" if number < share else "heldout" if number < 2 * share else "train"


def collect_domain(domain, trees, seen):
    splits = {"train": [], "fit": [], "heldout": []}
    rows = []
    for package, licence, reader, cap in SOURCES[domain]:
        documents = [(f"{package}:{name}", text) for name, text in reader(trees / package)]
        documents.sort(key=lambda d: draw("order " + d[0]))
        size = {split: 0 for split in splits}
        for name, text in documents:
            text = clean(text)
            key = skeleton(text)
            if key in seen or not is_prose_or_code(text) or (cap and sum(size.values()) > cap):
                continue
            seen.add(key)
            split = choose_split(name, HELDOUT_SHARE[domain])
            splits[split].append({"name": name, "text": text})
            size[split] += len(text.encode())
        rows.append({"domain": domain, "package": package, "licence": licence, "bytes": size})
    return splits, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    work = parser.parse_args().work
    unpack([row[0] for rows in SOURCES.values() for row in rows], work)
    (work / "text").mkdir(exist_ok=True)
    seen, report = set(), []
    for domain in SOURCES:
        splits, rows = collect_domain(domain, work / "tree", seen)
        for row in rows:
            deb = next((work / "deb").glob(f"{row['package']}_*.deb"))
            row["version"] = deb.stem.split("_")[1].replace("%3a", ":")
        report += rows
        for split, documents in splits.items():
            documents.sort(key=lambda d: draw("order " + d["name"]))
            with open(work / "text" / f"{domain}.{split}.jsonl", "w", encoding="utf-8") as out:
                for document in documents:
                    out.write(json.dumps(document, ensure_ascii=False) + "\n")
    (work / "text" / "sources.json").write_text(json.dumps(report, indent=1) + "\n")
    for row in report:
        print(f"{row['domain']:14} {row['package']:26} {row['version']:18} {row['bytes']}")


if __name__ == "__main__":
    main()
