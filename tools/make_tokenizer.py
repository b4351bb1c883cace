#!/usr/bin/env python3
"""Trains a small byte-level BPE on a text file and writes it as a Qwen-style tokenizer.json.

    tools/make_tokenizer.py TEXT OUT.json --vocab 1024

--vocab counts all ids: 256 bytes, the merges, and Qwen's 26 added tokens at the end. A text too short for that
many merges gives fewer. The result depends on the text and the size only. Needs nothing but Python.
"""
import argparse
import collections
import json
import sys
import unicodedata

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
           "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
           "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
         "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

SPACES = set("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200b)}
LETTER, NUMBER, SPACE, OTHER = range(4)


def kind(c):
    if c in SPACES:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(unicodedata.category(c)[0], OTHER)


def run(kinds, i, *wanted):
    while i < len(kinds) and kinds[i] in wanted:
        i += 1
    return i


def piece_end(text, kinds, i):
    """The end of the piece that begins at i: PATTERN by hand, since the standard library has no \\p{L}."""
    n, c = len(text), text[i]
    for suffix in ("s", "t", "re", "ve", "m", "ll", "d"):
        if c == "'" and text[i + 1:i + 1 + len(suffix)].lower().replace("\u017f", "s") == suffix:
            return i + 1 + len(suffix)
    if kinds[i] == LETTER:
        return run(kinds, i, LETTER)
    if c not in "\r\n" and kinds[i] != NUMBER and i + 1 < n and kinds[i + 1] == LETTER:
        return run(kinds, i + 1, LETTER)
    if kinds[i] == NUMBER:
        return i + 1
    if kinds[i] == OTHER or (c == " " and i + 1 < n and kinds[i + 1] == OTHER):
        i = run(kinds, i + (c == " "), OTHER)
        while i < n and text[i] in "\r\n":
            i += 1
        return i
    end = run(kinds, i, SPACE)
    last = max(text.rfind("\r", i, end), text.rfind("\n", i, end))
    if last >= 0:
        return last + 1
    return end if end == n or end == i + 1 else end - 1


def pieces(text):
    kinds, i = [kind(c) for c in text], 0
    while i < len(text):
        end = piece_end(text, kinds, i)
        yield text[i:end]
        i = end


def byte_letters():
    """The printable letter for each byte, in the order of the ids of single bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable}
    letters.update({b: chr(256 + i) for i, b in enumerate(rest)})
    return letters


def merge(word, pair, new):
    out, i = [], 0
    while i < len(word):
        if word[i:i + 2] == pair:
            out.append(new)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def train(text, merges):
    """Merges the most frequent pair of neighbours into a token, `merges` times; ties go to the first by spelling."""
    letters = byte_letters()
    count = collections.Counter(pieces(unicodedata.normalize("NFC", text)))
    words = [tuple(letters[b] for b in piece.encode()) for piece in count]
    times = list(count.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += times[i]
            where[pair].add(i)
    made = []
    while len(made) < merges and pairs:
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        if pairs[pair] < 2:
            break
        made.append(pair)
        for i in where.pop(pair):
            for old in zip(words[i], words[i][1:]):
                pairs[old] -= times[i]
            words[i] = merge(words[i], pair, pair[0] + pair[1])
            for new in zip(words[i], words[i][1:]):
                pairs[new] += times[i]
                where[new].add(i)
        del pairs[pair]
    return made


def tokenizer(merges):
    vocab = {letter: i for i, letter in enumerate(byte_letters().values())}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": len(vocab) + i, "content": text, **flags, "special": text in SPECIAL}
             for i, text in enumerate(SPECIAL + ADDED)]
    bytelevel = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytelevel]},
            "post_processor": bytelevel, "decoder": bytelevel,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": vocab, "merges": [" ".join(m) for m in merges]}}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("text")
    p.add_argument("out")
    p.add_argument("--vocab", type=int, default=1024)
    a = p.parse_args()
    merges = a.vocab - 256 - len(SPECIAL) - len(ADDED)
    if merges < 0:
        sys.exit(f"--vocab {a.vocab}: at least {a.vocab - merges} are needed")
    with open(a.text, encoding="utf-8", newline="") as f:
        made = train(f.read(), merges)
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump(tokenizer(made), f, ensure_ascii=False, indent=0)
        f.write("\n")
    print(f"{a.out}: {256 + len(made) + len(SPECIAL) + len(ADDED)} ids, {len(made)} merges")


main()
