"""What changed between two outputs: every line of both ledgers is of one kind, and 0 means the same."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers import TinyData, tiny_config
from support.errors import prints_code

from neatpack.format.manifest import Manifest
from neatpack.pipeline.cli import main
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard import tables
from neatpack.pipeline.view import diff
from neatpack.pipeline.view.diff import KINDS, difference

ANSWERS = ["one", "two two", "three", "four", "five", "six"]


def packed(folder: Path, answers: list[str | list[int] | None], **config) -> Path:
    """An output of these answers, a row each; None or a list: a row that is none."""
    data = TinyData(folder / "data")
    for answer in answers:
        if answer is None:
            data.rows.append("{broken")
        elif isinstance(answer, list):
            data.rows.append(answer)
        else:
            data.text("Count.", answer)
    run_pack(tiny_config(data.write(), folder / "out", max_skipped=1, **config))
    return folder / "out"


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    return packed(tmp_path_factory.mktemp("first"), [*ANSWERS, None, None])


def kinds(**counts: int) -> dict[str, int]:
    return dict.fromkeys(KINDS, 0) | {kind.replace("_", " "): count for kind, count in counts.items()}


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_same_rows_elsewhere_are_the_same(first: Path, tmp_path: Path, capsys):
    second = packed(tmp_path, [*ANSWERS, None, None])
    found = difference(first, second)
    assert found.is_same and found.totals == kinds(same=8) and not found.settings and not found.examples
    assert run(capsys, "diff", first, second) == (0, f"{first} and {second} are the same: 8 ledger lines\n", "")


@pytest.mark.parametrize("block", [1, 2, 3])
def test_some_rows_at_a_time(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Whatever is held at once, the counts and the examples are the same; and it is no more than that."""
    second = packed(
        tmp_path, ["one", "two " * 9, None, "four", "five", "six", "seven", [1], "nine"], partition_samples=3
    )
    whole = difference(first, second)
    held: list[int] = []
    of = diff._Ledger.of
    monkeypatch.setattr(tables, "BLOCK", block)
    monkeypatch.setattr(diff._Ledger, "of", lambda lines: (held.append(len(lines)), of(lines))[1])
    assert difference(first, second) == whole and sum(whole.totals.values()) == 9
    assert max(held) <= block and sum(held) == 8 + 9


def test_each_row_is_of_one_kind(first: Path, tmp_path: Path, capsys):
    """Row 1 is longer, row 2 broken, row 6 mended, row 7 broken in other words, row 8 new."""
    second = packed(tmp_path, ["one", "two " * 9, None, "four", "five", "six", "seven", [1], "nine"])
    (tmp_path / "data/rows.jsonl").unlink()
    found = difference(first, second)
    totals = found.totals
    assert {kind: totals[kind] for kind in ("came", "went", "packed now", "skipped now", "other length")} == {
        "came": 1, "went": 0, "packed now": 1, "skipped now": 1, "other length": 1,
    }  # fmt: skip
    assert sum(totals.values()) - totals["came"] == Manifest.read(first).counts.samples == 8
    assert sum(totals.values()) - totals["went"] == Manifest.read(second).counts.samples == 9
    assert totals["other reason"] == 1
    assert found.examples["came"][0].startswith("tiny row 8: in pack 0, ")
    assert found.examples["packed now"][0].startswith("tiny row 6: bad_row: line 7: broken JSON: ")
    assert found.examples["skipped now"][0].startswith("tiny row 2: in pack 0, ")
    assert found.examples["other length"][0].startswith("tiny row 1: tokens ")
    back = difference(second, first).totals
    assert (back["went"], back["came"]) == (1, 0)
    assert (back["skipped now"], back["packed now"]) == (totals["packed now"], totals["skipped now"])
    code, printed, errors = run(capsys, "diff", first, second)
    assert (code, errors) == (1, "")
    assert "  inputs.tiny.rows: 8 -> 9" in printed.splitlines()


def test_rows_that_move(first: Path, tmp_path: Path):
    """In packs of half the size, with the same lengths."""
    second = packed(tmp_path, [*ANSWERS, None, None], pack_size=60)
    found = difference(first, second, num_examples=1)
    assert ("config.pack_size", 512, 60) in found.settings
    old, new = (Manifest.read(out).counts for out in (first, second))
    assert (old.packs, new.packs) == (1, 2)
    ledgers = [pq.read_table(out / "ledger/00000.parquet").to_pylist() for out in (first, second)]
    places = [[(line["pack"], line["position"]) for line in ledger] for ledger in ledgers]
    moved = sum(was[0] != is_[0] for was, is_ in zip(*places, strict=True))
    shifted = sum(was != is_ for was, is_ in zip(*places, strict=True)) - moved
    assert moved > 0 and found.totals == kinds(moved=moved, shifted=shifted, same=8 - moved - shifted)
    assert sum(found.totals.values()) == 8
    assert len(found.examples["moved"]) == 1
    assert found.shards == (1, 1, 0)


def test_other_data_sets(first: Path, tmp_path: Path, capsys):
    second = packed(tmp_path, ANSWERS)
    meta = tmp_path / "data/meta.json"
    meta.write_text(meta.read_text().replace('"tiny"', '"other"'))
    run_pack(tiny_config(meta, tmp_path / "renamed"))
    found = json.loads(run(capsys, "diff", first, tmp_path / "renamed", "--json", "--examples", "0")[1])
    assert found["datasets"] == {"tiny": kinds(went=8), "other": kinds(came=6)}
    assert found["rows"] == kinds(went=8, came=6) and found["examples"] == {} and not found["same"]
    assert [entry["key"] for entry in found["settings"]] == ["inputs.tiny", "inputs.other"]
    printed = run(capsys, "diff", second, tmp_path / "renamed")[1].splitlines()
    assert "  inputs.tiny: 6 rows -> none" in printed and "  inputs.other: none -> 6 rows" in printed


def test_no_output(first: Path, tmp_path: Path, capsys):
    code, printed, errors = run(capsys, "diff", first, tmp_path)
    assert (code, printed) == (2, "")
    assert prints_code(errors, "output-missing") and f"{tmp_path}/manifest.json" in errors
