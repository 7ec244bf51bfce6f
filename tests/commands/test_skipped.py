"""`neatpack skipped`: which rows, where, why, and as they were."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, conversation, flags
from PIL import Image
from support.errors import numbers_in, prints_code

pytestmark = pytest.mark.net


def test_skipped_lists_where_and_why(run: Run, meta: Path, out: Path) -> None:
    rows = meta.parent / "rows.jsonl"
    code, printed, errors = run("skipped", out, "--follow-sources")
    assert (code, errors) == (0, "")
    first, second, third = printed.splitlines()
    assert first.startswith(f"{rows}:17: tiny row 16: bad_row: ") and numbers_in(first)[-1] == 17
    assert second.startswith(f"{rows}:18: tiny row 17: missing_media: absent.png: ")
    assert third.startswith(f"{rows}:19: tiny row 18: bad_row: ")
    assert run("skipped", out, "--follow-sources", "--reason", "missing_media,no_target")[1] == second + "\n"
    assert run("skipped", out, "--follow-sources", "--dataset", "tiny")[1] == printed


def test_skipped_rows_are_written_as_they_were_and_packed_again(
    run: Run, meta: Path, out: Path, tmp_path: Path
) -> None:
    lines = (meta.parent / "rows.jsonl").read_text().splitlines(keepends=True)
    assert run("skipped", out, "--follow-sources", "--rows")[:2] == (0, "".join(lines[16:]))
    options = ["--reason", "missing_media", "--follow-sources", "--rows", "--out", tmp_path / "repair.jsonl"]
    code, printed, _ = run("skipped", out, *options)
    assert (code, printed) == (0, "")
    assert (tmp_path / "repair.jsonl").read_text() == lines[17]
    Image.new("RGB", (60, 60)).save(tmp_path / "absent.png")
    (tmp_path / "meta.json").write_text(json.dumps({"repair": {"file_name": "repair.jsonl"}}))
    assert run("pack", *flags(tmp_path / "meta.json", tmp_path / "repaired", datasets="repair"))[0] == 0


def test_skipped_as_json_lines(run: Run, meta: Path, out: Path) -> None:
    code, printed, _ = run("skipped", out, "--follow-sources", "--jsonl")
    first, second, _ = map(json.loads, printed.splitlines())
    assert code == 0
    assert (first["row"], first["line"], first["json"]) == (16, 17, [1])
    assert second == {
        "dataset": "tiny", "row": 17, "id": "", "reason": "missing_media",
        "detail": second["detail"], "file": f"{meta.parent}/rows.jsonl",
        "line": 18, "json": {"messages": conversation("<image>?", "!"), "images": ["absent.png"]},
    }  # fmt: skip


def test_skipped_without_the_data_file(run: Run, meta: Path, out: Path) -> None:
    (out / "sources.json").unlink()
    forms: list[tuple[list[str], int]] = [([], 0), (["--jsonl"], 0), (["--rows"], 1)]
    for form, code in forms:
        found = run("skipped", out, "--follow-sources", *form)
        assert found[0] == code
        assert f"{out}/sources.json" in found[2] and "tiny" in found[2]
        assert len(found[1].splitlines()) == (0 if form == ["--rows"] else 3)
    assert prints_code(found[2], "data-unreadable") and 3 in numbers_in(found[2].splitlines()[-1])


def test_skipped_refuses_what_it_does_not_know(run: Run, out: Path, tmp_path: Path) -> None:
    wrong: list[tuple[list[Any], str, str]] = [
        ([out, "--reason", "bad"], "option-invalid", "--reason bad"),
        ([out, "--dataset", "huge"], "dataset-unknown", "--dataset huge"),
        ([tmp_path / "absent"], "output-missing", f"{tmp_path}/absent"),
    ]
    for arguments, error, fact in wrong:
        code, printed, errors = run("skipped", *arguments)
        assert (code, printed) == (2, "")
        assert prints_code(errors, error) and fact in errors
