# SPDX-License-Identifier: Apache-2.0
"""Readers for the file formats inside the Debian packages that the demo text comes from.

Every reader takes the unpacked package's folder and yields (document name, raw text).
"""

import gzip
import re
import struct
import zlib
from pathlib import Path

ENTRIES_PER_DOCUMENT = 20
# XDR flags of a character vector, its length, and the flags of its first string.
STRING_VECTOR = rb"(?s)\x00\x00[\x00-\x03]\x10(?=.{4}\x00[\x00\x04][\x00\x40\x80]\x09)"


def strip_markup(text):
    """Removes XML/TEI tags and entities, keeping line and item breaks."""
    text = re.sub(r"<(lb|l|item|p|div|/p|/l|br)\b[^>]*>", "\n", text)
    text = re.sub(r"<[^>]*>", "", text)
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, char)
    return text


def r_string_vectors(database):
    """Yields the character vectors of an R lazy-load database (.rdb: size + zlib stream, XDR)."""
    data = database.read_bytes()
    position = 0
    while position + 4 < len(data):
        (raw_size,) = struct.unpack(">I", data[position : position + 4])
        stream = zlib.decompressobj()
        raw = stream.decompress(data[position + 4 :])
        assert len(raw) == raw_size, f"{database}: record at byte {position} is damaged"
        position = len(data) - len(stream.unused_data)
        header = re.search(STRING_VECTOR, raw)
        if header:
            yield list(xdr_strings(raw, header.end()))


def xdr_strings(raw, position):
    (num_strings,) = struct.unpack(">i", raw[position : position + 4])
    position += 4
    for _ in range(num_strings):
        _, size = struct.unpack(">ii", raw[position : position + 8])
        position += 8
        yield raw[position : position + max(size, 0)].decode("utf-8", "replace")
        position += max(size, 0)


def read_novels(folder):
    """R packages with books as vectors of lines or one string; one document a chapter."""
    for database in sorted(folder.glob("usr/lib/R/site-library/*/data/Rdata.rdb")):
        for book, strings in enumerate(r_string_vectors(database)):
            text = "\n".join(strings)
            if len(text) < 100_000:
                continue
            parts = re.split(r"(?m)^(?=(?:CHAPTER|Chapter|LETTER)\s+[\dIVXLC]+)", text)
            for index, part in enumerate(parts[1:]):
                part = re.split(r"End of (?:the |this )?Project Gutenberg", part)[0]
                yield f"book{book}/chapter{index:03d}", part


def read_commentary(folder):
    """SWORD zCom modules: pieces NAME#PART of each compressed block (a book or a chapter)."""
    for index in sorted(folder.glob("usr/share/sword/modules/comments/zcom/*/*.?zs")):
        data = index.with_suffix(index.suffix[:-1] + "z").read_bytes()
        blocks = index.read_bytes()
        for number in range(len(blocks) // 12):
            start, size, _ = struct.unpack_from("<III", blocks, 12 * number)
            text = zlib.decompress(data[start : start + size]).decode("utf-8", "replace")
            text = strip_markup(text)
            for part, piece in enumerate(cut_paragraphs(text, 30_000)):
                yield f"{index.stem}/{number:04d}#{part:03d}", piece


def cut_paragraphs(text, size):
    piece = ""
    for paragraph in re.split(r"(?<=\n)", text):
        if len(piece) + len(paragraph) > size and piece:
            yield piece
            piece = ""
        piece += paragraph
    yield piece


def read_sword_dictionary(folder):
    """SWORD zLD modules; one document is ENTRIES_PER_DOCUMENT consecutive entries."""
    for index in sorted(folder.glob("usr/share/sword/modules/lexdict/zld/*/*.zdx")):
        data, blocks = index.with_suffix(".zdt").read_bytes(), index.read_bytes()
        entries = []
        for number in range(len(blocks) // 8):
            start, size = struct.unpack_from("<II", blocks, 8 * number)
            block = zlib.decompress(data[start : start + size])
            (num_entries,) = struct.unpack_from("<I", block)
            for slot in range(num_entries):
                offset, length = struct.unpack_from("<II", block, 4 + 8 * slot)
                entry = block[offset : offset + length].rstrip(b"\0").decode("utf-8", "replace")
                entry = re.sub(r"\s+", " ", strip_markup(entry)).strip()
                if len(entry) > 20:
                    entries.append(entry)
        yield from group_entries(entries)


def read_dict(folder):
    """dictd databases: the .index file (headword, offset, size in base 64) cuts the entries."""
    for database in sorted(folder.glob("usr/share/dictd/*.dict.dz")):
        text = gzip.open(database).read()
        index = Path(str(database).removesuffix(".dict.dz") + ".index")
        spans = {}
        for line in index.read_text(encoding="utf-8").splitlines():
            headword, offset, size = line.split("\t")[:3]
            if not headword.startswith("00"):
                spans[dictd_number(offset)] = dictd_number(size)
        yield from group_entries(
            [text[o : o + spans[o]].decode("utf-8", "replace").strip("\n") for o in sorted(spans)]
        )


def dictd_number(digits):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    number = 0
    for digit in digits:
        number = number * 64 + alphabet.index(digit)
    return number


def group_entries(entries):
    for start in range(0, len(entries), ENTRIES_PER_DOCUMENT):
        document = "\n\n".join(entries[start : start + ENTRIES_PER_DOCUMENT])
        yield f"entries{start:06d}", document


def read_files(folder, endings):
    for path in sorted(Path(folder).rglob("*")):
        if path.name.endswith(endings) and path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), path.read_bytes().decode("utf-8", "replace")


def read_python(folder):
    return read_files(folder, (".py",))


def read_rst(folder):
    return read_files(folder, (".rst", ".rst.txt"))
