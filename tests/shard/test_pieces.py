"""Shards by pieces: bytes, notes and index lines as by one task, and what is rendered is not rendered again."""

import dataclasses
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import TinyData, files_of, mixed_rows, plan_of, tiny_config
from support.errors import raises

from neatpack.errors import UserError
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.meta import read_meta
from neatpack.pipeline.inputs import inputs_of
from neatpack.pipeline.plan.files import write_plan
from neatpack.pipeline.planned import Planned
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.runtime.engine import Engine, engine
from neatpack.pipeline.shard import pieces as module
from neatpack.pipeline.shard.note import ShardDone, ShardNote
from neatpack.pipeline.shard.pieces import Piece, join_task, piece_task, write_shards
from neatpack.pipeline.shard.writer import ShardJob, shard_task
from neatpack.pipeline.stages import plan_all, processor_key, render, shard_jobs
from neatpack.storage.tables import read_arrow


class Several(Engine):
    """In this process, with work cut as for several workers."""

    num_workers = 3


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = mixed_rows(TinyData(tmp_path_factory.mktemp("data")))
    broken = data.folder / "40.png"
    meta = data.write()
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 2])  # found out when it is decoded
    return meta


def planned(meta: Path, out: Path) -> Planned:
    config = tiny_config(meta, out, pack_size=256)
    (inputs,) = inputs_of(config, read_meta(meta), family_for(processor_key(config)), Engine({}))
    return plan_all([inputs], Engine({}))[0]


@pytest.fixture
def shard(meta: Path, tmp_path: Path) -> tuple[Planned, ShardJob]:
    plan = planned(meta, tmp_path / "out")
    return plan, shard_jobs(plan)[0]


def cut(job: ShardJob, *places: int) -> list[Piece]:
    starts = [job.first, *places, job.last]
    return [Piece(job=job, first=first, last=last, seconds=0.0) for first, last in pairwise(starts)]


def as_one(job: ShardJob) -> tuple[ShardDone, ShardNote, pa.Table, bytes]:
    """What one task tells and leaves of a shard; it is gone when this returns."""
    done = shard_task(job)
    left = left_of(job)
    for path in (job.done, job.lines, job.tar):
        path.unlink()
    return done, *left


def left_of(job: ShardJob) -> tuple[ShardNote, pa.Table, bytes]:
    """The note of a shard, the lines of its packs and its tar."""
    note = ShardNote.read(job.done, job.fingerprint)
    assert note is not None
    return note, read_arrow(job.lines), job.tar.read_bytes()


def test_pieces_joined_are_what_one_task_writes(shard: tuple[Planned, ShardJob]) -> None:
    _, job = shard
    done, note, *left = as_one(job)
    assert note.lost and note.sums and note.sizes, "a row is lost, and there is something to add up"
    for places in ((1,), (1, 2, 3), tuple(range(1, job.last))):
        pieces = cut(job, *places)
        for piece in reversed(pieces):
            piece_task(piece)
        assert join_task(job, pieces) == done
        assert left_of(job) == (note, *left)
        assert list(pieces[0].tar.parent.iterdir()) == []
        for path in (job.done, job.lines, job.tar):
            path.unlink()  # the next ones are not to find these


def test_a_piece_is_known_by_its_note(shard: tuple[Planned, ShardJob]) -> None:
    _, job = shard
    first, second = cut(job, 2)
    assert first.note() is None
    piece_task(first)
    piece_task(second)
    assert first.note() is not None
    other = dataclasses.replace(job, fingerprint="of another plan")
    assert dataclasses.replace(first, job=other).note() is None
    with open(second.tar, "ab") as file:
        file.write(b"x")
    assert second.note() is None
    with raises(UserError, "data-changed", path=str(second.tar)):
        join_task(job, [first, second])


def test_shards_are_cut_where_there_are_few_for_the_workers(
    shard: tuple[Planned, ShardJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four alike, three workers: the first two stay whole, for three times as much is left when they begin."""
    _, job = shard
    # A document of 62.49 MB of media: 0.05 ms + 0.49992 s. Two packs of one make a shard of 1.000 s.
    plan = plan_of(*({"pack": pack, "media_bytes": 62_490_000} for pack in range(8)))
    path = tmp_path / "plan.arrow"
    cuts = write_plan(path, 0, plan, num_corpora=1, shard_bytes=1, starts=(0, 2, 4, 6)).cuts
    assert [cut.seconds for cut in cuts] == [1.0] * 4
    jobs = [
        dataclasses.replace(
            job, number=number, plan=path, batch=number, shift=100, seconds=cut.seconds,
            first=100 + cut.first, last=100 + cut.first + cut.num_packs,
        )
        for number, cut in enumerate(cuts)
    ]  # fmt: skip
    monkeypatch.setattr(module, "PIECE_SECONDS", 0.5)
    assert list(module._pieces(jobs, num_workers=3)) == [2, 3]
    assert list(module._pieces(jobs, num_workers=4)) == [1, 2, 3]
    assert module._pieces(jobs, num_workers=1) == {}
    begun = module._pieces(jobs, num_workers=1, begun={1})
    assert list(begun) == [1]
    assert [(piece.first, piece.last) for piece in begun[1]] == [(102, 103), (103, 104)]
    assert [piece.job for piece in begun[1]] == [jobs[1]] * 2
    assert [piece.seconds for piece in begun[1]] == pytest.approx([0.49997, 0.49997])
    monkeypatch.setattr(module, "PIECE_SECONDS", 1.0)
    assert module._pieces(jobs, num_workers=64) == {}, "too short to be cut"


def test_an_output_by_pieces_is_the_same(meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pack(tiny_config(meta, tmp_path / "whole", pack_size=256))
    monkeypatch.setattr(module, "PIECE_SECONDS", 1e-3)
    calls: list[Piece] = []

    def counted(piece: Piece) -> None:
        calls.append(piece)
        piece_task(piece)

    monkeypatch.setattr(module, "piece_task", counted)
    made = planned(meta, tmp_path / "out")
    render(made, Several({}))
    assert len(calls) > made.num_packs / 2
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not (tmp_path / "out/work/pieces").exists()


@pytest.mark.on_ray
def test_an_output_by_pieces_on_ray_is_the_same(meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are cut is the driver's matter."""
    run_pack(tiny_config(meta, tmp_path / "whole", pack_size=256))
    monkeypatch.setattr(module, "PIECE_SECONDS", 1e-3)
    with engine("ray", num_workers=2) as running:
        render(planned(meta, tmp_path / "out"), running)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not (tmp_path / "out/work/pieces").exists()


def test_what_a_killed_run_has_rendered_is_not_rendered_again(
    shard: tuple[Planned, ShardJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a run with one worker, which would not have cut anything."""
    plan, job = shard
    done, *left = as_one(job)
    largest = max(file.largest for file in plan.files)
    monkeypatch.setattr(module, "PIECE_SECONDS", 1e-3)
    calls: list[int] = []
    stop = 3

    def killed(piece: Piece) -> None:
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(piece.first)
        piece_task(piece)

    monkeypatch.setattr(module, "piece_task", killed)
    with pytest.raises(KeyboardInterrupt):
        write_shards([job], largest, Several({}))
    assert len(calls) == stop
    stop = -1
    assert write_shards([job], largest, Engine({})) == {job.number: done}
    assert len(calls) == len(set(calls)) > 3, "each once, in one run or the other"
    assert left_of(job) == tuple(left)
