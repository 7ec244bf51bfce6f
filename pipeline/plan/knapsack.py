"""Packing: which sample goes into which bin.

`best_fit` packs tightly, `spread` packs evenly; packing.py joins them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neatpack.errors import UserError

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNPLACED = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """What the packer knows of the samples, and the bins' limits."""

    lengths: Ints
    visual_tokens: Ints
    capacity: int
    max_visual_tokens: int | None
    text_reserve: int  # tokens that a bin without a visual sample keeps free, for a fake image
    encoder: Ints  # load of encoders, in any unit: what is to be even over bins

    @property
    def is_visual(self) -> Mask:
        return self.visual_tokens > 0

    def take(self, where: Ints) -> "Samples":
        """Return the samples at these places."""
        return replace(
            self,
            lengths=self.lengths[where],
            visual_tokens=self.visual_tokens[where],
            encoder=self.encoder[where],
        )

    def sizes(self) -> Ints:
        """Length, or the share of the VT limit in tokens if that is larger: sum(sizes) <= capacity keeps both limits.

        capacity 100, at most 50 VT: a sample of 30 tokens with 20 VT has size max(30, 20 * 100 / 50) = 40.
        """
        if self.max_visual_tokens is None:
            return self.lengths
        return np.maximum(self.lengths, -(-self.visual_tokens * self.capacity // self.max_visual_tokens))

    def lower_bound(self) -> int:
        """No packing has fewer bins."""
        num_tokens, num_visual = int(self.lengths.sum()), int(self.is_visual.sum())
        bounds = [ceil_div(num_tokens, self.capacity), int((2 * self.lengths > self.capacity).sum())]
        beside_visual = num_visual * self.capacity  # room in bins without a reserve
        if num_tokens > beside_visual:
            bounds.append(num_visual + ceil_div(num_tokens - beside_visual, self.capacity - self.text_reserve))
        if self.max_visual_tokens is not None:
            bounds.append(ceil_div(int(self.visual_tokens.sum()), self.max_visual_tokens))
        return max(bounds)


class Shelves:
    """Bins by free tokens: shelf 7 holds the bins that have room for 7 tokens."""

    def __init__(self, capacity: int) -> None:
        self.shelves: dict[int, list[Ints]] = {}
        self.occupied = bytearray(capacity + 1)

    def put(self, room: int, bins: Ints) -> None:
        if len(bins):
            self.shelves.setdefault(room, []).append(bins)
            self.occupied[room] = 1

    def find(self, room: int) -> int:
        """The occupied shelf with the least room that is enough, or -1."""
        return self.occupied.find(1, max(room, 0))

    def take(self, room: int) -> Ints:
        bins = self.shelves.pop(room)
        self.occupied[room] = 0
        return bins[0] if len(bins) == 1 else np.concatenate(bins)


def best_fit(bin_of: Ints, num_bins: int, todo: Ints, sizes: Ints, samples: Samples, *, opens_bins: bool = True) -> int:
    """Put the samples `todo` into the bins by best-fit decreasing, opening bins as needed; return how many there are.

    Unless it `opens_bins`, what fits nowhere stays unplaced.

    All samples of one size go at once. With room 7 the fullest fitting bin takes two samples of size 3 one after the
    other, because after the first one it is fuller still; so does every bin on that shelf, until the samples run out.
    """
    capacity, reserve = samples.capacity, samples.text_reserve
    is_visual = samples.is_visual
    with_visual, text_only = Shelves(capacity), Shelves(capacity)
    room = np.maximum(capacity - bin_sums(bin_of, sizes, num_bins), 0)  # sizes may overrate what is in there
    has_visual = bin_sums(bin_of, samples.visual_tokens, num_bins) > 0
    for value, bins in runs(room, np.flatnonzero(has_visual)):
        with_visual.put(value, bins)
    for value, bins in runs(room - reserve, np.flatnonzero(~has_visual & (room >= reserve))):
        text_only.put(value, bins)

    for key, batch in runs(-2 * sizes - is_visual, todo):  # longest first, at equal size the visual ones
        size, visual = divmod(-key, 2)
        release = reserve if visual else 0  # a visual sample may use the room kept for the fake image
        while len(batch):
            tight, loose = with_visual.find(size), text_only.find(size - release)
            if tight < 0 and loose < 0:
                if not opens_bins:
                    break
                num_new = ceil_div(len(batch), (capacity - reserve + release) // size)
                text_only.put(capacity - reserve, np.arange(num_bins, num_bins + num_new))
                num_bins += num_new
                continue
            if loose < 0 or 0 <= tight <= loose + release:
                source, shelf, free = with_visual, tight, tight
            else:
                source, shelf, free = text_only, loose, loose + release
            target = with_visual if visual else source
            bins = source.take(shelf)
            per_bin = free // size
            num_placed = min(len(batch), len(bins) * per_bin)
            num_full, rest = divmod(num_placed, per_bin)
            num_touched = num_full + (rest > 0)
            bin_of[batch[:num_placed]] = np.repeat(bins[:num_touched], per_bin)[:num_placed]
            target.put(free - per_bin * size, bins[:num_full])
            target.put(free - rest * size, bins[num_full:num_touched])
            source.put(shelf, bins[num_touched:])
            batch = batch[num_placed:]
    return num_bins


def spread(bin_of: Ints, num_bins: int, todo: Ints, sizes: Ints, samples: Samples) -> None:
    """Put the samples `todo` into bins that have the least encoder load so far. What fits nowhere stays unplaced.

    In rounds, by decreasing size: of the bins that can hold the longest sample left, the half with the least load take
    one sample each, the least loaded bin the sample with the most.
    """
    encoder, is_visual = samples.encoder, samples.is_visual
    room = np.full(num_bins, samples.capacity)
    filled = np.zeros(num_bins, dtype=np.int64)
    has_visual = np.zeros(num_bins, dtype=np.bool_)
    has_load = encoder[todo] > 0
    todo = np.concatenate([todo[has_load], todo[~has_load]])
    todo = todo[stable_order(-sizes[todo])]
    ascending = -sizes[todo]
    first = 0
    # 20 samples per bin take 40 rounds of half the bins each. Where hardly a bin fits, rounds are many and small, and
    # the rest is better left to best fit.
    for _ in range(64 + 8 * len(todo) // num_bins):
        first = max(first, int(np.searchsorted(ascending, -room.max())))
        if first == len(todo):
            break
        fitting = np.flatnonzero(room >= -ascending[first])
        num_pairs = min(ceil_div(len(fitting), 2), len(todo) - first)
        bins = fitting[stable_order(filled[fitting])[:num_pairs]]
        batch = todo[first : first + num_pairs]
        first += num_pairs
        batch = batch[stable_order(-encoder[batch])]
        no_visual = ~is_visual[batch] & ~has_visual[bins]
        fits = sizes[batch] + no_visual * samples.text_reserve <= room[bins]
        batch, bins = batch[fits], bins[fits]
        bin_of[batch] = bins
        room[bins] -= sizes[batch]
        filled[bins] += encoder[batch]
        has_visual[bins] |= is_visual[batch]


def greedy_knapsack(lengths: ArrayLike, max_length: int) -> list[list[int]]:
    """Best-fit decreasing: bins of sample indices (ascending) with at most `max_length` tokens each."""
    sizes = as_ints("lengths", lengths)
    check_lengths(sizes, max_length)
    samples = Samples(
        lengths=sizes,
        visual_tokens=np.zeros_like(sizes),
        capacity=max_length,
        max_visual_tokens=None,
        text_reserve=0,
        encoder=np.zeros_like(sizes),
    )
    bin_of = np.full(len(sizes), UNPLACED, dtype=np.int64)
    best_fit(bin_of, 0, np.arange(len(sizes)), sizes, samples)
    return [bin_.tolist() for bin_ in members(bin_of)]


def greedy_knapsack_vt_balanced(lengths: ArrayLike, max_length: int, visual_tokens: ArrayLike) -> list[list[int]]:
    """`greedy_knapsack`, then bins by ascending VT, so that neighbours have similar VT.

    The order is a curriculum from text to images; `plan_bins` balances without one. A sample of more than `max_length`
    tokens gets a bin of its own.
    """
    visual = as_ints("visual_tokens", visual_tokens)
    bins = greedy_knapsack(np.minimum(as_ints("lengths", lengths), max_length), max_length)
    num_samples = sum(map(len, bins))
    if len(visual) != num_samples:
        raise UserError(
            f"{num_samples} lengths but {len(visual)} visual_tokens; give one of each per sample",
            code="lengths-invalid",
            name="visual_tokens",
            got=len(visual),
            expected=num_samples,
        )
    return sorted(bins, key=lambda bin_: int(visual[bin_].sum()))


def as_ints(name: str, values: ArrayLike) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UserError(
            f"{name} must be a 1-d array of integers, got shape {array.shape} of {array.dtype}",
            code="lengths-invalid",
            name=name,
            axes=array.ndim,
            got=str(array.dtype),
        )
    return array.astype(np.int64)


def check_lengths(lengths: Ints, capacity: int) -> None:
    if capacity < 1:
        raise UserError(
            f"the capacity of a pack must be at least 1 token, got {capacity}",
            code="lengths-invalid",
            name="capacity",
            got=capacity,
        )
    refuse(lengths < 1, "lengths", lengths, "tokens, but every sample needs at least 1; leave empty samples out")
    refuse(
        lengths > capacity,
        "lengths",
        lengths,
        f"tokens, but a pack holds {capacity}; drop or cut it, or raise the capacity",
    )


def refuse(bad: Mask, name: str, values: Ints, why: str) -> None:
    """Name the first bad sample: the planner loses nothing in silence."""
    if bad.any():
        first = int(np.argmax(bad))
        raise UserError(
            f"sample {first} has {values[first]} {why} ({bad.sum()} such samples)",
            code="lengths-invalid",
            name=name,
            sample=first,
            got=int(values[first]),
            samples=int(bad.sum()),
        )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def bin_sums(bin_of: Ints, values: Ints, num_bins: int) -> Ints:
    """Sum of the values in each bin; float64 sums of integers are exact below 2**53."""
    placed = bin_of != UNPLACED
    if not placed.all():  # else copies of both arrays would take twice as long as the sum
        bin_of, values = bin_of[placed], values[placed]
    return np.bincount(bin_of, weights=values, minlength=num_bins).astype(np.int64)


def runs(keys: Ints, items: Ints) -> Iterator[tuple[int, Ints]]:
    """Items grouped by key, ascending; each group in the order given. keys [5, 3, 5], all -> (3, [1]), (5, [0, 2])"""
    items = items[stable_order(keys[items])]
    keys = keys[items]
    starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1)).tolist()
    for first, last in zip(starts, [*starts[1:], len(items)], strict=False):
        yield int(keys[first]), items[first:last]


def stable_order(keys: Ints) -> Ints:
    """Return np.argsort(keys, kind="stable"), in a quarter of its time, or in none where they are sorted already."""
    if (keys[1:] >= keys[:-1]).all():
        return np.arange(len(keys))
    return sorted_by(keys - keys.min())


def sorted_by(*keys: Ints) -> Ints:
    """Return the order by these keys of 0 or more, the first one first, as they are given where all are equal."""
    return sort_with_first(*keys)[0]


def sort_with_first(*keys: Ints) -> tuple[Ints, Ints]:
    """Return the order by these keys, and the first key in that order.

    np.sort takes a tenth of the time of np.argsort: where they fit, keys and index are numbers of 63 bits.
    """
    widths = [int(key.max()).bit_length() if len(key) else 0 for key in keys]
    width = len(keys[0]).bit_length()
    if sum(widths) + width > 63:
        order = np.lexsort(keys[::-1])
        return order, keys[0][order]
    packed = keys[0].astype(np.int64)
    for key, bits in zip(keys[1:], widths[1:], strict=True):
        packed <<= bits
        packed |= key
    packed <<= width
    packed |= np.arange(len(packed))
    packed.sort()
    first = packed >> (sum(widths[1:]) + width)
    packed &= (1 << width) - 1
    return packed, first


def members(bin_of: Ints) -> list[Ints]:
    """The samples of each bin, ascending."""
    ends = np.cumsum(np.bincount(bin_of)).tolist()
    flat = np.argsort(bin_of, kind="stable")
    return [flat[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=False)]
