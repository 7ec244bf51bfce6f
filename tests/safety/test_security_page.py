"""SECURITY.md: the tests that it names exist, and name all tests of attacks."""

import re

from helpers import ROOT

TEXT = (ROOT / "SECURITY.md").read_text()
NAMED = set(re.findall(r"`((?:tests|jobs)/[\w/.]+)`", TEXT))


def test_named_files_exist() -> None:
    assert len(NAMED) > 10
    assert [name for name in NAMED if not (ROOT / name).exists()] == []


def test_every_promise_names_a_test() -> None:
    rows = re.search(r"## Promises\n\n.*?\n\|[-|]+\n(.*?)\n\n", TEXT, re.DOTALL)[1].splitlines()  # type: ignore[index]
    for row in rows:
        promise, tests = row.strip("|").split("|")[-2:]
        assert promise.strip() and re.search(r"`tests/\S+\.py`", tests), row


def test_every_test_of_an_attack_shows_a_promise() -> None:
    attacks = {str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "safety").glob("test_*.py")}
    assert attacks - NAMED == {"tests/safety/test_security_page.py"}
