"""Ordering: packs of one training step cost the same on every rank, and the epoch is still shuffled."""

import numpy as np
from numpy.typing import NDArray

from neatpack.format.groups import nested_shuffle, nested_sizes, without_trend

from .alike import alike_order
from .knapsack import Ints


def balanced_order(encoder: Ints, cost: Ints, visual: Ints | None = None, *, group_size: int, seed: int) -> Ints:
    """Return packs in training order: aligned runs of a size in `nested_sizes(group_size)` are alike in load.

    `visual`: visual tokens of the packs, where encoders have sounds to read, too.
    Shuffles with a trend (by chance: with 80 groups |r| has a standard deviation of 0.11) are drawn again.
    """
    sizes = nested_sizes(group_size)
    alike = alike_order(encoder, cost, sizes, visual)
    random = np.random.PCG64(seed)
    loads = (encoder, cost)
    return without_trend(
        lambda: nested_shuffle(alike, sizes, random), loads, sizes, lambda load, order: np.asarray(load[order])
    )


def step_ratios(load: Ints, num_ranks: int) -> NDArray[np.float64]:
    """Of each whole step (a run of `num_ranks` packs) the largest load against the mean one: 1.0 is perfect.

    Steps without any load are left out: nobody waits there. [3, 1, 0, 0, 2, 2, 9] at 2 ranks -> [1.5, 1.0]
    """
    steps = load[: len(load) // num_ranks * num_ranks].reshape(-1, num_ranks).astype(np.float64)
    means = steps.mean(axis=1)
    return np.asarray(steps[means > 0].max(axis=1) / means[means > 0])


def step_imbalance(load: Ints, num_ranks: int) -> float:
    """The mean of these over the steps: what the slowest rank costs the others."""
    ratios = step_ratios(load, num_ranks)
    return float(ratios.mean()) if len(ratios) else 1.0
