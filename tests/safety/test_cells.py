"""A row may name any cell of any parquet file: what is not the bytes of a medium costs the row, and little else."""

import json
import os
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_rows import PNG, dataset
from helpers import assert_verified, tiny_config
from support.errors import raises_media_error

from neatpack.format.manifest import Manifest
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.media import parquet
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import MediaError, MediaRef, Skip
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
COLUMNS: dict[str, Any] = {
    "image": pa.array([{"bytes": PNG, "path": "a.png"}] * 4, IMAGE),
    "large": pa.array([PNG] * 4, pa.large_binary()),
    "images": pa.array([[{"bytes": PNG, "path": "a"}]] * 4, pa.list_(IMAGE)),
    "text": pa.array(["a"] * 4),
    "number": pa.array([1 << 40] * 4),
    "numbers": pa.array([[1, 2]] * 4),
    "float": pa.array([0.5] * 4),
    "flag": pa.array([True] * 4),
    "nothing": pa.nulls(4),
    "fixed": pa.array([b"abcd"] * 4, pa.binary(4)),
    "map": pa.array([[("a", b"b")]] * 4, pa.map_(pa.string(), pa.binary())),
}
GOOD = ("0/0/image/bytes", "1/1/image/bytes", "0/1/large", "1/0/images/bytes")
BAD = {
    "0/0/text": "string", "0/0/number": "int64",
    "0/0/numbers": "int64", "0/0/float": "", "0/0/flag": "",
    "0/0/nothing": "", "0/0/fixed": "", "0/0/map": "", "0/0/image": "",
    "0/0/image/path": "string", "0/0/image/bytes/more": "image.bytes.more",
    "0/0/absent": "image, large", "2/0/large": "2 ",
    "2147483647/0/large": "2 ", "0/9/large": "0/9/large",
    "0/2147483647/large": "0/2147483647/large",
}  # fmt: skip
NO_CELLS = ("4294967296/0/large", "0/9223372036854775807/large", "-1/0/large", "9" * 5000 + "/0/large", "0/0", "0",
            "1e3/0/a", "/", "0//large")  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    pq.write_table(pa.table(COLUMNS), tmp_path / "a.parquet", row_group_size=2)
    return tmp_path / "a.parquet"


def opened(path: Path, cell: str) -> bytes:
    with open_media(MediaRef(kind="image", path=str(path), inside=cell)) as file:
        return file.read()


@pytest.mark.parametrize("cell", GOOD)
def test_cell_of_bytes_is_read(table: Path, cell: str) -> None:
    assert opened(table, cell) == PNG


@pytest.mark.parametrize("cell", BAD)
def test_cell_without_bytes_is_bad_media(table: Path, cell: str) -> None:
    with pytest.raises(MediaError) as caught:
        opened(table, cell)
    assert (caught.value.skip.reason, BAD[cell] in caught.value.skip.detail) == ("bad_media", True), caught.value


@pytest.mark.parametrize("cell", NO_CELLS)
def test_cell_that_no_file_can_have_is_a_bad_row(cell: str) -> None:
    row = {"text": "a", "images": [{"path": "a.parquet", "cell": cell}]}
    found = convert(row, dataset("document"))
    assert isinstance(found, Skip) and found.reason == "bad_row", found


def test_file_that_is_no_table_is_bad_or_missing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("PAR1 but not really")
    (tmp_path / "empty").touch()
    (tmp_path / "footer").write_bytes(b"PAR1" + b"\xff" * 100 + struct.pack("<I", 2**31 - 1) + b"PAR1")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("text", "empty", "footer", "pipe", "folder", "absent"):
        with pytest.raises(MediaError) as caught:
            opened(tmp_path / name, "0/0/a")
        assert caught.value.skip.reason in ("bad_media", "missing_media"), name


def test_column_too_large_to_unpack_is_not_read(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the metadata say; a column of zeros has a thousandth of its size on disk."""
    monkeypatch.setattr(parquet, "MAX_STRETCH_BYTES", 100)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it is read"))
    with raises_media_error("bad_media", "100"):
        opened(table, "0/1/large")


def test_integers_take_no_memory(tmp_path: Path) -> None:
    """A few KB on disk, 160 MB unpacked."""
    column = pa.array(np.zeros(20_000_000, np.int8)).cast(pa.int64(), safe=False)
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet", compression="zstd")
    del column
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raises_media_error("bad_media", "int64"):
        opened(tmp_path / "a.parquet", "0/0/a")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 << 10


def test_rows_with_bad_cells_cost_themselves(table: Path, tmp_path: Path) -> None:
    """A whole run: all cells that mean harm among good ones."""
    cells = [*GOOD, *BAD, *NO_CELLS]
    rows = [
        {
            "messages": [{"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "Me."}],
            "images": [{"path": "a.parquet", "cell": cell}],
        }
        for cell in cells
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "meta.json").write_text(json.dumps({"cells": {"file_name": "rows.jsonl", "media_dir": "."}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out"))
    assert_verified(tmp_path / "out")
    lines = read_ledger(tmp_path / "out", Manifest.read(tmp_path / "out")).to_pylist()
    found = {cells[line["row"]]: line["reason"] or line["status"] for line in lines}
    expected = dict.fromkeys(GOOD, "packed") | dict.fromkeys(BAD, "bad_media") | dict.fromkeys(NO_CELLS, "bad_row")
    assert found == expected
