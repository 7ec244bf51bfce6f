"""Packing by patterns: bins that are full to the last token, for samples that are all about as long.

Pictures of one size with captions leave best fit no short samples to fill gaps with. But they have few lengths, so
what fills a bin is found by lengths, and taken for as many bins as there are samples of these lengths.
"""

from collections.abc import Mapping, Sequence

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
    num_small = _fill(bin_of, todo, sizes, small, lengths, counts)
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
            fitting = [
                length for length in able
                if length <= missing and sums[count - 1] >> (missing - length) & 1
                and pattern.get(length, 0) < left[length]
            ]  # fmt: skip
            if not fitting:
                break  # there are too few samples of a length that would come twice: what completes it now?
            taken = min(fitting, key=lambda length: abs(length * count - missing))  # nearest to an equal share
            pattern[taken] = pattern.get(taken, 0) + 1
            missing -= taken
            room -= taken
        else:
            return pattern


def _sums(lengths: Sequence[int], most: int, number: int) -> list[int]:
    """Which sums up to `most` 0, 1, … samples have, as bits: [3, 4], 8, 2 -> [0b1, 0b11000, 0b111000000]."""
    sums, within = [1], (1 << most + 1) - 1
    for _ in range(number):
        found = 0
        for length in lengths:
            found |= sums[-1] << length
        if not found & within:
            break
        sums.append(found & within)
    return sums
