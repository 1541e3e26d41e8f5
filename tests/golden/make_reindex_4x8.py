#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes reindex_4x8.json: the re-index matrices of a small case with four devices and eight experts,
by the serial loops of Occult's Algorithms 3 and 5, independent of the C++ code."""
import json
from pathlib import Path

EXPERTS_OF_DEVICE = [[0, 5], [1, 2, 7], [3], [4, 6]]
# Four ranks with 5, 0, 3 and 4 tokens, top-3; -1 is no expert.
IDS_OF_RANK = [
    [[0, 5, 1], [3, 4, 6], [7, 2, 1], [6, 0, 3], [-1, -1, -1]],
    [],
    [[5, -1, 4], [0, 1, 2], [3, 2, 7]],
    [[0, 5, 6], [0, 5, 3], [7, 6, 5], [1, -1, -1]],
]


def by_device(ids):
    counter, matrix = 0, []
    for experts in EXPERTS_OF_DEVICE:
        row = []
        for token in ids:
            hit = any(expert in experts for expert in token)
            row.append(counter if hit else -1)
            counter += hit
        matrix.append(row)
    return matrix


def by_expert(device, by_device_of_rank):
    received = [(rank, token) for rank, matrix in enumerate(by_device_of_rank)
                for token, row in enumerate(matrix[device]) if row >= 0]
    counter, matrix = 0, []
    for expert in EXPERTS_OF_DEVICE[device]:
        row = []
        for rank, token in received:
            hit = expert in IDS_OF_RANK[rank][token]
            row.append(counter if hit else -1)
            counter += hit
        matrix.append(row)
    return matrix


def main():
    sent = [by_device(ids) for ids in IDS_OF_RANK]
    case = {"experts_of_device": EXPERTS_OF_DEVICE, "ids_of_rank": IDS_OF_RANK,
            "reindex_by_device_of_rank": sent,
            "reindex_by_expert_of_device": [by_expert(d, sent)
                                            for d in range(len(EXPERTS_OF_DEVICE))]}
    lines = ",\n".join(f' "{key}": [\n  ' + ",\n  ".join(json.dumps(item) for item in value) + "]"
                       for key, value in case.items())
    Path(__file__).with_name("reindex_4x8.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
