"""This checkout makes what the golden files say (tests/golden/write.py), on any machine and by any number of cores."""

from typing import Any

import pytest
from golden import write

pytestmark = pytest.mark.net
QUICK = "qwen2_vl"  # and all families by `-m "net and slow"`
OTHERS = [pytest.param(family, marks=pytest.mark.slow) for family in write.FAMILIES]
CASES = [("outputs", write.VARIANTS), ("late_failures", write.LATE)]


@pytest.mark.parametrize("family", OTHERS)
@pytest.mark.parametrize(("golden", "variants"), CASES, ids=[name for name, _ in CASES])
def test_outputs_of_all_families(family: str, golden: str, variants: write.Variants) -> None:
    assert_same(write.digest_family(family, variants), write.read_golden(golden)[family])


@pytest.mark.parametrize("variant", [*write.VARIANTS, *write.LATE])
def test_outputs_of_one_family(variant: str) -> None:
    found = write.digest_family(QUICK, {variant: (write.VARIANTS | write.LATE)[variant]}, ("default",))
    expected = write.read_golden("outputs")[QUICK] | write.read_golden("late_failures")[QUICK]
    assert_same(found, {name: each for name, each in expected.items() if name.startswith(f"default, {variant}, ")})


@pytest.mark.parametrize(
    ("golden", "made"),
    [("orders", lambda: {"orders": write.list_orders()}), ("printed", write.list_printed),
     ("signatures", write.list_signatures)],
    ids=["orders", "printed", "signatures"],
)  # fmt: skip
def test_orders_printed_tables_and_signatures(golden: str, made: Any) -> None:
    found, expected = made(), write.read_golden(golden)
    assert found.keys() == expected.keys()
    for name in expected:
        assert_same(found[name], expected[name])


def assert_same(found: Any, expected: Any) -> None:
    """Name the entries that differ."""
    if found != expected:
        pytest.fail("differ from the golden files:\n" + "\n".join(list_differences(found, expected, "")))


def list_differences(found: Any, expected: Any, path: str) -> list[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        lines = []
        for key in sorted(found.keys() | expected.keys()):
            if found.get(key) != expected.get(key):
                lines += list_differences(found.get(key), expected.get(key), f"{path} / {key}".removeprefix(" / "))
        return lines
    return [f"{path}: got {found}, expected {expected}"]


def test_differences_name_the_column() -> None:
    one = {"plain": {"shards": ["a"], "index": {"tokens": "1", "bytes": "2"}}}
    two = {"plain": {"shards": ["a"], "index": {"tokens": "1", "bytes": "3"}}}
    assert list_differences(one, two, "") == ["plain / index / bytes: got 2, expected 3"]
    assert list_differences(one, {}, "") == [f"plain: got {one['plain']}, expected None"]
