"""Files that are damaged, or edited with digests that fit: the loader refuses them by name, and verify tells them."""

import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import list_problems
from support.damage import Lines, edit_table, exchange, has, put
from support.errors import raises
from support.outputs import sign

from neatpack import OutputError, PackedShards, ShardError

pytestmark = pytest.mark.net


def size(number: int, value: int) -> Callable[[Lines], None]:
    return lambda lines: lines[3]["sizes"].__setitem__(number, value)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (put(shard=1), {"column": "shard", "pack": 3, "shard": "pack-000000.tar"}),
        (put(shard=-1), {"column": "shard", "pack": 3, "shard": "pack-000000.tar"}),
        (put(offset=1 << 40), {"column": "offset", "pack": 3, "shard": "pack-000000.tar"}),
        (put(offset=-512), {"column": "offset", "pack": 3, "shard": "pack-000000.tar"}),
        (exchange("offset"), {"column": "offset", "pack": 3, "shard": "pack-000000.tar"}),
        (exchange("sizes"), {"column": "offset", "pack": 4, "shard": "pack-000000.tar"}),
        (size(2, 1 << 62), {"column": "members.size", "pack": 3, "shard": "pack-000000.tar"}),
        (size(2, -1), {"column": "members.size", "pack": 3, "shard": "pack-000000.tar"}),
        (lambda lines: lines[-1].update(offset=0), {"column": "offset"}),
        (put(tokens=1 << 30), {"column": "tokens", "pack": 3, "shard": "pack-000000.tar"}),
        (put(num_images=-1), {"column": "counts", "pack": 3, "shard": "pack-000000.tar"}),
        (put(tokens=None), {"batch": 0, "column": None}),
        (lambda lines: lines.pop(), {"batch": 0, "column": None}),
        (lambda lines: lines.insert(3, lines[3]), {"batch": 0, "column": None}),
    ],
)
def test_places_that_were_edited(out: Path, change: Callable[[Lines], Any], fields: dict[str, Any]) -> None:
    """The loader finds it where it needs the batch, before it reads where that points."""
    edit_table(out, "index.arrow", change)
    packs = PackedShards(out, check="none")
    with pytest.raises(OutputError) as caught:
        packs.pack(5)
    assert has(caught.value, out=str(out), file="index.arrow", **fields)
    found = list_problems(out)
    assert "index.arrow" in {problem.place for problem in found}, found


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (put(tokens=-1), {"column": "tokens", "least": -1}),
        (put(visual_tokens=1 << 30), {"column": "visual_tokens", "most": 1 << 30}),
        (lambda lines: lines.pop(), {"column": None}),
    ],
)
def test_loads_that_were_edited(out: Path, change: Callable[[Lines], Any], fields: dict[str, Any]) -> None:
    edit_table(out, "loads.arrow", change)
    packs = PackedShards(out)
    assert packs.pack(0)["pack"] == 0
    with pytest.raises(OutputError) as caught:
        next(iter(packs))
    assert has(caught.value, out=str(out), file="loads.arrow", **fields)
    assert "loads.arrow" in {problem.place for problem in list_problems(out)}


def test_times_that_were_edited(out: Path) -> None:
    sign(out, lambda found: found["index"].update(times=[[0, 2.0]]))
    assert ("manifest.json", None, "index-mismatch") in list_problems(out)


@pytest.mark.parametrize(
    ("column", "value"),
    [("tokens", 7), ("num_documents", 1), ("target_tokens", 1), ("squares", 5), ("visual_tokens", 0), ("crc32", 0)],
)
def test_verify_holds_the_index_against_the_packs(out: Path, column: str, value: int) -> None:
    edit_table(out, "index.parquet", put(**{column: value}))
    found = list_problems(out)
    assert any(problem.pack == 3 or problem.code in ("counts-mismatch", "index-invalid") for problem in found), found


def test_a_repeat_that_was_changed(out: Path) -> None:
    content = (out / "manifest.json").read_bytes()
    (out / "manifest.json").write_bytes(content.replace(b'"repeat": 2', b'"repeat": 4', 1))
    with raises(OutputError, "output-damaged", file="manifest.json", key="digest"):
        PackedShards(out)
    assert [problem.code for problem in list_problems(out)] == ["output-damaged"]


def test_shards_beside_those_of_the_manifest_are_told(out: Path) -> None:
    shutil.copy(out / "shards/pack-000000.tar", out / "shards/pack-000099.tar")
    (out / "shards/pack-000000.tar.idx").touch()
    assert list_problems(out) == [("shards/pack-000099.tar", None, "file-unknown")]


# Tables and arrays


def test_tables_are_compared_always(out: Path) -> None:
    content = bytearray((out / "image_table.npy").read_bytes())
    content[500] ^= 1
    (out / "image_table.npy").write_bytes(content)
    with raises(OutputError, "output-damaged", file="image_table.npy"):
        PackedShards(out, check="none")


class Evil:
    def __reduce__(self) -> Any:
        return sys.exit, ("unpickled",)


@pytest.mark.parametrize(
    "table",
    [
        np.array([Evil()], dtype=object),
        np.zeros((3, 256), np.float64),
        np.zeros((3, 255), np.float32),
        np.zeros((0, 256), np.float32),
        np.zeros((3, 256), "U3"),
    ],
    ids=["pickled", "float64", "narrow", "empty", "text"],
)
def test_tables_are_float32_and_nothing_else(out: Path, table: np.ndarray) -> None:
    np.save(out / "image_table.npy", table, allow_pickle=True)
    sign(out)
    with raises(OutputError, "output-damaged", file="image_table.npy"):
        PackedShards(out)
    assert pickle.loads(pickle.dumps(ShardError("words", "pack-000000.tar", 3))).pack == 3
