"""Faults under a live loader: files cut, replaced and written to while it reads, and more of them than may be open."""

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import ROOT, many_packs, one_shard_per_pack
from object_store import serving
from support.errors import raises

from jobs.fuzzing.output import loaded
from neatpack import PackedShards
from neatpack.loaders.opened import FILES_OPEN
from neatpack.pipeline.manifest import ShardError

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


def test_of_many_shards_each_size_is_compared_where_it_is_read(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That they are there is seen at once; what a check promises to look at first, it looks at first."""
    monkeypatch.setattr("neatpack.loaders.files.SIZED_AT_ONCE", 1)
    shard = out / "shards/pack-000001.tar"
    os.truncate(shard, shard.stat().st_size - 512)
    packs = PackedShards(out, shuffle=False)
    first = packs.reader.manifest.shards[0].num_packs
    assert packs.pack(first - 1)["pack"] == first - 1
    expected = packs.reader.manifest.shards[1].bytes
    with raises(ShardError, "shard-damaged", shard="pack-000001.tar", got=expected - 512, expected=expected):
        packs.pack(first)
    for check in ("sizes", "full"):
        with raises(ShardError, "shard-damaged", shard="pack-000001.tar", got=expected - 512):
            PackedShards(out, check=check)
    shard.unlink()
    with raises(ShardError, "shard-damaged", shard="pack-000001.tar", got=None):
        PackedShards(out)
    os.mkfifo(shard)
    with raises(ShardError, "shard-damaged", shard="pack-000001.tar", got=None):
        PackedShards(out)
    shutil.rmtree(out / "shards")
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", got=None):
        PackedShards(out)


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


def test_a_pack_is_compared_once_in_a_process(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def crc32(content: Any) -> int:
        counted.append(len(content))
        return zlib.crc32(content)

    monkeypatch.setattr("neatpack.loaders.reader.zlib_ng", type("zlib_ng", (), {"crc32": staticmethod(crc32)}))
    packs = PackedShards(out)
    for _ in range(3):
        assert len(list(packs)) == len(packs)
    assert len(counted) == len(packs)
    with serving(out.parent) as store:
        remote = PackedShards(store.uri(out.name))
        for _ in range(2):
            assert len(list(remote)) == len(packs)
    assert len(counted) == 3 * len(packs), "what comes over a network is another copy each time"


# More shards than may be open


MANY = """
import resource, sys
import torch
from neatpack import PackedShards
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
outputs = [(str(number), out) for number, out in enumerate(sys.argv[2:])]
print(sum(1 for _ in PackedShards(outputs, pixels="uint8", shuffle=False)))
"""


def test_more_shards_than_files_may_be_open(out: Path, tmp_path: Path) -> None:
    expected = loaded(out)
    one_shard_per_pack(out)
    assert loaded(out) == expected
    copies = [str(shutil.copytree(out, tmp_path / f"copy-{number}")) for number in range(5)]
    limit = FILES_OPEN + 40  # torch and the interpreter want some, too
    num_shards = len(copies) * len(list((out / "shards").iterdir()))
    assert num_shards > limit
    done = subprocess.run([sys.executable, "-c", MANY, str(limit), *copies], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr[-500:]) == (f"{num_shards}\n", "")


def test_reads_are_private(out: Path) -> None:
    reader = PackedShards(out).reader
    content = reader.content(0)
    np.frombuffer(content, np.uint8)[:] = 0
    assert any(reader.content(0))
