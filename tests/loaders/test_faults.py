"""Faults under a live loader: files cut, replaced and written to while it reads, and more of them than may be open."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.errors import raises
from support.packed import many_packs

from neatpack import PackedShards, ShardError

pytestmark = pytest.mark.net

CHECKS = ("none", "sizes", "packs", "full")


def flip(path: Path, place: int) -> None:
    """In place: who has the file open sees it."""
    with open(path, "r+b") as file:
        file.seek(place)
        (old,) = file.read(1)
        file.seek(place)
        file.write(bytes([old ^ 1]))


@pytest.mark.parametrize("check", CHECKS)
def test_a_shard_cut_in_mid_epoch_is_an_error_and_no_signal(out: Path, check: str) -> None:
    """Cut in place: a mapped one would end the process."""
    packs = PackedShards(out, shuffle=False, check=check)
    items = iter(packs)
    first = next(items)
    shard, last = out / "shards/pack-000000.tar", packs.reader.manifest.shards[0].num_packs - 1
    os.truncate(shard, shard.stat().st_size // 2)
    size = packs.reader.manifest.shards[0].bytes
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", got=shard.stat().st_size, expected=size):
        packs.pack(last)
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", expected=size):
        list(items)
    assert first["input_ids"].sum() > 0, "what was read before is there"


@pytest.mark.parametrize("check", CHECKS)
def test_a_shard_replaced_in_mid_epoch_is_noticed(out: Path, check: str) -> None:
    packs = PackedShards(out, shuffle=False, check=check)
    packs.pack(0)
    shard, line = out / "shards/pack-000000.tar", pq.read_table(out / "index.parquet").to_pylist()[1]
    flip(shard, line["members"][0]["offset"] + 200)
    os.utime(shard, ns=(0, shard.stat().st_mtime_ns + 1))  # clocks of file systems are coarse
    told: dict[str, Any] = {"check": False, "pack": None} if check in CHECKS[:2] else {"check": None, "pack": 1}
    for _ in range(2):  # who asks again is told again
        with raises(ShardError, "shard-damaged", shard="pack-000000.tar", **told):
            packs.pack(1)


def test_what_was_compared_is_compared_again_after_its_file_was_touched(out: Path) -> None:
    packs = PackedShards(out, shuffle=False)
    assert packs.pack(1)["pack"] == 1
    shard, line = out / "shards/pack-000000.tar", pq.read_table(out / "index.parquet").to_pylist()[1]
    flip(shard, line["members"][0]["offset"] + 200)
    os.utime(shard, ns=(0, shard.stat().st_mtime_ns + 1))
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", pack=1, expected=line["crc32"]):
        packs.pack(1)


def test_the_same_bytes_under_the_name_are_no_fault(out: Path) -> None:
    """A copy of an output may be renewed under a training."""
    packs = PackedShards(out, shuffle=False)
    items = iter(packs)
    next(items)
    for shard in sorted((out / "shards").iterdir()):
        shutil.copy(shard, out / "copy")
        (out / "copy").rename(shard)
    assert len(list(items)) == len(packs) - 1


def test_another_output_under_the_name_is_never_mixed_in(out: Path, tmp_path: Path) -> None:
    """Shards of another output, of the same names, while this one is read: what is open is still the old one."""
    packs = PackedShards(out, shuffle=False)
    items = iter(packs)
    got = [next(items)]
    other = many_packs(tmp_path / "other")
    for number, shard in enumerate(sorted((other / "shards").iterdir())):
        content = bytearray(shard.read_bytes())
        content[2000 + number] ^= 1
        (out / "new").write_bytes(content)
        (out / "new").rename(out / "shards" / shard.name)
    first = packs.reader.manifest.shards[0].num_packs
    with raises(ShardError, "shard-damaged", shard="pack-000001.tar", pack=first):
        for item in items:
            got.append(item)
    assert len(got) == packs.reader.manifest.shards[0].num_packs


def test_reads_are_private(out: Path) -> None:
    reader = PackedShards(out).reader
    content = reader.content(0)
    np.frombuffer(content, np.uint8)[:] = 0
    assert any(reader.content(0))
