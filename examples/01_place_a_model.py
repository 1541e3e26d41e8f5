#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From a model folder and a text to a placement, a report and a re-ordered checkpoint.

    examples/01_place_a_model.py [MODEL] [TEXT] [OUT]

One process, no GPU. MODEL is a Hugging Face folder; without arguments the bundled model serves.
"""
import sys
import tempfile
from pathlib import Path

import coterie

ROOT = Path(__file__).resolve().parent.parent
model = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo/model"
text = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "demo/text/novels.fit.txt"
out = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp())

# Which experts does each token choose?
trace = coterie.trace(model, text, out / "trace.bin", max_tokens=2048, sequence_length=128)
print(trace)

# Where should they live? Every other sequence is held out, to see whether it lasts.
placement = coterie.place(trace, devices=4, fit="sequences")
placement.save(out / "placement.json")
print(placement)

# Checked by code that shares nothing with what made it.
coterie.verify(out / "placement.json", trace)

report = coterie.report(trace, placement, fit="sequences")
report.save(out / "report.html")
print(report.headline())

# The same model, experts re-ordered: any engine's contiguous placement is now this one.
coterie.permute(model, placement, out / "model-placed")
coterie.export_placement(placement, out / "sglang.json", "sglang")
print("wrote", out)
