"""Tables as text."""

import pytest

from neatpack.pipeline.view.columns import LOOKED_AT, aligned, cell, table


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1200, "1,200"), (0.98765, "0.9877"), (12345.6, "12,346"), (None, "-"), ("a\n b", "a b"), (True, "True")],
)
def test_cell(value, expected):
    assert cell(value) == expected


def test_numbers_to_the_right_and_texts_to_the_left():
    lines = [{"name": "a", "count": 5, "share": None}, {"name": "longer", "count": 1200, "share": 0.5}]
    assert list(table(lines)) == [
        "name    count  share",
        "a           5      -",
        "longer  1,200    0.5",
    ]
    assert list(table([])) == []
    assert list(aligned(["a", "b"], [])) == ["a  b"]


def test_a_long_table_is_not_held_in_memory():
    rows = ([number] for number in range(LOOKED_AT + 10**9))
    lines = aligned(["number"], rows)
    assert next(lines) == "number"
    assert next(lines) == "     0"
