"""Outputs, orders and public names are what the golden files say. Rewrite those with tests/golden/write.py."""

import pytest
from golden.write import FAMILIES, digest_family, list_orders, list_signatures, read_golden


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_golden(family):
    assert digest_family(family) == read_golden("outputs")[family]


def test_orders_are_golden():
    assert list_orders() == read_golden("orders")


def test_public_names_are_golden():
    assert list_signatures() == read_golden("signatures")
