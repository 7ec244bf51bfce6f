"""A row in each format, for test_formats.py and test_formats_inside.py."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from support.data import picture

NAMES = ("a.png", "b.png")
QUESTION, ANSWER = "Who is it?", "It is Tom."


def turns(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}, {"role": "assistant", "content": ANSWER}]


def written(format_: str, folder: Path) -> list[dict[str, Any]]:
    """Two rows, a question about a picture each, in one of the formats."""

    def encoded(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    text = {"type": "text", "text": QUESTION}
    tagged = [{"from": "human", "value": f"<image>{QUESTION}"}, {"from": "gpt", "value": ANSWER}]
    rows: dict[str, Any] = {
        "messages": lambda name: {"messages": turns({"type": "image", "image": name}, text)},
        "base64": lambda name: {"messages": turns({"type": "image", "image": encoded(name)}, text)},
        "data URI": lambda name: {
            "messages": turns({"type": "image_url", "image_url": {"url": f"data:;base64,{encoded(name)}"}}, text)
        },
        "messages as text": lambda name: {
            "messages": json.dumps(turns({"type": "image", "base64": encoded(name)}, text))
        },
        "file": lambda name: {"messages": turns({"type": "image", "url": f"file://{folder / name}"}, text)},
        "vsft": lambda name: {"messages": turns({"type": "image", "index": 0}, text), "images": [encoded(name)]},
        "llava": lambda name: {"conversations": tagged, "image": name, "id": 7},
        "cauldron": lambda name: {"images": [name], "texts": [{"user": QUESTION, "assistant": ANSWER, "source": "x"}]},
        "prompt_response": lambda name: {"question": QUESTION, "answer": ANSWER, "image": encoded(name)},
        "alpaca": lambda name: {"instruction": QUESTION, "input": "", "output": ANSWER, "images": [name]},
    }
    return [rows[format_](name) for name in NAMES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("formats")
    for seed, name in enumerate(NAMES):
        picture(place / name, 60, 90, seed=seed)
    return place


def meta_of(folder: Path, name: str, rows: list[dict[str, Any]], **keys: Any) -> Path:
    (folder / f"{name}.jsonl").write_text("{}\n" + "".join(json.dumps(row) + "\n" for row in rows))
    meta = folder / f"{name}.meta.json"
    meta.write_text(json.dumps({"set": {"file_name": f"{name}.jsonl", **keys}}))
    return meta
