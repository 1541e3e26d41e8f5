#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the real includes of coterie/, cli/ and bench/ against the room table (cmake/rooms.cmake).

Rules: a room includes only doors of rooms that its line names (USES), its own files, and base; libtorch,
c10d, MPI, CUDA and NCCL only where OUTSIDE allows them; file and folder names say something.
`--table` prints the table for ARCHITECTURE.md; `--check-table` fails if that file's table is stale.
"""
import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {  # what an #include <...> needs in OUTSIDE
    r"^(ATen|torch/(?!csrc/distributed)|c10/)": "torch",
    r"^torch/csrc/distributed": "c10d",
    r"^mpi\.h": "mpi",
    r"^(cuda|cublas)": "cuda",
    r"^nccl": "nccl",
    r"^pcre2": "pcre2",
    r"^utf8proc": "utf8proc",
}
EMPTY_NAMES = re.compile(r"^(utils?|common|helpers?|misc|stuff)(\.|$)")
MAX_LINES = 800


def read_rooms():
    """Room path -> (uses, outside, purpose), in table order."""
    rooms = {}
    text = (ROOT / "cmake/rooms.cmake").read_text()
    for call in re.findall(r"^coterie_room\(([^)]*)\)", text, re.M):
        words = re.findall(r'"[^"]*"|\S+', call)
        room = {"USES": [], "OUTSIDE": [], "PURPOSE": []}
        kind = None
        for word in words[1:]:
            if word in room:
                kind = word
            else:
                room[kind].append(word.strip('"'))
        rooms[words[0]] = room
    return rooms


def room_of(path, rooms):
    """The longest room path that `path` (relative to coterie/) lies in."""
    fits = [room for room in rooms if path == room or path.startswith(room + "/")]
    return max(fits, key=len) if fits else None


def check_include(include, source_room, rooms):
    """A complaint about one include of a room's file, or None."""
    if not include.startswith("coterie/"):
        for pattern, need in OUTSIDE.items():
            allowed = source_room is None or need in rooms[source_room]["OUTSIDE"]
            c10d_brings_torch = need == "torch" and source_room and "c10d" in rooms[source_room]["OUTSIDE"]
            if re.match(pattern, include) and not allowed and not c10d_brings_torch:
                return f"<{include}> needs OUTSIDE {need} in cmake/rooms.cmake"
        return None
    target = room_of(include[len("coterie/"):], rooms)
    if target is None:
        return f'"{include}" lies in no room'
    if target == source_room or target == "base":
        return None
    door = f"coterie/{target}/{target.split('/')[-1]}.hpp"
    if source_room is not None and target not in rooms[source_room]["USES"]:
        return f'"{include}": {source_room} may not include {target}'
    if include != door:
        return f'"{include}" is not the door of {target}; include "{door}"'
    return None


def sources():
    for top in ("coterie", "cli", "bench", "tests", "python"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in {".hpp", ".cpp", ".cu", ".cuh"}:
                yield path


def complaints(rooms):
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        if any(EMPTY_NAMES.match(part) for part in name.split("/")):
            yield f"{name}: a name that says nothing"
        lines = path.read_text().splitlines()
        if len(lines) > MAX_LINES:
            yield f"{name}: {len(lines)} lines are two ideas or more (limit {MAX_LINES})"
        if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
            yield f"{name}:1: the first line must hold the SPDX licence tag"
        inside = name.split("/", 1)[0]
        room = room_of(name[len("coterie/"):], rooms) if inside == "coterie" else None
        if inside == "coterie" and room is None:
            yield f"{name}: lies in no room of cmake/rooms.cmake"
        if inside == "tests":
            # A test may open its own room's private headers; its room is its folder.
            room = room_of(name[len("tests/"):], rooms)
        for number, line in enumerate(lines, 1):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if not match:
                continue
            include = match[1]
            if inside == "tests":
                target = room_of(include.removeprefix("coterie/"), rooms)
                door = f"coterie/{target}/{target.split('/')[-1]}.hpp" if target else None
                if include.startswith("coterie/") and target not in (room, "base") and include != door:
                    yield f'{name}:{number}: "{include}" is not the door of {target}'
                continue
            complaint = check_include(include, room, rooms)
            if complaint:
                yield f"{name}:{number}: {complaint}"
    yield from cycles(rooms)


def cycles(rooms):
    """Rooms must be listed after all that they use: then no circle is possible."""
    seen = set()
    for room, entry in rooms.items():
        for used in entry["USES"]:
            if used not in seen:
                yield f"cmake/rooms.cmake: {room} uses {used}, which is not listed before it"
        seen.add(room)


def table(rooms):
    rows = ["| room | what it holds | may include | from outside |", "|---|---|---|---|"]
    for room, entry in rooms.items():
        uses = ", ".join(entry["USES"]) or "-"
        rows.append(f"| `{room}` | {' '.join(entry['PURPOSE'])} | {uses} | "
                    f"{', '.join(entry['OUTSIDE']) or '-'} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--check-table", action="store_true")
    arguments = parser.parse_args()
    rooms = read_rooms()
    if arguments.table:
        print(table(rooms))
        return 0
    found = list(complaints(rooms))
    architecture = ROOT / "ARCHITECTURE.md"
    if arguments.check_table and table(rooms) not in architecture.read_text():
        found.append("ARCHITECTURE.md: the room table is stale; paste tools/check_layers.py --table")
    for complaint in found:
        print(complaint)
    if not found:
        print(f"{len(rooms)} rooms, {sum(1 for _ in sources())} files: every include keeps the law")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
