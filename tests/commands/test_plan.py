"""`neatpack plan`: what packing would give, without a pixel decoded."""

from pathlib import Path

import pytest
from command_line import Run, flags
from support.errors import numbers_in, prints_code

pytestmark = pytest.mark.net


def test_plan_prints_what_packing_would_give(run: Run, meta: Path, tmp_path: Path) -> None:
    code, planned, errors = run("plan", *flags(meta))
    assert (code, errors) == (0, "")
    lines = planned.splitlines()
    assert lines[:2] == ["plan", "  samples   19 = 19 rows + 0 repeats = 16 to pack + 3 skipped"]
    assert [line.split()[0] for line in lines[2:6]] == ["read", "packs", "tokens", "on"]
    (skipped,) = (line for line in lines if line.startswith("  skipped "))
    assert numbers_in(skipped.replace("%", "")) == [3, 19, 15.8]
    # and packing gives it: fake images aside, which only packing adds
    code, packed, _ = run("pack", *flags(meta, tmp_path / "out"))
    assert code == 0
    packs = [line.split(",")[0] for line in (planned + packed).splitlines() if line.startswith("  packs")]
    assert len(packs) == 2
    assert packs[0] == packs[1]


def test_plan_decodes_no_pixels(run: Run, meta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda *_: pytest.fail("pixels were decoded"))
    assert run("plan", *flags(meta))[0] == 0


def test_plan_leaves_nothing_behind_without_a_folder(
    run: Run, meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run("plan", *flags(meta))[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_plan_says_it_before(run: Run, meta: Path, tmp_path: Path) -> None:
    for place in ([], ["--work", tmp_path / "work"]):
        code, printed, errors = run("plan", *flags(meta, max_skipped=0.05), *place)
        first = errors.splitlines()[0]
        assert code == 1 and prints_code(first, "too-many-skipped") and first.startswith("neatpack: plan: ")
        assert numbers_in(first.replace("%", "")) == [3, 19, 15.8, 5.0]
        assert printed.startswith("plan\n")
