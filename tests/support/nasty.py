"""Files of ../shared/data/nasty and what becomes of them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from places import SHARED
from support.commands import assert_verified

from neatpack import PackConfig, run_pack

NASTY = SHARED / "data" / "nasty"


def packed(meta: Path, out: Path, **overrides: Any) -> dict[str, list[dict[str, Any]]]:
    """Ledger lines by data set, of an output that was verified."""
    config = {
        "processor": str(SHARED / "processors" / "qwen2.5-vl"),
        "engine": "inline",
        "pack_size": 20480,
        "video_fps": 1.0,
        "keep_going": True,
    }
    run_pack(PackConfig(meta=str(meta), out=str(out), **config | overrides))
    manifest = assert_verified(out)
    ledger = pa.concat_tables([pq.read_table(path) for path in sorted((out / "ledger").iterdir())]).to_pylist()
    return {name: [line for line in ledger if line["dataset"] == name] for name in manifest.identity.inputs}


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Ledger lines by file: every row of nasty/meta.json has one."""
    ledger = packed(NASTY / "meta.json", tmp_path_factory.mktemp("media") / "out")
    lines = {}
    for name in ("nasty_images", "nasty_videos"):
        rows = (NASTY / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        for row, line in zip(rows, ledger[name], strict=True):
            lines[json.loads(row)["id"]] = line
    return lines


# ---------------------------------------------------------------- data files

LLAVA = {
    "columns": {"messages": "conversations"},
    "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"},
}
DATA = {
    "mantis_video_unmodified.json": {
        "columns": {"messages": "conversation", "videos": "video"},
        "media_dir": "media/mantis",
    },
    "content_parts.jsonl": {},
    "toolcall_roles.json": LLAVA,
    "bom_crlf_blank.jsonl": {},
    "one_broken_line.jsonl": {},
    "bad_rows.jsonl": {"media_dir": "media"},
}


def write_meta(folder: Path, files: dict[str, Any]) -> Path:
    entries = {
        name: entry
        | {"file_name": str(NASTY / "data" / name), "media_dir": str(SHARED / "data" / entry.get("media_dir", ""))}
        for name, entry in files.items()
    }
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


def outcomes(lines: list[dict[str, Any]]) -> list[str]:
    """ "packed", or "reason: detail", row by row."""
    assert [line["row"] for line in lines] == list(range(len(lines)))
    return [line["reason"] and f"{line['reason']}: {line['detail']}" or line["status"] for line in lines]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("strict")
    return packed(write_meta(folder, DATA), folder / "out")
