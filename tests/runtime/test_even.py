"""Work cut evenly, by literal costs."""

import pytest

from neatpack.pipeline.runtime.even import even_ends


@pytest.mark.parametrize(
    ("costs", "most", "ends"),
    [
        ([], 1, []),
        ([0, 0], 1, [2]),
        ([1, 1, 1, 1], 4, [4]),
        ([1, 1, 1, 1], 2, [2, 4]),
        ([1, 1, 1, 1, 1], 4, [3, 5]),  # 3 + 2, and not 4 + 1
        ([5, 1, 1], 2, [1, 2, 3]),  # one that is longer than a stretch is one by itself
        ([1, 1, 5], 2, [2, 3]),
        ([0, 0, 3, 0], 3, [4]),
    ],
)
def test_stretches(costs: list[float], most: float, ends: list[int]) -> None:
    assert even_ends(costs, most) == ends
