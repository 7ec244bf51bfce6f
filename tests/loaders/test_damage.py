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
from support.damage import Lines, edit_table, has, put
from support.errors import raises
from support.outputs import sign

from neatpack import OutputError, PackedShards, ShardError

pytestmark = pytest.mark.net


def size(number: int, value: int) -> Callable[[Lines], None]:
    return lambda lines: lines[3]["sizes"].__setitem__(number, value)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (put(blocks=0), {"column": "blocks", "pack": 3, "shard": "pack-000000.tar"}),
        (put(blocks=-7), {"column": "blocks", "pack": 3, "shard": "pack-000000.tar"}),
        (put(blocks=(1 << 31) - 1), {"column": "blocks", "pack": 0, "shard": "pack-000000.tar"}),
        (put(tokens=1 << 30), {"column": "tokens", "pack": 3, "shard": "pack-000000.tar"}),
        (put(tokens=-1), {"column": "tokens", "pack": 3}),
        (put(visual_tokens=1 << 30), {"column": "visual_tokens", "pack": 3}),
        (put(num_images=-1), {"column": "num_images", "pack": 3, "shard": "pack-000000.tar"}),
        (put(tokens=None), {"column": None}),
        (lambda lines: lines.pop(), {"column": None}),
        (lambda lines: lines.insert(3, lines[3]), {"column": None}),
    ],
)
def test_loader_index_that_was_edited(out: Path, change: Callable[[Lines], Any], fields: dict[str, Any]) -> None:
    """The loader finds it when it opens, before it reads where a line points."""
    edit_table(out, "index.arrow", change)
    with pytest.raises(OutputError) as caught:
        PackedShards(out, check="none")
    assert has(caught.value, out=str(out), file="index.arrow", **fields)
    found = list_problems(out)
    assert "index.arrow" in {problem.place for problem in found}, found


def test_sizes_that_are_exchanged(out: Path) -> None:
    """They add up to the shard, so the loader finds them where it reads such a pack."""

    def exchange(lines: Lines) -> None:
        other = next(at for at in range(4, len(lines)) if lines[at]["blocks"] != lines[3]["blocks"])
        lines[3]["blocks"], lines[other]["blocks"] = lines[other]["blocks"], lines[3]["blocks"]

    edit_table(out, "index.arrow", exchange)
    for check in ("packs", "none"):
        with raises(ShardError, "shard-damaged", pack=3):
            PackedShards(out, check=check).pack(3)
    assert "index.arrow" in {problem.place for problem in list_problems(out)}


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
