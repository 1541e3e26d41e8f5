# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model's byte-level BPE on WORK/text and writes tokens for train_model.py.

Writes WORK/model/{tokenizer.json,tokenizer_config.json} and WORK/tokens/<domain>.<split>.xz:
uint16 little-endian token ids, every document followed by <|endoftext|>; sizes.json holds the
number of text bytes and tokens of each file.
"""

import argparse
import json
import lzma
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from collect_text import SOURCES

# The word pattern of the GPT-4 and Qwen tokenizers: contractions, words with one leading mark,
# single digits, runs of punctuation, line ends, blanks.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT = "<|endoftext|>"
PADDING = "<|padding|>"
SAMPLE_BYTES_PER_DOMAIN = 4_000_000


def read_documents(work, domain, split):
    with open(work / "text" / f"{domain}.{split}.jsonl", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def training_sample(work):
    for domain in SOURCES:
        size = 0
        for text in read_documents(work, domain, "train"):
            yield text
            size += len(text)
            if size > SAMPLE_BYTES_PER_DOMAIN:
                break


def train(work, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[
            AddedToken(END_OF_TEXT, special=True, normalized=False),
            AddedToken(PADDING, special=True, normalized=False),
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_sample(work), trainer)
    return tokenizer


def write_tokenizer(tokenizer, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": END_OF_TEXT,
        "pad_token": PADDING,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    parser.add_argument("--vocab-size", type=int, default=4096)
    arguments = parser.parse_args()
    work = arguments.work
    tokenizer = train(work, arguments.vocab_size)
    write_tokenizer(tokenizer, work / "model")
    (work / "tokens").mkdir(exist_ok=True)
    sizes = {}
    for domain in SOURCES:
        for split in ("train", "fit", "heldout"):
            texts = list(read_documents(work, domain, split))
            ids = []
            for encoding in tokenizer.encode_batch_fast(texts):
                ids += encoding.ids + [0]
            tokens = np.array(ids, dtype="<u2")
            name = f"{domain}.{split}"
            (work / "tokens" / f"{name}.xz").write_bytes(lzma.compress(tokens.tobytes(), preset=1))
            sizes[name] = {
                "documents": len(texts),
                "bytes": sum(len(text.encode()) for text in texts),
                "tokens": len(tokens),
            }
            print(name, sizes[name])
    (work / "tokens" / "sizes.json").write_text(json.dumps(sizes, indent=1) + "\n")


if __name__ == "__main__":
    main()
