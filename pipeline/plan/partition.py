"""Partitions: a large corpus is planned in pieces, each a fair sample of all data sets. Functions from ints to ints.

Packs never cross partitions, so each can be planned by a task of its own, in the memory that its samples take.
"""

import numpy as np

from .knapsack import Ints


def num_partitions(num_samples: int, partition_samples: int) -> int:
    """As many as come nearest to `partition_samples` in each: 10M samples by 4M -> 2, by 3M -> 3."""
    return max(1, (2 * num_samples + partition_samples) // (2 * partition_samples))


def dealt(corpus: Ints, samples: Ints, num: int) -> list[Ints]:
    """The parts of each partition, ascending. `corpus` and `samples`: of each part.

    Parts of a corpus are dealt in turn: each goes where the fewest samples of its corpus are so far, of these where
    the fewest of all are. Six parts of a, then two of b, all alike, to three partitions -> a0 a3 b0 | a1 a4 b1 | a2 a5.
    """
    if num == 1:
        return [np.arange(len(corpus))]
    own, order = np.zeros(num, dtype=np.int64), np.arange(num)
    whole = np.zeros(num, dtype=np.int64)
    place = np.empty(len(corpus), dtype=np.int64)
    before = -1
    for index, (mine, count) in enumerate(zip(corpus.tolist(), samples.tolist(), strict=True)):
        if mine != before:
            own[:], before = 0, mine
        fewest = order[own == own.min()]
        taker = fewest[whole[fewest].argmin()]
        place[index] = taker
        own[taker] += count
        whole[taker] += count
    return [np.flatnonzero(place == number) for number in range(num)]


def partition_of(corpus: int, rows: Ints, repeats: Ints, copies: Ints, num: int, seed: int) -> Ints:
    """Return the partition of each copy of a row. The first is drawn from the row's number, the others are at equal
    distances: of two copies in four partitions, one is in 0 and the other in 2, or in 1 and 3."""
    keys = rows.astype(np.uint64) ^ (np.uint64(corpus) << np.uint64(44)) ^ (np.uint64(seed & 0xFFFF) << np.uint64(28))
    keys = (keys + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    first = (keys ^ (keys >> np.uint64(31))) / 2.0**64
    return np.minimum(((repeats + first) / copies * num).astype(np.int64), num - 1)


def whole_groups(num_packs: Ints, group_size: int) -> Ints:
    """Packs of each partition that fill whole groups; what is over is ordered anew, all partitions' together.

    [1030, 500] by 512 -> [1024, 0]
    """
    return num_packs // group_size * group_size


def kept(num_packs: Ints, most: int) -> Ints:
    """How many of the packs of each file are among the first `most`; 0: all are. [5, 5, 5], 7 -> [5, 2, 0]"""
    if not most:
        return num_packs
    before = np.cumsum(num_packs) - num_packs
    return np.asarray(np.clip(most - before, 0, num_packs))
