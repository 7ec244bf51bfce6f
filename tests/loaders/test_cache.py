"""The cache of remote shards: real processes, pyarrow's S3 client, and a store that counts what it is asked for."""

import errno
import os
import shutil
import signal
from operator import itemgetter

import pytest
from object_store import ANEW, read_all, read_first, read_with_limit, serving, started, sums_of
from support.caches import PATIENCE, assert_same, cached, kept, names, shards_of
from support.errors import raises
from support.outputs import read_manifest
from support.packed import tiny_config
from support.shards import one_shard_per_pack

from neatpack import OutputError, PackedShards, ShardError, run_pack

pytestmark = pytest.mark.net


# Items


def test_items_are_those_of_the_local_output(bucket, store, tmp_path):
    local = list(PackedShards(bucket / "out"))
    packs = cached(store, tmp_path)
    assert_same(packs, local)
    shards = shards_of(bucket)
    assert len(shards) == 3 and kept(tmp_path) == names(shards)
    assert [store.num("GET", shard.name) for shard in shards] == [1, 1, 1], "each whole, by one request"
    packs.set_epoch(0)
    assert_same(packs, local)
    assert_same([packs.pack(3)], [PackedShards(bucket / "out").pack(3)])
    assert store.num("GET", ".tar") == 3, "warm: nothing is read from the store"


def test_shards_are_read_ahead(bucket, store, tmp_path):
    """The plan's order is shard after shard: with the first pack, the next two shards are asked for, and come."""
    packs = cached(store, tmp_path, shuffle=False)
    items = iter(packs)
    next(items)
    items.close()  # waits for what is under way
    assert kept(tmp_path) == names(shards_of(bucket))


def test_threads_of_a_loader_share_it(bucket, store, tmp_path):
    loader = cached(store, tmp_path).loader(num_workers=2, collate_fn=itemgetter(0))
    assert_same(loader, PackedShards(bucket / "out"))
    assert store.num("GET", ".tar") == 3


def test_local_outputs_need_none(bucket, tmp_path):
    assert_same(PackedShards(bucket / "out", cache=tmp_path / "no", cache_gb=1), PackedShards(bucket / "out"))
    assert not (tmp_path / "no").exists()


def test_ranged_reads_open_a_shard_once(bucket, store):
    packs = PackedShards(store.uri("out"), check="none")
    assert_same(packs, PackedShards(bucket / "out"))
    assert store.num("GET", ".tar") == len(packs.reader.packs) > 30
    assert store.num("HEAD", ".tar") == 3


@pytest.mark.parametrize("num_workers", [0, 4])
def test_a_pack_costs_one_request(bucket, store, num_workers):
    """What was asked for to compare the sizes, at the beginning, need not be asked for again."""
    packs = PackedShards(store.uri("out"))
    loader = packs.loader(num_workers=num_workers, collate_fn=list)
    assert (store.num("HEAD", ".tar"), store.num("GET", ".tar")) == (3, 0)
    store.requests.clear()
    for epoch in range(2):
        assert len(list(loader)) == len(packs) > 30
        assert (store.num("HEAD", ".tar"), store.num("GET", ".tar")) == (0, len(packs) * (epoch + 1))
    assert store.num("GET", "index.arrow") == 0, "it is read once, when the output is opened"


def test_sizes_of_many_shards_are_listed(bucket, store, tmp_path):
    shutil.copytree(bucket / "out", bucket / "many", dirs_exist_ok=True)
    one_shard_per_pack(bucket / "many")
    packs = PackedShards(store.uri("many"))
    assert len(packs) > 30 and (store.num("HEAD", ".tar"), store.num("GET", ".tar")) == (0, 0)
    path = bucket / "many/shards/pack-000020.tar"
    path.write_bytes(path.read_bytes()[:-512])
    with raises(
        ShardError,
        "shard-damaged",
        expected=39936,
        got=39424,
        out="s3://bucket/many",
        pack=None,
        shard="pack-000020.tar",
    ):
        PackedShards(store.uri("many"))
    path.unlink()
    with raises(
        ShardError,
        "shard-damaged",
        expected=39936,
        got=None,
        out="s3://bucket/many",
        pack=None,
        shard="pack-000020.tar",
    ):
        PackedShards(store.uri("many"))


# Processes


def test_processes_at_once_download_each_shard_once(bucket, store, tmp_path):
    barrier, results = ANEW.Barrier(4), ANEW.Queue()
    packs = cached(store, tmp_path)
    processes = [started(read_all, packs, barrier, results) for _ in range(4)]
    sums = [results.get(timeout=PATIENCE) for _ in processes]
    for process in processes:
        process.join()
    assert sums == [sums_of(PackedShards(bucket / "out"))] * 4
    assert store.num("GET", ".tar") == 3
    assert kept(tmp_path) == names(shards_of(bucket)), "and nothing else is left"


def test_a_killed_downloader_blocks_and_poisons_nobody(bucket, store, tmp_path):
    """One is killed in the middle of a shard, while another waits for it: that one starts anew and gets it right."""
    shard = shards_of(bucket)[0]
    store.hold(f"out/shards/{shard.name}")
    packs = cached(store, tmp_path)
    victim = started(read_first, packs)
    assert store.reached.wait(PATIENCE)
    assert kept(tmp_path) == {f"{shard.sha256}.part"}
    barrier, results = ANEW.Barrier(2), ANEW.Queue()
    waiting = started(read_all, packs, barrier, results)
    barrier.wait(PATIENCE)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert results.get(timeout=PATIENCE) == sums_of(PackedShards(bucket / "out"))
    waiting.join()
    assert kept(tmp_path) == names(shards_of(bucket))
    assert (tmp_path / f"{shard.sha256}.tar").read_bytes() == (bucket / "out/shards" / shard.name).read_bytes()


def test_a_cached_shard_that_was_cut_is_fetched_again(bucket, store, tmp_path):
    packs = cached(store, tmp_path)
    list(packs)
    first = shards_of(bucket)[0]
    os.truncate(tmp_path / f"{first.sha256}.tar", 1000)
    packs.set_epoch(0)
    assert_same(packs, PackedShards(bucket / "out"))
    assert store.num("GET", first.name) == 2


def test_a_cached_shard_that_was_damaged_is_told(bucket, store, tmp_path):
    packs = PackedShards(store.uri("out"), cache=tmp_path, cache_gb=1.0)
    packs.pack(0)
    path = tmp_path / f"{shards_of(bucket)[0].sha256}.tar"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    again = PackedShards(store.uri("out"), cache=tmp_path, cache_gb=1.0)
    with raises(ShardError, "shard-damaged", out="s3://bucket/out", pack=0, shard="pack-000000.tar"):
        again.pack(0)


def size_now(path):
    """What is read ahead may drive it out between the listing and this."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_small_cache_keeps_its_bound_and_the_items(bucket, store, tmp_path):
    largest = max(shard.bytes for shard in shards_of(bucket))
    packs = cached(store, tmp_path, gb=largest / 1e9)
    for item, local in zip(packs, PackedShards(bucket / "out"), strict=True):
        assert_same([item], [local])
        assert sum(map(size_now, tmp_path.iterdir())) <= largest


# Several outputs


def test_outputs_share_a_folder(bucket, store, tmp_path):
    """Shards of the same name and other content do not meet; a copy of an output costs nothing."""
    run_pack(tiny_config(bucket / "data" / "meta.json", bucket / "other", pack_size=300))
    shutil.copytree(bucket / "out", bucket / "copy", dirs_exist_ok=True)
    for out in ("out", "other", "copy", "other", "out"):
        assert_same(cached(store, tmp_path, out=out), PackedShards(bucket / out))
    shards = {out: read_manifest(bucket / out).shards for out in ("out", "other")}
    assert {shard.name for shard in shards["out"]} & {shard.name for shard in shards["other"]}
    assert kept(tmp_path) == names([*shards["out"], *shards["other"]])
    assert {key.split("/")[0] for method, key in store.requests if method == "GET" and key.endswith(".tar")} == {
        "out", "other",
    }  # fmt: skip


# What goes wrong


@pytest.fixture
def damaged(bucket, tmp_path):
    shutil.copytree(bucket / "out", tmp_path / "out", ignore=shutil.ignore_patterns("work"))
    with serving(tmp_path) as store:
        yield store


def test_a_damaged_download_is_refused_and_not_kept(damaged, tmp_path):
    shard = tmp_path / "out" / "shards" / shards_of(tmp_path)[0].name
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    packs = cached(damaged, tmp_path / "cache")
    with raises(OutputError, "shard-damaged", pack=None, shard="pack-000000.tar"):
        packs.pack(0)
    assert kept(tmp_path / "cache") == set()
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)  # mended
    assert_same([packs.pack(0)], [PackedShards(tmp_path / "out").pack(0)])


def test_a_shard_of_another_size_is_refused_before_it_is_downloaded(damaged, tmp_path):
    shard = tmp_path / "out" / "shards" / shards_of(tmp_path)[0].name
    shard.write_bytes(shard.read_bytes()[:-512])
    with raises(OutputError, "shard-damaged", out="s3://bucket/out", pack=None, shard="pack-000000.tar"):
        cached(damaged, tmp_path / "cache").pack(0)
    assert damaged.num("GET", ".tar") == 0 and kept(tmp_path / "cache") == set()


def test_a_store_that_fails_is_not_the_caches_fault(damaged, tmp_path):
    packs = cached(damaged, tmp_path / "cache")
    (tmp_path / "out" / "shards" / shards_of(tmp_path)[0].name).unlink()
    with raises(ShardError, "shard-damaged", got=None, out="s3://bucket/out", pack=None, shard="pack-000000.tar"):
        packs.pack(0)
    assert kept(tmp_path / "cache") == set()


def test_without_room_packs_are_read_by_range_with_one_warning(bucket, store, tmp_path):
    results = ANEW.Queue()
    process = started(read_with_limit, cached(store, tmp_path), 900_000, results)
    sums, messages = results.get(timeout=PATIENCE)
    process.join()
    assert sums == sums_of(PackedShards(bucket / "out"))
    assert len(messages) == 1 and os.strerror(errno.EFBIG) in messages[0]
    assert kept(tmp_path) == names(shard for shard in shards_of(bucket) if shard.bytes <= 900_000)


def test_a_folder_that_is_taken_away_is_survived(bucket, store, tmp_path, caplog):
    packs = cached(store, tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert_same(packs, PackedShards(bucket / "out"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_what_is_refused_at_once(store, tmp_path):
    (tmp_path / "file").write_text("")
    with raises(ValueError, "cache-unusable"):
        cached(store, tmp_path / "file")
    with raises(ValueError, "cache-unusable", cache_gb=0.0001, shard="pack-000001.tar"):
        cached(store, tmp_path / "cache", gb=0.0001)
    with raises(ValueError, "loader-argument", argument="cache", cache_gb=None):
        PackedShards(store.uri("out"), cache=tmp_path)
