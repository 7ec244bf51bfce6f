"""Packing by patterns: bins that are full, of samples that are all about as long."""

from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neatpack.pipeline.plan.knapsack import UNPLACED, Samples
from neatpack.pipeline.plan.packing import fillers, pack, pack_around, pack_by_patterns
from neatpack.pipeline.plan.patterns import MOST_LENGTHS, _nearest, _sums, fill_by_patterns


def filled(lengths: list[int], capacity: int) -> list[list[int]]:
    """The lengths in each bin, descending."""
    bin_of = np.full(len(lengths), UNPLACED)
    count = fill_by_patterns(bin_of, np.arange(len(lengths)), np.array(lengths), capacity)
    assert count is not None
    return [sorted((lengths[i] for i in np.flatnonzero(bin_of == bin_)), reverse=True) for bin_ in range(count)]


def samples_of(lengths: Any, visual: Any, capacity: int, reserve: int = 0, limit: int | None = None) -> Samples:
    return Samples(
        lengths=np.asarray(lengths),
        visual_tokens=np.asarray(visual),
        capacity=capacity,
        max_visual_tokens=limit,
        text_reserve=reserve,
        encoder=np.asarray(visual),
    )


def test_the_longest_is_completed() -> None:
    # best fit would put 5 and 5 together, and 7 alone
    assert filled([7, 5, 5, 3, 4, 6, 4, 6], 10) == [[7, 3], [6, 4], [6, 4], [5, 5]]


def test_the_fewest_complete_it() -> None:
    assert filled([6, 4, 2, 2], 10) == [[6, 4], [2, 2]]


def test_those_near_an_equal_share_complete_it() -> None:
    # 10 is missing in two: 5 and 5 rather than 9 and 1
    assert filled([10, 9, 1, 5, 5], 20)[0] == [10, 5, 5]


def test_a_length_of_which_there_is_one_does_not_come_twice() -> None:
    assert filled([10, 5, 4], 20) == [[10, 5, 4]]


def test_too_many_lengths_are_not_tried() -> None:
    lengths = np.arange(1, MOST_LENGTHS + 2)
    assert fill_by_patterns(np.zeros(len(lengths), int), np.arange(len(lengths)), lengths, 5000) is None


def captioned(num: int, image: int, typical: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    text = np.clip(rng.lognormal(np.log(typical), 0.6, num), 8, 400).astype(int)
    return image + text, np.full(num, image)


@pytest.mark.parametrize(("capacity", "most"), [(2048, 1.007), (4096, 1.01), (16384, 1.003)])
def test_pictures_of_one_size_with_captions(capacity: int, most: float) -> None:
    """Best fit needs 1.05, 1.02 and 1.007."""
    lengths, visual = captioned(20_000, 256, 45, seed=1)
    bins = pack(samples_of(lengths, visual, capacity))
    assert (bins.max() + 1) / -(-lengths.sum() // capacity) <= most


sample = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.one_of(st.just(0), st.integers(0, n))))


@given(st.lists(sample, min_size=1, max_size=60), st.integers(0, 8), st.sampled_from([None, 0, 3, 10]))
@settings(max_examples=200)
def test_every_sample_once_and_within_all_limits(drawn: list[tuple[int, int]], reserve: int, spare: int | None) -> None:
    lengths, visual = (np.array(values) for values in zip(*drawn, strict=True))
    limit = None if spare is None else int(visual.max(initial=1)) + spare
    samples = samples_of(lengths, visual, 48, reserve, limit)
    found = pack_by_patterns(samples)
    assert found is not None
    bins, count = found
    assert sorted(set(bins.tolist())) == list(range(count))
    tokens, has = np.bincount(bins, weights=lengths), np.bincount(bins, weights=visual)
    assert (tokens <= np.where(has > 0, 48, 48 - reserve)).all()
    assert limit is None or has.max() <= limit
    again = pack_by_patterns(samples)
    assert again is not None and again[0].tolist() == bins.tolist()


@given(st.lists(st.integers(20, 40), min_size=1, max_size=200), st.sampled_from([48, 100, 1000]))
@settings(max_examples=100)
def test_never_more_bins_than_the_best_try_before(lengths: list[int], capacity: int) -> None:
    samples = samples_of(lengths, [min(length, 20) for length in lengths], capacity)
    bound = samples.lower_bound()
    before = min(pack_around(filler, bound, samples)[1] for filler in fillers(samples))
    assert pack(samples).max() + 1 <= before


some_lengths = st.lists(st.integers(1, 25), min_size=1, max_size=8, unique=True).map(sorted)


@given(some_lengths, st.integers(0, 70), st.integers(0, 5))
def test_the_sums_of_so_many_samples(lengths: list[int], most: int, number: int) -> None:
    """As they are by trying all; none of more samples than it takes to have the largest."""
    expected = [
        {sum(chosen) for chosen in combinations_with_replacement(lengths, count)} for count in range(number + 1)
    ]
    expected = [{each for each in sums if each <= most} for sums in expected]
    sums = [{place for place in range(most + 1) if bits >> place & 1} for bits in _sums(lengths, most, number)]
    assert sums == expected[: len(sums)]
    is_full = [most in each for each in expected]
    assert len(sums) == (is_full.index(True) + 1 if any(is_full) else sum(map(bool, expected)))


@given(some_lengths, st.integers(1, 90), st.integers(1, 6))
def test_the_nearest_to_an_equal_share_come_first(lengths: list[int], total: int, count: int) -> None:
    assert list(_nearest(lengths, total, count)) == sorted(lengths, key=lambda each: abs(each * count - total))


@given(st.lists(st.integers(4, 40), min_size=1, max_size=40), st.integers(0, 7))
def test_multiples_are_packed_as_what_they_are_multiples_of(lengths: list[int], over: int) -> None:
    """Of --align 8, say. What is left of a capacity is room that no sample can fill."""
    aligned = filled([8 * each for each in lengths], 8 * 48 + over)
    assert aligned == [[8 * each for each in bin_] for bin_ in filled(lengths, 48)]
