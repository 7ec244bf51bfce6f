"""A shard by several tasks: runs of its packs are rendered apart, as pieces of its tar, and joined.

The bytes are those that one task would write. Pieces lie in OUT/work/pieces until the shard's note is there: what a run
that was killed has rendered of a shard, the next one does not render again. Where pieces are cut depends on the plan
alone; how many workers there are only decides which shards are cut.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack.format.manifest import fingerprint
from neatpack.format.members import write_end
from neatpack.storage.files import Counted, Hashed, append, write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import read_arrow, write_arrow

from ..config import UserError
from ..plan.cost import pack_seconds
from ..plan.files import read_shard
from ..runtime.calls import Call
from ..runtime.engine import Engine
from ..runtime.even import even_ends
from ..runtime.journal import journal
from ..runtime.work import timed
from .note import DatasetSums, MediaSize, ShardDone, ShardNote
from .writer import ShardJob, loaded, shard_task, write_packs

FOLDER = "pieces"  # in OUT/work
PIECE_SECONDS = 0.25  # that a piece takes at most, unless a single pack has more
# A shard is one task as long as so many times as much is left for each worker: the last ones end together, and pieces,
# which are written twice, are made only where they help.
SHARE = 1
PACK_COPIES = 4  # of a pack in memory: decoded, resized, laid end to end, written

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Packs [first, last) of a shard."""

    job: ShardJob
    first: int
    last: int
    seconds: float  # that it takes, about

    @property
    def tar(self) -> Location:
        return self._file("tar")

    @property
    def done(self) -> Location:
        return self._file("json")

    @property
    def lines(self) -> Location:
        return self._file("arrow")

    def _file(self, ending: str) -> Location:
        name = f"{self.job.number:06d}-{self.first:09d}-{self.last:09d}.{ending}"
        return pieces_folder(self.job.out) / name

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.job.fingerprint, self.first, self.last)

    def note(self) -> ShardNote | None:
        """What it holds, if it is finished: as of a shard, and offsets from where it begins."""
        note = ShardNote.read(self.done, self.fingerprint)
        if note is None:
            return None
        tar, lines = self.tar, self.lines
        return note if lines.exists() and tar.exists() and tar.stat().st_size == note.bytes else None


@lru_cache(maxsize=8)  # of a shard there are a hundred pieces, of three files each
def pieces_folder(out: Location) -> Location:
    return out / "work" / FOLDER


def write_shards(jobs: Sequence[ShardJob], largest: int, running: Engine) -> dict[int, ShardDone]:
    """The shards of these jobs, by number: each by one task, or by pieces, where there are few for that many workers.

    `largest`: bytes of a pack, at most.
    """
    if not jobs:
        return {}
    there = pieces_folder(jobs[0].out).sizes()
    begun = {int(name.split("-")[0]) for name in there if name.endswith(".json")}
    pieces = _pieces(jobs, running.num_workers, begun)
    missing: dict[int, set[Piece]] = {}
    calls: list[Call] = []
    for job in jobs:
        own = pieces.get(job.number, [])
        missing[job.number] = {piece for piece in own if piece.done.name not in there or not piece.note()}
        if not own:
            calls.append(Call(function=shard_task, arguments=(job,), seconds=job.seconds, key=job, journaled=True))
        elif not missing[job.number]:
            calls.append(_joining(job, own))
        for piece in sorted(missing[job.number], key=lambda piece: piece.first):
            calls.append(
                Call(function=piece_task, arguments=(piece,), seconds=piece.seconds, key=piece, journaled=True)
            )
    done: dict[int, ShardDone] = {}

    def then(call: Call, result: Any) -> Iterator[Call]:
        if isinstance(call.key, Piece):
            job = call.key.job
            missing[job.number].remove(call.key)
            if not missing[job.number]:
                yield _joining(job, pieces[job.number])
        else:
            done[call.key.number] = result

    if pieces:
        logger.info("%d of %d shards by pieces, of which %d are to be rendered", len(pieces), len(jobs),
                    sum(map(len, missing.values())))  # fmt: skip
    unit = "task" if pieces else "shard"
    running.flow(calls, then, title="render", unit=unit, memory=PACK_COPIES * largest)
    return done


def _pieces(jobs: Sequence[ShardJob], num_workers: int, begun: Collection[int] = ()) -> dict[int, list[Piece]]:
    """Of the shards that are cut: those of which a piece is there, and those that are long against what is left."""
    left = sum(job.seconds for job in jobs)
    cut = {}
    for job in jobs:
        if job.number in begun or (num_workers > 1 and SHARE * num_workers * job.seconds > left):
            costs = pack_seconds(read_shard(job.plan, job.batch, job.shift))
            ends = even_ends(costs.tolist(), PIECE_SECONDS)
            pieces = [
                Piece(job=job, first=job.first + start, last=job.first + end, seconds=float(costs[start:end].sum()))
                for start, end in pairwise([0, *ends])
            ]
            if len(pieces) > 1:
                cut[job.number] = pieces
        left -= job.seconds
    return cut


def _joining(job: ShardJob, pieces: Sequence[Piece]) -> Call:
    return Call(function=join_task, arguments=(job, tuple(pieces)), key=job)


def piece_task(piece: Piece) -> None:
    """Render a piece, and leave its index and a note beside it, which has no sha256: nobody would compare it."""
    job = piece.job
    family, plan = loaded(job)
    with journal(piece.tar.with_suffix(".journal")) as watch, write_whole(piece.tar) as file:
        note, lines = write_packs(Counted(file), job, range(piece.first, piece.last), family, plan, watch)
    write_arrow(piece.lines, lines)
    dataclasses.replace(note, fingerprint=piece.fingerprint).write(piece.done)


def join_task(job: ShardJob, pieces: Sequence[Piece]) -> ShardDone:
    """The tar of a shard from its pieces, then its index and its note; then the pieces go."""
    notes, lines, starts = [], [], []
    with timed("joining"), write_whole(job.tar) as file:
        hashed = Hashed(file)
        for piece in pieces:
            if (note := piece.note()) is None:
                raise UserError(
                    f"{piece.tar}: has gone or changed since it was rendered; run again",
                    code="data-changed",
                    path=str(piece.tar),
                )
            notes.append(note)
            lines.append(read_arrow(piece.lines))
            starts.append(hashed.size)
            append(piece.tar, hashed)
        write_end(hashed)
    joined = dataclasses.replace(_joined(notes), fingerprint=job.fingerprint, bytes=hashed.size, sha256=hashed.digest())
    write_arrow(job.lines, moved(pa.concat_tables(lines), np.repeat(starts, [len(own) for own in lines])))
    joined.write(job.done)
    for piece in pieces:
        for path in (piece.done, piece.tar, piece.lines):  # without its note, nobody takes it for a piece
            path.unlink(missing_ok=True)
    return joined.done


def moved(lines: pa.Table, by: np.ndarray) -> pa.Table:
    """The index of packs that begin so many bytes later in the tar, each by its own number."""
    members = lines["members"].combine_chunks()
    num_members = members.value_lengths().to_numpy(zero_copy_only=False)
    places = members.flatten()
    fields = [
        pc.add(places.field(name), np.repeat(by, num_members)) if name == "offset" else places.field(name)
        for name in (field.name for field in places.type)
    ]
    shifted = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(num_members)]), pa.int32()),
        pa.StructArray.from_arrays(fields, fields=list(places.type)),
    )
    for name, values in (("offset", pc.add(lines["offset"], pa.array(by))), ("members", shifted)):
        column = lines.schema.get_field_index(name)
        lines = lines.set_column(column, lines.schema.field(column), values)
    return lines


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
        first_pack=next((note.first_pack for note in notes if note.num_packs), -1),
        num_packs=sum(note.num_packs for note in notes),
        lost=tuple(row for note in notes for row in note.lost),
        fetched=tuple(sorted({each for note in notes for each in note.fetched})),
        sizes=tuple(MediaSize(*size, count) for size, count in sorted(sizes.items())),
        sums=tuple(DatasetSums(name, *values) for name, values in sorted(sums.items())),
    )
