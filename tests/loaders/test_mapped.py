"""Packs of local shards are mapped, and are as if they had been read."""

import errno
import mmap
import os
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pytest
from support.errors import raises

from neatpack import PackedShards
from neatpack.loaders import mapped as module, reader as reader_module
from neatpack.loaders.mapped import LOCAL, file_system, mapped
from neatpack.loaders.reader import ShardReader
from neatpack.loaders.shared import own
from neatpack.pipeline.manifest import ShardError

needs_maps = pytest.mark.skipif(
    file_system(os.stat(gettempdir()).st_dev) not in LOCAL, reason="temporary files lie on no local file system"
)


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(reader_module, "is_small", lambda num_bytes: False)


def is_mapped(content: memoryview) -> bool:
    return isinstance(content.obj, mmap.mmap)


@needs_maps
def test_a_map_is_what_a_read_gives(sound, all_are_large):
    reader = ShardReader(sound)
    assert reader.num_packs > 3
    for pack in range(reader.num_packs):
        content, read = reader.content(pack), reader.content(pack, own)
        assert is_mapped(content) and not is_mapped(read) and content == read
        arrays = reader.arrays(pack, content)
        assert all(array.ctypes.data % 64 == 0 for array in arrays.values() if array.size)


@needs_maps
def test_who_writes_to_it_changes_no_other(sound, all_are_large):
    packs = PackedShards(sound, pixels="uint8", shuffle=False)
    first, again = packs.pack(0), packs.pack(0)
    was = first["input_ids"].clone()
    first["input_ids"].fill_(7)
    assert again["input_ids"].equal(was) and packs.pack(0)["input_ids"].equal(was)


def test_small_packs_are_read(sound):
    assert not is_mapped(ShardReader(sound).content(0))


@needs_maps
def test_so_many_at_a_time(sound, all_are_large, monkeypatch):
    monkeypatch.setattr(module, "MOST", len(module._maps) + 2)
    reader = ShardReader(sound)
    kept = [reader.content(0) for _ in range(4)]
    assert [is_mapped(each) for each in kept] == [True, True, False, False] and len(set(map(bytes, kept))) == 1
    del kept[0]
    assert is_mapped(reader.content(0))


def test_file_systems_of_other_machines_are_read(sound, all_are_large, monkeypatch):
    monkeypatch.setattr(module, "LOCAL", ("nfs4",))
    assert not is_mapped(ShardReader(sound).content(0))


@pytest.mark.parametrize(("line", "kind"), [
    ("36 35 98:0 / /data rw,noatime shared:1 - nfs4 host:/data rw", "nfs4"),
    ("36 35 98:0 / /a\\040-\\040b rw - ext4 /dev/vda rw", "ext4"),
    ("36 35 98:1 / /data rw - ext4 /dev/vda rw", ""),
    ("36 35 98:0", ""),
])  # fmt: skip
def test_what_is_mounted(monkeypatch, line, kind):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"1 0 0:5 / / rw - proc proc rw\n{line}\n")
    assert file_system.__wrapped__(os.makedev(98, 0)) == kind


@needs_maps
def test_pages_that_cannot_be_had_are_an_error_and_no_signal(tmp_path):
    """What makes maps safe: the system brings pages in, or says that it cannot."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 1 << 20, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        file.truncate(4096)
        with pytest.raises(OSError) as failed:
            memory.madvise(module._POPULATE_READ)
    assert failed.value.errno == errno.EFAULT


@needs_maps
def test_a_file_that_is_shorter_is_read_which_says_so(sound, all_are_large, tmp_path):
    with open(sound / "shards" / "pack-000000.tar", "rb") as file:
        size = os.fstat(file.fileno()).st_size
        assert mapped(file, size - 512, 1024) is None
        assert mapped(file, size - 512, 512) == np.zeros(512, np.uint8).data
    reader = ShardReader(sound)
    with (
        open(tmp_path / "short", "w+b") as short,
        raises(ShardError, "shard-damaged", missing=19968, pack=1, shard="pack-000000.tar"),
    ):
        reader._read(1, short, own)
