"""A shard by several tasks: runs of its packs are rendered apart, as pieces of its tar, and joined.

The bytes are those that one task would write. Pieces lie in OUT/work/pieces until the shard's note is there: what a run
that was killed has rendered of a shard, the next one does not render again. Where pieces are cut depends on the plan
alone; how many workers there are only decides which shards are cut.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..config import UserError, fingerprint
from ..plan.assign import Plan, pack_bytes
from ..runtime.engine import Call, Engine
from ..runtime.even import even_ends
from ..runtime.journal import journal
from ..runtime.storage import Hashed, Place, append, sizes_in, write_whole
from ..runtime.work import timed
from .codec import write_end
from .note import DatasetSums, MediaSize, PackLine, ShardNote
from .writer import ShardJob, loaded, write_packs

FOLDER = "pieces"  # in OUT/work
PIECE_SECONDS = 0.25  # that a piece takes at most, unless a single pack has more
# A shard is one task as long as so many times as much is left for each worker: the last ones end together, and pieces,
# which are written twice, are made only where they help.
SHARE = 1
# Seconds that rendering takes on one core, by what the plan says: of a document, of a token, of a document with
# pictures or videos, of a byte of its media after resizing. Measured on 200 packs of real conversations by Qwen2.5-VL's
# rules: 2.8 ms for 6 documents and 2,048 tokens of text, 12 ms with a picture of 0.9 MB among them.
DOCUMENT_SECONDS, TOKEN_SECONDS, VISUAL_SECONDS, BYTE_SECONDS = 300e-6, 0.1e-6, 2e-3, 8e-9
PACK_COPIES = 4  # of a pack in memory: decoded, resized, laid end to end, written

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Packs [first, last) of a shard."""

    job: ShardJob
    first: int
    last: int

    @property
    def tar(self) -> Place:
        return self.job.done.parent.parent / FOLDER / f"{self.job.number:06d}-{self.first:09d}-{self.last:09d}.tar"

    @property
    def done(self) -> Place:
        return self.tar.with_suffix(".json")

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.job.fingerprint, self.first, self.last)

    def note(self) -> ShardNote | None:
        """What it holds, if it is finished: as of a shard, and offsets from where it begins."""
        note = ShardNote.read(self.done, self.fingerprint)
        return note if note is not None and self.tar.exists() and self.tar.stat().st_size == note.bytes else None


def write_shards(
    jobs: Sequence[ShardJob], plan: Plan, whole: Callable[[ShardJob], ShardNote], running: Engine
) -> dict[ShardJob, ShardNote]:
    """The shards of these jobs: each by the task `whole`, or by pieces, where there are few for that many workers."""
    if not jobs:
        return {}
    costs = pack_seconds(plan)
    there = sizes_in(jobs[0].done.parent.parent / FOLDER)
    begun = {int(name.split("-")[0]) for name in there if name.endswith(".json")}
    pieces = _pieces(jobs, costs, running.num_workers, begun)
    missing: dict[ShardJob, set[Piece]] = {}
    calls: list[Call] = []
    for job in jobs:
        missing[job] = {piece for piece in pieces.get(job, ()) if piece.done.name not in there or not piece.note()}
        if job not in pieces:
            calls.append(Call(function=whole, arguments=(job,), seconds=_sum(costs, job.first, job.last), key=job))
        elif not missing[job]:
            calls.append(_joining(job, pieces[job]))
        for piece in sorted(missing[job], key=lambda piece: piece.first):
            seconds = _sum(costs, piece.first, piece.last)
            calls.append(Call(function=piece_task, arguments=(piece,), seconds=seconds, key=piece))
    notes: dict[ShardJob, ShardNote] = {}

    def then(call: Call, result: Any) -> Iterator[Call]:
        if isinstance(call.key, Piece):
            job = call.key.job
            missing[job].remove(call.key)
            if not missing[job]:
                yield _joining(job, pieces[job])
        else:
            notes[call.key] = result

    if pieces:
        logger.info("%d of %d shards by pieces, of which %d are to be rendered", len(pieces), len(jobs),
                    sum(map(len, missing.values())))  # fmt: skip
    memory = PACK_COPIES * int(pack_bytes(plan).max())
    running.flow(calls, then, title="render", unit="task" if pieces else "shard", memory=memory)
    return notes


def _pieces(
    jobs: Sequence[ShardJob], costs: np.ndarray, num_workers: int, begun: Collection[int] = ()
) -> dict[ShardJob, list[Piece]]:
    """Of the shards that are cut: those of which a piece is there, and those that are long against what is left."""
    seconds = [_sum(costs, job.first, job.last) for job in jobs]
    left = sum(seconds)
    cut = {}
    for job, own in zip(jobs, seconds, strict=True):
        if job.number in begun or (num_workers > 1 and SHARE * num_workers * own > left):
            ends = even_ends(costs[job.first : job.last].tolist(), PIECE_SECONDS)
            pieces = [
                Piece(job=job, first=job.first + start, last=job.first + end) for start, end in pairwise([0, *ends])
            ]
            if len(pieces) > 1:
                cut[job] = pieces
        left -= own
    return cut


def pack_seconds(plan: Plan) -> np.ndarray:
    """About what rendering each pack takes. It only cuts the work evenly: nothing else depends on it."""
    if not plan.num_packs:
        return np.zeros(0)
    visual = (plan.packed["visual_tokens"].to_numpy() > 0).astype(np.int64)
    seconds: np.ndarray = (
        DOCUMENT_SECONDS * np.diff(plan.starts)
        + TOKEN_SECONDS * plan.per_pack("tokens")
        + VISUAL_SECONDS * np.add.reduceat(visual, plan.starts[:-1])
        + BYTE_SECONDS * plan.per_pack("media_bytes")
    )
    return seconds


def _sum(costs: np.ndarray, first: int, last: int) -> float:
    return float(costs[first:last].sum())


def _joining(job: ShardJob, pieces: Sequence[Piece]) -> Call:
    return Call(function=join_task, arguments=(job, tuple(pieces)), key=job)


def piece_task(piece: Piece) -> None:
    """Render a piece, and leave a note beside it."""
    job = piece.job
    family, plan = loaded(job)
    with journal(piece.tar.with_suffix(".journal")) as watch, write_whole(piece.tar) as file:
        note = write_packs(Hashed(file), job, range(piece.first, piece.last), family, plan, watch)
    dataclasses.replace(note, fingerprint=piece.fingerprint).write(piece.done)


def join_task(job: ShardJob, pieces: Sequence[Piece]) -> ShardNote:
    """The tar of a shard from its pieces, then its note; then the pieces go."""
    notes = []
    with timed("joining"), write_whole(job.tar) as file:
        hashed = Hashed(file)
        for piece in pieces:
            if (note := piece.note()) is None:
                raise UserError(f"{piece.tar}: has gone or changed since it was rendered; run again")
            notes.append(_moved(note, hashed.size))
            append(piece.tar, hashed)
        write_end(hashed)
    joined = dataclasses.replace(_joined(notes), fingerprint=job.fingerprint, bytes=hashed.size, sha256=hashed.digest())
    joined.write(job.done)
    for piece in pieces:
        for path in (piece.done, piece.tar):  # without its note, nobody takes it for a piece
            path.unlink(missing_ok=True)
    return joined


def _moved(note: ShardNote, offset: int) -> ShardNote:
    """The note of a piece that begins at this place of the tar."""

    def moved(line: PackLine) -> PackLine:
        members = tuple((start + offset, size) for start, size in line.members)
        return dataclasses.replace(line, offset=line.offset + offset, members=members)

    return dataclasses.replace(note, packs=tuple(map(moved, note.packs)))


def _joined(notes: Sequence[ShardNote]) -> ShardNote:
    """What the pieces of a shard hold, together."""
    sizes: Counter[tuple[str, str, int, int, int, int]] = Counter()
    sums: dict[str, list[int]] = {}
    for note in notes:
        for size in note.sizes:
            sizes[size[:-1]] += size.num_media
        for name, *values in note.sums:
            before = sums.get(name, [0] * len(values))
            sums[name] = [old + new for old, new in zip(before, values, strict=True)]
    return dataclasses.replace(
        notes[0],
        packs=tuple(line for note in notes for line in note.packs),
        lost=tuple(row for note in notes for row in note.lost),
        fetched=tuple(sorted({each for note in notes for each in note.fetched})),
        sizes=tuple(MediaSize(*size, count) for size, count in sorted(sizes.items())),
        sums=tuple(DatasetSums(name, *values) for name, values in sorted(sums.items())),
    )
