"""Epochs, positions and ranks: every pack of an epoch once, from wherever a run stopped, with whatever it goes on."""

from itertools import islice

import pytest
import torch
from hypothesis import given, settings, strategies as st
from pack_numbers import numbers
from support.errors import logged, raises
from support.packed import many_packs, packed_rows
from torchdata.stateful_dataloader import StatefulDataLoader

from neatpack import IndexedPacks, PackedShards, PackSampler

pytestmark = pytest.mark.net


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
    seen, states = [], []
    for rank in range(before):
        loader = stream(out, rank=rank, world_size=before).loader(batch, collate_fn=numbers)
        loader.set_epoch(epoch)
        seen += [pack for trained in islice(loader, stop) for pack in trained]
        states.append(loader.state_dict())
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


@pytest.mark.slow
@settings(max_examples=12)
@given(workers=st.integers(0, 3), batch=st.integers(1, 2), stop=st.integers(0, 12), world=st.integers(1, 3))
def test_exact_resume_through_stateful_dataloader(out, workers, batch, stop, world):
    def loader(workers=workers):
        packs = IndexedPacks(out, pixels="uint8", check="none")
        sampler = PackSampler(packs, batch, rank=world - 1, world_size=world)
        return StatefulDataLoader(packs, batch_sampler=sampler, num_workers=workers, collate_fn=numbers)

    whole = list(loader(workers=0))
    assert whole == list(stream(out, rank=world - 1, world_size=world).loader(batch, collate_fn=numbers))
    stop = min(stop, len(whole) - 1)
    first = loader()
    seen = list(islice(first, stop))
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert seen + list(second) == whole


def test_sampler_resumes_with_other_ranks_and_goes_on_to_the_next_epoch(out):
    packs = IndexedPacks(out, pixels="uint8", check="none")
    half = [PackSampler(packs, 2, rank=rank, world_size=2) for rank in range(2)]
    seen = [index for sampler in half for batch in islice(sampler, 3) for index in batch]
    states = [sampler.state_dict() for sampler in half]
    order = {"seed": 0, "num_packs": len(packs)}
    assert states[0] == states[1] == {"epoch": 0, "position": 12, **order}
    with raises(ValueError, "loader-state", key="seed", got=0, expected=1):
        PackSampler(IndexedPacks(out, seed=1)).load_state_dict(states[0])
    rest = PackSampler(packs, 2, rank=0, world_size=1)
    rest.load_state_dict(states[0])
    assert sorted(seen + [index for batch in rest for index in batch]) == list(range(len(packs)))
    assert rest.state_dict() == {"epoch": 1, "position": 0, **order} and packs.epoch == 0
    next(iter(rest))
    assert packs.epoch == 1


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
    first, other, compressed = [
        packed_rows(tmp_path / f"{num_text}-{pixels}", num_text, 4, pack_size=310, group_size=2, pixels=pixels)
        for num_text, pixels in ((8, "u8"), (9, "u8"), (8, "zstd"))
    ]
    assert len(stream(first)) == len(stream(other))
    caplog.clear()
    loader = stream(first).loader(collate_fn=numbers)
    assert "plan" not in loader.state_dict(), "as states of older releases, which have to be found"
    next(iter(loader))
    state = loader.state_dict()
    for out in (first, compressed):
        stream(out).load_state_dict(state)
    stream(other).load_state_dict({key: value for key, value in state.items() if key != "plan"})
    assert not caplog.messages
    stream(other).load_state_dict(state)
    assert logged(caplog, "loaders.dataset") == [(1, 0, 1)]


# Epochs


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_iterating_again_is_the_next_epoch(out, num_workers):
    expected = []
    for epoch in range(3):
        alone = stream(out)
        alone.set_epoch(epoch)
        expected.append(numbers(alone))
    again = stream(out)
    assert [numbers(again) for _ in range(3)] == expected
    loader = stream(out).loader(num_workers=num_workers, collate_fn=numbers)
    assert [sum(loader, []) for _ in range(3)] == expected
    assert loader.epoch == 3


def test_a_loader_that_was_left_begins_its_epoch_again(out):
    """As every DataLoader does; its threads may have read all of it by then."""
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
    assert logged(caplog, "loaders.loader") == [(2, 0)]
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
    total = len(loader.packs.reader.packs)
    for packs in trained:
        assert len(packs) == len(set(packs)) > total - max(worlds)


def test_the_loader_knows_its_length(out):
    dataset = stream(out, rank=0, world_size=2)
    total = len(dataset.reader.packs) // 2
    loader = dataset.loader(batch_size=3)
    assert len(loader) == -(-total // 3)
    loader.load_state_dict(dataset.state_after(6))
    assert len(loader) == -(-total // 3), "of a whole epoch, as Lightning and HF Trainer count"
    assert len(list(loader)) == -(-total // 3) - 2


def test_options_that_would_change_the_order_do_not_exist(out):
    with pytest.raises(TypeError, match="sampler"):
        stream(out).loader(sampler=[])
    with raises(ValueError, "option-conflict", argument="collate_fn", other="model"):
        stream(out).loader(model=torch.nn.Linear(1, 1), collate_fn=numbers)


def test_batches_for_a_model_have_nothing_else(out):
    batch = next(iter(PackedShards(out).loader(batch_size=2, num_workers=1)))
    assert set(batch) == {"input_ids", "labels", "shift_labels", "position_ids", "attention_mask",
                          "mm_token_type_ids", "pixel_values", "image_grid_thw"}  # fmt: skip
    assert torch.equal(batch["labels"], batch["shift_labels"])


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
    assert sum(dataset.loader(num_workers=2, collate_fn=numbers), []) == expected


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


def test_packs_that_fill_no_step_are_told_of(out, caplog):
    total = len(stream(out))
    world_size = next(number for number in range(2, 10) if total % number)
    for rank in range(world_size):
        list(stream(out, rank=rank, world_size=world_size))
    ((epoch, *counts),) = logged(caplog, "loaders.dataset")
    assert (epoch, counts[:3]) == (0, [total % world_size, total, world_size])
    list(stream(out, rank=0, world_size=world_size, drop_last=False))
    assert len(caplog.records) == 1


def test_more_ranks_than_packs(out):
    with raises(ValueError, "batch-mismatch", world_size=1000):
        len(stream(out, rank=0, world_size=1000))
    with raises(ValueError, "batch-mismatch", world_size=1000):
        list(stream(out, rank=0, world_size=1000))
    assert len(stream(out, rank=0, world_size=1000, drop_last=False)) == 1


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
    assert len(next(iter(packs.loader(2, collate_fn=list)))) == 2
