"""Histograms: whole columns counted at once, between edges that people can read."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_BINS = 30
_STEPS = (1, 2, 2.5, 5)  # times a power of ten


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """`counts` has a list by series, each with a number for every pair of neighbouring edges: [edge, next edge)."""

    edges: tuple[float, ...]
    counts: Mapping[str, tuple[int, ...]]

    @property
    def highest(self) -> int:
        """Of series laid on each other."""
        return max((sum(each) for each in zip(*self.counts.values(), strict=True)), default=0)


def counted_in(edges: NDArray[np.float64], series: Mapping[str, NDArray[np.generic]],
               weights: Mapping[str, NDArray[np.int64]] | None = None) -> Histogram:  # fmt: skip
    """Every value is in a bin: those on the last edge are in the last one. `weights`: how often each value counts."""
    counts = {}
    for name, values in series.items():
        places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        times = None if weights is None else weights[name]
        found = np.bincount(places, weights=times, minlength=len(edges) - 1)
        counts[name] = tuple(round(count) for count in found.tolist())
    return Histogram(edges=tuple(edges.tolist()), counts=counts)


def doubling_edges(low: float, high: float) -> NDArray[np.float64]:
    """Whole numbers, two steps to the double: 20 to 90 -> 16, 23, 32, 45, 64, 91."""
    first, last = np.floor(2 * np.log2(max(1.0, low))), np.floor(2 * np.log2(max(1.0, high))) + 1
    edges = np.unique(np.round(2 ** (np.arange(first, last + 1) / 2)))
    if edges[0] > low:  # 45.25 is rounded down, 90.5 up
        edges = np.concatenate([[edges[0] / 2], edges])
    if edges[-1] <= high:
        edges = np.concatenate([edges, [max(edges[-1] + 1, round(edges[-1] * 2**0.5))]])
    return edges


def even_edges(low: float, high: float, smallest: float = 1.0) -> NDArray[np.float64]:
    """Edges a round number apart, MOST_BINS of them at most: 0 to 937 -> 0, 25, 50, …, 950."""
    for step in (base * 10.0**power for power in range(-4, 12) for base in _STEPS):
        first, last = np.floor(low / step + 1e-9), np.ceil(high / step - 1e-9)
        if step >= smallest and last - first <= MOST_BINS and (smallest < 1 or step == round(step)):
            return np.round(np.arange(first, max(last, first + 1) + 1) * step, 6)
    raise ValueError(f"no edges from {low} to {high}")
