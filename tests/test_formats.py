"""Rows of every format from the meta JSON to packs: the same rows, however they are written, give the same packs."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.data import picture
from support.outputs import read_ledger, read_packs
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = pytest.mark.net

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


def arrays(out: Path) -> list[dict[str, np.ndarray]]:
    return [pack.arrays for pack in read_packs(out)]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[dict[str, np.ndarray]]:
    out = folder / "expected"
    run_pack(tiny_config(meta_of(folder, "expected", written("messages", folder)), out))
    return arrays(out)


@pytest.mark.parametrize(
    "name",
    ["base64", "data URI", "messages as text", "file", "vsft", "llava", "cauldron", "prompt_response", "alpaca"],
)
def test_however_a_row_is_written_its_pack_is_the_same(
    name: str, folder: Path, expected: list[dict[str, np.ndarray]], tmp_path: Path
) -> None:
    run_pack(tiny_config(meta_of(folder, name, written(name, folder)), tmp_path / "out"))
    manifest = assert_verified(tmp_path / "out")
    entry = manifest.identity.inputs["set"]
    assert entry["format"] == (
        name if name in ("vsft", "llava", "cauldron", "prompt_response", "alpaca") else "messages"
    )
    statuses = [line["status"] for line in read_ledger(tmp_path / "out")]
    assert statuses == ["skipped", "packed", "packed"]
    for found, wanted in zip(arrays(tmp_path / "out"), expected, strict=True):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert np.array_equal(found[key], wanted[key]), key


@pytest.mark.parametrize("parquet_media", ["copy", "in-place"])
def test_bytes_in_parquet(
    parquet_media: str, folder: Path, expected: list[dict[str, np.ndarray]], tmp_path: Path
) -> None:
    rows = written("cauldron", folder)
    for row, name in zip(rows, NAMES, strict=True):
        row["images"] = [{"bytes": (folder / name).read_bytes(), "path": name}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    # What is imported lies elsewhere, whatever media_dir is.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "meta.json").write_text(json.dumps({"set": {"file_name": "rows.parquet", "media_dir": "elsewhere"}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", parquet_media=parquet_media))
    for found, wanted in zip(arrays(tmp_path / "out"), expected, strict=True):
        assert all(np.array_equal(found[key], wanted[key]) for key in wanted)
