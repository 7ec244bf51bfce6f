"""A finished output that is overwritten: at every instant there is the old one or the new one, whole."""

import os
import shutil

import pytest
from helpers import assert_verified, files_of, tiny_config

from neatpack.pipeline import stages
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.commit import commit


class Killed(BaseException):
    """Stands for the end of a process: nothing of ours catches it."""


@pytest.fixture
def meta(tiny):
    return tiny.text("one", "two").image(40, 60).write()


def test_the_old_output_stays_until_the_new_one_is_complete(meta, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run_pack(tiny_config(meta, out))
    old = files_of(out)

    def killed(*_):
        raise Killed

    monkeypatch.setattr(stages, "commit", killed)
    with pytest.raises(Killed):
        run_pack(tiny_config(meta, out, pack_size=256, overwrite=True))
    assert files_of(out) == old
    assert_verified(out)
    monkeypatch.undo()
    assert run_pack(tiny_config(meta, out)).already_done
    assert not (out / "work/anew").exists()


@pytest.mark.slow
def test_killed_at_any_rename_the_next_run_finishes_the_exchange(meta, tmp_path, monkeypatch):
    run_pack(tiny_config(meta, tmp_path / "new", pack_size=256))
    run_pack(tiny_config(meta, tmp_path / "old"))
    wanted = files_of(tmp_path / "new")
    moves = 0
    for at in range(100):
        out = shutil.copytree(tmp_path / "old", tmp_path / f"out{at}")
        left = at

        def replace_until(source, target, replaced=os.replace):
            nonlocal left, moves
            if left == 0:
                raise Killed
            left, moves = left - 1, moves + 1
            replaced(source, target)

        monkeypatch.setattr(os, "replace", replace_until)
        monkeypatch.setattr(stages, "commit", _with_renames_of_its_own(monkeypatch, replace_until))
        try:
            run_pack(tiny_config(meta, out, pack_size=256, overwrite=True))
        except Killed:
            monkeypatch.undo()
            assert run_pack(tiny_config(meta, out, pack_size=256)).already_done
        else:
            monkeypatch.undo()
            assert files_of(out) == wanted
            break
        assert files_of(out) == wanted
        left_over = {path.name for path in (out / "work").iterdir()}
        assert left_over - {"timing.json", "finished.json"} == {"base.json", "done", "measured", "plans", "run.json"}
    assert at > 15 and moves > 100


def _with_renames_of_its_own(monkeypatch, counted, replaced=os.replace):
    """Only the renames of the exchange are counted, which come after."""
    monkeypatch.setattr(os, "replace", replaced)

    def committed(*arguments):
        manifest = commit(*arguments)
        monkeypatch.setattr(os, "replace", counted)
        return manifest

    return committed
