"""Packing by patterns: bins that are full to the last token, for samples that are all about as long.

Pictures of one size with captions leave best fit no short samples to fill gaps with. But they have few lengths, so
what fills a bin is found by lengths, and taken for as many bins as there are samples of these lengths.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .knapsack import UNPLACED, Ints, bin_sums, ceil_div, stable_order

MOST_LENGTHS = 1000  # different ones: a pattern takes time by their number, and there are as many patterns
MOST_CHOSEN = 16  # samples of a bin; where more fit, bins are made of several small ones
NEARLY_FULL = 1 / 512  # room of a small bin that is taken for full

Pattern = Mapping[int, int]  # samples of each length


def fill_by_patterns(bin_of: Ints, todo: Ints, sizes: Ints, capacity: int) -> int | None:
    """Put the samples `todo` into new bins 0, 1, …; return how many there are. None: of too many lengths to try.

    Where many fit into a bin, it is made of small bins that are full; samples of the others are left unplaced, for best
    fit to put them into large ones. 100k pictures of 256 tokens with captions of 20 to 150: best fit needs 1.055, 1.024
    and 1.007 of the lower bound at capacity 2048, 4096 and 16384, this and best fit 1.005, 1.003 and 1.001.
    """
    lengths, counts = np.unique(sizes[todo], return_counts=True)
    if not 0 < len(lengths) <= MOST_LENGTHS:
        return None
    parts = ceil_div(capacity * len(todo), int(sizes[todo].sum()) * MOST_CHOSEN)
    small = capacity // parts
    if lengths[-1] > small:
        return None
    unit = int(np.gcd.reduce(lengths))  # with --align, say, 8: what no sample can fill is no room
    num_small = _fill(bin_of, todo, sizes // unit, small // unit, lengths // unit, counts)
    if parts == 1:
        return num_small
    room = small - bin_sums(bin_of, sizes, num_small)
    full = np.flatnonzero(room <= small * NEARLY_FULL)
    num_bins = len(full) // parts
    place = np.full(num_small, UNPLACED, dtype=np.int64)
    place[full[: num_bins * parts]] = np.arange(num_bins * parts) // parts
    bin_of[todo] = place[bin_of[todo]]
    return num_bins


def _fill(bin_of: Ints, todo: Ints, sizes: Ints, capacity: int, lengths: Ints, counts: Ints) -> int:
    """All of them, in bins that have the longest sample that is left, and the fewest others that fill it best.

    So the long ones go where they fit exactly, and the short ones are left, more of which fill a bin.
    """
    left = dict(zip(lengths.tolist(), counts.tolist(), strict=True))
    by_length = todo[stable_order(sizes[todo])]
    next_of = dict(zip(lengths.tolist(), (np.cumsum(counts) - counts).tolist(), strict=True))
    num_bins = 0
    while left:
        pattern = _pattern(left, capacity)
        num_new = min(left[length] // count for length, count in pattern.items())
        bins = np.arange(num_bins, num_bins + num_new)
        for length, count in pattern.items():
            first = next_of[length]
            next_of[length] += num_new * count
            bin_of[by_length[first : next_of[length]]] = np.repeat(bins, count)
            left[length] -= num_new * count
            if not left[length]:
                del left[length]
        num_bins += num_new
    return num_bins


def _pattern(left: Mapping[int, int], capacity: int) -> Pattern:
    """The longest length, and what completes it. `left`: samples of each length."""
    longest, shortest = max(left), min(left)
    pattern, room = {longest: 1}, capacity - longest
    while True:
        able = [length for length in sorted(left) if length <= room and left[length] > pattern.get(length, 0)]
        sums = _sums(able, room, room // shortest)
        fullest = missing = max(each.bit_length() for each in sums) - 1
        number = next(count for count, each in enumerate(sums) if each >> fullest & 1)
        for count in range(number, 0, -1):
            fitting = (
                length for length in _nearest(able, missing, count)
                if length <= missing and sums[count - 1] >> (missing - length) & 1
                and pattern.get(length, 0) < left[length]
            )  # fmt: skip
            if (taken := next(fitting, None)) is None:
                break  # there are too few samples of a length that would come twice: what completes it now?
            pattern[taken] = pattern.get(taken, 0) + 1
            missing -= taken
            room -= taken
        else:
            return pattern


def _nearest(ascending: Sequence[int], total: int, count: int) -> Iterator[int]:
    """Those nearest to an equal share first, of two the smaller. [2, 4, 5, 9], 9, 2 -> 4, 5, 2, 9

    One after the other: hardly ever are more than a few looked at.
    """
    above = bisect_right(ascending, total // count)
    below = above - 1
    while below >= 0 or above < len(ascending):
        if below < 0 or (
            above < len(ascending) and ascending[above] * count - total < total - ascending[below] * count
        ):
            yield ascending[above]
            above += 1
        else:
            yield ascending[below]
            below -= 1


def _sums(lengths: Sequence[int], most: int, number: int) -> list[int]:
    """Which sums up to `most` 0, 1, … samples have, as bits: [3, 4], 8, 2 -> [0b1, 0b11000, 0b111000000].

    Of no more samples than it takes to have the sum `most`, for none is fuller.
    """
    sums, within = [1], (1 << most + 1) - 1
    bits = sum(1 << length for length in lengths)
    runs = _runs(bits)
    while len(sums) <= number and not sums[-1] >> most:
        few = _num_runs(sums[-1]) < len(runs)
        found = (_added(_runs(sums[-1]), bits) if few else _added(runs, sums[-1])) & within
        if not found:
            break
        sums.append(found)
    return sums


def _added(runs: Sequence[tuple[int, int]], bits: int) -> int:
    """The sums of a number in the runs and one of the bits. [(1, 3)], 0b10000 -> 0b1100000

    All of a run at once: a few of many lengths have hundreds of sums, with hardly a gap between them.
    """
    found = 0
    spans = [bits]  # the bits beside themselves 1, 2, 4, … times
    for start, end in runs:
        power = (end - start).bit_length() - 1
        while len(spans) <= power:
            spans.append(spans[-1] | spans[-1] << (1 << len(spans) - 1))
        found |= spans[power] << start
        if end - start > 1 << power:
            found |= spans[power] << end - (1 << power)
    return found


def _runs(bits: int) -> list[tuple[int, int]]:
    """Begin and end of neighbours. 0b10110 -> [(1, 3), (4, 5)]"""
    return [run.span() for run in re.finditer("1+", f"{bits:b}"[::-1])]


def _num_runs(bits: int) -> int:
    return (bits & ~(bits << 1)).bit_count()
