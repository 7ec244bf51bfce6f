"""The cache of remote shards by itself: downloads that fail, eviction, ranges."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.caches import PATIENCE, assert_same, cached, kept, names, shards_of

from neatpack import PackedShards
from neatpack.loaders.cache import ShardCache


def content_of(path):
    """What ShardCache asks for the bytes of a shard, without a store: two chunks."""
    content = path.read_bytes()
    return lambda: iter([content[:1000], content[1000:]])


def test_large_shards_come_by_ranges_in_order(bucket, store, tmp_path, monkeypatch):
    monkeypatch.setattr("neatpack.format.output_files.CHUNK", 100_000)
    assert_same(cached(store, tmp_path), PackedShards(bucket / "out"))
    assert store.num("GET", ".tar") == sum(-(-shard.bytes // 100_000) for shard in shards_of(bucket))


def wait_for_a_waiter(path):
    """Until somebody waits for the lock of a file: `-> FLOCK … major:minor:inode` in the kernel's table."""
    inode = f":{path.stat().st_ino} "
    while not any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
        time.sleep(0.01)


def test_who_waits_for_a_download_that_fails_starts_anew(bucket, tmp_path):
    shard = shards_of(bucket)[0]
    cache = ShardCache(tmp_path, shard.bytes)
    begun = threading.Event()

    def broken():
        yield bytes(1000)
        begun.set()
        wait_for_a_waiter(tmp_path / f"{shard.sha256}.part")
        raise OSError("the store is gone")

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(cache.opened, shard, "out", broken)
        begun.wait(PATIENCE)
        opened = cache.opened(shard, "out", content_of(bucket / "out/shards" / shard.name))
        with pytest.raises(OSError, match="the store is gone"):
            failing.result()
    assert opened.read() == (bucket / "out/shards" / shard.name).read_bytes()
    assert kept(tmp_path) == names([shard])


def test_a_part_that_was_left_makes_room(bucket, tmp_path):
    shard, other = shards_of(bucket)[:2]
    cache = ShardCache(tmp_path, shard.bytes)
    (tmp_path / f"{other.sha256}.part").write_bytes(bytes(other.bytes))  # as a killed process leaves it
    cache.opened(shard, "out", content_of(bucket / "out/shards" / shard.name))
    assert kept(tmp_path) == names([shard])


# Eviction


def test_the_least_recently_used_go_first(bucket, tmp_path):
    first, second, third = shards = shards_of(bucket)
    cache = ShardCache(tmp_path, sum(shard.bytes for shard in shards) - 1)  # two of the three

    def read(shard):
        return cache.opened(shard, "out", content_of(bucket / "out/shards" / shard.name))

    file_of_first = read(first)
    read(second)
    os.utime(tmp_path / f"{second.sha256}.tar", (1, 1))  # used long ago
    read(third)
    assert kept(tmp_path) == names([first, third])
    assert read(first).read() == file_of_first.read()
    os.utime(tmp_path / f"{first.sha256}.tar", (2, 2))
    os.utime(tmp_path / f"{third.sha256}.tar", (1, 1))
    read(third)  # which is a use
    read(second)
    assert kept(tmp_path) == names([second, third])
    file_of_first.seek(0)
    assert file_of_first.read() == (bucket / "out/shards" / first.name).read_bytes(), "evicted, and still readable"


def test_shards_in_download_are_not_evicted(bucket, tmp_path):
    """While one is downloaded, another that does not fit beside it is refused; the reader then reads by range."""
    shard, other = shards_of(bucket)[:2]
    cache = ShardCache(tmp_path, max(shard.bytes, other.bytes))
    content = (bucket / "out/shards" / shard.name).read_bytes()

    def chunks():
        yield content[:1000]
        with pytest.raises(OSError, match=f"{shard.bytes} .* {other.bytes} "):
            cache.opened(other, "out", content_of(bucket / "out/shards" / other.name))
        yield content[1000:]

    assert cache.opened(shard, "out", chunks).read() == content
    assert kept(tmp_path) == names([shard])
