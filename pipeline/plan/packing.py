"""Packing by what comes out: several ways to fill bins, and the choice among them.

Most spread the long samples over a fixed number of bins so that encoders have the same to do in every bin, then fill
the gaps with the short ones by best fit.
"""

import math
from collections.abc import Iterator

import numpy as np

from .knapsack import UNPLACED, Ints, Mask, Samples, best_fit, spread
from .patterns import fill_by_patterns

SLACK = 1.0005  # packs over the lower bound that a better balance may cost


def pack(samples: Samples) -> Ints:
    """The bin of each sample: as few bins as best fit needs (to 0.05%), with VT as even as that allows.

    The more is left to best fit, the fewer the bins and the less even the VT, so try from the evenest to the tightest
    and stop at the first result near the lower bound. 1M samples, capacity 16384: the first try needs 1.00002 of it.
    """
    bound = samples.lower_bound()
    best, best_num_bins = samples.lengths, math.inf
    for bin_of, num_bins in tries(bound, samples):
        if num_bins <= bound * SLACK:
            return bin_of
        if num_bins * SLACK < best_num_bins:
            best, best_num_bins = bin_of, num_bins
    return best


def tries(bound: int, samples: Samples) -> Iterator[tuple[Ints, int]]:
    """Bins of the samples, and how many, each packed only when it is asked for."""
    for filler in fillers(samples):
        yield pack_around(filler, bound, samples)
    if (found := pack_by_patterns(samples)) is not None:
        yield found


def fillers(samples: Samples) -> Iterator[Mask]:
    """Which samples to leave to best fit: short text, then short samples of any kind, at last all."""
    sizes, is_text = samples.sizes(), samples.encoder == 0
    for divisor in (8, 16, 32):
        yield is_text & (sizes < samples.capacity // divisor)
    for divisor in (32, 16, 8, 4):
        yield sizes < samples.capacity // divisor
    yield np.ones(len(sizes), dtype=np.bool_)


def pack_around(filler: Mask, num_bins: int, samples: Samples) -> tuple[Ints, int]:
    """Spread all samples but the filler over `num_bins` bins, then best-fit the rest; return how many bins it took.

    No bin stays empty: `num_bins` is a lower bound, and best fit opens bins only when no empty one is left.
    """
    sizes = samples.sizes()
    bin_of = np.full(len(sizes), UNPLACED, dtype=np.int64)
    spread(bin_of, num_bins, np.flatnonzero(~filler), sizes, samples)
    if samples.max_visual_tokens is not None:  # sizes overrate visual samples; text may use the true room
        todo = np.flatnonzero((bin_of == UNPLACED) & samples.is_visual)
        num_bins = best_fit(bin_of, num_bins, todo, sizes, samples)
        sizes = samples.lengths
    return bin_of, best_fit(bin_of, num_bins, np.flatnonzero(bin_of == UNPLACED), sizes, samples)


def pack_by_patterns(samples: Samples) -> tuple[Ints, int] | None:
    """Bins of visual samples filled to the last token, and text in what room is left. None: there is no use in trying.

    Text alone is packed so, too, in bins that keep their reserve.
    """
    sizes, main = samples.sizes(), np.flatnonzero(samples.is_visual)
    capacity = samples.capacity
    if not len(main):
        main, capacity = np.arange(len(sizes)), capacity - samples.text_reserve
    bin_of = np.full(len(sizes), UNPLACED, dtype=np.int64)
    num_bins = fill_by_patterns(bin_of, main, sizes, capacity)
    if num_bins is None:
        return None
    return bin_of, best_fit(bin_of, num_bins, np.flatnonzero(bin_of == UNPLACED), samples.lengths, samples)
