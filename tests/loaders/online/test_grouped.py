"""LengthGroupedSampler: by length, rotated alike on all ranks, batches whole.

That smart_resize is transformers' own: tests/test_resize.py.
"""

import multiprocessing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from support.errors import logged, raises
from support.grouped import hf_processor
from torch.utils.data import DataLoader, Subset

from neatpack.loaders.online import LengthGroupedSampler

pytestmark = pytest.mark.net


def samples(*lengths: int) -> list[dict[str, Any]]:
    return [{"conversation": [], "_text_tokens": length} for length in lengths]


def epoch(sampler: LengthGroupedSampler, number: int) -> list[int]:
    sampler.set_epoch(number)
    return list(sampler)


# ---------------------------------------------------------------- order


def test_by_length_then_by_index() -> None:
    sampler = LengthGroupedSampler(samples(3, 9, 3, 5, 9))
    assert sampler.lengths == [3, 9, 3, 5, 9] == sampler._compute_or_load_lengths(samples(3, 9, 3, 5, 9))
    assert sampler.sorted_indices == [1, 4, 3, 0, 2]
    assert len(sampler) == 5


def test_an_epoch_is_a_rotation_and_another_one_each_time() -> None:
    sampler = LengthGroupedSampler(samples(*range(100)))
    starts = set()
    for number in range(20):
        order = epoch(sampler, number)
        place = sampler.sorted_indices.index(order[0])
        assert order == sampler.sorted_indices[place:] + sampler.sorted_indices[:place]
        assert order == list(sampler)  # the same again
        starts.add(place)
    assert len(starts) > 15
    assert epoch(sampler, 3) == epoch(LengthGroupedSampler(samples(*range(100))), 3)
    assert epoch(sampler, 3) != epoch(LengthGroupedSampler(samples(*range(100)), seed=7), 3)


@pytest.mark.parametrize("num_samples", [0, 1, 2])
def test_hardly_any_samples(num_samples: int) -> None:
    sampler = LengthGroupedSampler(samples(*[5] * num_samples), batch_size=4)
    for number in range(5):
        assert sorted(epoch(sampler, number)) == [*range(num_samples)]


def test_ranks_of_unequal_size_stay_alike() -> None:
    """Position n has about the same length on all ranks; the one exception is a step at the turn of the order."""
    lengths = [n % 1000 for n in range(0, 7 * 4003, 7)]
    ranks = [LengthGroupedSampler(samples(*lengths[rank::4])) for rank in range(4)]  # 1001, 1001, 1001, 1000
    assert {len(sampler) for sampler in ranks} == {1000, 1001}
    for number in range(10):
        orders = [[sampler.lengths[index] for index in epoch(sampler, number)] for sampler in ranks]
        apart = [max(step) - min(step) for step in zip(*orders, strict=False)]
        assert sum(distance > 8 for distance in apart) <= 1


def test_equal_ranks_are_never_apart() -> None:
    ranks = [LengthGroupedSampler(samples(*range(rank, 800, 8)), batch_size=3) for rank in range(8)]
    for number in range(10):
        orders = [[sampler.lengths[index] for index in epoch(sampler, number)] for sampler in ranks]
        assert max(max(step) - min(step) for step in zip(*orders, strict=True)) == 7


# Sorted 9 … 0 in batches of 4: the whole ones are cut from the end by the draw, and the rest comes last.
@pytest.mark.parametrize("num_samples", [8, 9, 10, 11, 101])
def test_batches_are_of_neighbours(num_samples: int) -> None:
    data = samples(*range(num_samples))
    sampler = LengthGroupedSampler(data, batch_size=4)
    last = set()
    for number in range(20):
        sampler.set_epoch(number)
        batches = [
            [sample["_text_tokens"] for sample in batch]
            for batch in DataLoader(data, batch_size=4, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
        ]
        assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)
        assert all(max(batch) - min(batch) == len(batch) - 1 for batch in batches)
        assert sorted(sum(batches, [])) == [*range(num_samples)]
        last.add(tuple(batches[-1]))
    assert len(last) > 1  # what drop_last leaves out is not always the same


def test_whole_batches_make_unequal_ranks_alike() -> None:
    one, other = (LengthGroupedSampler(samples(*range(n)), batch_size=4) for n in (101, 102))
    for number in range(20):
        pairs = zip(epoch(one, number), epoch(other, number), strict=False)
        assert max(abs(a - b) for a, b in pairs) == 1  # lengths, as they are the indices here


def test_what_is_clearly_too_long_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """512 tokens over max_length an estimate may be wrong by."""
    sampler = LengthGroupedSampler(samples(522, 7, 10, 523, 9999), max_length=10)
    assert sampler.sorted_indices == [0, 2, 1]
    assert sorted(sampler) == [0, 1, 2] and len(sampler) == 3
    assert sampler.lengths == [522, 7, 10, 523, 9999], "of all samples"
    assert sampler.num_overlong == 2
    assert logged(caplog, "loaders.online.grouped") == [(2, 5, 10, 512)]
    assert LengthGroupedSampler(samples(9999, 7)).num_overlong == 0


def _rank(rank: int, folder: str, results: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(minutes=1)
    )
    data = samples(*range(rank, 21, 2), *([5000] * rank))  # 11 samples, and 10 with one that is too long
    orders = []
    for max_length in (None, 1000):
        sampler = LengthGroupedSampler(data, max_length=max_length)
        loader = DataLoader(data, batch_size=2, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
        orders.append((len(sampler), sampler.num_overlong, [sample["_text_tokens"] for b in loader for sample in b]))
    torch.distributed.destroy_process_group()
    results.put((rank, orders))


def test_all_ranks_have_equally_many(tmp_path: Path) -> None:
    """Two real processes: one has 11 samples and the other 11, of which one is too long. No epoch ends unevenly."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(rank, str(tmp_path), results)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    found = dict(results.get() for _ in ranks)
    (all_first, cut_first), (all_second, cut_second) = found[0], found[1]
    assert (all_first[:2], all_second[:2]) == ((11, 0), (11, 0))
    assert (cut_first[:2], cut_second[:2]) == ((10, 0), (10, 1))
    assert sorted(cut_first[2]) == [*range(2, 21, 2)], "the shortest is left out"
    assert sorted(cut_second[2]) == [*range(1, 21, 2)]
    assert max(abs(a - b) for a, b in zip(cut_first[2], cut_second[2], strict=True)) == 1


# ---------------------------------------------------------------- lengths


def test_lengths_of_every_source() -> None:
    def example(*content: Any, **keys: Any) -> dict[str, Any]:
        return {"conversation": [{"role": "user", "content": [*content]}], **keys}

    text, picture, clip = {"type": "text", "text": "abcdef"}, {"type": "image"}, {"type": "video"}
    sizes = {"images_meta": [[640, 480]], "videos_meta": [[100, 128, 128, 25.0, 4.0]]}
    data = [
        example(text),
        example(text, picture),
        example(text, _text_tokens=5, _media_tokens=70),
        example(text, picture, clip, mm_inputs_meta=sizes),
        {"_text_tokens": 4},
    ]
    assert LengthGroupedSampler(data).lengths == [2, 502, 75, 1002, 4]
    sampler = LengthGroupedSampler(data, processor=hf_processor())
    assert sampler.lengths == [2, 502, 75, 2 + 391 + 64, 4]
    assert sampler._estimate_tokens(data[3]) == (2, 391 + 64)
    assert (sampler._estimate_image_tokens([640, 480]), sampler._estimate_video_tokens([100, 128, 128, 25, 4])) == (
        391,
        64,
    )
    assert LengthGroupedSampler([])._estimate_image_tokens([640, 480]) == 500
    assert LengthGroupedSampler([])._estimate_video_tokens([100, 128, 128, 25, 4]) == 500


class Wrapper:
    """A data set that must not be asked for a sample."""

    def __init__(self, name: str, inner: Any, size: int | None = None) -> None:
        setattr(self, name, inner)
        self.size = len(inner) if size is None else size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("tokenized")


@pytest.mark.parametrize("name", ["_estimate_image_tokens", "_estimate_video_tokens"])
def test_an_estimate_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sizes = {"images_meta": [[640, 480]], "videos_meta": [[100, 128, 128, 25.0, 4.0]]}
    data = [{"conversation": [], "_text_tokens": 1, "mm_inputs_meta": sizes}]
    monkeypatch.setattr(LengthGroupedSampler, name, lambda self, size: 7000)
    other = {"_estimate_image_tokens": 64, "_estimate_video_tokens": 391}[name]
    assert LengthGroupedSampler(data, processor=hf_processor()).lengths == [1 + 7000 + other]


def test_wrappers_are_unwrapped() -> None:
    data = samples(1, 2, 3)
    wrapped = Wrapper("inner_dataset", Wrapper("dataset", data))
    assert LengthGroupedSampler._get_raw_samples(wrapped) is data
    assert LengthGroupedSampler(wrapped).sorted_indices == [2, 1, 0]
    assert LengthGroupedSampler(Wrapper("dataset", Subset(data, [2, 0]))).lengths == [3, 1]
    with raises(ValueError, "lengths-invalid", dataset="Wrapper", expected=3, got=1):
        LengthGroupedSampler(Wrapper("inner_dataset", data, size=1))


def test_a_sample_without_length_is_refused() -> None:
    with raises(ValueError, "lengths-invalid", keys=["input_ids", "labels"]):
        LengthGroupedSampler([{"input_ids": [1], "labels": [1]}])
