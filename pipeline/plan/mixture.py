"""Mixtures: how often each row is taken, so that every data set has the share of tokens that is asked for."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def ratios(tokens: Sequence[int], weights: Sequence[float]) -> list[float]:
    """How often each data set is taken, on average: none less than once, so that no row is lost.

    Tokens [100, 300] with weights [0.5, 0.5] -> [3.0, 1.0]. A data set without tokens has no share to fill.
    """
    total = max((count / weight for count, weight in zip(tokens, weights, strict=True) if count), default=0.0)
    return [max(1.0, weight * total / count) if count else 1.0 for count, weight in zip(tokens, weights, strict=True)]


def copies(tokens: NDArray[np.int64], ratio: float) -> NDArray[np.int32]:
    """How often each row of a data set is taken, to `ratio` times its tokens, give or take half a row.

    Tokens [4, 4, 4, 4] with 2.5 -> [2, 3, 2, 3] (say). A row of 0 tokens, which cannot be packed, is taken once: more
    lines in the ledger would only say the same again.
    """
    taken = np.ones(len(tokens), dtype=np.int32)
    good = np.flatnonzero(tokens > 0)
    taken[good] = int(ratio)
    order = np.random.RandomState(42).permutation(good)  # its numbers stay the same in every version of numpy
    reached = np.concatenate([[0], np.cumsum(tokens[order])])
    wanted = (ratio - int(ratio)) * reached[-1]
    taken[order[: int(np.argmin(np.abs(reached - wanted)))]] += 1
    return taken


def drawn_copies(rows: NDArray[np.int64], ratio: float) -> NDArray[np.int64]:
    """How often each row is taken where no task sees all of them: by its number alone, `ratio` times on average.

    Rows by multiples of the golden ratio, whose fractions are even: of any stretch of rows, a part of them is drawn.
    """
    is_drawn: NDArray[np.bool_] = np.modf(rows * 0.6180339887498949)[0] < ratio - int(ratio)
    return is_drawn.astype(np.int64) + int(ratio)
