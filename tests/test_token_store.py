"""What is measured once is not measured again, and what has changed is: whatever the work folder holds, the bytes are
those of a run without one. Each file is a part here."""

import json
from pathlib import Path

import pytest
from support.reruns import Reruns

pytestmark = pytest.mark.net


@pytest.fixture
def packing(tmp_path: Path) -> Reruns:
    made = Reruns(tmp_path, num_files=4)
    assert made.again() == [0, 10, 20, 30]
    assert made.again(pack_size=400) == []
    return made


def test_appended_rows_are_measured_and_no_others(packing: Reruns) -> None:
    with packing.files[3].open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in packing.data.rows[:3])
    assert packing.again() == [30]


@pytest.mark.parametrize("number", range(4))
def test_changed_letter_is_noticed(packing: Reruns, number: int) -> None:
    file = packing.files[number]
    file.write_bytes(file.read_bytes().replace(b"Count", b"Tally", 1))
    assert packing.again() == [10 * number]


def test_rows_that_are_taken_otherwise(packing: Reruns) -> None:
    names = [file.name for file in packing.files]
    assert packing.again(packing.data.write(ratio=2, file_name=names)) == []
    half = packing.again(packing.data.write(ratio=0.5, file_name=names))
    assert half and packing.again() == []
    assert packing.again(packing.data.write(file_name=names), holdout=0.3) == []


def test_files_in_another_order_have_other_rows(packing: Reruns) -> None:
    packing.data.write(file_name=[packing.files[number].name for number in (3, 0, 1, 2)])
    assert packing.again()[0] == 0
    packing.data.write(file_name=[file.name for file in packing.files])
    assert packing.again() == []
