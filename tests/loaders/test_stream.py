"""PackedShards: order, ranks, workers, resuming and elasticity, on a real small output."""

import gc
import shutil
import threading
import warnings

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from object_store import serving
from support.errors import raises
from support.outputs import files_of, read_packs
from support.packed import many_packs, packed_rows
from torch.utils.data import DataLoader

from neatpack import OutputError, PackedShards, ShardError, neat_packed_vlm_collater

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return many_packs(tmp_path_factory.mktemp("stream"))


def numbers(items):
    return [item["pack"] for item in items]


def stream(out, **options):
    return PackedShards(out, pixels="uint8", check="none", **options)


# The stream


def test_items_are_the_packs(out):
    packs = {pack.number: pack for pack in read_packs(out)}
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
def test_threads_do_not_change_what_a_rank_sees(out, num_workers, batch_size):
    def batches(threads):
        return list(stream(out, rank=1, world_size=2).loader(batch_size, threads, collate_fn=numbers))

    assert batches(num_workers) == batches(0)


def test_set_epoch_between_loops_of_one_loader(out):
    loader = stream(out).loader(num_workers=1, collate_fn=numbers)
    for epoch in (0, 1, 2, 1):
        loader.set_epoch(epoch)
        alone = stream(out)
        alone.set_epoch(epoch)
        assert sum(loader, []) == numbers(alone)


def test_batches_of_threads_train_every_target(out):
    loader = PackedShards(out).loader(2, num_workers=2, collate_fn=neat_packed_vlm_collater)
    tokens = sum(int((batch["labels"] != -100).sum()) for batch in loader)
    assert tokens == sum(pq.read_table(out / "index.parquet")["target_tokens"].to_pylist())


@pytest.mark.parametrize("pixels", ["bf16", "fp32", "uint8"])
def test_threads_make_the_same_tensors(out, pixels):
    def batches(threads):
        packs = PackedShards(out, pixels=pixels)
        return list(packs.loader(2, threads, collate_fn=neat_packed_vlm_collater, prefetch_factor=3))

    for ours, theirs in zip(batches(3), batches(0), strict=True):
        assert type(ours) is dict and list(ours) == list(theirs)
        for name, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert ours[name].dtype == value.dtype and torch.equal(ours[name], value), name


def test_threads_use_one_core_each_and_leave_torch_as_it_was(out):
    before, seen = torch.get_num_threads(), []

    def collate(items):
        seen.append((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        return items

    list(PackedShards(out).loader(2, 2, collate_fn=collate))
    assert set(seen) == {(False, 1)} and torch.get_num_threads() == before


def test_a_loop_that_is_left_leaves_no_thread_behind(out):
    for _ in range(3):
        for _ in PackedShards(out).loader(2, 2, collate_fn=list):
            break
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("neatpack-loader")] == []


def test_an_error_in_a_thread_keeps_its_type_and_fields(out):
    def collate(items):
        raise ShardError("gone", "pack-000007.tar", 7)

    with raises(ShardError, "shard-damaged", shard="pack-000007.tar", pack=7):
        next(iter(PackedShards(out).loader(2, 2, collate_fn=collate)))


def test_no_thread_changes_the_filters_of_warnings(tmp_path):
    """Decoders of images silence Pillow, and filters belong to the whole process."""
    out, before = packed_rows(tmp_path, 4, 12, pack_size=310, pixels="source"), list(warnings.filters)
    list(PackedShards(out).loader(1, 4, collate_fn=list))
    assert warnings.filters == before


def test_a_dataloader_over_packed_shards_names_the_right_call(out):
    with raises(ValueError, "trainer-unsupported"):
        next(iter(DataLoader(PackedShards(out))))


# What is refused


@pytest.fixture
def damaged(out, tmp_path):
    shutil.copytree(out, tmp_path / "copy", ignore=shutil.ignore_patterns("work"))
    return tmp_path / "copy"


def test_no_manifest(damaged):
    (damaged / "manifest.json").unlink()
    with raises(OutputError, "output-missing", out=str(damaged), file="manifest.json"):
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
    (damaged / "index.arrow").write_bytes((damaged / "index.arrow").read_bytes() + b"x")
    with raises(OutputError, "output-damaged", file="index.arrow"):
        PackedShards(damaged)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 1},
        {"rank": 2, "world_size": 2},
        {"rank": "0", "world_size": "1"},
        {"rank": 0.0, "world_size": 1},
        {"pixels": "fp8"},
        {"check": "some"},
        {"seed": -1},
        {"seed": None},
        {"seed": 1.5},
        {"shuffle": "no"},
        {"drop_last": None},
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
        ({"prefetch_factor": 0}, {"got": 0, "least": 1}),
        ({"pin_memory": "no"}, {"got": "no"}),
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
        local, remote = PackedShards(out), PackedShards(store.uri(out.name))
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
    packs = {f"{pack.number:09d}": pack for pack in read_packs(out)}
    assert len(loaded) == len(packs)
    for row in loaded:
        pack = packs[row["__key__"]]
        for name, array in pack.arrays.items():
            assert np.array_equal(np.asarray(row[f"{name}.npy"]).reshape(array.shape), array), name
