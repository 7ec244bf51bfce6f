"""Epochs, positions and ranks: every pack of an epoch once, from wherever a run stopped, with whatever it goes on."""

import multiprocessing
import shutil
from itertools import islice

import pytest
import torch
from helpers import many_packs, packed_rows
from hypothesis import given, settings, strategies as st
from object_store import ANEW
from pack_numbers import numbers
from support.errors import logged, raises
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.pipeline.cli import main


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return many_packs(tmp_path_factory.mktemp("resume"))


def stream(out, **options):
    return PackedShards(out, pixels="uint8", check="none", **options)


# Resuming


@settings(max_examples=25)
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
    def loader(workers=workers):
        dataset = stream(out, rank=world - 1, world_size=world, batch_size=batch)
        return StatefulDataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=numbers)

    whole = list(loader(workers=0))
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
    def loader(state=None, workers=workers):
        dataset = stream(out, batch_size=batch)
        if state is not None:
            dataset.load_state_dict(state)
        return DataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=numbers)

    whole = list(loader(workers=0))
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
    with raises(ValueError, "loader-state", key="seed", got=0, expected=1):
        stream(out, seed=1).load_state_dict(state)
    with raises(ValueError, "loader-state", key="num_packs", got=5):
        stream(out).load_state_dict(state | {"num_packs": 5})
    resumed = stream(out)
    resumed.load_state_dict(state | {"epoch": 2})
    with raises(ValueError, "loader-position", epoch=0, loaded=2):
        resumed.set_epoch(0)


def test_a_state_of_an_output_that_was_packed_otherwise(tmp_path, caplog):
    """A row more, and as many packs as before, but other documents in them. How pixels are stored is no matter."""
    first, other = [
        packed_rows(tmp_path / str(num_text), num_text, 4, pack_size=310, group_size=2, pixels="u8")
        for num_text in (8, 9)
    ]
    assert len(stream(first)) == len(stream(other))
    assert main(["recode", str(first), "--pixels", "zstd", "--out", str(tmp_path / "zstd"), "--engine", "inline"]) == 0
    caplog.clear()
    loader = stream(first).loader(collate_fn=numbers)
    assert "plan" not in loader.state_dict(), "as states of older releases, which have to be found"
    next(iter(loader))
    state = loader.state_dict()
    for out in (first, tmp_path / "zstd"):
        stream(out).load_state_dict(state)
    stream(other).load_state_dict({key: value for key, value in state.items() if key != "plan"})
    assert not caplog.messages
    stream(other).load_state_dict(state)
    assert logged(caplog, "loaders.stream") == [(1, 0, 1)]


# Epochs


@pytest.mark.parametrize(("persistent", "num_workers"), [(False, 0), (False, 1), (False, 3), (True, 1), (True, 3)])
def test_iterating_again_is_the_next_epoch(out, num_workers, persistent):
    """With a plain DataLoader too, whose dataset in this process is never iterated."""
    expected = []
    for epoch in range(3):
        alone = stream(out)
        alone.set_epoch(epoch)
        expected.append(numbers(alone))
    options = {"persistent_workers": True} if persistent else {}
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


def test_what_comes_again_after_a_loop_was_left_is_told(out, caplog):
    """Once; and what the warning names does as it says."""

    def left(loader, num_batches):
        return list(islice(loader, num_batches))

    loader = stream(out).loader(collate_fn=numbers)
    whole, following = list(loader), list(loader)
    assert not caplog.messages
    loader.set_epoch(0)
    assert [left(loader, 2) for _ in range(3)] == [whole[:2]] * 3
    assert logged(caplog, "loaders.batches") == [(2, 0)]
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == whole[2:]
    loader.set_epoch(0)
    left(loader, 2)
    loader.set_epoch(loader.epoch + 1)
    assert left(loader, 2) == following[:2]
    assert len(caplog.messages) == 1


# The loader


@settings(max_examples=10)
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
    with raises(ValueError, "loader-argument", argument="sampler, shuffle"):
        stream(out).loader(shuffle=True, sampler=[])
    with raises(ValueError, "option-conflict", argument="collate_fn", other="model"):
        stream(out).loader(model=torch.nn.Linear(1, 1), collate_fn=numbers)
    with raises(ValueError, "loader-argument", argument="batch_size", got=0):
        stream(out).loader(batch_size=0)


def test_a_batch_size_that_is_not_the_datasets_is_loud(out):
    loader = DataLoader(stream(out), batch_size=2, num_workers=1, collate_fn=neat_packed_vlm_collater)
    with raises(ValueError, "batch-mismatch"):
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
        with raises(ValueError, "loader-state"):
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
        with raises(ValueError, "loader-argument", argument="rank", group=(0, 1), environment=(1, 2)):
            list(dataset)
        assert stream(out, rank=1, world_size=2).rank == 1, "what is given wins"
    finally:
        torch.distributed.destroy_process_group()


def test_a_spawned_loader_worker_reads_for_the_rank_of_its_parent(out, monkeypatch):
    """It cannot know the rank by itself: here it has neither a process group nor an environment that tells."""
    monkeypatch.setattr("neatpack.loaders.ranks._environment", lambda: (1, 4))
    expected = numbers(stream(out, rank=1, world_size=4))
    context = multiprocessing.get_context("spawn")
    loader = DataLoader(stream(out), batch_size=None, num_workers=1, multiprocessing_context=context)
    assert numbers(loader) == expected


def test_packs_that_fill_no_step_are_told_of(out, caplog):
    total = len(stream(out))
    world_size = next(number for number in range(2, 10) if total % number)
    for rank in range(world_size):
        list(stream(out, rank=rank, world_size=world_size))
    ((epoch, *counts),) = logged(caplog, "loaders.stream")
    assert (epoch, counts[:3]) == (0, [total % world_size, total, world_size])
    list(stream(out, rank=0, world_size=world_size, drop_last=False))
    assert len(caplog.records) == 1


def test_more_ranks_than_packs(out):
    with raises(ValueError, "batch-mismatch", world_size=1000):
        len(stream(out, rank=0, world_size=1000))
    with raises(ValueError, "batch-mismatch", world_size=1000):
        list(stream(out, rank=0, world_size=1000))
    assert len(stream(out, rank=0, world_size=1000, drop_last=False)) == 1


@pytest.mark.parametrize("context", [multiprocessing.get_context("fork"), ANEW], ids=["fork", "anew"])
def test_workers_need_not_find_out_the_shuffle(out, tmp_path, context, monkeypatch):
    """The consumer does, for all of them: of ten million packs, it takes 300 MB for a moment."""
    loads, real = shutil.copytree(out, tmp_path / "out") / "loads.arrow", PackedShards.prepare

    def prepare(packs):
        shutil.copy(out / "loads.arrow", loads)
        real(packs)
        loads.unlink()

    monkeypatch.setattr(PackedShards, "prepare", prepare)
    loader = stream(tmp_path / "out").loader(
        num_workers=2, persistent_workers=True, multiprocessing_context=context, collate_fn=numbers
    )
    for epoch in range(2):
        expected = stream(out).mix.order(0, epoch, shuffle=True, drawn={})[:].tolist()
        assert [pack for batch in loader for pack in batch] == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_loaders_of_one_dataset_do_not_take_its_position_for_their_own(out, num_workers):
    packs = stream(out)
    first = packs.loader(collate_fn=list, num_workers=num_workers)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    again = packs.loader(collate_fn=list)  # as a notebook makes it anew
    assert len(list(again)) == len(again) and again.epoch == 1
    with raises(ValueError, "loader-position"):
        first.state_dict()
    first.load_state_dict(state)
    assert first.state_dict() == state
    other = packs.loader(2, collate_fn=list)
    for use in (first.state_dict, lambda: next(iter(first))):
        with raises(ValueError, "loader-position", batch_size=1, other=2):
            use()
    assert len(next(iter(other))) == 2
