# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind: exit code 2, a message that names the place, nothing half-written.

A table: each row is a name, a function that makes the input in an empty folder and returns the command
line, and what the message must hold. Outputs go to the folder `out`, which must stay as it was.
"""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo/model"
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen.\n"
FINGERPRINT = "0123456789abcdef"


# ---- inputs -------------------------------------------------------------------------------------

def model_in(folder):
    """A copy of the demo model that may be damaged."""
    copy = folder / "model"
    shutil.copytree(MODEL, copy)
    return copy


def text_in(folder, content=TEXT.encode()):
    path = folder / "text.txt"
    path.write_bytes(content)
    return path


def read_safetensors(path):
    """(header as a dict, data)"""
    raw = path.read_bytes()
    length, = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + length]), raw[8 + length:]


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def trace_of(folder, damage, name="model.safetensors"):
    """`coterie trace` on the demo model after `damage(model folder)`."""
    model = model_in(folder)
    damage(model)
    return ["trace", "--model", model, "--text", text_in(folder), "--out", folder / "out/trace.bin"]


def header_damage(change):
    """Damage of the safetensors header: `change(header)` edits it or returns other bytes for it."""
    def damage(model):
        header, data = read_safetensors(model / "model.safetensors")
        write_safetensors(model / "model.safetensors", change(header) or header, data)
    return lambda folder: trace_of(folder, damage)


def bytes_damage(change):
    def damage(model):
        path = model / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))
    return lambda folder: trace_of(folder, damage)


def drop(name):
    """Takes a tensor out of the model, leaving a well-formed file."""
    def damage(model):
        header, data = read_safetensors(model / "model.safetensors")
        kept, out, at = {}, [], 0
        for key, entry in sorted(((k, e) for k, e in header.items() if k != "__metadata__"),
                                 key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            if key != name:
                kept[key] = dict(entry, data_offsets=[at, at + end - begin])
                out.append(data[begin:end])
                at += end - begin
        write_safetensors(model / "model.safetensors", kept, b"".join(out))
    return lambda folder: trace_of(folder, damage)


def lose_shard(model):
    header, _ = read_safetensors(model / "model.safetensors")
    names = [name for name in header if name != "__metadata__"]
    first, last = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    (model / "model.safetensors").rename(model / first)
    index = {"metadata": {"total_size": 1}, "weight_map": {n: first for n in names[1:]} | {names[0]: last}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def clash(first, second):
    def change(header):
        header[second]["data_offsets"] = header[first]["data_offsets"]
        header[second]["shape"] = header[first]["shape"]
    return change


def edit(**changes):
    """Changes keys of one tensor's header entry."""
    def change(header):
        header["model.norm.weight"].update(changes)
    return change


def config_damage(text=None, **changes):
    def damage(model):
        path = model / "config.json"
        path.write_text(text or json.dumps(json.loads(path.read_text()) | changes))
    return lambda folder: trace_of(folder, damage)


def tokenizer_damage(edit_text):
    def damage(model):
        path = model / "tokenizer.json"
        path.write_text(edit_text(path.read_text()))
    return lambda folder: trace_of(folder, damage)


def text_damage(content):
    return lambda folder: ["trace", "--model", MODEL, "--text", text_in(folder, content),
                           "--out", folder / "out/trace.bin"]


def csv_in(folder, name="made.csv", ids=((0, 4), (1, 5), (2, 6), (3, 7)), text=None):
    path = folder / name
    rows = "".join(f"{i},1,{','.join(map(str, row))}\n" for i, row in enumerate(ids * 5))
    path.write_text(text or "token_id,occurrences,x0,x1\n" + rows)
    return path


def place(trace_maker, *more):
    def command(folder):
        traces = trace_maker(folder)
        traces = traces if isinstance(traces, list) else [traces]
        arguments = ["place", "--trace", *traces, "--out", folder / "out/placement.json", *more]
        return arguments if "--devices" in more else [*arguments, "--devices", 4]
    return command


def own_trace(folder, name, fingerprint, expert=0):
    """A trace of one layer in our JSONL format."""
    header = {"format": "coterie-trace", "version": 1, "model_type": "olmoe", "model_fingerprint": fingerprint,
              "num_experts": 8, "top_k": 2, "layers": [1], "domains": ["code"], "has_weights": False,
              "shared_tokens": True, "source": "made"}
    row = {"sequence": 0, "position": 0, "domain": "code", "experts": [[expert, 3]]}
    path = folder / name
    path.write_text(json.dumps(header) + "\n" + json.dumps(row) + "\n" +
                    '{"end_of_trace":1}\n')
    return path


def file_with(name, content):
    def make(folder):
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path
    return make


def placement_in(folder, **changes):
    """A placement of the demo model's layers with 64 experts on 4 devices, of another fingerprint."""
    csv = csv_in(folder, ids=tuple((i, (i + 1) % 64) for i in range(64)))
    path = folder / "placement.json"
    subprocess.run([os.environ["COTERIE_BIN"], "place", "--trace", csv, "--devices", "4", "--starts", "1",
                    "--experts", "64", "--load-cap", "none", "--out", path], check=True, capture_output=True)
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps(document))
    return path


def permute(**changes):
    return lambda folder: ["permute", "--model", MODEL, "--placement", placement_in(folder, **changes),
                           "--out", folder / "out/permuted"]


def run_tokens(lines):
    def command(folder):
        path = folder / "tokens.jsonl"
        path.write_text(lines)
        return ["run", "--model", MODEL, "--tokens", path, "--nproc", "1", "--engine", "fake"]
    return command


def run_placement(folder):
    return ["run", "--model", MODEL, "--text", text_in(folder), "--nproc", "4", "--engine", "fake",
            "--placement", placement_in(folder, model_fingerprint=FINGERPRINT)]


NORM = "model.norm.weight"
EXPERT = "model.layers.0.mlp.experts.3.up_proj.weight"
GATE = "model.layers.0.mlp.gate.weight"
TENSORS = "model.safetensors"

# ---- the table: name, command maker, parts of the message ---------------------------------------

TABLE = [
    # safetensors (pitfalls E15-E20)
    ("one byte short", bytes_damage(lambda raw: raw[:-1]), [TENSORS, "truncated"]),
    ("cut in the header", bytes_damage(lambda raw: raw[:100]), [TENSORS, "truncated"]),
    ("cut in the length", bytes_damage(lambda raw: raw[:5]), [TENSORS, "truncated", "8 bytes"]),
    ("empty", bytes_damage(lambda raw: b""), [TENSORS, "truncated"]),
    ("eight bytes more", bytes_damage(lambda raw: raw + bytes(8)), [TENSORS]),
    ("huge header length", bytes_damage(lambda raw: struct.pack("<Q", 1 << 62) + raw[8:]), [TENSORS, "header length"]),
    ("no safetensors file", bytes_damage(lambda raw: b"PK\3\4" + raw[4:]), [TENSORS]),
    ("header is no JSON", header_damage(lambda header: b'{"a": [1,}'), [TENSORS, "JSON"]),
    ("repeated tensor", header_damage(lambda h: b'{"a":{},"a":{}}'), [TENSORS, '"a"']),
    ("overlap", header_damage(clash(GATE, "model.layers.1.mlp.gate.weight")), [TENSORS, "mlp.gate.weight"]),
    ("unknown dtype", header_damage(edit(dtype="F31")), [TENSORS, NORM, "F31"]),
    ("shape and bytes disagree", header_damage(edit(shape=[7])), [TENSORS, NORM, "[7]"]),
    ("negative shape", header_damage(edit(shape=[-160])), [TENSORS, NORM, "-160"]),
    ("offsets reversed", header_damage(edit(data_offsets=[64, 0])), [TENSORS, NORM, "64"]),
    ("missing shard", lambda folder: trace_of(folder, lose_shard), ["model-00002-of-00002.safetensors"]),
    ("index of another kind", lambda folder: trace_of(
        folder, lambda model: (model / "model.safetensors.index.json").write_text('{"weight_map": 3}')),
     ["model.safetensors.index.json"]),
    ("no tensors", lambda folder: trace_of(
        folder, lambda model: write_safetensors(model / TENSORS, {"__metadata__": {"format": "pt"}}, b"")),
     ["/model", "tensor \"model.embed_tokens.weight\"", "missing"]),
    ("one expert's matrix missing", drop(EXPERT), [EXPERT]),
    ("a router missing", drop(GATE), [GATE]),
    ("no weights at all", lambda folder: trace_of(folder, lambda model: (model / TENSORS).unlink()), ["model"]),
    # config.json, tokenizer.json
    ("config is no JSON", config_damage(text='{"model_type": "olmoe",}'), ["config.json:1:"]),
    ("unknown family", config_damage(model_type="gpt_oss"), ["config.json", "gpt_oss"]),
    ("more experts a token than there are", config_damage(num_experts_per_tok=65), ["config.json", "65"]),
    ("a count of the wrong type", config_damage(num_experts="64"), ["config.json", "num_experts"]),
    ("sizes of another model", config_damage(hidden_size=128), ["model.safetensors", "128"]),
    ("no config", lambda folder: trace_of(folder, lambda model: (model / "config.json").unlink()), ["config.json"]),
    ("tokenizer cut", tokenizer_damage(lambda text: text[:5000]), ["tokenizer.json:", "JSON"]),
    ("tokenizer of another kind", tokenizer_damage(lambda text: text.replace('"BPE"', '"Unigram"')),
     ["tokenizer.json", "Unigram"]),
    ("no tokenizer", lambda folder: trace_of(folder, lambda model: (model / "tokenizer.json").unlink()),
     ["tokenizer.json"]),
    # text
    ("empty text", text_damage(b""), ["text.txt", "empty"]),
    ("Latin-1 text", text_damage(b"caf\xe9 noir\n" * 3), ["text.txt", "byte 3", "UTF-8"]),
    ("UTF-16 text", text_damage("text".encode("utf-16")), ["text.txt", "byte 0", "UTF-8"]),
    ("a cut character", text_damage("na\u00efve".encode()[:3]), ["text.txt", "byte 2", "UTF-8"]),
    ("no text", lambda folder: ["trace", "--model", MODEL, "--text", folder / "none.txt", "--out",
                                folder / "out/trace.bin"], ["none.txt"]),
    # ids
    ("token id too large", run_tokens("[1, 2, 3]\n[5, 4096]\n"), ["4096"]),
    ("token id negative", run_tokens("[1, -1]\n"), ["-1"]),
    ("token id of 2^31", run_tokens("[2147483648]\n"), ["2147483648"]),
    ("longer than the model allows, several ranks", lambda folder: [
        word if word != "1" else "2" for word in run_tokens("[" + "7, " * 5000 + "7]\n")(folder)], ["5001"]),
    ("expert id out of range", place(lambda f: csv_in(f, ids=((0, 9), (1, 2))), "--experts", 8), ["made.csv", "9"]),
    ("expert twice in a row", place(lambda f: csv_in(f, ids=((0, 1), (2, 2)))), ["made.csv", "2"]),
    # traces
    ("no trace", place(lambda f: f / "none.bin"), ["none.bin"]),
    ("empty trace", place(file_with("t.bin", b"")), ["t.bin"]),
    ("cut binary trace", place(file_with("t.bin", b"COTRACE\n\1\0\0\0")), ["t.bin"]),
    ("JSONL line cut", place(file_with("t.jsonl", '{"topk_ids":[[[0,1]]]}\n{"topk_ids":[[[0,\n')), ["t.jsonl", "2"]),
    ("CSV of other columns", place(file_with("t.csv", "a,b\n1,2\n")), ["t.csv"]),
    ("parquet as trace", place(file_with("t.jsonl", b"PAR1\x15\x04\x15\xff\x80")), ["t.jsonl"]),
    ("traces of two models", place(lambda f: [own_trace(f, "a.jsonl", "00aa"), own_trace(f, "b.jsonl", "00bb")]),
     ["a.jsonl", "b.jsonl", "00aa", "00bb"]),
    ("trace with an id out of range", place(lambda f: own_trace(f, "a.jsonl", "00aa", expert=8)), ["a.jsonl", "8"]),
    # placements
    ("more devices than experts", place(csv_in, "--devices", 9), ["9", "8"]),
    ("no devices", place(csv_in, "--devices", 0), ["devices"]),
    ("placement is no JSON", lambda folder: ["permute", "--model", MODEL, "--placement",
                                             file_with("p.json", '{"format": ')(folder), "--out",
                                             folder / "out/permuted"], ["p.json:1:"]),
    ("placement of another model", permute(model_fingerprint=FINGERPRINT), [FINGERPRINT]),
    ("placement of another model, run", run_placement, [FINGERPRINT]),
    ("placement without layers of the model", permute(), ["layer"]),
    ("placement of another format", permute(format="something else"), ["placement.json", "format"]),
    ("inspect of nothing", lambda folder: ["inspect", folder / "none"], ["none"]),
    ("inspect of noise", lambda folder: ["inspect", file_with("noise.bin", bytes(range(256)))(folder)], ["noise.bin"]),
    # flags
    ("a flag is missing", lambda folder: ["place", "--devices", 4], ["--trace"]),
    ("an unknown flag", lambda folder: ["inspect", "--no-such-flag", MODEL], ["--no-such-flag"]),
    ("a flag of the wrong type", place(csv_in, "--devices", "four"), ["--devices"]),
    ("no such command", lambda folder: ["plaec", "--devices", 4], ["plaec", "place"]),
    ("no samples", place(csv_in, "--sample", -1), ["--sample", "-1"]),
    ("a negative seed", place(csv_in, "--seed", -1), ["--seed", "-1", "negative"]),
    ("a seed that is too large", place(csv_in, "--seed", 10**30), ["--seed", str(10**30), "large"]),
    ("an octal number", place(csv_in, "--devices", "04"), ["--devices", "04"]),
    ("a number with a fraction", place(csv_in, "--starts", "1.5"), ["--starts", "1.5"]),
    ("too many devices to be a number", place(csv_in, "--devices", 1 << 40), ["--devices", str(1 << 40)]),
    ("a timeout that is no number", lambda folder: ["run", "--model", MODEL, "--text", text_in(folder),
                                                    "--timeout-s", "nan"], ["--timeout-s", "nan"]),
    ("a load cap that is none", place(csv_in, "--load-cap", "tight"), ["--load-cap", "tight"]),
]


# ---- outputs that cannot be written -------------------------------------------------------------

def read_only_folder(folder):
    """A folder in which nobody, root included, can make a file."""
    if os.geteuid() == 0:
        return Path("/sys/kernel")
    locked = folder / "locked"
    locked.mkdir(mode=0o555)
    return locked


WRITERS = {
    "trace": lambda folder, out: ["trace", "--model", MODEL, "--text", text_in(folder, TEXT.encode() * 20), "--out",
                                  out / "trace.bin"],
    "place": lambda folder, out: ["place", "--trace", csv_in(folder), "--devices", 4, "--out",
                                  out / "placement.json"],
    "permute": lambda folder, out: ["permute", "--model", MODEL, "--placement", whole_placement(folder), "--out",
                                    out / "permuted"],
}


def whole_placement(folder):
    """A placement of all layers of the demo model, made as a user makes it."""
    trace, path = folder / "trace.bin", folder / "whole.json"
    for command in (["trace", "--model", MODEL, "--text", text_in(folder), "--out", trace],
                    ["place", "--trace", trace, "--devices", 4, "--load-cap", "none", "--starts", 1, "--out", path]):
        subprocess.run([os.environ["COTERIE_BIN"], *map(str, command)], check=True, capture_output=True)
    return path


def no_large_files():
    """Files end at 200 bytes, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))


def has(command):
    """Whether this build has the command (a torch-free one has no models)."""
    done = subprocess.run([os.environ["COTERIE_BIN"], "--help"], capture_output=True, text=True)
    return f"\n  {command} " in done.stdout


class BadInput(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def check(self, folder, arguments, parts, out=None, **more):
        out = out or folder / "out"
        out.mkdir(exist_ok=True)
        before = sorted(out.iterdir())
        done = subprocess.run([os.environ["COTERIE_BIN"], *map(str, arguments)], capture_output=True, timeout=120,
                              **more)
        message = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, 2, message)
        for part in parts:
            self.assertIn(part, message)
        self.assertLess(len(message), 3000)
        self.assertEqual(sorted(out.iterdir()), before, "something was left behind")

    def test_table(self):
        for number, (name, make, parts) in enumerate(TABLE):
            with self.subTest(name):
                folder = self.scratch / str(number)
                (folder / "out").mkdir(parents=True)
                arguments = make(folder)
                if has(arguments[0]):
                    self.check(folder, arguments, parts)
                shutil.rmtree(folder)

    def test_json_errors_are_one_document(self):
        done = subprocess.run([os.environ["COTERIE_BIN"], "inspect", self.scratch / "none", "--json"],
                              capture_output=True)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "bad_input")

    def test_read_only_folder(self):
        for command, make in WRITERS.items():
            if has(command):
                with self.subTest(command):
                    out = read_only_folder(self.scratch)
                    self.check(self.scratch, make(self.scratch, out), [str(out)], out=out)

    def test_full_disk(self):
        for command, make in WRITERS.items():
            if has(command):
                with self.subTest(command):
                    out = self.scratch / ("full-" + command)
                    self.check(self.scratch, make(self.scratch, out), [str(out)], out=out,
                               preexec_fn=no_large_files)

    def test_ids_are_named_with_their_place(self):
        if has("run"):
            folder = self.scratch
            self.check(folder, run_tokens("[1, 2, 3]\n[5, 4096]\n")(folder), ["4096", "sequence 1"])


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: demo/model is not here")
        sys.exit(77)
    unittest.main()
