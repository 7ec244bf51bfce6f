"""PackedShards: order, ranks, workers, resuming and elasticity, on a real small output."""

import multiprocessing
import shutil
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers import ROOT, files_of, many_packs, packs_of
from object_store import serving
from support.errors import raises
from torch.utils.data import DataLoader

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.loaders import shared
from neatpack.pipeline.manifest import FORMAT, OutputError, ShardError


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return many_packs(tmp_path_factory.mktemp("stream"))


def numbers(items):
    return [item["pack"] for item in items]


def stream(out, **options):
    return PackedShards(out, pixels="uint8", check="none", **options)


# The stream


def test_items_are_the_packs(out):
    packs = {pack.number: pack for pack in packs_of(out)}
    items = list(PackedShards(out))
    assert sorted(numbers(items)) == sorted(packs)
    for item in items:
        pack = packs[item["pack"]]
        for name in ("input_ids", "labels", "position_ids", "seq_lens", "mm_token_type_ids", "image_grid_thw"):
            assert np.array_equal(item[name].numpy(), pack.arrays[name])
        assert item["attention_mask"].tolist() == [
            document for document, length in enumerate(pack.arrays["seq_lens"], 1) for _ in range(length)
        ]
        assert item["n_images"] == len(pack.arrays["image_grid_thw"]) and item["n_videos"] == 0
        assert all(item[name].dtype == torch.long for name in ("input_ids", "labels", "position_ids", "seq_lens"))
        assert item["pixel_values"].dtype == torch.bfloat16
        assert item["pixel_values"].shape == (len(pack.arrays["pixel_values"]), 3 * 2 * 14 * 14)


def test_random_access(out):
    dataset = stream(out)
    assert dataset.pack(3)["pack"] == 3
    with raises(IndexError, "document-unknown", pack=100000):
        dataset.pack(100_000)


def test_a_relative_path_is_that_of_the_folder_where_it_was_given(out, monkeypatch, tmp_path):
    """Hydra changes the working directory; shards are opened later, and again by every worker."""
    monkeypatch.chdir(out.parent)
    packs = PackedShards(out.name)
    monkeypatch.chdir(tmp_path)
    assert numbers(packs) == numbers(PackedShards(out))


@pytest.mark.parametrize("pixels", ["uint8", "bf16"])
def test_writing_to_an_item_touches_neither_the_shard_nor_the_next_epoch(out, pixels):
    dataset = PackedShards(out, pixels=pixels)
    before = files_of(out)
    whole = {name: tensor.clone() for name, tensor in dataset.pack(0).items() if isinstance(tensor, torch.Tensor)}
    for tensor in dataset.pack(0).values():
        if isinstance(tensor, torch.Tensor):
            tensor[...] = 3
    again = dataset.pack(0)
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    assert files_of(out) == before


@pytest.mark.parametrize("world", [1, 3, 4])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_ranks_together_see_the_epoch(out, world, drop_last):
    ranks = [stream(out, rank=r, world_size=world, drop_last=drop_last) for r in range(world)]
    per_rank = [numbers(rank) for rank in ranks]
    assert len({len(share) for share in per_rank}) == 1
    assert [len(rank) for rank in ranks] == [len(share) for share in per_rank]
    seen = [pack for share in per_rank for pack in share]
    total = len(ranks[0].reader.packs)
    if drop_last:
        assert len(seen) == len(set(seen)) == total // world * world
    else:
        assert set(seen) == set(ranks[0].reader.packs.tolist())


def test_set_epoch_reshuffles_and_shuffle_false_is_the_plan(out):
    dataset = stream(out)
    first = numbers(dataset)
    dataset.set_epoch(0)
    assert numbers(dataset) == first, "the same epoch again, because it was asked for"
    dataset.set_epoch(1)
    second = numbers(dataset)
    assert sorted(second) == sorted(first)
    assert second != first
    dataset.set_epoch(0)
    assert numbers(dataset) == first
    assert numbers(stream(out, shuffle=False)) == dataset.reader.packs.tolist()


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_workers_do_not_change_what_a_rank_sees(out, num_workers, batch_size):
    def batches(workers):
        dataset = stream(out, rank=1, world_size=2, batch_size=batch_size)
        return list(DataLoader(dataset, batch_size=batch_size, num_workers=workers, collate_fn=numbers))

    assert batches(num_workers) == batches(0)


def test_a_persistent_worker_sees_the_new_epoch(out):
    dataset = stream(out)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    for epoch in (0, 1, 2):
        dataset.set_epoch(epoch)
        alone = stream(out)
        alone.set_epoch(epoch)
        assert numbers(loader) == numbers(alone)


def test_collated_batches_through_workers(out):
    dataset = PackedShards(out, batch_size=2)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=neat_packed_vlm_collater)
    tokens = sum(int((batch["labels"] != -100).sum()) for batch in loader)
    assert tokens == sum(pq.read_table(out / "index.parquet")["target_tokens"].to_pylist())


def lies_in_shared_memory(tensor):
    """Of torch, or of a slot that the worker gets back."""
    starts = [np.frombuffer(slot.memory, np.uint8) for slot in shared._used.values()]
    own = (start.ctypes.data <= tensor.data_ptr() < start.ctypes.data + len(start) for start in starts)
    return tensor.is_shared() or any(own)


@pytest.mark.parametrize("pixels, small", [("bf16", 2**30), ("bf16", 4096), ("uint8", 4096)])
def test_what_workers_hand_over_is_what_they_made(out, pixels, small, monkeypatch):
    """Small tensors come by value and large ones in shared memory, of every type."""
    monkeypatch.setattr("neatpack.loaders.shared.SMALL", small)

    def batches(workers):
        dataset = PackedShards(out, pixels=pixels, batch_size=2)
        return list(DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=neat_packed_vlm_collater))

    large = 0
    for ours, theirs in zip(batches(2), batches(0), strict=True):
        assert type(ours) is dict and list(ours) == list(theirs)
        for name, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert ours[name].dtype == value.dtype and torch.equal(ours[name], value), name
                assert lies_in_shared_memory(ours[name]) == (value.nbytes > small), name
                large += value.nbytes > small
        assert ours["labels"].data_ptr() == ours["shift_labels"].data_ptr(), "sent once"
        for value in ours.values():
            if isinstance(value, torch.Tensor):
                value[...] = 0  # nobody else's memory
        for name, how in theirs.get("stored_pixels", {}).items():
            got = ours["stored_pixels"][name]
            assert torch.equal(got.table, how.table) and not got.table.is_shared()
            assert (got.repeat, got.counts, got.first) == (how.repeat, how.counts, how.first)
    assert (large > 0) == (small == 4096)


KILLED = """
import multiprocessing, os, signal, sys
from neatpack import PackedShards
batches = iter(PackedShards(sys.argv[1]).loader(num_workers=2))
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_the_process_that_they_read_for(out):
    """Killed, it reads no more from the pipe that they write batches into."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(out)], cwd=ROOT, stdout=subprocess.PIPE) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, workers
        time.sleep(0.1)


# What is refused


@pytest.fixture
def damaged(out, tmp_path):
    shutil.copytree(out, tmp_path / "copy", ignore=shutil.ignore_patterns("work"))
    return tmp_path / "copy"


def test_no_manifest(damaged):
    (damaged / "manifest.json").unlink()
    with raises(OutputError, "output-missing", out=str(damaged), file="manifest.json"):
        PackedShards(damaged)


def test_unknown_format(damaged):
    text = (damaged / "manifest.json").read_text()
    (damaged / "manifest.json").write_text(text.replace(f'"format": {FORMAT},', '"format": 99,'))
    with raises(OutputError, "output-format", out=str(damaged), got=99):
        PackedShards(damaged)


def test_checksums(damaged):
    shard = damaged / "shards/pack-000000.tar"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    packs = PackedShards(damaged)  # the size is right
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar") as caught:
        list(packs)
    assert caught.error.pack is not None
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", pack=None):
        PackedShards(damaged, check="full")
    shard.write_bytes(content[:-512])
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", got=len(content) - 512):
        PackedShards(damaged)
    shard.unlink()
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", got=None):
        PackedShards(damaged)


def test_a_changed_index(damaged):
    (damaged / "loads.arrow").write_bytes((damaged / "loads.arrow").read_bytes() + b"x")
    packs = PackedShards(damaged)
    with raises(OutputError, "output-damaged", file="loads.arrow"):
        next(iter(packs))


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 1},
        {"rank": 2, "world_size": 2},
        {"rank": "0", "world_size": "1"},
        {"rank": 0.0, "world_size": 1},
        {"pixels": "fp8"},
        {"check": "some"},
        {"batch_size": 0},
        {"batch_size": None},
        {"batch_size": "2"},
        {"batch_size": 1.0},
        {"seed": -1},
        {"seed": None},
        {"seed": 1.5},
        {"shuffle": "no"},
        {"drop_last": None},
        {"prefetch": -1},
        {"decode_threads": 1.5},
        {"decode_threads": "2"},
        {"cache_gb": "500", "cache": "/scratch"},
        {"cache_gb": -1, "cache": "/scratch"},
    ],
    ids=str,
)
def test_wrong_arguments(out, arguments):
    with raises(ValueError, "loader-argument", argument=next(iter(arguments))):
        PackedShards(out, **arguments)


@pytest.mark.parametrize(
    ("outputs", "fields"),
    [
        (5, {"outputs": 5}),
        (b"out", {"outputs": b"out"}),
        (["one", "two"], {"outputs": ["one", "two"]}),
        ([("one", 5)], {"outputs": ("one", 5)}),
        ([("one", "out", "0.5")], {"weights": ["0.5"]}),
        ([("one", "out", float("inf"))], {"weights": [float("inf")]}),
    ],
)
def test_wrong_outputs(outputs, fields):
    with raises(ValueError, "mixture-invalid", **fields):
        PackedShards(outputs)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"batch_size": None}, {"got": None, "least": 1}),
        ({"batch_size": 0}, {"got": 0, "least": 1}),
        ({"batch_size": 2.0}, {"got": 2.0}),
        ({"batch_size": True}, {"got": True}),
        ({"num_workers": None}, {"got": None, "least": 0}),
        ({"num_workers": "2"}, {"got": "2"}),
        ({"num_workers": 1.5}, {"got": 1.5}),
        ({"model": "qwen"}, {"got": "str"}),
        ({"collate_fn": 5}, {"got": "int"}),
        ({"in_order": False, "num_workers": 2}, {"got": False}),
    ],
)
def test_wrong_arguments_of_a_loader(out, arguments, fields):
    with raises(ValueError, "loader-argument", argument=next(iter(arguments)), **fields):
        PackedShards(out).loader(**arguments)


def test_numbers_of_numpy_and_torch_are_numbers(out):
    packs = PackedShards(out, seed=np.int64(3), rank=torch.tensor(0), world_size=np.uint8(1))
    assert len(next(iter(packs.loader(batch_size=np.int32(2))))["input_ids"]) == 2
    packs.set_epoch(np.int64(2))
    assert packs.epoch == 2


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None])
def test_an_epoch_that_is_none(out, epoch):
    packs = PackedShards(out)
    with raises(ValueError, "loader-argument", argument="epoch", got=epoch, least=0):
        packs.set_epoch(epoch)
    with raises(ValueError, "loader-argument", argument="epoch of the state", got=epoch):
        packs.load_state_dict(packs.state_dict() | {"epoch": epoch})


@pytest.mark.parametrize("position", [-8, 1.5, "1", None])
def test_a_position_that_is_none(out, position):
    packs = PackedShards(out)
    with raises(ValueError, "loader-argument", argument="position of the state", got=position):
        packs.load_state_dict(packs.state_dict() | {"position": position})
    with raises(ValueError, "loader-state", got="NoneType"):
        packs.load_state_dict(None)


# Other readers and places


def test_ranged_reads_give_the_same(out):
    """An output in a store is read by range and ahead of time."""
    with serving(out.parent) as store:
        local, remote = PackedShards(out), PackedShards(store.uri(out.name), prefetch=3)
        assert not remote.reader.is_local
        for ours, theirs in zip(local, remote, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[k], theirs[k]) for k in ours if isinstance(ours[k], torch.Tensor))


def test_hugging_face_datasets_reads_the_shards(out, tmp_path):
    """With none of our code: columns by member, arrays as .npy."""
    files = sorted(str(path) for path in (out / "shards").iterdir())
    loaded = datasets.load_dataset("webdataset", data_files={"train": files}, split="train", cache_dir=str(tmp_path))
    folder = datasets.load_dataset(str(out / "shards"), split="train", streaming=True)
    assert [row["__key__"] for row in folder] == list(loaded["__key__"])
    packs = {f"{pack.number:09d}": pack for pack in packs_of(out)}
    assert len(loaded) == len(packs)
    for row in loaded:
        pack = packs[row["__key__"]]
        for name, array in pack.arrays.items():
            assert np.array_equal(np.asarray(row[f"{name}.npy"]).reshape(array.shape), array), name


def test_reading_from_another_process(out):
    """The dataset is pickled to spawned workers."""
    loader = DataLoader(
        stream(out), batch_size=None, num_workers=1, multiprocessing_context=multiprocessing.get_context("spawn")
    )
    assert numbers(loader) == numbers(stream(out))
