"""Rows of every format from the meta JSON to packs: the same rows, however they are written, give the same packs."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.format_cases import NAMES, folder as folder, meta_of, written
from support.outputs import read_ledger, read_packs
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = pytest.mark.net


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
