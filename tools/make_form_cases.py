#!/usr/bin/env python3
"""Writes tests/forms/cases.jsonl: records in the forms that people bring, the messages that each stands for in its
source project, and what transformers makes of those by tests/forms/template.jinja: ids, and which of them the
assistant wrote ({% generation %}). Needs transformers; run in the repository's root."""
import json
import os

from PIL import Image
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

OUT = "tests/forms"
PICTURE = "../tiff/raw.tif"
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n{%- for t in tools %}\n{{ t | tojson }}{%- endfor %}<|im_end|>\n{% endif %}"
    "{%- if note %}{{ note }}{% endif %}{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}{% generation %}"
    "{%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{%- if m.content is string %}{{ m.content }}{% endif %}"
    "{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + ' ' + (c.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
    "{{- '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{%- else %}"
    "{%- if m.content is string %}{{ m.content }}"
    "{%- else %}{%- for p in m.content %}"
    "{%- if p.type == 'text' %}{{ p.text }}{% else %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% endif %}"
    "{%- endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}")


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def shown(*parts):
    """A user's message of texts, with a picture for each None."""
    return {"role": "user", "content": [{"type": "text", "text": p} if p else {"type": "image"} for p in parts]}


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALLED = [user("1+2?"), answer("", tool_calls=[CALL]), {"role": "tool", "content": "3"}, answer("It is 3.")]
QA, TWO = [user("2+2?"), answer("4")], [user("a b"), answer("c d"), user("e"), answer("f g\nh")]
LLAVA = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A cat."}]
CASES = [                                # name, record, messages, tools
    ("messages", {"messages": QA}, QA, None),
    ("messages, several turns", {"messages": TWO}, TWO, None),
    ("messages, system", {"messages": [system("Be brief.")] + QA}, [system("Be brief.")] + QA, None),
    ("messages, system twice", {"messages": QA + [system("Now.")] + TWO}, QA + [system("Now.")] + TWO, None),
    ("messages, reasoning", {"messages": [user("2+2?"), answer("4", reasoning_content="easy")]},
     [user("2+2?"), answer("4", reasoning_content="easy")], None),
    ("system beside messages", {"system": "Be brief.", "messages": QA}, [system("Be brief.")] + QA, None),
    ("ShareGPT", {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}, QA, None),
    ("ShareGPT, system", {"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "2+2?"},
                                            {"from": "gpt", "value": "4"}]}, [system("Be brief.")] + QA, None),
    ("roles user and bot", {"conversations": [{"from": "user", "value": "2+2?"}, {"from": "bot", "value": "4"}]}, QA, None),
    ("role model", {"messages": [user("2+2?"), {"role": "model", "content": "4"}]}, QA, None),
    ("Alpaca", {"instruction": "2+2?", "output": "4"}, QA, None),
    ("Alpaca, input", {"instruction": "Translate.", "input": "Katze", "output": "cat"},
     [user("Translate.\nKatze"), answer("cat")], None),
    ("Alpaca, history and system", {"instruction": "e", "input": "", "output": "f g\nh", "history": [["a b", "c d"]],
                                    "system": "Be brief."}, [system("Be brief.")] + TWO, None),
    ("ms-swift query and response", {"query": "2+2?", "response": "4"}, QA, None),
    ("ms-swift, history", {"query": "e", "response": "f g\nh", "history": [["a b", "c d"]]}, TWO, None),
    ("prompt and completion", {"prompt": "2+2?", "completion": "4"}, QA, None),
    ("TRL, conversations", {"prompt": QA[:1], "completion": QA[1:]}, QA, None),
    ("question and answer", {"question": "2+2?", "answer": "4"}, QA, None),
    ("tools", {"tools": TOOLS, "messages": CALLED}, CALLED, TOOLS),
    ("OpenAI, arguments as text", {"tools": TOOLS, "messages": [user("1+2?"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1, \"b\": 2}"}}]},
        {"role": "tool", "content": "3"}, answer("It is 3.")]}, CALLED, TOOLS),
    ("pictures by marks", {"messages": [user("See <image>?"), answer("A cat.")], "images": [PICTURE]},
     [shown("See ", None, "?"), answer("A cat.")], None),
    ("pictures listed alone", {"messages": [user("See?"), answer("A cat.")], "images": [PICTURE]},
     [shown(None, "See?"), answer("A cat.")], None),
    ("content parts", {"messages": [{"role": "user", "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": "See?"}]},
                                    answer("A cat.")]}, [shown(None, "See?"), answer("A cat.")], None),
    ("LLaVA", {"conversations": LLAVA, "image": PICTURE}, [shown(None, "\nWhat is it?"), answer("A cat.")], None),
    ("reasoning by its other names", {"messages": [user("2+2?"), answer("4", thinking="easy"), user("a b"),
                                                   answer("c d", reasoning="hm")]},
     [user("2+2?"), answer("4", thinking="easy"), user("a b"), answer("c d", reasoning="hm")], None),
    ("ms-swift, tool_call", {"tools": json.dumps(TOOLS), "messages": [
        user("1+2?"), {"role": "tool_call", "content": json.dumps(CALL["function"])},
        {"role": "tool_call", "content": CALL["function"]}, {"role": "tool_response", "content": "3"}, answer("It is 3.")]},
     [user("1+2?"), answer("", tool_calls=[CALL, CALL]), {"role": "tool", "content": "3"}, answer("It is 3.")], TOOLS),
    ("ms-swift, rounds", {"system": "Be brief.", "conversation": [{"human": "a b", "assistant": "c d"},
                                                                  {"human": "e", "assistant": "f g\nh"}]},
     [system("Be brief.")] + TWO, None),
    ("variables of the template", {"messages": QA, "chat_template_kwargs": {"note": "Kindly."}}, QA, None),
    ("two pictures", {"messages": [user("<image><image>Same?"), answer("Yes.")], "images": [PICTURE, {"path": PICTURE}]},
     [shown(None, None, "Same?"), answer("Yes.")], None),
]


def render(processor, messages, tools, **more):
    tokenizer, pictures = processor.tokenizer, []
    for m in messages:
        if isinstance(m["content"], list):
            pictures += [Image.open(f"{OUT}/{PICTURE}").convert("RGB") for p in m["content"] if p["type"] == "image"]
    out = tokenizer.apply_chat_template(messages, tools=tools, chat_template=TEMPLATE, tokenize=True, return_dict=True,
                                        return_assistant_tokens_mask=True, **more)
    ids, mask = out["input_ids"], out["assistant_masks"]
    if not pictures:
        return ids, mask
    text = tokenizer.apply_chat_template(messages, tools=tools, chat_template=TEMPLATE, tokenize=False)
    grown = processor(text=[text], images=pictures)["input_ids"][0]
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    flags, at = [], 0
    for k, i in enumerate(ids):          # a pad becomes as many as its picture makes
        n = 1
        while i == pad and grown[at + n] == pad:
            n += 1
        flags += [mask[k]] * n
        at += n
    assert len(flags) == len(grown)
    return list(grown), flags


def main():
    os.makedirs(OUT, exist_ok=True)
    with open(OUT + "/template.jinja", "w") as f:
        f.write(TEMPLATE)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file="tests/gold_text/tokenizer.json")
    processor = Qwen3VLProcessor(image_processor=Qwen2VLImageProcessor(patch_size=16, size={"shortest_edge": 1024, "longest_edge": 4096}),
                                 tokenizer=tokenizer, video_processor=Qwen3VLVideoProcessor())
    with open(OUT + "/cases.jsonl", "w") as f:
        for name, record, messages, tools in CASES:
            ids, mask = render(processor, messages, tools, **record.get("chat_template_kwargs", {}))
            f.write(json.dumps({"name": name, "record": record, "ids": [int(i) for i in ids], "mask": [int(i) for i in mask]},
                               separators=(",", ":")) + "\n")
    print(len(CASES), "forms")


main()
