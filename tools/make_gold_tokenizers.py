#!/usr/bin/env python3
"""Trains small tokenizers with the pipelines of published ones and records what Hugging Face `tokenizers` makes of texts.

    make_gold_tokenizers.py --out tests/gold_text

Needs `pip install tokenizers` (recorded with 0.23). A folder per pipeline with tokenizer.json and vectors.jsonl: text, ids
(without the tokens that a post-processor adds) and the text decoded from them without special tokens. The vocabularies are
trained on the sentences below; nothing of a published tokenizer but its rules is in them.
"""

import argparse
import json
import os

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+""",
]
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind it at all.",
    "In the beginning there were 12345 numbers; then 67 more, and 2026 of them were even.",
    "def encode(text):\n    return [ord(c) for c in text if c != ' ']\n\n\nprint(encode('abc'))",
    "Größe, naïve café, Übermut und Straße: the accents are there to be split.",
    "日本語の文章です。これは短い例です。中文也在这里，数字是一二三。",
    "Привет, мир! Как дела? Мы тестируем разбиение текста на части.",
    "I'll say it's what they've done, you're right, I'd agree, he'S SHOUTING, DON'T.",
    "a/b//c?x=1&y=2#frag  two  spaces   three\ttabs\t\tand\r\nlines\n\n",
] * 4
TEXTS = [
    "", " ", "Hello, world!", "it's I'LL don't DON'T they've", "  leading and   inner    spaces  ", "tabs\tand\n\nlines\r\n",
    "numbers 1 12 123 1234 12345678 3.14159", "日本語とEnglish混ざった文123", "CamelCaseWords andXMLParser IDs",
    "emoji 🙂👩‍👩‍👧 and flags 🇩🇪", "combining e\u0301 versus é", "a/b//c?x=1&y=2#frag", "x = [i**2 for i in range(10)]\n\treturn x\n",
    "<s>special tokens</s> in the <|end|> text", "Привет, мир!", "ﬁ ligature, ½ and Ⅷ", "trailing newline\n", "\n\n\n", "\u00a0nbsp\u2003em",
    "zero\u200bwidth", "ÀÉÎõü", "the the the the", "'s 't 're", "a'b'c", "…—“quotes”",
]


def byte_level(splits, **model):
    tok = Tokenizer(models.BPE(**model))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def neox():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    return tok


def digits():
    tok = byte_level([r"[\r\n]", r"\s?\p{L}+"])
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\r\n]"), "isolated"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return tok


def spaced(scheme, split):
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    strip = [decoders.Strip(" ", 1, 0)] if scheme else []
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] + strip)
    if scheme == "prepend":
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split)
    return tok


def train(tok, size):
    special = ["<unk>", "<s>", "</s>", "<|end|>"]
    byte = not json.loads(tok.to_str())["model"]["byte_fallback"]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte else []
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, limit_alphabet=90 if not byte else 1000))
    return tok


def with_bytes(tok):
    """Byte tokens behind the special ones, as SentencePiece numbers them."""
    file = json.loads(tok.to_str())
    vocab = sorted(file["model"]["vocab"], key=file["model"]["vocab"].get)
    names = vocab[:4] + [f"<0x{b:02X}>" for b in range(256)] + vocab[4:]
    file["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    return Tokenizer.from_str(json.dumps(file))


def with_begin(tok):
    """A token before every text, as Llama 3 and Mixtral have it."""
    file = json.loads(tok.to_str())
    begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    byte = file["post_processor"] is not None
    tok.post_processor = processors.Sequence([processors.ByteLevel(), begin]) if byte else begin
    return tok


def pipelines():
    yield "deepseek", train(byte_level(DEEPSEEK), 420)
    yield "llama3", with_begin(train(byte_level([LLAMA3], ignore_merges=True), 420))
    yield "o200k", train(byte_level([O200K]), 420)
    yield "neox", train(neox(), 420)
    yield "digits", train(digits(), 400)
    yield "prepend", with_begin(with_bytes(train(spaced("prepend", False), 240)))
    yield "metaspace-first", with_bytes(train(spaced("first", False), 240))
    yield "metaspace-split", with_bytes(train(spaced("always", True), 240))


def record(tok, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(json.loads(tok.to_str()), f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    with open(os.path.join(folder, "vectors.jsonl"), "w") as f:
        for text in TEXTS + CORPUS[:8]:
            ids = tok.encode(text, add_special_tokens=False).ids
            line = {"text": text, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=True)}
            f.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    for name, tok in pipelines():
        record(tok, os.path.join(args.out, name))
        print(name, tok.get_vocab_size())


if __name__ == "__main__":
    main()
