"""Ordering: steps are balanced at nested sizes, and the epoch has no trend."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neatpack.format.groups import correlation, nested_shuffle, nested_sizes
from neatpack.pipeline.plan import plan_bins
from neatpack.pipeline.plan.balance import balanced_order, step_imbalance, step_ratios
from neatpack.pipeline.step_cost import PRESETS

CAPACITY = 8192
COST = PRESETS["7b"]


@pytest.fixture(scope="module")
def mixed() -> tuple[Any, Any]:
    """20k samples, 25% of them text: about 1000 packs."""
    rng = np.random.default_rng(3)
    visual = np.clip(rng.lognormal(np.log(380), 0.6, 20_000), 64, 2048).astype(int)
    visual[rng.random(20_000) < 0.25] = 0
    text = np.clip(rng.lognormal(np.log(np.where(visual, 20, 130)), 0.8), 5, 2000).astype(int)
    return visual + text, visual


def loads(bins: list[Any], lengths: Any, visual: Any) -> tuple[Any, Any, Any]:
    tokens = np.array([lengths[b].sum() for b in bins])
    visual_sums = np.array([visual[b].sum() for b in bins])
    squares = np.array([(lengths[b] ** 2).sum() for b in bins])
    encoders = COST.of_encoders(visual_sums, np.zeros_like(visual_sums))
    return tokens, visual_sums, COST.of_packs(tokens, encoders, squares)


def max_over_mean(load: Any, size: int) -> float:
    steps = load[: len(load) // size * size].reshape(-1, size)
    return float((steps.max(axis=1) / steps.mean(axis=1)).mean())


@pytest.mark.parametrize(
    ("group_size", "sizes"),
    [(1, [1]), (6, [6, 2, 1]), (8, [8, 4, 2, 1]), (7, [7, 1]), (480, [480, 96, 32, 16, 8, 4, 2, 1])],
)
def test_nested_sizes(group_size: int, sizes: list[int]) -> None:
    assert nested_sizes(group_size) == sizes


@given(st.integers(0, 200), st.sampled_from([1, 2, 6, 12, 16]), st.integers(0, 1000))
@settings(max_examples=100)
def test_aligned_blocks_hold_neighbours(num_packs: int, group_size: int, seed: int) -> None:
    sizes = nested_sizes(group_size)
    order = nested_shuffle(np.arange(num_packs), sizes, np.random.PCG64(seed))
    assert sorted(order.tolist()) == list(range(num_packs))
    num_full = num_packs // group_size * group_size
    tail = set(order[num_full:].tolist())
    for size in sizes:
        for block in order[: num_packs // size * size].reshape(-1, size).tolist():
            missing = set(range(min(block), max(block) + 1)) - set(block)
            assert missing <= tail  # the tail is cut out of the middle; a block may reach across


def test_shuffle_moves_groups_blocks_and_packs() -> None:
    order = nested_shuffle(np.arange(64), [8, 4, 2, 1], np.random.PCG64(0)).tolist()
    for size in (8, 4, 2):
        firsts = [min(order[i : i + size]) for i in range(0, 64, size)]
        assert firsts != sorted(firsts)
    assert any(a > b for a, b in zip(order[::2], order[1::2], strict=True))


def test_the_rest_comes_last_from_the_middle() -> None:
    order = nested_shuffle(np.arange(11), [4, 2, 1], np.random.PCG64(0)).tolist()
    assert sorted(order[8:]) == [4, 5, 6]


def test_correlation() -> None:
    assert correlation(np.arange(16), 1) == pytest.approx(1)
    assert correlation(-np.arange(64), 2) == pytest.approx(-1)
    assert correlation(np.ones(64, dtype=np.int64), 2) == 0
    assert correlation(np.arange(16), 4) == 0  # 4 steps are no trend


def test_cost_of_one_long_document_exceeds_many_short_ones() -> None:
    tokens, encoders = np.array([16000, 16000]), np.array([0, 0])
    long, short = COST.of_packs(tokens, encoders, np.array([16000**2, 160 * 100**2])).tolist()
    assert 1.2 < long / short < 1.25


@pytest.mark.parametrize("seed", range(5))
def test_balanced_and_without_trend(mixed: tuple[Any, Any], seed: int) -> None:
    lengths, visual = mixed
    bins = plan_bins(lengths, visual, capacity=CAPACITY, group_size=64, seed=seed)
    assert len(bins) <= 1.0005 * -(-lengths.sum() // CAPACITY)
    _, visual_sums, cost = loads(bins, lengths, visual)
    for size in (8, 64):
        assert max_over_mean(visual_sums, size) <= 1.02
        assert max_over_mean(cost, size) <= 1.01
        steps = visual_sums[: len(bins) // size * size].reshape(-1, size).sum(axis=1)
        assert abs(np.corrcoef(np.arange(len(steps)), steps)[0, 1]) < 0.1
        assert steps.min() > 0.3 * steps.mean()  # no step of text alone


def test_no_trend_in_few_groups() -> None:
    # 20 groups: one shuffle in two would have |r| > 0.15
    visual = np.repeat(np.arange(20), 32) * 100
    for seed in range(20):
        order = balanced_order(visual, np.full(640, 8192) + visual, group_size=32, seed=seed)
        assert max(abs(correlation(visual[order], size)) for size in (1, 8, 32)) < 0.1


def test_seed_changes_the_order(mixed: tuple[Any, Any]) -> None:
    lengths, visual = mixed
    orders = [[b.tolist() for b in plan_bins(lengths, visual, capacity=CAPACITY, seed=seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert len(orders[0]) == len(orders[2])
    assert len({tuple(pack) for pack in orders[0]} & {tuple(pack) for pack in orders[2]}) < len(orders[0]) / 20


def test_plan_is_frozen() -> None:
    # the same on every machine and numpy version, or finished outputs could not be resumed
    bins = plan_bins([7, 5, 4, 3, 3, 2, 6, 10], [6, 0, 3, 0, 2, 0, 5, 0], capacity=10, group_size=2, seed=1)
    assert [b.tolist() for b in bins] == [[1, 3, 5], [7], [2, 6], [0, 4]]


def test_a_step_waits_for_its_slowest_rank() -> None:
    load = np.array([3, 1, 0, 0, 2, 2, 9])  # the last pack fills no step, and in the second nobody waits
    assert step_ratios(load, 2).tolist() == [1.5, 1.0]
    assert step_imbalance(load, 2) == 1.25
    assert step_imbalance(load, 8) == 1.0
