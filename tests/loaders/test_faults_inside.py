"""What test_faults.py proves by internals."""

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from object_store import serving
from places import ROOT
from support.errors import raises
from support.shards import one_shard_per_pack

from jobs.fuzzing.output import loaded
from neatpack import PackedShards, ShardError
from neatpack.format.output_files import FILES_OPEN


def test_of_many_shards_each_size_is_compared_where_it_is_read(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That they are there is seen at once; what a check promises to look at first, it looks at first."""
    monkeypatch.setattr("neatpack.format.output_files.SIZED_AT_ONCE", 1)
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


def test_a_pack_is_compared_once_in_a_process(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def crc32(content: Any) -> int:
        counted.append(len(content))
        return zlib.crc32(content)

    monkeypatch.setattr("neatpack.format.output.zlib_ng", type("zlib_ng", (), {"crc32": staticmethod(crc32)}))
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
