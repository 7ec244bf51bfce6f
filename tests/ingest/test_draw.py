"""The rows that a sample_ratio draws are those that Python would, and the rows of literal draws stay what they are."""

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neatpack.pipeline.ingest import draw
from neatpack.pipeline.ingest.draw import is_drawn


def drawn(num_rows: int, num_drawn: int) -> list[int]:
    found: list[int] = np.flatnonzero(is_drawn(num_rows, num_drawn)).tolist()
    return found


def by_python(num_rows: int, num_drawn: int) -> list[int]:
    return sorted(random.Random(42).sample(range(num_rows), num_drawn))


@given(st.integers(0, 3000), st.floats(0, 1))
def test_as_python_draws(num_rows: int, share: float) -> None:
    num_drawn = round(num_rows * share)
    assert drawn(num_rows, num_drawn) == by_python(num_rows, num_drawn)


@pytest.mark.parametrize(
    ("num_rows", "num_drawn"),
    [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (21, 5), (22, 5), (21, 6), (85, 6), (86, 6), (1 << 16, 1 << 16),
     ((1 << 17) - 1, 70_000), (1 << 17, 90_000), (300_000, 299_999), (300_000, 250), (1_000_003, 400_000),
     (1_000_003, 80_000), (70_000_000, 1_000)],
)  # fmt: skip
def test_as_python_draws_of_many(num_rows: int, num_drawn: int) -> None:
    """Either way of `sample`, powers of two and what is beside them, all but one."""
    assert drawn(num_rows, num_drawn) == by_python(num_rows, num_drawn)


@settings(max_examples=20)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 64))
def test_how_many_words_are_looked_at_together_does_not_matter(num_rows: int, num_drawn: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(draw, "MOST", most)
        assert drawn(num_rows, min(num_rows, num_drawn)) == by_python(num_rows, min(num_rows, num_drawn))


def test_literally() -> None:
    """Of Python 3.11, whatever Python this is."""
    assert drawn(4, 2) == [0, 3]
    assert drawn(10, 5) == [0, 1, 4, 6, 9]
    assert drawn(1_000_000, 3) == [26225, 116739, 670487]


def test_each_row_at_most_once_and_any_as_likely() -> None:
    rows = np.array(drawn(200_000, 60_000))
    assert len(rows) == 60_000
    per_tenth = np.bincount(rows // 20_000, minlength=10)
    assert abs(per_tenth - 6_000).max() < 5 * np.sqrt(6_000 * 0.7)
