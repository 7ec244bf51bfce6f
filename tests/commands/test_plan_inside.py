"""What test_plan.py proves by internals."""

from pathlib import Path

import pytest
from command_line import Run, flags

import neatpack.pipeline.measure.part


def test_plan_keeps_what_it_measured(run: Run, meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("plan", *flags(meta, tmp_path / "out"))[0] == 0
    assert not (tmp_path / "out" / "shards").exists()
    monkeypatch.setattr(neatpack.pipeline.measure.part, "measure", lambda *_: pytest.fail("measured again"))
    assert run("pack", *flags(meta, tmp_path / "out"))[0] == 0
