"""Mixing: copies and groups in different packs, spread over the order, whatever the order that samples are given in."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.errors import raises

from neatpack.errors import UserError
from neatpack.format.groups import NestedGroups
from neatpack.loaders.order import epoch_order, spread_group_size
from neatpack.pipeline.plan import plan_bins
from neatpack.pipeline.plan.knapsack import sorted_by
from neatpack.pipeline.plan.mixing import draw_phases, section_edges
from neatpack.pipeline.plan.plan import plan_packs

CAPACITY = 64
rows = st.lists(
    st.tuples(st.integers(1, CAPACITY), st.sampled_from([0, 0, 1, 2]), st.integers(1, 4), st.integers(0, 5)),
    min_size=1, max_size=40,
)  # fmt: skip


def planned(drawn: list[tuple[int, int, int, int]], order: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Packs of copies of rows, (tokens, visual share, copies, group), given in an order; and the row of each."""
    row = np.repeat(np.arange(len(drawn)), [copies for _, _, copies, _ in drawn])[order]
    lengths = np.array([tokens for tokens, *_ in drawn])[row]
    visual = np.array([tokens * share // 4 for tokens, share, *_ in drawn])[row]
    groups = np.array([group for *_, group in drawn])[row]
    packs = plan_packs(lengths, visual, capacity=CAPACITY, group_size=4, max_visual_tokens=None, text_reserve=0,
                       rows=row, groups=groups, **options)  # fmt: skip
    assert (np.bincount(packs, weights=lengths) <= CAPACITY).all()
    assert np.array_equal(np.unique(packs), np.arange(packs.max() + 1))
    return packs, row


@pytest.mark.slow
@given(rows, st.integers(0, 1000), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_every_sample_is_in_a_pack_that_holds_it(
    drawn: list[tuple[int, int, int, int]], seed: int, shuffle: int
) -> None:
    num = sum(copies for _, _, copies, _ in drawn)
    order = np.random.RandomState(shuffle).permutation(num)
    packs, row = planned(drawn, order, seed=seed)
    again, _ = planned(drawn, order, seed=seed)
    assert np.array_equal(packs, again)
    assert np.array_equal(np.bincount(row), [copies for _, _, copies, _ in drawn])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shuffled", [False, True])
def test_copies_are_in_different_packs(seed: int, shuffled: bool) -> None:
    """100 rows, four times each, of 5 to 30 tokens in packs of 64: about 110 packs."""
    random = np.random.RandomState(seed)
    drawn = [(int(length), int(share), 4, number) for number, (length, share) in
             enumerate(zip(random.randint(5, 31, 100), random.choice([0, 0, 3], 100), strict=True))]  # fmt: skip
    order = random.permutation(400) if shuffled else np.arange(400)
    packs, row = planned(drawn, order, seed=seed)
    assert Counter(zip(packs.tolist(), row.tolist(), strict=True)).most_common(1)[0][1] == 1
    parts = packs * 4 // (packs.max() + 1)
    assert np.mean([len(set(parts[row == each])) for each in range(100)]) > 2.85, (
        "2.73 by chance, and packs are full to the token"
    )


ORDERS = ("as drawn", "by length", "by length, longest first", "by visual tokens", "alternating")


def ordered(name: str, lengths: np.ndarray, visual: np.ndarray) -> np.ndarray:
    places = np.arange(len(lengths))
    by_length = np.argsort(lengths, kind="stable")
    if name == "alternating":  # one of the first half, one of the second
        return places.reshape(2, -1).T.reshape(-1)
    orders = (places, by_length, by_length[::-1], np.argsort(visual, kind="stable"))
    return orders[ORDERS.index(name)]


def pairs_in_packs(packs: np.ndarray) -> set[tuple[int, int]]:
    found: dict[int, list[int]] = {}
    for sample, pack in enumerate(packs.tolist()):
        found.setdefault(pack, []).append(sample)
    return {pair for inside in found.values() for pair in combinations(inside, 2)}


@pytest.mark.parametrize("kind", ["texts", "equal lengths", "images and texts"])
def test_packs_do_not_show_the_order_of_samples_and_differ_by_seed(kind: str) -> None:
    """3,000 samples, about 15 a pack: neighbours share one by chance in every order, and two plans share few pairs."""
    random = np.random.RandomState(0)
    lengths = np.full(3000, 60) if kind == "equal lengths" else random.randint(20, 120, 3000)
    visual = np.where(random.random_sample(3000) < 0.6, lengths // 2, 0) if "images" in kind else 0 * lengths
    counts, plans = set(), []
    for name in ORDERS:
        order = ordered(name, lengths, visual)
        for seed in (0, 7):
            packs = plan_packs(lengths[order], visual[order], capacity=1024, group_size=16, seed=seed,
                               max_visual_tokens=None, text_reserve=0)  # fmt: skip
            of_sample = np.empty_like(packs)
            of_sample[order] = packs
            pairs = pairs_in_packs(of_sample)
            chance = len(pairs) / (3000 * 2999 / 2)
            met = np.count_nonzero(np.diff(packs) == 0)
            assert met <= 1.5 * 2999 * chance + 3 * (2999 * chance) ** 0.5, (name, seed)
            counts.add(int(packs.max()) + 1)
            plans.append((name, seed, pairs))
    assert max(counts) - min(counts) <= 1
    for (name, seed, pairs), (other, another, others) in combinations(plans, 2):
        if seed != another:  # 0.7% by chance, and 2% where bins of even load have a document of each length
            assert len(pairs & others) <= 0.03 * len(pairs), (name, seed, other, another)


def count_neighbors(packs: np.ndarray) -> tuple[int, float]:
    """Return pairs of samples, one after the other, that share a pack, and how many would by chance."""
    counts = np.bincount(packs).astype(float)
    return np.count_nonzero(np.diff(packs) == 0), float((counts * (counts - 1)).sum()) / len(packs)


def test_many_sorted_texts_share_packs_by_chance() -> None:
    """As many as get few rounds of exchanges: two of them leave 40 times chance."""
    lengths = np.sort(np.clip(np.random.RandomState(0).lognormal(np.log(200), 0.9, 300_000), 8, 4096).astype(int))
    packs = plan_packs(lengths, 0 * lengths, capacity=8192, group_size=512, seed=0, max_visual_tokens=None,
                       text_reserve=0)  # fmt: skip
    met, by_chance = count_neighbors(packs)
    assert met <= 1.5 * by_chance + 4 * by_chance**0.5


@pytest.mark.parametrize("seed", range(3))
def test_sorted_images_share_packs_by_chance(seed: int) -> None:
    """Images of one length and many loads, next to texts: bundles of exactly equal load leave 500 times chance."""
    random = np.random.RandomState(seed)
    is_text = random.random_sample(50_000) < 0.4
    visual = np.where(is_text, 0, np.minimum(256 * (1 + random.pareto(0.8, 50_000)), 14_000)).astype(int)
    text = 30 * (1 + random.pareto(1, 50_000)) * np.where(is_text, 4, 1)
    lengths = np.minimum(visual + text, 16384).astype(int)
    order = np.lexsort((visual, lengths))
    packs = plan_packs(lengths[order], visual[order], capacity=16384, group_size=512, seed=seed, max_visual_tokens=None,
                       text_reserve=0)  # fmt: skip
    met, by_chance = count_neighbors(packs)
    assert met <= 4 * by_chance + 4 * by_chance**0.5


def test_more_copies_than_packs_take_no_more_packs() -> None:
    lengths = np.full(60, 16)
    alone = plan_bins(lengths, 0 * lengths, capacity=64)
    copies = plan_bins(lengths, 0 * lengths, capacity=64, rows=np.zeros(60, int))
    assert len(copies) == len(alone) == 15


@pytest.mark.parametrize(("name", "values"), [("rows", [0]), ("groups", [0, 1, 2, 3])])
def test_labels_of_other_lengths_are_refused(name: str, values: list[int]) -> None:
    with raises(UserError, "lengths-invalid", name=name, got=len(values), expected=3):
        plan_bins([1, 2, 3], [0, 0, 0], capacity=8, **{name: values})  # type: ignore[arg-type]


def test_phases_of_copies_are_at_equal_distances() -> None:
    """A group of three rows, twice each: any two copies of a row are half an epoch apart."""
    kin = draw_phases(np.array([7, 8, 9, 7, 8, 9, 5]), np.array([1, 1, 1, 1, 1, 1, 2]), 7, np.random.RandomState(0))
    assert kin is not None and kin.largest == 6
    assert np.allclose(np.abs(kin.phases[:3] - kin.phases[3:6]), 0.5)
    assert np.allclose(np.diff(np.sort(kin.phases[:6])), 1 / 6)
    assert draw_phases(np.arange(3), None, 3, np.random.RandomState(0)) is None


def test_sections_end_where_blocks_do() -> None:
    assert section_edges(100, 4, [64, 16, 4, 2, 1]).tolist() == [0, 26, 50, 76, 100]
    assert section_edges(1000, 1, [64, 1]).tolist() == [0, 1000]


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 3)), max_size=30), st.booleans())
def test_sorted_by_is_lexsort(values: list[tuple[int, int]], wide: bool) -> None:
    first, second = (np.array([value[half] for value in values], dtype=np.int64) for half in (0, 1))
    first = first << 20 if wide else first
    assert sorted_by(first, second).tolist() == np.lexsort((second, first)).tolist()


@pytest.mark.parametrize("num_groups", [1, 2, 5, 16, 40, 1000])
def test_halves_and_quarters_stay_together_in_every_epoch(num_groups: int) -> None:
    for seed in range(20):
        shuffle = NestedGroups(num_groups, [4, 2, 1], np.random.PCG64(seed), keeps_spread=True)
        places = shuffle.places(0, num_groups)
        assert sorted(places.tolist()) == list(range(4 * num_groups))
        if num_groups % 16 == 0:
            quarter = places.reshape(4, -1) * 4 // (4 * num_groups)
            assert all(len(set(each)) == 1 for each in quarter.tolist())
            assert len({tuple(half) for half in (quarter.reshape(2, -1) // 2).tolist()}) == 2


def test_epochs_that_keep_copies_spread_differ() -> None:
    orders = [epoch_order(np.arange(512), 512, 0, epoch, keeps_spread=True).tolist() for epoch in range(4)]
    assert len(set(map(tuple, orders))) == 4 and all(sorted(order) == list(range(512)) for order in orders)
    assert (
        spread_group_size(512, 512) == 32 and spread_group_size(512, 100_000) == 512 and spread_group_size(512, 3) == 1
    )
