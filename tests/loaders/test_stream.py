"""PackedShards: order, ranks, workers, resuming and elasticity, on a real small output."""

import multiprocessing
import pickle
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
from helpers import ROOT, TinyData, mixed_rows, packs_of, tiny_config
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.loaders.order import epoch_order, rank_share, share_length, worker_share
from neatpack.loaders.ranks import Ranks
from neatpack.pipeline.manifest import FORMAT, OutputError
from neatpack.pipeline.plan.balance import correlation
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.stats import step_imbalance


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    data = TinyData(folder / "data")
    for _ in range(6):
        mixed_rows(data, num_text=14, num_images=10)
    run_pack(tiny_config(data.write(), folder / "out", pack_size=280, group_size=4))
    assert len(list(packs_of(folder / "out"))) > 30
    return folder / "out"


def numbers(items):
    return [item["pack"] for item in items]


def stream(out, **options):
    return PackedShards(out, pixels="uint8", check="none", **options)


# Order: functions of integers


ORDERS = st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 4, 6, 12]), st.integers(0, 3), st.integers(0, 3))


@given(ORDERS, st.lists(st.integers(0, 59), max_size=3))
def test_an_epoch_has_every_pack_once_and_groups_stay_together(spec, missing):
    num_packs, group_size, seed, epoch = spec
    packs = np.setdiff1d(np.arange(num_packs), missing)
    order = epoch_order(packs, group_size, seed, epoch)
    assert sorted(order.tolist()) == packs.tolist()
    assert order.tolist() == epoch_order(packs, group_size, seed, epoch).tolist()
    whole = [g for g in range(num_packs // group_size + 1) if (packs // group_size == g).sum() == group_size]
    groups = order[: len(whole) * group_size].reshape(-1, group_size) // group_size
    assert sorted(groups[:, 0].tolist()) == whole
    assert (groups == groups[:, :1]).all()


def test_epochs_differ():
    orders = {tuple(epoch_order(np.arange(64), 8, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_blocks_inside_a_group_stay_together_too():
    """Group 8: aligned pairs and fours of a step are neighbours of the plan, so that 2 or 4 ranks are balanced."""
    order = epoch_order(np.arange(64), 8, 1, 5)
    for size in (2, 4, 8):
        assert all(len(set(step // size)) == 1 for step in order.reshape(-1, size))


def test_shares_by_hand():
    order = np.array([10, 11, 12, 13, 14])
    assert [rank_share(order, 0, r, 2, drop_last=True).tolist() for r in (0, 1)] == [[10, 12], [11, 13]]
    assert [rank_share(order, 0, r, 2, drop_last=False).tolist() for r in (0, 1)] == [[10, 12, 14], [11, 13, 10]]
    assert [rank_share(order, 3, r, 2, drop_last=True).tolist() for r in (0, 1)] == [[13], [14]]
    assert [rank_share(order, 0, r, 7, drop_last=False).tolist() for r in range(7)] == [
        [10],
        [11],
        [12],
        [13],
        [14],
        [10],
        [11],
    ]
    assert worker_share(5, 2, 0, 2).tolist() == [0, 1, 4]
    assert worker_share(5, 2, 1, 2).tolist() == [2, 3]


@given(num=st.integers(0, 50), world=st.integers(1, 8), position=st.integers(0, 50), drop_last=st.booleans())
def test_ranks_share_what_is_left(num, world, position, drop_last):
    order = np.arange(100, 100 + num)
    shares = [rank_share(order, position, rank, world, drop_last=drop_last).tolist() for rank in range(world)]
    assert {len(share) for share in shares} == {share_length(num, position, world, drop_last=drop_last)}
    seen = [pack for step in zip(*shares, strict=True) for pack in step]
    left = order[position:].tolist()
    if drop_last:
        assert seen == left[: len(left) // world * world]
    else:
        assert seen[: len(left)] == left
        assert len(seen) - len(left) < world


def test_steps_are_balanced_through_shuffled_epochs(tmp_path):
    """The plan's balance survives the loader's shuffle: modelled on the visual tokens of 2,000 packs."""
    rng = np.random.default_rng(0)
    visual = np.sort(rng.integers(1000, 9000, 2048)).reshape(-1, 64)
    visual = visual[rng.permutation(len(visual))].reshape(-1)  # groups of 64 alike packs
    order = epoch_order(np.arange(2048), 64, 0, 3)
    for world in (2, 8, 64):
        assert step_imbalance(visual[order], world) < 1.04
    assert step_imbalance(visual[rng.permutation(2048)], 64) > 1.5


def test_no_epoch_is_a_curriculum():
    """100 groups that differ in load: a plain shuffle of them trends by chance beyond 0.1 in a third of all epochs."""
    loads = np.repeat(np.arange(100), 8) ** 2
    trends = [abs(correlation(loads[epoch_order(np.arange(800), 8, 0, epoch, [loads])], 8)) for epoch in range(40)]
    assert max(trends) < 0.1
    plain = [abs(correlation(loads[epoch_order(np.arange(800), 8, 0, epoch)], 8)) for epoch in range(40)]
    assert max(plain) > 0.1, "the test can fail"


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


def test_random_access_and_zero_copy(out):
    dataset = stream(out)
    item, again = dataset.pack(3), dataset.pack(3)
    assert item["pack"] == 3
    assert item["pixel_values"].data_ptr() == again["pixel_values"].data_ptr(), "views of one map"
    with pytest.raises(IndexError, match="pack 100000 is not in"):
        dataset.pack(100_000)


def test_writing_to_an_item_touches_neither_the_shard_nor_the_next_epoch(out):
    before = {path.name: path.read_bytes() for path in (out / "shards").iterdir()}
    labels = stream(out).pack(0)["labels"].clone()
    stream(out).pack(0)["labels"][:] = -100
    assert torch.equal(stream(out).pack(0)["labels"], labels)
    pixels = stream(out).pack(0)["pixel_values"]
    pixels[:1] = pixels[:1]
    assert {path.name: path.read_bytes() for path in (out / "shards").iterdir()} == before


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


@pytest.mark.parametrize("pixels, small", [("bf16", 2**30), ("bf16", 4096), ("uint8", 4096)])
def test_what_workers_hand_over_is_what_they_made(out, pixels, small, monkeypatch):
    """Small tensors come by value and large ones in shared memory, of every type."""
    monkeypatch.setattr("neatpack.loaders.handover.SMALL", small)

    def batches(workers):
        dataset = PackedShards(out, pixels=pixels, batch_size=2)
        return list(DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=neat_packed_vlm_collater))

    large = 0
    for ours, theirs in zip(batches(2), batches(0), strict=True):
        assert type(ours) is dict and list(ours) == list(theirs)
        for name, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert ours[name].dtype == value.dtype and torch.equal(ours[name], value), name
                assert ours[name].is_shared() == (value.nbytes > small), name
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


# Resuming


@settings(max_examples=40)
@given(
    before=st.integers(1, 8),
    after=st.integers(1, 8),
    batch=st.integers(1, 3),
    stop=st.integers(0, 40),
    epoch=st.integers(0, 2),
)
def test_elastic_resume(out, before, after, batch, stop, epoch):
    """Stop after any number of batches on some ranks, go on with others: together they see each pack once."""
    datasets = [stream(out, rank=r, world_size=before, batch_size=batch) for r in range(before)]
    seen = []
    for dataset in datasets:
        dataset.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=batch, collate_fn=numbers)
        seen += [pack for _, trained in zip(range(stop), loader, strict=False) for pack in trained]
    states = [dataset.state_at(stop) for dataset in datasets]
    assert all(state == states[0] for state in states), "one global position"
    rest = []
    for rank in range(after):
        dataset = stream(out, rank=rank, world_size=after)
        dataset.load_state_dict(states[0])
        dataset.set_epoch(states[0]["epoch"])  # as training loops do; it must not rewind
        if states[0]["epoch"] == epoch:  # else no step of it was left
            rest += numbers(dataset)
    packs = dataset.reader.packs.tolist()
    assert not set(seen) & set(rest)
    assert len(seen) + len(rest) == len(set(seen) | set(rest))
    left_out = set(packs) - set(seen) - set(rest)
    assert len(left_out) < max(before, after)


@settings(max_examples=12)
@given(workers=st.integers(0, 3), batch=st.integers(1, 2), stop=st.integers(0, 12), world=st.integers(1, 3))
def test_exact_resume_through_stateful_dataloader(out, workers, batch, stop, world):
    def loader():
        dataset = stream(out, rank=world - 1, world_size=world, batch_size=batch)
        return StatefulDataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=numbers)

    whole = list(loader())
    stop = min(stop, len(whole) - 1)
    first = loader()
    seen = [trained for _, trained in zip(range(stop), first, strict=False)]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert seen + list(second) == whole


@settings(max_examples=12)
@given(workers=st.integers(0, 3), batch=st.integers(1, 2), stop=st.integers(0, 12))
def test_exact_resume_through_a_plain_dataloader(out, workers, batch, stop):
    def loader(state=None):
        dataset = stream(out, batch_size=batch)
        if state is not None:
            dataset.load_state_dict(state)
        return DataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=numbers)

    whole = list(loader())
    first = loader()
    seen = [trained for _, trained in zip(range(stop), first, strict=False)]
    assert seen + list(loader(first.dataset.state_at(len(seen)))) == whole


def test_state_dict_in_process(out):
    dataset = stream(out, rank=0, world_size=2)
    whole = numbers(stream(out, rank=0, world_size=2))
    items = iter(dataset)
    seen = numbers([next(items), next(items), next(items)])
    state = dataset.state_dict()
    assert state["position"] == 6
    resumed = stream(out, rank=0, world_size=2)
    resumed.load_state_dict(state)
    assert seen + numbers(resumed) == whole
    resumed.set_epoch(1)
    assert len(numbers(resumed)) == len(whole), "the next epoch is whole again"


def test_states_that_do_not_fit_are_refused(out):
    state = stream(out).state_dict()
    with pytest.raises(ValueError, match="seed 0, this dataset has 1"):
        stream(out, seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="num_packs 5"):
        stream(out).load_state_dict(state | {"num_packs": 5})
    resumed = stream(out)
    resumed.load_state_dict(state | {"epoch": 2})
    with pytest.raises(ValueError, match=r"set_epoch\(0\) after a state of epoch 2 .* begin the loop at `packs.epoch`"):
        resumed.set_epoch(0)


# Epochs


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_iterating_again_is_the_next_epoch(out, num_workers, persistent):
    """With a plain DataLoader too, whose dataset in this process is never iterated."""
    expected = []
    for epoch in range(3):
        alone = stream(out)
        alone.set_epoch(epoch)
        expected.append(numbers(alone))
    options = {"persistent_workers": True} if persistent and num_workers else {}
    loader = DataLoader(stream(out), batch_size=None, num_workers=num_workers, **options)
    assert [numbers(loader) for _ in range(3)] == expected
    loader = stream(out).loader(num_workers=num_workers, collate_fn=numbers, **options)
    assert [sum(loader, []) for _ in range(3)] == expected
    assert loader.epoch == 3


def test_a_loader_that_was_left_begins_its_epoch_again(out):
    """As every DataLoader does; the workers that were left behind may have read all of it by then."""
    loader = stream(out).loader(num_workers=2, collate_fn=numbers)
    first = next(iter(loader))
    assert loader.state_dict()["position"] == 1 and loader.epoch == 0
    whole = list(loader)
    assert whole[0] == first and len(whole) == len(loader)
    assert loader.epoch == 1


# The loader


@settings(max_examples=15)
@given(
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    batches=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    workers=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    stop=st.integers(0, 60),
)
def test_the_loader_resumes_with_other_ranks_workers_and_batches(out, worlds, batches, workers, stop):
    """Stopped anywhere in two epochs: what was trained and what comes then are the epochs' orders, each pack once."""

    def loaders(index):
        return [
            stream(out, rank=rank, world_size=worlds[index]).loader(batches[index], workers[index], collate_fn=numbers)
            for rank in range(worlds[index])
        ]

    trained, states = [[], []], []
    for loader in loaders(0):
        left = stop
        while left and loader.epoch < 2:
            epoch = loader.epoch
            for packs in loader:
                trained[epoch] += packs
                left -= 1
                if not left:
                    break
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states), "one position for all ranks"
    for loader in loaders(1):
        loader.load_state_dict(states[0])
        while loader.epoch < 2:
            epoch = loader.epoch
            trained[epoch] += [pack for packs in loader for pack in packs]
    total = len(loader.dataset.reader.packs)
    for packs in trained:
        assert len(packs) == len(set(packs)) > total - max(worlds)


def test_the_loader_knows_its_length(out):
    dataset = stream(out, rank=0, world_size=2)
    total = len(dataset.reader.packs) // 2
    loader = dataset.loader(batch_size=3)
    assert len(loader) == -(-total // 3)
    loader.load_state_dict(loader.dataset.state_at(2))
    assert len(loader) == -(-total // 3), "of a whole epoch, as Lightning and HF Trainer count"
    assert len(list(loader)) == -(-total // 3) - 2


def test_what_the_loader_refuses(out):
    with pytest.raises(ValueError, match="sampler, shuffle: the order is that of PackedShards"):
        stream(out).loader(shuffle=True, sampler=[])
    with pytest.raises(ValueError, match="collate_fn and model are both given"):
        stream(out).loader(model=torch.nn.Linear(1, 1), collate_fn=numbers)
    with pytest.raises(ValueError, match="batch_size is 0"):
        stream(out).loader(batch_size=0)


def test_a_batch_size_that_is_not_the_datasets_is_loud(out):
    loader = DataLoader(stream(out), batch_size=2, num_workers=1, collate_fn=neat_packed_vlm_collater)
    with pytest.raises(ValueError, match="a batch of 2 packs where PackedShards expected 1"):
        next(iter(loader))


def test_batches_for_a_model_have_nothing_else(out):
    batch = next(iter(PackedShards(out).loader(batch_size=2, num_workers=1)))
    assert set(batch) == {"input_ids", "labels", "shift_labels", "position_ids", "attention_mask",
                          "mm_token_type_ids", "pixel_values", "image_grid_thw"}  # fmt: skip
    assert torch.equal(batch["labels"], batch["shift_labels"])


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 0), (0, 2)])
def test_a_state_of_a_stateful_dataloader_resumes_with_other_workers(out, before, after):
    """Through the dataset: the StatefulDataLoader itself wants as many workers as it had."""

    def loader(dataset, workers):
        return StatefulDataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=numbers)

    whole = list(loader(stream(out, batch_size=2), 0))
    first = loader(stream(out, batch_size=2), before)
    seen = [trained for _, trained in zip(range(5), first, strict=False)]
    state = first.state_dict()
    if before and after:
        refused = loader(stream(out, batch_size=2), after)
        refused.load_state_dict(state)
        with pytest.raises(ValueError, match=r"num_workers is 3, was 2; .* packs.load_state_dict\(state\)"):
            list(refused)
    resumed = stream(out, batch_size=2)
    resumed.load_state_dict(state)
    second = loader(resumed, after)
    assert seen + list(second) == whole
    following = stream(out, batch_size=2)
    following.set_epoch(1)
    assert list(second) == list(loader(following, 0)), "and then the next epoch"


# Ranks


def test_the_rank_is_asked_when_iteration_begins(out, monkeypatch):
    """A dataset that was made before there was a process group."""
    dataset = stream(out)
    assert len(dataset) == len(dataset.reader.packs)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    expected = numbers(stream(out, rank=1, world_size=4))
    assert numbers(dataset) == expected
    assert len(dataset) == len(expected)
    dataset.set_epoch(0)
    context = multiprocessing.get_context("spawn")
    assert numbers(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context)) == expected


def test_a_group_and_an_environment_that_disagree(out, monkeypatch, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        dataset = stream(out)
        assert (dataset.rank, dataset.world_size) == (0, 1)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match="rank 0 of 1, RANK and WORLD_SIZE say 1 of 2"):
            list(dataset)
        assert stream(out, rank=1, world_size=2).rank == 1, "what is given wins"
    finally:
        torch.distributed.destroy_process_group()


def test_a_spawned_loader_worker_reads_for_the_group_of_its_parent(out, tmp_path):
    """It has neither the group nor, here, an environment that tells."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        ranks = pickle.loads(pickle.dumps(Ranks()))
        assert ranks.__dict__ == {"_given": None, "_parents": (0, 1)}
    finally:
        torch.distributed.destroy_process_group()


def test_packs_that_fill_no_step_are_told_of(out, caplog):
    total = len(stream(out))
    world_size = next(number for number in range(2, 10) if total % number)
    for rank in range(world_size):
        list(stream(out, rank=rank, world_size=world_size))
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"epoch 0: {total % world_size} of {total} packs fill no step of {world_size} ranks")
    list(stream(out, rank=0, world_size=world_size, drop_last=False))
    assert len(caplog.records) == 1


def test_more_ranks_than_packs(out):
    with pytest.raises(ValueError, match=r"packs on 1000 ranks: not one step. Train on fewer ranks"):
        len(stream(out, rank=0, world_size=1000))
    with pytest.raises(ValueError, match="packs on 1000 ranks"):
        list(stream(out, rank=0, world_size=1000))
    assert len(stream(out, rank=0, world_size=1000, drop_last=False)) == 1


# What is refused


@pytest.fixture
def damaged(out, tmp_path):
    shutil.copytree(out, tmp_path / "copy", ignore=shutil.ignore_patterns("work"))
    return tmp_path / "copy"


def test_no_manifest(damaged):
    (damaged / "manifest.json").unlink()
    with pytest.raises(OutputError, match="packing has not finished"):
        PackedShards(damaged)


def test_unknown_format(damaged):
    text = (damaged / "manifest.json").read_text()
    (damaged / "manifest.json").write_text(text.replace(f'"format": {FORMAT},', '"format": 99,'))
    with pytest.raises(OutputError, match="format 99, .* reads format 3; use the neatpack that made it"):
        PackedShards(damaged)


def test_checksums(damaged):
    shard = next((damaged / "shards").iterdir())
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    PackedShards(damaged)  # the size is right
    with pytest.raises(OutputError, match="sha256 differs"):
        PackedShards(damaged, check="full")
    shard.write_bytes(content[:-512])
    with pytest.raises(OutputError, match="bytes, the manifest"):
        PackedShards(damaged)
    shard.unlink()
    with pytest.raises(OutputError, match="is missing"):
        PackedShards(damaged)


def test_a_changed_index(damaged):
    (damaged / "index.parquet").write_bytes((damaged / "index.parquet").read_bytes() + b"x")
    with pytest.raises(OutputError, match="index.parquet: sha256"):
        PackedShards(damaged)


@pytest.mark.parametrize(
    "arguments", [{"rank": 1}, {"rank": 2, "world_size": 2}, {"pixels": "fp8"}, {"check": "some"}, {"batch_size": 0}]
)
def test_wrong_arguments(out, arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        PackedShards(out, **arguments)


# Other readers and places


def test_ranged_reads_give_the_same(out):
    """A URI is read through pyarrow's file systems, by range and ahead of time: the way of object stores."""
    local, remote = PackedShards(out), PackedShards(f"file://{out}", prefetch=3)
    assert not remote.reader.is_local
    for ours, theirs in zip(local, remote, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[k], theirs[k]) for k in ours if isinstance(ours[k], torch.Tensor))


def test_hugging_face_datasets_reads_the_shards(out, tmp_path):
    """With none of our code: columns by member, arrays as .npy."""
    files = sorted(str(path) for path in (out / "shards").iterdir())
    loaded = datasets.load_dataset("webdataset", data_files={"train": files}, split="train", cache_dir=str(tmp_path))
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
