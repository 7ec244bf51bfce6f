"""Which packs are alike: a line of packs in which every block that a step is made of has one encoder load and one cost.

Encoder load is what the vision and the audio tower have to do (visual tokens, where there is no sound), cost what the
whole model has. A line sorted by one of them leaves the other to chance. So packs are halved, and the halves again,
down to groups, and in groups down to pairs, each time by the load in which they differ more.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .knapsack import Ints

Floats = NDArray[np.float64]

MOST_COST = 1.004  # max/mean that groups may have in cost
NEAR_SORTED = 1.02  # times the max/mean in encoder load that sorting by it gives: no more is asked for
NEAR_BEST = 1.1  # where no weight keeps MOST_COST: times the excess of the best
# How much a difference in encoder load counts beside one in cost. 0: not at all, down to differences in it alone.
WEIGHTS = (4.0, 2.0, 1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.0)
FIRST_WEIGHT = 4  # index of the one that does for most data
# Of differences in cost, encoder load and visual tokens inside groups, whose cost is even already.
INSIDE_WEIGHTS = (1.0, 0.25, 0.01)

FEW = 1 / 64  # share of packs; mixing them in costs max/mean 1.5 times as much, 0.023
PER_POOR = 2  # packs with more load for each with hardly any, where they are mixed
UNIT = 64  # of them that stay together


def alike_order(encoder: Ints, cost: Ints, sizes: Sequence[int], visual: Ints | None = None) -> Ints:
    """Return all packs in a line, which `nested_shuffle` cuts into blocks of these sizes, each dividing the one before.

    `visual`: visual tokens, where encoders have sounds to read, too; they are evened out inside groups.
    """
    apart = _without_load(encoder, cost, sizes[0])
    others = np.setdiff1d(np.arange(len(cost)), apart, assume_unique=True)
    # The line has its rest in the middle of all groups: some of those without load may have to stand behind it.
    num_before = min(len(apart), len(cost) // sizes[0] // 2 * sizes[0])
    leaves = block_sizes(len(others), sizes, len(cost) // sizes[0] // 2 - num_before // sizes[0])
    line = others
    if len(others):
        own = encoder[others], cost[others]
        mixed, is_inside = _mixed_in(*own, avoid_text=not len(apart))
        loads = [*(mixed if is_inside else own)[::-1], *([] if visual is None else [visual[others]])]
        line = others[_inside(_chosen_line(*mixed, own[1], leaves), loads, leaves, sizes)]
    return np.concatenate([apart[:num_before], line, apart[num_before:]])


def block_sizes(num_packs: int, sizes: Sequence[int], before: int | None = None) -> list[int]:
    """As `nested_shuffle` cuts a line: groups, and in their middle (`before`: behind so many) what fills none.

    11 packs by [4, 2, 1] -> [4, 1, 2, 4]
    """
    if not num_packs:
        return []
    size, *smaller = sizes
    num_groups, num_rest = divmod(num_packs, size)
    middle = num_groups // 2 if before is None else before
    return [*[size] * middle, *block_sizes(num_rest, smaller), *[size] * (num_groups - middle)]


def _without_load(encoder: Ints, cost: Ints, size: int) -> Ints:
    """Packs without encoder load that fill whole groups, by cost; the middle ones are left over.

    Beside packs that have some, they would make the others' steps uneven: a step's mean would be next to nothing.
    """
    empty = np.flatnonzero(encoder == 0)
    empty = empty[np.argsort(cost[empty], kind="stable")]
    num_groups, num_over = divmod(len(empty), size)
    middle = num_groups // 2 * size
    return np.delete(empty, slice(middle, middle + num_over))


def _mixed_in(encoder: Ints, cost: Ints, *, avoid_text: bool) -> tuple[tuple[Ints, Ints], bool]:
    """Both loads by which packs are put into groups, and whether groups are ordered inside by them, too.

    Packs without encoder load (or with hardly any, where those are few) are taken for others of about their cost, at
    most one for two of these: so no group has more than a third of them. Where they are few, and steps of text alone
    can be avoided, they are mixed inside groups, too. Else they stay together in units, for steps without any load
    wait for nobody, and steps with one such pack do.
    """
    by_encoder = np.argsort(encoder, kind="stable")
    num_empty, num_poor = np.searchsorted(encoder[by_encoder], [1, encoder.mean() / 8])
    is_few = avoid_text and num_poor <= len(cost) * FEW
    num_mixed, unit = (int(num_poor), 1) if is_few else (int(num_empty), UNIT)
    poor, richer = by_encoder[:num_mixed], by_encoder[num_mixed:]
    if not num_mixed or len(richer) < PER_POOR * num_mixed:
        return (encoder, cost), False
    poor, richer = (packs[np.argsort(cost[packs], kind="stable")] for packs in (poor, richer))
    first = poor[::unit]
    numbers = PER_POOR * unit * np.arange(len(first))
    beside = np.maximum.accumulate(np.searchsorted(cost[richer], cost[first]) - numbers) + numbers
    beside = np.maximum(np.minimum(beside, len(richer) - 1 - numbers[::-1]), 0)
    encoder, cost = encoder.copy(), cost.copy()
    encoder[poor] = np.repeat(encoder[richer[beside]], unit)[:num_mixed]
    cost[poor] = np.repeat(cost[richer[beside] if is_few else first], unit)[:num_mixed]
    return (encoder, cost), is_few


class _Line(NamedTuple):
    packs: Ints
    encoder: float  # max/mean in a block, on average over packs
    cost: float


def _chosen_line(encoder: Ints, cost: Ints, true_cost: Ints, leaves: Sequence[int]) -> Ints:
    """The line with the evenest encoder load that keeps the true cost even.

    Cost goes first, for a step takes as long as the most costly pack in it, towers included.
    """
    by_encoder, by_cost = np.lexsort((cost, encoder)), np.lexsort((encoder, cost))
    starts = np.cumsum([0, *leaves[:-1]])
    enough = NEAR_SORTED * _evenness(encoder[by_encoder], starts, leaves)

    def line(at: int) -> _Line:
        packs = _halved(encoder, cost, by_encoder, by_cost, leaves, WEIGHTS[at])
        return _Line(packs, _evenness(encoder[packs], starts, leaves), _evenness(true_cost[packs], starts, leaves))

    at = FIRST_WEIGHT
    best = line(at)
    while best.cost <= MOST_COST and best.encoder > enough and at > 0:
        at -= 1
        found = line(at)
        if found.cost > MOST_COST:
            break
        best = min(best, found, key=lambda each: each.encoder)
    if best.cost <= MOST_COST:
        return best.packs
    tried = [best]
    while tried[-1].cost > MOST_COST and at + 1 < len(WEIGHTS):
        at += 1
        tried.append(line(at))
    most = max(MOST_COST, 1 + NEAR_BEST * (min(each.cost for each in tried) - 1))
    return min((each for each in tried if each.cost <= most), key=lambda each: each.encoder).packs


def _evenness(load: Ints, starts: Ints, leaves: Sequence[int]) -> float:
    """Of blocks, the largest load against the mean one, on average over packs."""
    counts = np.asarray(leaves)
    largest, sums = np.maximum.reduceat(load, starts), np.add.reduceat(load, starts, dtype=np.float64)
    ratios = np.where(largest > 0, largest * counts / np.where(largest > 0, sums, 1), 1.0)
    return float((ratios * counts).sum() / counts.sum())


def _halved(encoder: Ints, cost: Ints, by_encoder: Ints, by_cost: Ints, leaves: Sequence[int], weight: float) -> Ints:
    """Packs in blocks of these sizes, halved by the load in which they differ more, and again, until a half is a block.

    Both orders are kept through all halvings, so that nothing is sorted again.
    """
    ends = np.cumsum([0, *leaves])
    is_first = np.zeros(len(cost), dtype=np.bool_)
    line, todo = [], [(by_encoder, by_cost, 0, len(leaves))]
    while todo:
        one, other, first, last = todo.pop()
        if last - first == 1:
            line.append(one)
            continue
        middle = int(np.searchsorted(ends[first:last], (ends[first] + ends[last]) / 2)) + first
        middle = min(max(middle, first + 1), last - 1)
        num_first = int(ends[middle] - ends[first])
        is_by_encoder = weight * _excess(encoder[one]) > _excess(cost[other])
        cut, kept = (one, other) if is_by_encoder else (other, one)
        is_first[cut[:num_first]] = True
        mine = is_first[kept]
        is_first[cut[:num_first]] = False
        firsts, seconds = (cut[:num_first], kept[mine]), (cut[num_first:], kept[~mine])
        if not is_by_encoder:
            firsts, seconds = firsts[::-1], seconds[::-1]
        todo += [(*seconds, middle, last), (*firsts, first, middle)]
    return np.concatenate(line)


def _excess(ascending: Ints) -> float:
    """Of the largest load over the mean one. [1, 1, 4] -> 1.0"""
    return float(ascending[-1] / ascending.mean()) - 1 if ascending[-1] else 0.0


def _inside(line: Ints, loads: Sequence[Ints], leaves: Sequence[int], sizes: Sequence[int]) -> Ints:
    """Return the line with each block ordered inside, so that blocks of smaller sizes in it are alike, too.

    Each is halved by the load in which its packs differ most. `loads`: as many as INSIDE_WEIGHTS, or fewer.
    """
    ranks = [_ranks(np.lexsort((*loads[:at], *loads[at + 1 :], load)), line) for at, load in enumerate(loads)]
    loads = [load[line] for load in loads]
    places = np.arange(len(line))
    for first, last, size in _equal_runs(leaves):
        part = places[first:last]
        for whole, smaller in pairwise(each for each in sizes if each <= size):
            if smaller == 1:
                break  # in a pair, none comes before the other
            rows = part.reshape(-1, whole)
            excesses = [weight * _excesses(load[rows]) for weight, load in zip(INSIDE_WEIGHTS, loads, strict=False)]
            keys = np.choose(np.argmax(excesses, axis=0)[:, None], [rank[rows] for rank in ranks])
            part = np.take_along_axis(rows, np.argsort(keys, axis=1), axis=1).reshape(-1)
        places[first:last] = part
    return line[places]


def _ranks(order: Ints, line: Ints) -> Ints:
    """All differ, so that any way of sorting gives the same."""
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks[line]


def _excesses(rows: Ints) -> Floats:
    """`_excess` of each row, in any order."""
    largest, means = rows.max(axis=1), rows.mean(axis=1)
    return np.asarray(np.where(largest > 0, largest / np.where(largest > 0, means, 1.0) - 1, 0.0))


def _equal_runs(leaves: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Begin, end and block size of runs of equal blocks. [4, 1, 4, 4] -> (0, 4, 4), (4, 5, 1), (5, 13, 4)"""
    edges = np.flatnonzero(np.diff(leaves, prepend=-1, append=-1))
    ends = np.cumsum([0, *leaves])
    for first, last in pairwise(edges.tolist()):
        yield int(ends[first]), int(ends[last]), leaves[first]
