"""Parts of a file are measured again where it changes: see test_token_store.py. They are small here."""

import json
import shutil
from pathlib import Path

import pytest
from support.reruns import Reruns

from neatpack.pipeline.ingest import lines

RANGE = 1 << 10


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "RANGE_BYTES", RANGE)


@pytest.fixture
def packing(tmp_path: Path) -> Reruns:
    made = Reruns(tmp_path)
    assert len(made.again()) > 8
    assert made.again() == []
    return made


def test_appended_rows_are_measured_and_no_others(packing: Reruns) -> None:
    size = packing.file.stat().st_size
    with packing.file.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in packing.data.rows[30:35])
    new = packing.again()
    assert new and new[-1] >= 40 - 1
    last_range = packing.file.read_bytes()[: size // RANGE * RANGE].count(b"\n")
    assert min(new) >= last_range, "of the old ones those of the last range"


def test_a_changed_byte_is_noticed_by_whoever_has_it(packing: Reruns) -> None:
    """A letter of the same size; also where it is the rest of a line that began in the range before."""
    whole = packing.file.read_bytes()
    letters = [place for place, letter in enumerate(whole) if chr(letter).isdigit() or letter == ord("C")]
    wanted = (0, letters[0] + 1, RANGE - 1, RANGE, RANGE + 1, 3 * RANGE - 2, 3 * RANGE, 5 * RANGE + 77)
    places = {next(place for place in letters if place >= at) for at in wanted}
    assert len(places) > 5
    for at in places:
        content = bytearray(whole)
        content[at] = ord("7") if content[at] != ord("7") else ord("8")
        packing.file.write_bytes(content)
        new = packing.again()
        assert 1 <= len(new) <= 4 and min(new) <= content[:at].count(b"\n"), at


def test_a_line_that_ends_a_range_or_does_not(packing: Reruns) -> None:
    """Blank lines and spaces move rows, lines and ranges."""
    whole = packing.file.read_bytes()
    for content in (b"\n" + whole, whole[:-1], whole.replace(b"\n", b"\n\n", 5), whole.replace(b"\n", b" \n", 9)):
        packing.file.write_bytes(content)
        packing.again()
    packing.file.write_bytes(whole)
    assert packing.again() == [], "it was there before"


def test_rows_that_are_taken_otherwise(packing: Reruns) -> None:
    meta = packing.folder / "data/meta.json"
    assert packing.again(packing.data.write(ratio=2)) == [], "all are measured, whichever number it is"
    half = packing.again(packing.data.write(ratio=0.5))
    assert len(half) > 4
    assert packing.again(meta) == []
    assert len(packing.again(packing.data.write(), holdout=0.3)) == 0, (
        "all rows are measured, for one output or the other"
    )


def test_another_file(packing: Reruns) -> None:
    """What is wrong with a line of one file names its line, of several also the file."""
    shutil.copy(packing.file, packing.folder / "data/more.jsonl")
    packing.data.write(file_name=["rows.jsonl", "more.jsonl"])
    assert len(packing.again()) > 16
    (packing.folder / "data/last.jsonl").write_text(json.dumps(packing.data.rows[3]) + "\n")
    packing.data.write(file_name=["rows.jsonl", "more.jsonl", "last.jsonl"])
    assert packing.again() == [80]
    packing.data.write(file_name=["more.jsonl", "last.jsonl"])
    assert packing.again()[0] == 0, "its rows have other numbers"
