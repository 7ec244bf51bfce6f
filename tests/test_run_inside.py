"""What test_run.py proves by internals."""

import os
import signal
import subprocess
import sys
import time

import pytest
from packing import SCRIPT, packing
from places import DEMO_PROCESSOR
from support.commands import assert_verified
from support.data import mixed_rows, picture
from support.errors import raises
from support.outputs import files_of
from support.packed import tiny_config
from support.run_data import cut, data as data, expected as expected, ledger_of

from neatpack import UserError, run_pack, run_plan
from neatpack.format.manifest import Manifest
from neatpack.pipeline.finished import FILE as FINISHED
from neatpack.pipeline.shard import pieces, writer
from neatpack.pipeline.shard.writer import shard_task


def test_killed_while_holes_are_filled(tiny, tmp_path, monkeypatch):
    """The second round of writing shards goes on where it was, with the plan that was mended."""
    mixed_rows(tiny)
    meta = tiny.write()
    for number in (31, 35, 38):
        cut(tiny.folder / f"{number}.png")
    run_pack(tiny_config(meta, tmp_path / "whole", pack_size=256))
    for stop in range(1, 30):
        out = tmp_path / f"out{stop}"
        calls = []

        def task(job, calls=calls, stop=stop):
            calls.append(job.number)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return shard_task(job)

        monkeypatch.setattr(pieces, "shard_task", task)
        try:
            run_pack(tiny_config(meta, out, pack_size=256))
        except KeyboardInterrupt:
            monkeypatch.setattr(pieces, "shard_task", shard_task)
            run_pack(tiny_config(meta, out, pack_size=256))
            assert files_of(out) == files_of(tmp_path / "whole")
        else:
            break
    assert stop > 2, "the first round and the second"


def test_media_that_change_all_the_time(tiny, tmp_path, monkeypatch):
    meta = mixed_rows(tiny).write()
    monkeypatch.setattr(writer, "is_changed", lambda ref, stamp: ref.path.endswith("33.png"))
    with raises(UserError, "data-changed", media=1):
        run_pack(tiny_config(meta, tmp_path / "out"))


def test_another_pack_size_does_not_tokenize_again(tiny, tmp_path, monkeypatch):
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "a", work=str(tmp_path / "work")))
    monkeypatch.setattr("neatpack.pipeline.measure.part.measure", lambda *_: pytest.fail("measured again"))
    run_pack(tiny_config(meta, tmp_path / "b", work=str(tmp_path / "work"), pack_size=300))
    assert_verified(tmp_path / "b")


@pytest.mark.parametrize(
    ("where", "name", "raised"),
    [
        ("neatpack.pipeline.measure.REVISION", "code.measure", 9),
        ("neatpack.pipeline.families.qwen2_vl.Qwen2VL.revision", "code.family", 9),
        ("neatpack.__version__", "code.neatpack", "99.0"),
    ],
)
def test_tokens_measured_by_older_code_are_measured_again(tiny, tmp_path, monkeypatch, where, name, raised):
    meta = tiny.text("a", "b").write()
    config = tiny_config(meta, tmp_path / "out", work=str(tmp_path / "work"))
    run_pack(config)
    before = set((tmp_path / "work/measured").iterdir())
    assert len(before) == 1
    monkeypatch.setattr(where, raised)
    (tmp_path / "out" / FINISHED).unlink()  # other code is another file, and so would not agree with it
    with raises(UserError, "output-mismatch", changed=[name]):
        run_pack(config)
    run_pack(tiny_config(meta, tmp_path / "new", work=str(tmp_path / "work")))
    after = set((tmp_path / "work/measured").iterdir())
    assert len(after) == 2 and before < after
    assert files_of(tmp_path / "new")["shards/pack-000000.tar"] == files_of(tmp_path / "out")["shards/pack-000000.tar"]


def test_a_picture_that_changes_while_it_is_read(tiny, tmp_path, monkeypatch):
    """Between the look at its stamp and its decoding: what comes out has another shape than what was planned."""
    tiny.text("a", "b").image(100, 100)
    meta = tiny.write()
    run_plan(tiny_config(meta, tmp_path / "out"))
    picture(tiny.folder / "1.png", 60, 60)
    monkeypatch.setattr(writer, "is_changed", lambda ref, stamp: False)
    run_pack(tiny_config(meta, tmp_path / "out"))
    line = ledger_of(tmp_path / "out")[1]
    assert line["reason"] == "bad_media" and "100x100" in line["detail"] and "60x60" in line["detail"]


@pytest.mark.slow
def test_same_bytes_after_kills_at_any_instant(data, expected, tmp_path):
    """SIGKILL again and again, each time a little later, until a run gets through."""
    out = tmp_path / "out"
    flags = ["--meta", str(data), "--processor", str(DEMO_PROCESSOR), "--out", str(out), "--pack-size", "512",
             "--engine", "inline", "--shard-mb", "1", "--group-size", "4", "--pixels", "u8"]  # fmt: skip
    stages = [
        lambda: any(out.glob("work/measured/*/*")),
        lambda: any(out.glob("work/plans/*")),
        lambda: any(out.glob("shards/.*.part")),
        lambda: len(list(out.glob("work/done/*"))) >= 2,
        lambda: (out / "index.parquet").exists(),
    ]
    kills = 0
    with packing() as run:
        for reached in stages:
            run.start(flags, os.environ)
            while run.lives() and not reached():
                time.sleep(0.001)
            run.kill()
            kills += run.wait() == -signal.SIGKILL
    assert kills >= 3
    assert subprocess.run([sys.executable, str(SCRIPT), *flags], capture_output=True).returncode == 0
    theirs = Manifest.parse(expected["manifest.json"], "expected")
    assert theirs.identity.differences(Manifest.read(out).identity) == []
    assert files_of(out) == expected
    assert not list(out.rglob("*.part")), "left-overs of killed runs"


def test_a_worker_that_is_killed_leaves_nothing_in_the_output(data, tmp_path, monkeypatch):
    """Its task is tried again elsewhere; what it had begun is removed by the run that finishes, and nothing else is."""
    out = tmp_path / "out"
    left = ["shards/.pack-000000.tar.4711.part", "work/done/.000000.json.4711.part", "ledger/.00000.parquet.4711.part"]
    others = ["shards/.pack-000000.tar.part", "shards/.mine.4711.part", "shards/notes.4711.part", ".index.4711.part"]

    def killed_once(job):
        for name in (*left, *others):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(b"begun")
        return shard_task(job)

    monkeypatch.setattr("neatpack.pipeline.shard.pieces.shard_task", killed_once)
    run_pack(tiny_config(data, out))
    assert [name for name in left if (out / name).exists()] == []
    assert [name for name in others if not (out / name).exists()] == []
