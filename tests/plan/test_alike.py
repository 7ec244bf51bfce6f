"""Packs in a line: every block that a step is made of is alike in encoder load and in cost."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neatpack.format.groups import nested_shuffle, nested_sizes
from neatpack.pipeline.plan.alike import alike_order, block_sizes
from neatpack.pipeline.plan.balance import step_imbalance


def steps(load: Any, order: Any, ranks: int) -> float:
    return step_imbalance(load[order], ranks)


def shuffled(encoder: Any, cost: Any, group_size: int) -> Any:
    sizes = nested_sizes(group_size)
    return nested_shuffle(alike_order(encoder, cost, sizes), sizes, np.random.PCG64(0))


@pytest.mark.parametrize(
    ("num_packs", "sizes", "blocks"),
    [(11, [4, 2, 1], [4, 1, 2, 4]), (8, [4, 2, 1], [4, 4]), (3, [4, 2, 1], [1, 2]), (0, [1], []), (2, [1], [1, 1])],
)
def test_block_sizes(num_packs: int, sizes: list[int], blocks: list[int]) -> None:
    assert block_sizes(num_packs, sizes) == blocks


@given(st.integers(0, 300), st.sampled_from([1, 2, 6, 12, 16]), st.integers(0, 20), st.sampled_from([1, 3, 1000]))
@settings(max_examples=150)
def test_every_pack_once_and_the_same_again(num_packs: int, group_size: int, seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    encoder = rng.integers(0, most, num_packs)
    cost = encoder + rng.integers(1, 1000, num_packs)
    order = alike_order(encoder, cost, nested_sizes(group_size))
    assert sorted(order.tolist()) == list(range(num_packs))
    assert alike_order(encoder, cost, nested_sizes(group_size)).tolist() == order.tolist()


@given(st.integers(1, 200), st.sampled_from([2, 6, 8]), st.integers(0, 1000))
@settings(max_examples=100)
def test_blocks_are_as_the_shuffle_cuts_them(num_packs: int, group_size: int, seed: int) -> None:
    """By cost alone, in blocks of equal packs: whatever the shuffle does, no step has two kinds."""
    sizes, rng = nested_sizes(group_size), np.random.default_rng(seed)
    blocks = block_sizes(num_packs, sizes)
    kind = np.repeat(np.arange(len(blocks)), blocks)
    at = rng.permutation(num_packs)
    cost = np.empty(num_packs, dtype=np.int64)
    cost[at] = 1000 + 100 * kind
    order = nested_shuffle(alike_order(np.zeros(num_packs, int), cost, sizes), sizes, np.random.PCG64(seed))
    whole = num_packs // group_size * group_size
    assert (np.ptp(cost[order][:whole].reshape(-1, group_size), axis=1) == 0).all()


def test_equal_cost_and_differing_load() -> None:
    """Long documents make up for few visual tokens: by cost alone, VT of a step would be 1.5 at 8 ranks."""
    rng = np.random.default_rng(0)
    encoder = rng.integers(1000, 3000, 64 * 200)
    cost = 10_000 + rng.integers(0, 1000, len(encoder))
    order = shuffled(encoder, cost, 64)
    for ranks in (2, 8, 64):
        assert steps(encoder, order, ranks) <= 1.05 * steps(encoder, np.argsort(encoder, kind="stable"), ranks)
        assert steps(cost, order, ranks) <= 1.005
    assert steps(encoder, np.argsort(cost, kind="stable"), 8) > 1.3


@pytest.mark.parametrize("num_packs", [500, 1000, 2300, 4600])
def test_few_packs_at_eight_ranks(num_packs: int) -> None:
    """Fewer groups than it takes to sort by two loads; blocks inside the groups are sorted by both."""
    rng = np.random.default_rng(num_packs)
    encoder = rng.integers(200, 3000, num_packs)
    cost = 10_000 + encoder // 4 + rng.integers(0, 100, num_packs)
    order = shuffled(encoder, cost, 512)
    assert steps(encoder, order, 8) <= 1.05 * steps(encoder, np.argsort(encoder, kind="stable"), 8)
    assert steps(cost, order, 8) <= 1.005


def test_packs_without_load_have_groups_of_their_own() -> None:
    """300 of 1000 packs are text: one group of 256, and 44 that are among the others, together."""
    rng = np.random.default_rng(1)
    encoder = rng.integers(500, 600, 1000)
    encoder[rng.permutation(1000)[:300]] = 0
    order = shuffled(encoder, 2000 + encoder // 3, 256)
    empty = (encoder[order][:768].reshape(-1, 256) == 0).sum(axis=1)
    assert sorted(empty.tolist())[-1] == 256
    assert sorted(empty.tolist())[-2] <= 256 / 3
    assert steps(encoder, order, 8) < 1.05


def test_few_text_packs_are_not_neighbours() -> None:
    encoder = np.full(1024, 1000)
    encoder[:8] = 0
    order = shuffled(encoder, encoder + np.arange(1024), 512)
    assert (encoder[order].reshape(-1, 8) == 0).sum(axis=1).max() <= 3
    assert (encoder[order].reshape(-1, 4) == 0).sum(axis=1).max() <= 2


def test_cost_goes_first_where_both_cannot_be_even() -> None:
    """Eight groups, in which load and cost have nothing to do with each other: cost is kept."""
    rng = np.random.default_rng(2)
    encoder, cost = rng.integers(100, 10_000, 64 * 8), rng.integers(10_000, 14_000, 64 * 8)
    order = shuffled(encoder, cost, 64)
    by_cost = steps(cost, np.argsort(cost, kind="stable"), 64)
    assert steps(cost, order, 64) - 1 <= 1.11 * (by_cost - 1)
    assert steps(encoder, order, 8) < steps(encoder, np.argsort(cost, kind="stable"), 8)


def test_visual_tokens_are_even_where_there_are_sounds() -> None:
    """Packs of one encoder load and cost, whose load is of images or of sounds."""
    rng = np.random.default_rng(0)
    encoder, cost = rng.integers(9900, 10_100, 64 * 100), rng.integers(99_000, 101_000, 64 * 100)
    visual = rng.integers(5000, 10_000, len(encoder))
    sizes = nested_sizes(64)
    even, other = (
        nested_shuffle(alike_order(encoder, cost, sizes, each), sizes, np.random.PCG64(0)) for each in (visual, None)
    )
    assert steps(visual, even, 8) - 1 < 0.75 * (steps(visual, other, 8) - 1)
    assert max(steps(encoder, even, 8), steps(cost, even, 8)) < 1.01
