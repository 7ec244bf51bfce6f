"""Data and configs of plans in partitions, for test_partitions.py and test_partitions_inside.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.data import TinyData, mixed_rows
from support.outputs import read_ledger
from support.packed import tiny_config

from neatpack import PackConfig


def split(data: TinyData, num_files: int, name: str) -> list[str]:
    """Rows in several files, each a part of its own."""
    files = []
    for number in range(num_files):
        files.append(f"{name}-{number}.jsonl")
        rows = data.rows[number * len(data.rows) // num_files : (number + 1) * len(data.rows) // num_files]
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (data.folder / files[-1]).write_text("".join(line + "\n" for line in lines))
    return files


@pytest.fixture
def data(tmp_path: Path) -> TinyData:
    """46 rows of pictures and text in eight files, 21 of text in five, one of which is broken."""
    made = mixed_rows(TinyData(tmp_path / "data"), 30, 16)
    text = mixed_rows(TinyData(tmp_path / "data"), 20, 0).row([], note="nothing is said")
    meta = {
        "tiny": {"file_name": split(made, 8, "rows"), "media_dir": "."},
        "text": {"file_name": split(text, 5, "text")},
    }
    (made.folder / "meta.json").write_text(json.dumps(meta))
    return made


def config(data: TinyData, out: Path, **keys: Any) -> PackConfig:
    given: dict[str, Any] = {"pack_size": 256, "partition_samples": 22, "group_size": 2, "max_skipped": 1.0}
    return tiny_config(data.folder / "meta.json", out, **given | keys)


def ledger_of(out: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    lines = read_ledger(out)
    found = {(line["dataset"], line["row"], line["repeat"]): line for line in lines}
    assert len(found) == len(lines)
    return found


def cut(path: Path) -> None:
    """Opens with a valid size, and fails on decode."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
