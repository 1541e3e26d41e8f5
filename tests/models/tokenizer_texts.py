# SPDX-License-Identifier: Apache-2.0
"""Texts in many scripts and tokenizer.json files of many kinds, for tests against `tokenizers`."""
import json
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
OLMO2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
         r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
DEEPSEEK = [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ϿЀ-ӿ]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"]

PARAGRAPHS = [
    "The quick brown fox jumps over the lazy dog; it's 3:45 p.m., isn't it? WE'LL SEE, THEY'VE GONE.",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Ünïcödé façade naïve coöperate Ångström ﬁnal ﬂow",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак їсть ґрушу.",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία· ὦ ἄνδρες Ἀθηναῖοι",
    "נֵרְדָּמָה שָׁלוֹם עוֹלָם ־ מספר 42", "السَّلَامُ عَلَيْكُمْ ١٢٣٤٥ نص عربي، مع ترقيم؟",
    "हिन्दी में क़ ज़ फ़ संयुक्ताक्षर १२३४", "বাংলা লেখা ৳১২৩", "தமிழ் மொழி ௧௨௩", "ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "ខ្មែរ អក្សរ", "မြန်မာစာ", "አማርኛ ፩፪፫", "ქართული ენა", "Հայերեն լեզու", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ\u180e",
    "日本語のテキスト。カタカナ、ひらがな、漢字。ﾊﾝｶｸ １２３", "中文文本，没有空格。繁體中文「引號」。",
    "한국어 텍스트 각 낱말", "Tiếng Việt có nhiều dấu: ế ệ ỗ ữ",
    "emoji 😀👍🏽👩‍👩‍👧‍👦🇩🇪🏳️‍🌈 ❤️ ☃︎ ™ © ½ ¾ ² ³ Ⅷ ⑳ ㊿", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 𐍈𐌰 𒀀𒁀 𓀀 𠮷𠜎",
    "e\u0301 a\u0308\u0323 o\u0323\u0302 \u1100\u1161\u11a8 \u212b \u2126 q\u0307\u0323 x\u0344",
    "def f(x):\n    return {'a': x**2, \"b\": [1, 2, 0x1F]}  # comment\n\n\n\tif (a&&b) ++i;\r\n\r\n  }\n",
    "    \t  leading,   many     spaces   \n \n  \n\n   trailing   ", " \u00a0\u2003\u3000\u200a\u2028\u2029\u0085x\u200b\ufeff y",
    "1234567890 12 3.14159 1,000,000 0b1010 1e-10 ١٢٣ ⅣⅤ x²", "<|endoftext|> <|im_start|>user\nhi<|im_end|> |end|",
    "https://example.org/a_b?c=d&e=%20#frag user@example.com C:\\dir\\file.txt snake_case CamelCase",
    "''s 'S 't 'ſ 'LL i'm I'M you're don't 'tis rock'n'roll 'd'ar'e", "\x00\x01\x7f\u00ad\u2060\ufffd\ufffe\U0010fffd",
    "a" * 300, "ab" * 200 + "!?" * 100, "\n" * 80, " " * 500 + "x", "\r\n" * 20, "\t" * 33, "-" * 200, "9" * 50,
    "", " ", "\n", "a", " a", "é", "e\u0301", "\u0301", "😀",
]


def random_texts(count, seed):
    """Fuzz: assigned characters in runs of one script and mixed."""
    rng = random.Random(seed)
    blocks = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x250, 0x370), (0x370, 0x530), (0x590, 0x700),
              (0x900, 0xE00), (0xE00, 0x1200), (0x1200, 0x1C00), (0x1E00, 0x2100), (0x2100, 0x2C00),
              (0x2E80, 0x3200), (0x3200, 0xA000), (0xA000, 0xD7A4), (0xF900, 0x10000), (0x10000, 0x11000),
              (0x1D000, 0x1F000), (0x1F000, 0x1FA00), (0x300, 0x370),
              (0x11000, 0x12000), (0x16F00, 0x17000), (0x1E000, 0x1E950)]
    glue = [" ", "  ", "\n", "\r\n", "\t", "'s", "'T", "\u00a0", "\u3000", "12", "3", ".", "\u0301", "\u0323", "<|end|>"]
    texts = []
    for _ in range(count):
        pieces = []
        for _ in range(rng.randrange(1, 24)):
            low, high = rng.choice(blocks)
            for _ in range(rng.randrange(1, 6)):
                character = chr(rng.randrange(low, high))
                if is_old(character):
                    pieces.append(character)
            if rng.random() < 0.6:
                pieces.append(rng.choice(glue) * rng.choice([1, 1, 1, 2, 3]))
        texts.append("".join(pieces))
    return texts


def is_old(character):
    """False for what libraries with older or newer Unicode tables may see otherwise."""
    return unicodedata.category(character) not in ("Cn", "Cs", "Co")


def kinds():
    """Name -> (normalizer, pre-tokenizer, model options, added tokens, post-processor maker)."""
    byte_level = pre_tokenizers.ByteLevel

    def split(*patterns):
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        return pre_tokenizers.Sequence(steps + [byte_level(add_prefix_space=False, use_regex=False)])

    special = [AddedToken("<|endoftext|>", special=True), AddedToken("<|end|>", special=True)]
    stripped = [AddedToken("<mask>", special=True, lstrip=True), AddedToken("<r>", rstrip=True, special=True),
                AddedToken("dog", single_word=True, normalized=False), AddedToken("é", normalized=True),
                AddedToken("  ", normalized=False), AddedToken("<|endoftext|>", special=True)]
    spaces = [AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)]

    def bos(tokenizer):
        end = tokenizer.token_to_id("<|endoftext|>")
        return processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|>",
                                          special_tokens=[("<|endoftext|>", end)])])

    def no_specials(_):
        return processors.ByteLevel(trim_offsets=False)

    nfc = normalizers.NFC()
    return {
        "gpt2": (None, byte_level(add_prefix_space=False), {}, special[:1], no_specials),
        "gpt2_prefix": (None, byte_level(add_prefix_space=True), {}, special, bos),
        "neox": (nfc, byte_level(add_prefix_space=False), {}, special + spaces, bos),
        "qwen": (nfc, split(QWEN), {}, special, no_specials),
        "llama3": (None, split(LLAMA3), {"ignore_merges": True}, special, bos),
        "olmo2": (None, split(OLMO2), {}, special, no_specials),
        "deepseek": (normalizers.Sequence([]), split(*DEEPSEEK), {}, special, bos),
        "digits": (normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("~", "-"),
                                         normalizers.Replace(Regex(r"\s{4,}"), "   "), normalizers.Prepend("> ")]),
                   pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                            byte_level(add_prefix_space=True)]), {}, stripped, no_specials),
        "digit_runs": (normalizers.NFD(), pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(" ", "merged_with_next"), byte_level(False, use_regex=False)]),
            {}, stripped, no_specials),
        "previous": (None, pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"\s+"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[aeiou]"), "contiguous"), byte_level(False, use_regex=False)]),
            {}, stripped, no_specials),
        "inverted": (normalizers.NFKD(), pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"\w+"), "isolated", invert=True),
            pre_tokenizers.Split(Regex(r"[\p{P}\h]"), "removed"),
            pre_tokenizers.Split(Regex(r"\S"), "merged_with_next", invert=True), byte_level(False, use_regex=False)]),
            {}, stripped, no_specials),
        "characters": (nfc, pre_tokenizers.Whitespace(), {"unk_token": "[UNK]", "fuse_unk": True},
                       [AddedToken("[UNK]", special=True)], lambda _: None),
        "words": (None, pre_tokenizers.WhitespaceSplit(), {"unk_token": "[UNK]"},
                  [AddedToken("[UNK]", special=True)], lambda _: None),
    }


def train(name, vocab_size=1200):
    """A tokenizer of one kind, trained on the paragraphs."""
    normalizer, pre_tokenizer, options, added, post_processor = kinds()[name]
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    is_byte_level = "unk_token" not in options
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, limit_alphabet=1000 if is_byte_level else 90,
        special_tokens=[] if is_byte_level else ["[UNK]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if is_byte_level else [])
    tokenizer.train_from_iterator(PARAGRAPHS * 3, trainer)
    tokenizer.add_tokens(added)
    if is_byte_level:
        tokenizer.decoder = decoders.ByteLevel()
    made = post_processor(tokenizer)
    if made is not None:
        tokenizer.post_processor = made
    return tokenizer


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
UNTIL_SPACE = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def sentencepiece_kinds():
    """Name -> (normalizer, pre-tokenizer, decoder, byte tokens, model options), as files converted from
    SentencePiece are written (Mixtral's, Llama 2's) and their relatives."""
    space = "\u2581"
    legacy = normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)])
    metaspace = pre_tokenizers.Metaspace
    steps = decoders.Sequence(UNTIL_SPACE)
    fallback = {"byte_fallback": True, "fuse_unk": True}
    return {
        "mixtral": (legacy, None, steps, BYTES, fallback),
        "mixtral_fast": (None, metaspace(split=False, prepend_scheme="first"), steps, BYTES, fallback),
        "metaspace_words": (None, metaspace(), decoders.Metaspace(), [], {"fuse_unk": False}),
        "metaspace_never": (None, metaspace(prepend_scheme="never"), decoders.Metaspace(prepend_scheme="never"),
                            BYTES, {"byte_fallback": True, "ignore_merges": True}),
        # Bytes of two-byte characters alone: longer ones are unknown.
        "some_bytes": (legacy, None, decoders.Sequence(UNTIL_SPACE[:3]), BYTES[0x80:0xE0], fallback),
        "bytes_unfused": (normalizers.NFKC(), metaspace(split=False), decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace()]), BYTES[::-1],
            {"byte_fallback": True, "fuse_unk": False}),
    }


def train_sentencepiece(name, vocab_size=900):
    """A tokenizer.json of one of these kinds: few characters are in the vocabulary."""
    normalizer, pre_tokenizer, decoder, byte_tokens, options = sentencepiece_kinds()[name]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, limit_alphabet=120,
                                  special_tokens=["<unk>", "<s>", "</s>"], max_token_length=12)
    tokenizer.train_from_iterator([line for line in PARAGRAPHS[:20] * 3 if line], trainer)
    tokenizer.add_tokens([AddedToken("[INST]", normalized=False), AddedToken("<mask>", lstrip=True, special=True),
                          AddedToken("lazy dog", normalized=True)])
    tokenizer.decoder = decoder
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    document = json.loads(tokenizer.to_str())
    vocabulary = document["model"]["vocab"]
    first = len(vocabulary)
    for token in document["added_tokens"]:  # those outside the vocabulary come behind it
        token["id"] += len(byte_tokens) if token["id"] >= first else 0
    vocabulary.update({token: first + i for i, token in enumerate(byte_tokens)})
    return json.dumps(document)


def merges_as_strings(text):
    """The same tokenizer.json with merges written the old way: "a b" instead of ["a", "b"]."""
    document = json.loads(text)
    merges = document["model"]["merges"]
    document["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]
    return json.dumps(document)
