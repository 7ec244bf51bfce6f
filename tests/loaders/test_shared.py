"""Batches in memory that workers write again and again: nobody's changes under them, and the memory comes back."""

import gc
import multiprocessing
import os

import pytest
import torch
from helpers import many_packs, packed_rows
from hypothesis import given, strategies as st
from support.errors import raises
from torch.utils.data import DataLoader

from neatpack import PackedShards, neat_packed_vlm_collater, wrap_vlm_collate_for_pp
from neatpack.loaders import handover, shared
from neatpack.loaders.pixels import RESTORE_KEY, Stored, restored, restored_end_to_end
from neatpack.loaders.shared import IDLE, MOST, Slots, received


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return many_packs(tmp_path_factory.mktemp("shared"))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """So that the arrays of small packs are large ones."""
    monkeypatch.setattr(shared, "SMALL", 1024)


def tensors(batch):
    return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}


def equal(ours, theirs):
    assert type(ours) is type(theirs) is dict and list(ours) == list(theirs)
    ours, theirs = tensors(ours), tensors(theirs)
    return list(ours) == list(theirs) and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in theirs
    )


# What a collater restores itself is what items have


@pytest.mark.parametrize("pixels", ["bf16", "fp32", "uint8"])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_a_loader_are_the_items_collated(out, pixels, batch_size, num_workers):
    def packs():
        return PackedShards(out, pixels=pixels, batch_size=batch_size)

    expected = list(DataLoader(packs(), batch_size, collate_fn=neat_packed_vlm_collater))  # type: ignore[arg-type]
    loader = packs().loader(batch_size, num_workers, collate_fn=neat_packed_vlm_collater)
    assert all(equal(ours, theirs) for ours, theirs in zip(loader, expected, strict=True))
    assert any(len(batch.get("pixel_values", ())) for batch in expected)


def test_who_iterates_packs_gets_them_restored(out):
    """Whatever a loader of the same packs is at."""
    packs = PackedShards(out)
    in_between = iter(packs.loader(collate_fn=neat_packed_vlm_collater))
    next(in_between)
    items = [next(iter(packs)), packs.pack(0), next(iter(packs.loader(collate_fn=lambda items: items[0])))]
    assert all(item["pixel_values"].dtype == torch.bfloat16 and RESTORE_KEY not in item for item in items)
    for collate_fn in (packs.collater(), wrap_vlm_collate_for_pp(packs.collater(), 1)):
        with packs.iterated_for(collate_fn):
            item = next(iter(packs))
        assert item["pixel_values"].dtype == torch.uint8 and item[RESTORE_KEY] == torch.bfloat16
    assert next(iter(packs))["pixel_values"].dtype == torch.bfloat16


@pytest.mark.parametrize("codec", ["u8", "zstd", "source"])
def test_a_worker_reads_into_the_memory_of_the_batch(tmp_path, codec, monkeypatch):
    """Of one pack; bytes that its collater gets are there already, and nobody else's are."""
    out = packed_rows(tmp_path, 2, 8, pack_size=200, group_size=1, pixels=codec)
    for module in (shared, handover):
        monkeypatch.setattr(module, "get_worker_info", lambda: "a worker")
    monkeypatch.setattr(handover, "_set_up", lambda: None)
    packs, ours = PackedShards(out, pixels="uint8"), shared.slots(os.getpid())
    with packs.iterated_for(neat_packed_vlm_collater):
        items = [item for item in packs if len(item["pixel_values"])]
    assert len(items) > 1
    for item in items:
        batch = neat_packed_vlm_collater([item])
        assert batch["pixel_values"].data_ptr() == item["pixel_values"].data_ptr()
        assert ours.hold(batch["pixel_values"]) and ours.sent(batch["pixel_values"]) is not None
    several = neat_packed_vlm_collater(items[:2])["pixel_values"]
    assert ours.hold(several) and torch.equal(several, torch.cat([item["pixel_values"] for item in items[:2]]))
    assert not any(ours.hold(item["pixel_values"]) for item in packs), "who iterates may keep and send them as he likes"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from([(12,), (3, 2, 2), (2, 3, 2, 2)]),
       st.sampled_from([1, 2]), st.sampled_from([torch.bfloat16, torch.float32, torch.float16]))  # fmt: skip
def test_restored_into_the_batch_is_restored_and_joined(lengths, row, repeat, dtype):
    how = Stored(torch.linspace(-2, 2, 3 * 256).view(3, 256), repeat)
    arrays = [torch.randint(0, 256, (length, *row), dtype=torch.uint8) for length in lengths]
    if not sum(lengths):
        return
    together = restored_end_to_end(arrays, how, dtype)
    assert torch.equal(together, torch.cat([restored(array, how, dtype) for array in arrays]))


# Memory


def test_a_batch_that_is_kept_stays_as_it_is(out):
    """While the workers write later ones, into memory of those that were dropped."""
    loader = PackedShards(out, shuffle=False).loader(num_workers=2, persistent_workers=True)
    alone = [tensors(batch) for batch in PackedShards(out, shuffle=False).loader()]
    kept = {}
    for epoch in range(3):
        for number, batch in enumerate(loader):
            if number % 5 == epoch:
                kept[epoch, number] = batch
    for (_, number), batch in kept.items():
        for name, tensor in alone[number].items():
            assert torch.equal(batch[name], tensor), (number, name)
        for tensor in tensors(batch).values():
            tensor.zero_()  # nobody else's memory


def test_memory_is_used_again_and_given_back(out):
    loader = PackedShards(out, pixels="uint8").loader(num_workers=1, persistent_workers=True, prefetch_factor=2)
    for _ in range(3):
        for batch in loader:
            del batch
    (slots,) = shared._kept.values()
    # How many is a matter of timing: slots that idle are given up, and others made.
    assert 1 <= max(slots) < 3 * len(loader), "fewer were made than batches came, in three epochs"
    del loader, slots
    gc.collect()
    multiprocessing.active_children()
    gc.collect()
    assert not shared._kept, "the workers are gone, and so is what they shared"


def test_who_keeps_all_batches_has_them_all(out, monkeypatch):
    """In memory of torch, where there are too many for slots."""
    monkeypatch.setattr(shared, "MOST", 5)
    packs = PackedShards(out, shuffle=False)
    kept, alone = list(packs.loader(num_workers=2)), list(PackedShards(out, shuffle=False).loader())
    assert all(equal(ours, theirs) for ours, theirs in zip(kept, alone, strict=True))
    assert any(tensor.is_shared() for batch in kept for tensor in tensors(batch).values())


def test_slots():
    slots = Slots()
    first = slots.taken(5000)
    assert len(first) == 5000 and len(slots._slots) == 1
    second = slots.taken(6000)
    assert len(slots._slots) == 2, "the first is in use"
    del first
    assert slots.taken(4000) is not None and len(slots._slots) == 2, "what was not sent is free when it is dropped"
    many = [slots.taken(1000) for _ in range(MOST - 2)]
    assert len(slots._slots) == MOST - 1, "all but the one of 4,000 bytes are in use"
    assert slots.taken(1000) is not None and len(slots._slots) == MOST
    large = slots.taken(50 << 20)
    assert len(large) == 50 << 20 and len(slots._slots) == MOST, "in the place of a free one that was too small"
    assert slots.taken(1000) is None, "so many and no more"
    del many, second, large
    for _ in range(IDLE + 1):
        slots.taken(1)
    assert len(slots._slots) == 1, "that which was taken last"


def test_who_has_received_it_says_when_it_is_free():
    slots = Slots()
    taken = slots.taken(6000)
    assert taken is not None
    taken[:] = 7
    tensor = torch.from_numpy(taken).view(torch.bfloat16).view(3, 1000)
    sent, part = slots.sent(tensor), slots.sent(tensor[1:])
    assert slots.sent(torch.zeros(1000)) is None
    slot = slots._slots[0]
    there, half = received(sent), received(part)
    assert torch.equal(there, tensor) and torch.equal(half, tensor[1:]) and half.dtype == torch.bfloat16
    del there
    del tensor, taken
    assert not slot.is_free, "a part of it is in use"
    if (child := os.fork()) == 0:
        del half
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not slot.is_free, "here nobody dropped it"
    del half
    assert slot.is_free


def test_a_worker_that_has_ended():
    sent = Slots().sent(torch.zeros(1))
    assert sent is None
    slots = Slots()
    sent = slots.sent(torch.from_numpy(slots.taken(2000)))
    with raises(RuntimeError, "worker-crashed", is_gone=True):
        received(sent._replace(token=b"another worker's"))
    with raises(RuntimeError, "worker-crashed", is_gone=False):
        received(sent._replace(file=999))
