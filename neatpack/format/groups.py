"""Nested groups of packs: the planner orders packs by them, and the loader shuffles inside them."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Shuffled = TypeVar("Shuffled")
NUM_SHUFFLES = 64
STRETCHES = 16  # of an epoch, a power of two; inside them groups are shuffled freely
SMALL_CORRELATION = 0.05


def without_trend(
    shuffle: Callable[[], Shuffled],
    loads: Sequence[Ints],
    sizes: Sequence[int],
    taken: Callable[[Ints, Shuffled], Ints],
) -> Shuffled:
    """The first shuffle in which no load goes up or down over the steps, or the best of NUM_SHUFFLES.

    `taken` gives a load in the order of a shuffle.
    """
    best, best_trend = shuffle(), np.inf
    order = best
    for _ in range(NUM_SHUFFLES):
        trend = 0.0
        for each in (each for load in loads for each in trends(taken(load, order), sizes)):
            trend = max(trend, each)
            if trend >= best_trend:
                break  # whatever the others are, it is no better
        if trend < best_trend:
            best, best_trend = order, trend
        if trend < SMALL_CORRELATION:
            break
        order = shuffle()
    return best


def nested_sizes(group_size: int) -> list[int]:
    """Block sizes, each dividing the one before, large primes split first: 480 -> [480, 96, 32, 16, 8, 4, 2, 1]."""
    primes, rest, prime = [], group_size, 2
    while rest > 1:
        if rest % prime:
            prime += 1
        else:
            primes.append(prime)
            rest //= prime
    return list(accumulate(primes, mul, initial=1))[::-1]


def nested_shuffle(packs: Ints, sizes: list[int], random: np.random.PCG64) -> Ints:
    """Cut into groups of sizes[0] and shuffle the groups, the blocks of sizes[1] in each group, and so on.

    What does not fill a group is taken from the middle, so that it is nothing special, and comes last, cut into
    groups of the next size: the groups before it stay aligned.
    """
    size, *smaller = sizes
    num_groups, num_rest = divmod(len(packs), size)
    middle = num_groups // 2 * size
    rest = packs[middle : middle + num_rest]
    whole = np.concatenate([packs[:middle], packs[middle + num_rest :]])
    shuffled = whole[NestedGroups(num_groups, sizes, random).places(0, num_groups)]
    return np.concatenate([shuffled, nested_shuffle(rest, smaller, random)]) if num_rest else shuffled


class NestedGroups:
    """A shuffle of groups of sizes[0], of the blocks of sizes[1] in each, and so on, computed for the groups asked for.

    It `keeps_spread`: halves of the groups change places, then quarters, eighths and sixteenths inside them, and groups
    inside sixteenths. So what was in different halves or quarters is so after it, too: copies of a row, that is.

    Keys are drawn level by level: one per group, then one per block of sizes[1] over all groups, and so on; who has the
    smallest comes first. So the keys of a group lie together on each level, and PCG64 can jump to them: of a shuffle of
    ten million packs in groups of 512, a process keeps 20,000 numbers.
    """

    def __init__(
        self, num_groups: int, sizes: Sequence[int], random: np.random.PCG64, *, keeps_spread: bool = False
    ) -> None:
        """Moves `random` on, past all that the shuffle draws."""
        stretches = _shuffled_stretches(num_groups, random) if keeps_spread else np.zeros(num_groups, dtype=np.int64)
        self.num_groups, self._sizes, self._state = num_groups, tuple(sizes), random.state
        keys = random.random_raw(num_groups) if num_groups else np.empty(0, np.uint64)
        self._groups = np.lexsort((keys, stretches))
        random.advance(sum(num_groups * (sizes[0] // size) for size in sizes[1:]))

    def places(self, first: int, last: int) -> Ints:
        """What the groups that come first … last - 1 are made of: places before the shuffle, in order."""
        random = np.random.PCG64(0)
        places = self._groups[first:last] * self._sizes[0]
        drawn = self.num_groups
        for size, smaller in pairwise(self._sizes):
            per_group = self._sizes[0] // smaller
            random.state = self._state
            random.advance(drawn + first * per_group)
            keys = random.random_raw((last - first) * per_group).reshape(-1, size // smaller)
            places = (places[:, None] + sorted_places(keys) * smaller).reshape(-1)
            drawn += self.num_groups * per_group
        return places


def _shuffled_stretches(num_groups: int, random: np.random.PCG64) -> Ints:
    """Return the stretch of each group, by its place after the shuffle; STRETCHES of them, as even as can be."""
    place = np.arange(num_groups) * STRETCHES // max(1, num_groups)
    size = STRETCHES
    while size > 1:
        swaps = random.random_raw(STRETCHES // size) & 1
        place ^= (swaps[place // size] * (size // 2)).astype(np.int64)
        size //= 2
    return place


def sorted_places(keys: NDArray[np.uint64]) -> Ints:
    """np.argsort of each row. Most rows are pairs, and numpy takes as long to begin with a row as to sort ten keys."""
    if keys.shape[1] != 2:
        return np.argsort(keys, axis=1, kind="stable")
    is_second = keys[:, 0] > keys[:, 1]
    return np.stack([is_second, ~is_second], axis=1).astype(np.int64)


def trends(load: Ints, sizes: Sequence[int]) -> Iterator[float]:
    """How much a load rises or falls over the steps, for steps of each size, of which each divides the one before."""
    steps, of = load, 1
    for size in reversed(sizes):
        num_steps, num_parts = len(load) // size, size // of
        parts = steps[: num_steps * num_parts].reshape(num_steps, num_parts)
        if num_parts == 2:  # numpy takes as long to begin with a row as to sum many
            steps = np.add(parts[:, 0], parts[:, 1], dtype=np.int64)
        elif num_parts > 2:
            steps = parts.sum(axis=1, dtype=np.int64)
        of = size
        yield abs(_correlation(steps))


def correlation(load: Ints, size: int) -> float:
    """Of step number and load of the step, for steps of `size` packs; 0 for too few steps to call it a trend."""
    num_steps = len(load) // size
    return _correlation(load[: num_steps * size].reshape(num_steps, size).sum(axis=1))


def _correlation(loads: Ints) -> float:
    """Of number and load of the steps. In place, for ten million steps take 80 MB each time that they are copied."""
    if len(loads) < 8:
        return 0.0
    steps = loads.astype(np.float64)
    steps -= steps.mean()
    deviations = float(np.square(steps).sum() * _squared_numbers(len(steps))) ** 0.5
    numbers = np.arange(len(steps), dtype=np.float64)
    numbers -= (len(steps) - 1) / 2
    numbers *= steps
    return float(numbers.sum()) / deviations if deviations else 0.0


@lru_cache(maxsize=64)
def _squared_numbers(num_steps: int) -> np.float64:
    """The sum of squared step numbers, counted from the middle: the same for every load."""
    numbers = np.arange(num_steps, dtype=np.float64)
    numbers -= (num_steps - 1) / 2
    numbers *= numbers
    return np.float64(numbers.sum())
