"""Shares of tokens by hand."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from neatpack.pipeline.plan.mixture import copies, ratios


@pytest.mark.parametrize(
    ("tokens", "weights", "expected"),
    [
        ([100, 300], [0.5, 0.5], [3.0, 1.0]),
        ([100, 300], [0.25, 0.75], [1.0, 1.0]),
        ([100, 300], [0.1, 0.9], [1.0, 3.0]),
        ([100, 0], [0.5, 0.5], [1.0, 1.0]),  # an empty data set has no share to fill
        ([0], [1.0], [1.0]),
        ([], [], []),
    ],
)
def test_ratios(tokens: list[int], weights: list[float], expected: list[float]) -> None:
    assert ratios(tokens, weights) == pytest.approx(expected)


def test_copies() -> None:
    assert copies(np.array([5, 5, 5]), 1.0).tolist() == [1, 1, 1]
    assert copies(np.array([5, 5, 5]), 3.0).tolist() == [3, 3, 3]
    assert sorted(copies(np.array([4, 4, 4, 4]), 2.5).tolist()) == [2, 2, 3, 3]
    assert copies(np.array([0, 7, 0]), 4.0).tolist() == [1, 4, 1], "a bad row is named once"
    assert copies(np.zeros(0, np.int64), 2.5).tolist() == []


@given(st.lists(st.integers(0, 900), max_size=40), st.floats(1, 20))
def test_copies_meet_the_ratio_within_half_a_row(tokens: list[int], ratio: float) -> None:
    counts = np.array(tokens, dtype=np.int64)
    taken = copies(counts, ratio)
    assert (taken >= 1).all()
    assert abs((taken * counts).sum() - ratio * counts.sum()) <= max(tokens, default=0) / 2 + 1e-6
    assert (copies(counts, ratio) == taken).all()
