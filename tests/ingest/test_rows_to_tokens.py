"""Literal rows, packed and decoded back: nothing that a row says is lost or changed on the way to its tokens."""
# ruff: noqa: E501 (a row per line)

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers import DEMO_PROCESSOR, packs_of, picture, tiny_config

from neatpack.format.members import Pack
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.run import run_pack

# Of the demo processor, with reasoning.
THOUGHT = "{%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' -}}{% endif -%}"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
PACKED: dict[str, tuple[str, str, str]] = {
    "indented code": (
        r'{"messages": [{"role": "user", "content": "    def f():\n        pass\n\n"}, {"role": "assistant", "content": " ok\n"}]}',
        "    def f():\n        pass\n\n",
        " ok\n",
    ),
    "code next to an image": (
        r'{"messages": [{"role": "user", "content": "<image>\n    def f():\n        pass\n"}, {"role": "assistant", "content": "ok"}], "images": ["a.png"]}',
        f"{IMAGE}    def f():\n        pass\n",
        "ok",
    ),
    "spaces and lines next to an image": (
        r'{"messages": [{"role": "user", "content": "\tLook: \n\n<image> \n Who? "}, {"role": "assistant", "content": "ok"}], "images": ["a.png"]}',
        f"\tLook: \n{IMAGE} \n Who? ",
        "ok",
    ),
    "tags in a system prompt": (
        r'{"system": " <image> ", "messages": [{"role": "user", "content": "\n"}, {"role": "assistant", "content": "ok"}]}',
        "\n",
        "ok",
    ),
    "reasoning": (
        r'{"question": " Why? ", "reasoning": "Hm.\n", "answer": "So."}',
        " Why? ",
        "<think>Hm.\n</think>So.",
    ),
    "thinking": (r'{"problem": "1 + 1", "thinking": "Two.", "solution": "2"}', "1 + 1", "<think>Two.</think>2"),
    "rationale": (
        r'{"prompt": "Why?", "rationale": "It is so.", "response": "So."}',
        "Why?",
        "<think>It is so.</think>So.",
    ),
    "cot": (
        r'{"instruction": "Why?", "input": "", "cot": "As ever.", "output": "So."}',
        "Why?",
        "<think>As ever.</think>So.",
    ),
    "reasoning of a conversation": (
        r'{"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}], "reasoning_content": "Hm."}',
        "Why?",
        "<think>Hm.</think>So.",
    ),
    "a setting": (r'{"question": "Why?", "reasoning": "off", "answer": "So."}', "Why?", "So."),
    "a query": (r'{"prompt": " Is it? ", "query": "\tThis", "response": "Yes"}', " Is it? \n\tThis", "Yes"),
}
AS_TEXT = r'{"messages": [{"role": "user", "content": "Write <image>\n and <img>a.png</img> "}, {"role": "assistant", "content": "<video>"}]}'
SKIPPED: dict[str, tuple[str, tuple[str, ...]]] = {
    "a rejected answer": (
        r'{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}], "rejected_response": "No."}',
        ("'rejected_response'",),
    ),
    "boxes": (
        r'{"messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "<bbox>"}], "objects": {"bbox": [[1, 2, 3, 4]]}}',
        ("<bbox>", "'objects'"),
    ),
    "two reasonings": (
        r'{"question": "Why?", "reasoning": "Hm.", "cot": "Well.", "answer": "So."}',
        ("'reasoning'", "'cot'"),
    ),
}


def write_rows(folder: Path, rows: dict[str, str]) -> Path:
    """A data set for each row."""
    picture(folder / "a.png", 28, 28)
    entries = {}
    for number, (name, row) in enumerate(rows.items()):
        (folder / f"{number}.jsonl").write_text(row + "\n")
        more = {"columns": {"query": "query"}, "format": "prompt_response"} if '"query"' in row else {}
        entries[name] = {"file_name": f"{number}.jsonl"} | more
    entries["as text"] = {"file_name": "text.jsonl", "placeholders": "text"}
    (folder / "text.jsonl").write_text(AS_TEXT + "\n")
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    shutil.copytree(DEMO_PROCESSOR, folder / "processor")
    template = folder / "processor" / "chat_template.jinja"
    role = "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    text = template.read_text()
    assert text.count(role) == 1
    template.write_text(text.replace(role, role + THOUGHT))
    rows = {name: row for name, (row, *_) in (PACKED | SKIPPED).items()}
    run_pack(tiny_config(write_rows(folder, rows), folder / "out", processor=str(folder / "processor")))
    return folder / "out"


@pytest.fixture(scope="module")
def texts(out: Path) -> dict[str, str]:
    """What the tokens of each document are, by data set: an image as one placeholder."""
    tokenizer = load_family(ProcessorKey(processor=str(out.parent / "processor"))).chat.tokenizer
    found = {}
    for pack in packs_of(out):
        for name, ids in documents(pack):
            text = str(tokenizer.decode(ids))
            while "<|image_pad|><|image_pad|>" in text:
                text = text.replace("<|image_pad|><|image_pad|>", "<|image_pad|>")
            found[name] = text
    return found


def documents(pack: Pack) -> list[tuple[str, list[int]]]:
    """The ids of each document of a pack; the last one is the label of the last position."""
    start, found = 0, []
    for document, length in zip(pack.documents, pack.arrays["seq_lens"].tolist(), strict=True):
        inside = slice(start, start + length)
        last = [label for label in pack.arrays["labels"][inside][-1:].tolist() if label >= 0]
        found.append((document.dataset, [*pack.arrays["input_ids"][inside].tolist(), *last]))
        start += length
    return found


@pytest.mark.parametrize("name", PACKED)
def test_row_is_packed_to_the_letter(name: str, texts: dict[str, str]) -> None:
    row, question, answer = PACKED[name]
    system = "<|im_start|>system\n <image> <|im_end|>\n" if '"system"' in row else ""
    turns = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>"
    assert texts[name].rstrip("\n") == system + turns


def test_tags_as_text_are_packed_to_the_letter(texts: dict[str, str]) -> None:
    turns = (
        "<|im_start|>user\nWrite <image>\n and <img>a.png</img> <|im_end|>\n<|im_start|>assistant\n<video><|im_end|>"
    )
    assert texts["as text"].rstrip("\n") == turns


@pytest.mark.parametrize("name", SKIPPED)
def test_row_is_skipped_by_name(name: str, out: Path) -> None:
    (line,) = (line for line in pq.read_table(out / "ledger").to_pylist() if line["dataset"] == name)
    assert line["reason"] == "bad_row" and all(each in line["detail"] for each in SKIPPED[name][1])
