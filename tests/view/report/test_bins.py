"""Histograms: every value in one bin, between edges that people can read."""

import numpy as np
from hypothesis import given, strategies as st

from neatpack.pipeline.view.report.bins import MOST_BINS, counted_in, doubling_edges, even_edges


def test_edges():
    assert doubling_edges(20, 90).tolist() == [16, 23, 32, 45, 64, 91]
    assert doubling_edges(1, 1).tolist() == [1, 2]
    assert even_edges(0, 290).tolist() == list(range(0, 300, 10))
    assert even_edges(98.2, 100, 0.1).tolist()[:3] == [98.2, 98.3, 98.4]


def test_what_is_counted():
    found = counted_in(np.array([0.0, 2.0, 4.0]), {"a": np.array([0, 1, 2, 4]), "b": np.array([3])})
    assert found.counts == {"a": (2, 2), "b": (0, 1)}, "the last edge is in the last bin"
    assert found.highest == 3
    weighted = counted_in(np.array([0.0, 2.0, 4.0]), {"a": np.array([1, 3])}, {"a": np.array([5, 7])})
    assert weighted.counts == {"a": (5, 7)}


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_every_value_is_in_its_bin(values):
    for edges in (doubling_edges(min(values), max(values)), even_edges(min(values), max(values) + 1)):
        assert (np.diff(edges) > 0).all() and edges[0] <= min(values) and max(values) < edges[-1]
        assert sum(counted_in(edges, {"a": np.array(values)}).counts["a"]) == len(values)
    assert len(even_edges(min(values), max(values) + 1)) <= MOST_BINS + 1
