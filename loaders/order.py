"""Which pack comes when, and to whom: pure functions of (seed, epoch), position and world."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..pipeline.plan.balance import nested_shuffle, nested_sizes, without_trend


def epoch_order(
    packs: np.ndarray, group_size: int, seed: int, epoch: int, loads: Sequence[np.ndarray] = (), *, source: int = 0
) -> np.ndarray:
    """The pack numbers of an epoch in order: whole groups of the plan shuffled, and blocks inside them, never across.

    `packs` are the numbers that exist, ascending. Groups that are not whole (the plan's last one; one that lost a pack
    to unreadable media) come last, so that steps before them stay aligned with groups. `loads` (visual tokens, say, of
    each pack): shuffles in which they rise or fall over the epoch are drawn again, as the planner does. `source`: of
    several outputs, each has a shuffle of its own.
    """
    random = np.random.PCG64(np.random.SeedSequence([seed, epoch, source] if source else [seed, epoch]))
    numbers, counts = np.unique(packs // group_size, return_counts=True)
    whole = np.isin(packs // group_size, numbers[counts == group_size])
    sizes = nested_sizes(group_size)

    def shuffle() -> np.ndarray:
        pieces = [nested_shuffle(np.flatnonzero(whole), sizes, random)]
        rest, fitting = np.flatnonzero(~whole), sizes
        while len(rest):  # as the plan cut it: in blocks of the largest nested size that fits, the remainder last
            fitting = [size for size in fitting if size <= len(rest)]
            num_whole = len(rest) // fitting[0] * fitting[0]
            pieces.append(nested_shuffle(rest[:num_whole], fitting, random))
            rest = rest[num_whole:]
        return np.concatenate(pieces)

    return packs[without_trend(shuffle, loads, sizes)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An output as the order sees it, or those of its packs that come equally often in an epoch."""

    packs: np.ndarray  # the pack numbers that exist, ascending
    group_size: int
    loads: Sequence[np.ndarray]
    per_epoch: int  # packs that it gives to an epoch
    first: int = 0  # added to its pack numbers, so that those of several outputs differ


def mixed_order(sources: Sequence[Source], seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """The packs of an epoch over several outputs, in order.

    Each output goes on through passes of its own, where it stopped in the epoch before: nothing of it comes again
    before all of it has come. 5 packs, 3 per epoch: the first three of pass 0, its last two and the first of pass 1, …
    Whole groups of the outputs take turns, evenly over the epoch, so that a step is as balanced as the group it comes
    from; what is left of broken groups comes last.
    """
    packs, turns, rests = [], [], []
    for number, source in enumerate(sources):
        whole, rest = _pieces(source, number, seed, epoch, shuffle)
        packs.append(whole)
        turns.append((np.arange(len(whole)) // source.group_size + 0.5) * source.group_size / max(1, len(whole)))
        rests.append(rest)
    order = np.argsort(np.concatenate(turns), kind="stable")
    return np.concatenate([np.concatenate(packs)[order], *rests])


def _pieces(source: Source, number: int, seed: int, epoch: int, shuffle: bool) -> tuple[np.ndarray, np.ndarray]:
    """What an output gives to an epoch: its whole groups end to end, and the rest."""
    wholes, rests, num_packs = [np.empty(0, np.int64)], [np.empty(0, np.int64)], len(source.packs)
    begin, end = epoch * source.per_epoch, (epoch + 1) * source.per_epoch
    for turn in range(begin // num_packs, -(-end // num_packs)) if num_packs else ():
        order = source.packs
        if shuffle:
            order = epoch_order(order, source.group_size, seed, turn, source.loads, source=number)
        inside = order[max(0, begin - turn * num_packs) : end - turn * num_packs]
        edges = np.flatnonzero(np.diff(inside // source.group_size, prepend=-1, append=-1))
        lengths = np.diff(edges)
        is_whole = np.repeat(lengths == source.group_size, lengths)
        wholes.append(inside[is_whole] + source.first)
        rests.append(inside[~is_whole] + source.first)
    return np.concatenate(wholes), np.concatenate(rests)


def shares(num_packs: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Packs of each output in an epoch as long as all outputs together.

    10 and 20 packs by weights 0.7 and 0.3: 21 and 9.
    """
    return apportioned(sum(num_packs), weights)


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """A whole number in whole parts by weight; the largest remainders are rounded up."""
    exact = np.array(weights, dtype=np.float64) / sum(weights) * total
    whole = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return [int(count) for count in whole]


def rank_share(order: np.ndarray, position: int, rank: int, world_size: int, *, drop_last: bool) -> np.ndarray:
    """The packs of one rank from global `position` on: every world_size-th, equally many for every rank.

    What does not fill a last step is left out (`drop_last`), or filled up with packs from the start of the epoch.
    order [a b c d e], position 0, world 2: ranks [a c] and [b d], or without drop_last [a c e] and [b d a].
    """
    left = order[position:]
    remainder = len(left) % world_size
    if remainder and drop_last:
        left = left[:-remainder]
    elif remainder:
        left = np.concatenate([left, np.resize(order, world_size - remainder)])
    return left[rank::world_size]


def share_length(num_packs: int, position: int, world_size: int, *, drop_last: bool) -> int:
    """How many packs `rank_share` gives a rank, without making the order."""
    left = max(0, num_packs - position)
    return left // world_size if drop_last else -(-left // world_size)


def worker_share(num_items: int, batch_size: int, worker: int, num_workers: int) -> np.ndarray:
    """Which of a rank's items a loader worker reads: whole batches in turn, as DataLoader collects them.

    5 items, batches of 2, 2 workers: worker 0 reads [0 1 4], worker 1 reads [2 3].
    """
    return np.flatnonzero(np.arange(num_items) // batch_size % num_workers == worker)
