"""Cutting work into stretches that take about equally long."""

import bisect
import itertools
import math
from collections.abc import Sequence


def even_ends(costs: Sequence[float], most: float) -> list[int]:
    """Where stretches end whose costs are about equal, and about `most` at most; the last at the end.

    [1, 1, 1, 1], 2 -> [2, 4]; [5, 1, 1], 2 -> [1, 2, 3].
    """
    until = list(itertools.accumulate(costs))  # of all items up to each
    if not until:
        return []
    number = max(1, math.ceil(until[-1] / most))
    ends = {bisect.bisect_left(until, until[-1] * index / number) + 1 for index in range(1, number)}
    return sorted(ends | {len(until)})
