"""Packing by what comes out: several ways to fill bins, and the choice among them.

Most spread the long samples over a fixed number of bins so that encoders have the same to do in every bin, then fill
the gaps with the short ones by best fit.
"""

import math
from collections.abc import Iterator

import numpy as np

from .knapsack import UNPLACED, Ints, Mask, Samples, best_fit, spread
from .mixing import Kinship, align_sections, num_sections, section_edges
from .patterns import fill_by_patterns

SLACK = 1.0005  # packs over the lower bound that a better balance may cost


def pack(samples: Samples) -> Ints:
    """Return the bin of each sample: as few bins as best fit needs (to 0.05%), with VT as even as that allows.

    The more is left to best fit, the fewer the bins and the less even the VT, so try from the evenest to the tightest
    and stop at the first result near the lower bound. 1M samples, capacity 16384: the first try needs 1.00002 of it.
    Samples of equal length are taken in the order given.
    """
    return _pack(samples)[0]


def pack_in_sections(
    samples: Samples, kin: Kinship, sizes: list[int], random: np.random.RandomState
) -> tuple[Ints, Ints]:
    """Return the bin of each sample, and the first bin of each section, as `pack` does for each section of phases.

    Sections cost no bins: what fits nowhere in its section is packed with the next one. Where the last one needs more
    bins than `pack`, samples of bins that are packed as a whole change places.
    """
    whole, num_bins, filler = _pack(samples)
    edges = section_edges(num_bins, num_sections(kin.largest, num_bins), sizes)
    if filler is not None and len(edges) > 2:
        found = _pack_sections(filler, edges, samples, kin)
        if int(found.max()) < max(num_bins, int(samples.lower_bound() * SLACK)):
            edges[-1] = int(found.max()) + 1
            return found, edges
    return align_sections(whole, samples, kin, random), edges


def _pack(samples: Samples) -> tuple[Ints, int, Mask | None]:
    """Return bins, their number, and which samples were left to best fit, if they were packed by that."""
    bound = samples.lower_bound()
    best: tuple[Ints, float, Mask | None] = samples.lengths, math.inf, None
    for found in tries(bound, samples):
        if found[1] <= bound * SLACK:
            return found
        if found[1] * SLACK < best[1]:
            best = found
    return best[0], int(best[1]), best[2]


def tries(bound: int, samples: Samples) -> Iterator[tuple[Ints, int, Mask | None]]:
    """Yield bins of the samples, and how many, each packed only when it is asked for."""
    for filler in fillers(samples):
        yield *pack_around(filler, bound, samples), filler
    if (found := pack_by_patterns(samples)) is not None:
        yield *found, None


def fillers(samples: Samples) -> Iterator[Mask]:
    """Yield which samples to leave to best fit: short text, then short samples of any kind, at last all."""
    sizes, is_text = samples.sizes(), samples.encoder == 0
    limits = [samples.capacity // divisor for divisor in (8, 16, 32, 32, 16, 8, 4)]
    before = -1
    for number, limit in enumerate([*limits, samples.capacity + 1]):
        filler = sizes < limit
        if number < 3:
            filler &= is_text
        count = int(np.count_nonzero(filler))
        if count != before:  # else it is the same one
            yield filler
        before = count


def pack_around(filler: Mask, num_bins: int, samples: Samples, *, opens_bins: bool = True) -> tuple[Ints, int]:
    """Spread all samples but the filler over `num_bins` bins, then fill up with it; return how many bins it took.

    No bin stays empty: `num_bins` is a lower bound, and best fit opens bins only when no empty one is left. Unless it
    `opens_bins`, what fits nowhere stays unplaced.
    """
    sizes = samples.sizes()
    bin_of = np.full(len(sizes), UNPLACED, dtype=np.int64)
    spread(bin_of, num_bins, np.flatnonzero(~filler), sizes, samples)
    if samples.max_visual_tokens is not None:  # sizes overrate visual samples; text may use the true room
        todo = np.flatnonzero((bin_of == UNPLACED) & samples.is_visual)
        num_bins = best_fit(bin_of, num_bins, todo, sizes, samples, opens_bins=opens_bins)
        sizes = samples.lengths
    todo = np.flatnonzero(bin_of == UNPLACED)
    return bin_of, best_fit(bin_of, num_bins, todo, sizes, samples, opens_bins=opens_bins)


def _pack_sections(filler: Mask, edges: Ints, samples: Samples, kin: Kinship) -> Ints:
    """Pack the samples of each section into its bins; what fits nowhere goes on to the next."""
    by_phase = np.argsort(kin.phases, kind="stable")
    sizes = np.cumsum(samples.sizes()[by_phase])
    # A section has one bin more of samples than it has room, so that best fit can choose; the last one has the others.
    cuts = np.searchsorted(sizes, sizes[-1] * (edges[1:-1] / edges[-1]) + samples.capacity)
    bin_of = np.full(len(by_phase), UNPLACED, dtype=np.int64)
    todo = by_phase[:0]
    for first, last, own in zip(edges[:-1], edges[1:], np.split(by_phase, cuts), strict=True):
        todo = np.sort(np.concatenate([todo, own]))  # samples of equal length stay in their random order
        found, _ = pack_around(filler[todo], int(last - first), samples.take(todo), opens_bins=bool(last == edges[-1]))
        placed = found != UNPLACED
        bin_of[todo[placed]] = first + found[placed]
        todo = todo[~placed]
    return np.unique(bin_of, return_inverse=True)[1].astype(np.int64)


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
