"""Partitions: fair samples of all data sets, whose packs fill and balance as if they were planned together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR
from hypothesis import given, strategies as st

from jobs.scale.driver import planned_rows
from neatpack.format.groups import correlation
from neatpack.loaders.order import epoch_order
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.plan.balance import step_imbalance
from neatpack.pipeline.plan.partition import dealt, kept, num_partitions, partition_of
from neatpack.pipeline.planned import Planned
from neatpack.pipeline.runtime.engine import Engine


def test_as_many_as_come_nearest() -> None:
    counts = {0: 1, 1: 1, 5_999_999: 1, 6_000_000: 2, 10_000_000: 3, 1_000_000_000: 250}
    assert {samples: num_partitions(samples, 4_000_000) for samples in counts} == counts


def test_parts_are_dealt_in_turn() -> None:
    """Six parts of a, two of b; then c, whose first part is large."""
    corpus, samples = np.array([0] * 6 + [1] * 2 + [2] * 3), np.array([4] * 6 + [4] * 2 + [9, 1, 1])
    assert [parts.tolist() for parts in dealt(corpus, samples, 3)] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    assert [parts.tolist() for parts in dealt(corpus, samples, 1)] == [list(range(11))]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 7))
def test_every_part_once_and_a_fair_share_of_each_corpus(num_parts: list[int], number: int) -> None:
    corpus = np.repeat(np.arange(len(num_parts)), num_parts)
    partitions = dealt(corpus, np.full(len(corpus), 10), number)
    assert sorted(np.concatenate(partitions).tolist()) == list(range(len(corpus)))
    for index, count in enumerate(num_parts):
        own = [int((corpus[parts] == index).sum()) for parts in partitions]
        assert max(own) - min(own) <= 1 and sum(own) == count
    sizes = [len(parts) for parts in partitions]
    assert max(sizes) - min(sizes) <= 1


def test_the_first_packs_are_kept() -> None:
    assert kept(np.array([5, 5, 5]), 7).tolist() == [5, 2, 0]
    assert kept(np.array([5, 5, 5]), 0).tolist() == [5, 5, 5]
    assert kept(np.array([5, 5]), 20).tolist() == [5, 5]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planned, Planned]:
    """60,000 rows, three quarters of them pictures, in 600 parts: 2,200 packs in groups of 64. As one and as four."""
    folder = tmp_path_factory.mktemp("rows")

    def planned(samples: int) -> Planned:
        config = PackConfig(meta="m", processor=str(DEMO_PROCESSOR), out=str(folder / str(samples)), pack_size=16_384,
                            group_size=64, partition_samples=samples)  # fmt: skip
        return planned_rows(folder / "store", 60_000, config, Engine({}), part_rows=100)

    return planned(4_000_000), planned(15_000)


def lines(planned: Planned) -> list[tuple[Any, ...]]:
    names = ("dataset", "row", "repeat", "tokens", "reason")
    return sorted(zip(*(planned.plan.table[name].to_pylist() for name in names), strict=True))


def test_every_row_is_planned_once(plans: tuple[Planned, Planned]) -> None:
    one, four = plans
    assert (len(one.files), len(four.files), four.num_partitions) == (1, 5, 4)
    assert lines(one) == lines(four)
    packs = four.plan.packed["pack"].to_numpy()
    assert np.array_equal(np.unique(packs), np.arange(four.num_packs)), "no number is missing"
    assert all(file.num_packs % 64 == 0 for file in four.files[:-1]), "what fills no group is in the last file"
    assert sum(file.num_packs for file in four.files) == four.num_packs
    for sums, others in zip(one.sums, four.sums, strict=True):
        assert sums == others


def test_rows_of_one_part_are_dealt_to_all_partitions(plans: tuple[Planned, Planned]) -> None:
    """A part of 100 rows gives each of four partitions about 25; neighbours meet as others do."""
    _, four = plans
    packed = four.plan.packed
    ends = np.cumsum([file.num_packs for file in four.files[:-1]])
    partition = np.searchsorted(ends, packed["pack"].to_numpy(), side="right")
    counts = np.zeros((600, 5), dtype=int)
    np.add.at(counts, (packed["part"].to_numpy(), partition), 1)
    assert (counts[:, :4] > 5).all()
    order = np.argsort(packed["row"].to_numpy() + (packed["dataset"].to_numpy().astype(np.int64) << 40))
    packs = packed["pack"].to_numpy()[order]
    assert np.mean(np.diff(packs) == 0) < 2 / four.num_packs


@pytest.mark.parametrize(("copies", "num"), [(1, 4), (2, 4), (3, 4), (4, 4), (7, 3)])
def test_copies_of_a_row_are_dealt_at_equal_distances(copies: int, num: int) -> None:
    rows, repeats = np.repeat(np.arange(2000), copies), np.tile(np.arange(copies), 2000)
    found = partition_of(0, rows, repeats, np.full(len(rows), copies), num, seed=0).reshape(2000, copies)
    spans = [np.bincount(row, minlength=num) for row in found]
    assert all(span.max() <= -(-copies // num) for span in spans)
    assert np.all(np.abs(np.bincount(found.reshape(-1), minlength=num) / len(rows) - 1 / num) < 0.05)


def test_packs_are_as_full(plans: tuple[Planned, Planned]) -> None:
    one, four = plans
    assert four.num_packs <= 1.002 * one.num_packs


@pytest.mark.parametrize("ranks", [8, 64])
def test_steps_are_as_balanced(plans: tuple[Planned, Planned], ranks: int) -> None:
    one, four = (planned.plan.per_pack("visual_tokens") for planned in plans)
    assert step_imbalance(four, ranks) <= 1.01 * step_imbalance(one, ranks) < 1.05


def test_an_epoch_has_no_trend(plans: tuple[Planned, Planned]) -> None:
    """Partitions differ by chance, here by one percent; an epoch goes through groups of all of them in turn."""
    visual = plans[1].plan.per_pack("visual_tokens")
    order = epoch_order(np.arange(len(visual)), 64, seed=0, epoch=0, loads=(visual,))
    assert all(abs(correlation(visual[order], ranks)) < 0.1 for ranks in (8, 64))
    assert step_imbalance(visual[order], 8) <= 1.01 * step_imbalance(visual, 8)


def test_the_same_files_whatever_the_folder(plans: tuple[Planned, Planned], tmp_path: Path) -> None:
    _, four = plans
    again = planned_rows(tmp_path / "store", 60_000,
                         PackConfig(meta="m", processor=str(DEMO_PROCESSOR), out=str(tmp_path / "out"),
                                    pack_size=16_384, group_size=64, partition_samples=15_000),
                         Engine({}), part_rows=100)  # fmt: skip
    assert [file.cuts for file in again.files] == [file.cuts for file in four.files]
