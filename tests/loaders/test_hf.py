"""HF Trainer and accelerate: packs by index, and what is refused because half of the packs would be lost."""

import json
from collections import Counter

import pytest
from places import DEMO_PROCESSOR, ROOT
from support.errors import logged, raises
from support.packed import eight_packs
from torch.utils.data import DataLoader

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.loaders.hf import IndexedPacks

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return eight_packs(tmp_path_factory.mktemp("hf"))


def numbers(items):
    return [item["pack"] for item in items]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_indices_are_the_epochs_order(out, num_workers, caplog):
    packs, stream = IndexedPacks(out), PackedShards(out)
    assert len(packs) == len(stream) == 8
    loader = DataLoader(packs, batch_size=2, num_workers=num_workers, collate_fn=numbers)
    for epoch in range(2):
        packs.set_epoch(epoch)
        assert sum(loader, []) == numbers(stream)
        assert sum(loader, []) == sum(loader, []), "until it is told of another epoch"
    assert not logged(caplog, "loaders.hf")
    with raises(IndexError, "document-unknown", index=8, packs=8):
        packs[8]


@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_validation_has_each_pack_once_on_any_number_of_ranks(out, world_size):
    """As docs/API.md shows it."""
    packs = IndexedPacks(out, shuffle=False)
    shares = [range(rank, len(packs), world_size) for rank in range(world_size)]
    loaders = [DataLoader(packs, sampler=share, collate_fn=numbers) for share in shares]
    assert sorted(pack for loader in loaders for (pack,) in loader) == list(range(8))


def test_a_random_order_is_said_once(out, caplog):
    packs = IndexedPacks(out)
    for index in (3, 1, 5, 0, 3, 1):
        packs[index]
    assert len(logged(caplog, "loaders.hf")) == 1


def test_a_last_step_that_is_filled_up_is_no_random_order(out, caplog):
    """Rank 1 of 3, as accelerate shares out eight packs: the last step has the first pack again. Twice, untold of
    epochs."""
    packs = IndexedPacks(out)
    for index in (1, 4, 7, 0, 1, 4, 7, 0):
        packs[index]
    assert not caplog.messages


def test_a_pack_that_trainer_has_cut_down_is_explained(out):
    pack = PackedShards(out).pack(0)
    cut = {key: pack[key] for key in ("input_ids", "labels", "position_ids", "pixel_values")}
    with raises(ValueError, "item-incomplete", missing=["attention_mask"]):
        neat_packed_vlm_collater([cut])
    assert not isinstance(IndexedPacks(out)[0], dict)


def run(launcher, out, folder, processes):
    """What tests/loaders/hf_trainers.py tells, by rank."""
    script, arguments = ROOT / "tests" / "loaders" / "hf_trainers.py", [out, DEMO_PROCESSOR, folder]
    codes, printed = launcher.launch(script, arguments, folder / "output", processes=processes)
    assert not any(codes), printed[0][-3000:]
    lines = [[line for line in text.splitlines() if line.startswith('{"defaults"')] for text in printed]
    return [json.loads(told) for (told,) in lines]


@pytest.fixture(scope="module")
def ranks(launcher, out, tmp_path_factory):
    """Of two processes."""
    return run(launcher, out, tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def sums(out):
    return {int(pack["input_ids"].sum()) for pack in PackedShards(out)}


def assert_each_once_and_resumed(ranks, sums):
    """Two epochs, of which the second was resumed after its first step."""
    trained, num_steps = [rank["defaults"] for rank in ranks], 8 // len(ranks)
    assert [(rank["steps"], rank["length"]) for rank in trained] == [(2 * num_steps, 8)] * len(ranks)
    for epoch in (slice(0, num_steps), slice(num_steps, None)):
        assert Counter(pack for rank in trained for pack in rank["seen"][epoch]) == Counter(sums)
    for rank in trained:
        assert rank["resumed"] == rank["seen"][num_steps + 1 :]


def test_trainer_with_its_defaults_trains_every_pack_once_and_resumes(ranks, sums):
    assert len(ranks) == 2 and len(sums) == 8
    assert_each_once_and_resumed(ranks, sums)


@pytest.fixture(scope="module")
def alone(launcher, out, tmp_path_factory):
    """Of one process."""
    (told,) = run(launcher, out, tmp_path_factory.mktemp("one"), 1)
    return told


def test_trainer_with_its_defaults_in_one_process(alone, sums):
    assert_each_once_and_resumed([alone], sums)


def test_batches_that_accelerate_would_cut_are_refused_in_one_process(alone):
    """Of the positions, one of three axes was left, and of the pixels of an image the first patch."""
    for how in ("indexed", "drawn"):
        assert alone[how] == {"code": "trainer-unsupported", "trainer": "accelerate", "by": "dispatch_batches"}


def test_batches_that_accelerate_skips_are_refused_with_the_remedy(alone):
    assert alone["skipping"] == {"code": "trainer-unsupported", "trainer": "accelerate", "by": "skip"}


@pytest.mark.parametrize("how", ["no collater", "no collater in a worker"])
def test_trainer_without_our_collater_is_refused(alone, how):
    assert alone[how]["code"] == "trainer-unsupported"
    if how == "no collater":  # a worker's error comes without its fields
        assert alone[how]["collater"] == "default_data_collator"


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_loader_without_our_collater_is_refused(out, batch_size):
    with raises(ValueError, "trainer-unsupported", collater="default_collate"):
        next(iter(DataLoader(IndexedPacks(out), batch_size=batch_size)))


def test_packed_shards_are_refused_by_name_where_a_trainer_draws_items(ranks, alone):
    for rank in (*ranks, alone):
        assert rank["trainer"] == {"code": "trainer-unsupported", "by": "index"}


@pytest.mark.parametrize("dispatch", [True, False])
def test_accelerate_leaves_a_loader_as_it_is(ranks, sums, dispatch):
    told = [rank[f"dispatch {dispatch}"] for rank in ranks]
    assert all(each["same"] and each["epoch"] == 1 for each in told)
    assert Counter(told[0]["read"] + told[1]["read"]) == Counter(sums)


def test_packs_that_process_0_would_read_for_all_are_refused(ranks):
    for rank in ranks:
        assert rank["indexed"] == {"code": "trainer-unsupported", "trainer": "accelerate", "by": "dispatch_batches"}


def test_accelerate_keeps_the_balanced_order_and_tells_the_epoch(ranks, sums, out):
    assert Counter(ranks[0]["ours"] + ranks[1]["ours"]) == Counter(sums), "a loader that accelerate does not know"
    stream = PackedShards(out)
    for epoch in range(2):
        expected = [int(pack["input_ids"].sum()) for pack in stream]
        assert [ranks[index % 2]["prepared"][epoch][index // 2] for index in range(8)] == expected
