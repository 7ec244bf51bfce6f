"""What test_pack.py proves by internals."""

import os
from pathlib import Path

import pytest
from command_line import Run, flags
from support.errors import numbers_in, prints_code

import neatpack.pipeline.measure.part
from neatpack.pipeline.records import REASONS
from neatpack.pipeline.shard.troubles import NOT_RENDERED
from neatpack.storage.lock import lock_folders


@pytest.fixture
def out(run: Run, meta: Path, tmp_path: Path) -> Path:
    """Just made, and where it was made."""
    assert run("pack", *flags(meta, tmp_path / "out"))[0] == 0
    return tmp_path / "out"


def test_pack_says_what_came_out(run: Run, meta: Path, tmp_path: Path) -> None:
    code, printed, errors = run("pack", *flags(meta, tmp_path / "out"))
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0] == str(tmp_path / "out")
    assert lines[1] == "  samples   19 = 19 rows + 0 repeats = 16 packed + 3 skipped"
    assert lines[2] == "  read as   messages (tiny)", "nobody said it: it was told from the rows"
    (skipped,) = (line for line in lines if line.startswith("  skipped "))
    assert (
        numbers_in(skipped.replace("%", ""))[:3] == [3, 19, 15.8] and f"neatpack skipped {tmp_path / 'out'}" in skipped
    )
    assert any(line.endswith(f"2  bad_row: {REASONS['bad_row']}") for line in lines)
    assert any(line.endswith(f"1  missing_media: {REASONS['missing_media']}") for line in lines)
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_another_pack_size_reuses_the_token_store(
    run: Run, meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    measure = neatpack.pipeline.measure.part.measure  # type: ignore[attr-defined]
    monkeypatch.setattr(
        neatpack.pipeline.measure.part,
        "measure",
        lambda *arguments: calls.append(1) or measure(*arguments),  # type: ignore[func-returns-value]
    )
    work = tmp_path / "work"
    assert run("pack", *flags(meta, tmp_path / "a", work=work))[0] == 0
    assert calls
    calls.clear()
    before = {path: path.stat().st_mtime_ns for path in (work / "measured").rglob("*")}
    assert run("pack", *flags(meta, tmp_path / "b", work=work, pack_size=128))[0] == 0
    assert calls == []
    assert {path: path.stat().st_mtime_ns for path in (work / "measured").rglob("*")} == before
    assert run("verify", tmp_path / "b")[0] == 0
    assert run("pack", *flags(meta, tmp_path / "c", work=work, max_pixels=10_000))[0] == 0
    assert calls  # what changes lengths is measured anew


def test_two_runs_into_one_output(run: Run, meta: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with lock_folders([out / "work"]):
        code, _, errors = run("pack", *flags(meta, out))
    assert code == 2
    assert prints_code(errors, "output-locked") and f"{out}/work" in errors and str(os.getpid()) in errors
    assert errors.count("\n") == 1
    assert run("pack", *flags(meta, out))[0] == 0


# A job that loses its data: exit code 1


def test_a_job_that_loses_its_data_says_so(run: Run, meta: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, printed, errors = run("pack", *flags(meta, out, max_skipped=0.05))
    assert code == 1
    assert printed.startswith("plan\n  samples   19 = 19 rows + 0 repeats = 16 to pack + 3 skipped\n")
    judged = errors.splitlines()
    assert judged[2] == f"  {NOT_RENDERED}"
    assert not (out / "manifest.json").exists() and not (out / "shards").exists()
    code, printed, errors = run("pack", *flags(meta, out, max_skipped=0.05), "--keep-going")
    assert code == 1
    assert printed.startswith(f"{out}\n  samples   19 = 19 rows + 0 repeats = 16 packed + 3 skipped\n")
    first, line, more, last = errors.splitlines()
    assert [first, line, last] == [*judged[:2], judged[3]], "the same table"
    assert prints_code(first, "too-many-skipped") and first.startswith(f"neatpack: {out}: ")
    assert numbers_in(first.removeprefix(f"neatpack: {out}").replace("%", "")) == [3, 19, 15.8, 5.0]
    assert line.startswith("  tiny: 3 of 19 ") and "1x bad_row: " in line
    assert "; 1x missing_media: " in line and "media_dir" in line and str(meta.parent) in line
    assert f"neatpack skipped {out}" in more and "--max-skipped" in last
    assert run("verify", out)[0] == 0, "the output is complete"
    assert run("pack", *flags(meta, out, max_skipped=0.05))[::2] == (1, errors), "and stays what it is"
    code, printed, errors = run("pack", *flags(meta, out, max_skipped=0.16))
    assert (code, errors) == (0, "") and printed.startswith(f"{out} ")
