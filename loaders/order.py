"""Which pack comes when, and to whom: pure functions of (seed, epoch), position and world."""

from collections.abc import Sequence

import numpy as np

from ..pipeline.plan.balance import nested_shuffle, nested_sizes, without_trend


def epoch_order(
    packs: np.ndarray, group_size: int, seed: int, epoch: int, loads: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """The pack numbers of an epoch in order: whole groups of the plan shuffled, and blocks inside them, never across.

    `packs` are the numbers that exist, ascending. Groups that are not whole (the plan's last one; one that lost a pack
    to unreadable media) come last, so that steps before them stay aligned with groups. `loads` (visual tokens, say, of
    each pack): shuffles in which they rise or fall over the epoch are drawn again, as the planner does.
    """
    random = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
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
