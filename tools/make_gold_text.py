#!/usr/bin/env python3
"""Records how Hugging Face tokenizers encodes difficult texts, for tests/test_tokenizer.c.

    tools/make_gold_text.py tests/gold_text

Reads tokenizer.json of that folder and writes vectors.jsonl, one {"text", "ids"} a line. Needs `pip install tokenizers` (the
recorded file was made with 0.23.3). The tokenizer itself is made by tools/make_tokenizer.py from text.txt, 600 ids.
"""
import json
import os
import random
import sys

from tokenizers import Tokenizer

TEXTS = [
    "", " ", "  ", "\t", "\n", "\r\n", "\0", "a\0b", "The stone flies.", " The stone", "   The   stone   ",
    "  \n  x", "x  \n", "\n\n\n x", "\t\tif (x) {\r\n\t}\r\n", "a'LL it'S we'Ve I'm 'tis 'D' ''", "it'\u017f",
    "12345 1,000.50 x2y", "\u0663\u00bd\u2167", "red!!!\n\n", "...\r\n...", " \u00a0x\u2003y\u3000z", "a\u180eb",
    "a\u0085b", "a\u2028b", "e\u0301tait", "\u00e9tait", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958\u0344\u212b",
    "q\u0301\u0323\u0302", "q\u0323\u0302\u0301", "ế ệ Việt", "石头飞得很远，有三个圆形。", "とても遠くまで。", "돌은 아주",
    "पत्थर बहुत दूर", "الصورة؟", "Камень летит", "👩‍🚀👍🏽 🏰", "\ufeffx", "\ufffd", "\U0010ffff\ue000",
    "<|im_start|>user\nWhat do you see?<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n",
    "<|im_start|><|im_start|>", "<|im_start", "<<|im_end|>>", "a <think> b </think> c", "e<|im_end|>\u0301",
    "<|im_end|>\u0338x", "  <|im_end|>  ", "<|IM_END|>", "<tool_call>{\"a\": 1}</tool_call>",
    "x" * 100, "stone" * 50, "!" * 77, " " * 90 + "x", "0" * 40, "largest shape " * 30,
]
LETTERS = "aesto 1.'\n\t<>|é中\u0301"


def main():
    folder = sys.argv[1]
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    rng = random.Random(1)
    made = ["".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 80))) for _ in range(60)]
    with open(os.path.join(folder, "text.txt"), encoding="utf-8", newline="") as f:
        texts = TEXTS + made + [f.read()]
    with open(os.path.join(folder, "vectors.jsonl"), "w", encoding="utf-8") as f:
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            f.write(json.dumps({"text": text, "ids": ids}, separators=(",", ":")) + "\n")
    print(f"{len(texts)} texts")


main()
