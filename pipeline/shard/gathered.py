"""The tables of packs and of media, from what shards have left.

Lines and notes of many shards are gathered by a task, and each table is written by one, all of them at once. What
grows with the packs is in files; the driver gets sums.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from neatpack.format import index as loader_index
from neatpack.format.index import SCHEMA
from neatpack.format.manifest import FETCHED, INDEX, MEDIA
from neatpack.storage.location import Location
from neatpack.storage.tables import ROW_GROUP, column_sum, parquet_groups, read_arrow, write_arrow, write_parquet

from ..media.remote import Fetched
from ..runtime.calls import Call
from .note import MediaSize, ShardNote, lines_path, note_path
from .stats import DOWNLOADS, PACKS, SHARDS, media_stats, merged, pack_stats, shard_stats

FOLDER = "gathered"  # in OUT/work, until the manifest is written
SHARDS_AT_ONCE = 1024  # that a task gathers: half a second
_COUNTED = ("tokens", "visual_tokens", "target_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathering:
    """Some shards of an output, and where what they have left is gathered."""

    out: Location
    first: int
    last: int

    def file(self, what: str) -> Location:
        return self.out / "work" / FOLDER / f"{self.first:06d}-{what}.arrow"


@dataclass(kw_only=True, slots=True)
class Tables:
    """What the tables have, in figures, and the digests of their files."""

    packs: int = 0
    tokens: int = 0
    visual_tokens: int = 0
    target_tokens: int = 0
    datasets: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)  # see DatasetSums
    files: dict[str, str] = dataclasses.field(default_factory=dict)


class Tabling:
    """The calls that make the tables of an output, for `Engine.flow`, and what came of them.

    `num_packs`: of each plan file.
    """

    def __init__(
        self,
        out: Location,
        num_shards: int,
        num_packs: Sequence[int],
        *,
        pack_size: int,
    ) -> None:
        self._chunks = [
            Gathering(out=out, first=first, last=min(first + SHARDS_AT_ONCE, num_shards))
            for first in range(0, num_shards, SHARDS_AT_ONCE)
        ]
        self._out, self._num_packs, self._pack_size = out, num_packs, pack_size
        self._left = len(self._chunks)
        self.made = Tables()

    def calls(self) -> list[Call]:
        """The first ones."""
        gathering = [Call(function=gather, arguments=(chunk,)) for chunk in self._chunks]
        return gathering or list(self._tables())

    def then(self, call: Call, result: Any) -> Iterator[Call]:
        """Keeps a result, and gives the calls that follow when all is gathered."""
        made = self.made
        if call.function is gather:
            for name, counts in result.items():
                made.datasets.setdefault(name, Counter()).update(counts)
            self._left -= 1
            if not self._left:
                yield from self._tables()
        elif call.function is write_stats:
            sums, files = result
            for name, number in sums.items():
                setattr(made, name, number)
            made.files |= files
        else:
            made.files |= result

    def _tables(self) -> Iterator[Call]:
        """The longest first."""
        lines = (self._out, self._chunks, self._num_packs)
        yield Call(function=write_index, arguments=lines)
        yield Call(function=write_loader_index, arguments=lines)
        yield Call(function=write_stats, arguments=(*lines, self._pack_size))
        yield Call(function=write_media, arguments=(self._out, self._chunks))


# The tasks


def gather(chunk: Gathering) -> dict[str, Counter[str]]:
    """Lines of packs, sizes of media and downloads of some shards, each in one file; sums by data set."""
    counts: Counter[tuple[str | int, ...]] = Counter()
    sums: dict[str, Counter[str]] = {}
    fetched: set[Fetched] = set()
    lines = [SCHEMA.empty_table()]
    for shard in range(chunk.first, chunk.last):
        note = ShardNote.read(note_path(chunk.out, shard))
        assert note is not None, f"{note_path(chunk.out, shard)}: gone since its shard was finished"
        for size in note.sizes:
            counts[size[:-1]] += size.num_media
        for each in note.sums:
            sums.setdefault(each.dataset, Counter()).update(each._asdict() | {"dataset": 0})
        fetched.update(note.fetched)
        lines.append(read_arrow(lines_path(chunk.out, shard)))
    write_arrow(chunk.file("lines"), pa.concat_tables(lines))
    write_arrow(chunk.file("media"), media_stats(counts))
    downloads = [each._asdict() for each in sorted(fetched)]
    write_arrow(chunk.file("fetched"), pa.Table.from_pylist(downloads, schema=DOWNLOADS))
    return sums


def write_index(out: Location, chunks: Sequence[Gathering], num_packs: Sequence[int]) -> dict[str, str]:
    """The index, for people and other programs."""
    with parquet_groups(out / INDEX, SCHEMA) as index:
        for group in _row_groups(chunks, num_packs):
            index.add(group)
    return {INDEX: index.digest()}


def write_loader_index(out: Location, chunks: Sequence[Gathering], num_packs: Sequence[int]) -> dict[str, str]:
    """The index as loaders read it."""
    return loader_index.write_loader_index(out, _row_groups(chunks, num_packs))


def write_stats(
    out: Location, chunks: Sequence[Gathering], num_packs: Sequence[int], pack_size: int
) -> tuple[dict[str, int], dict[str, str]]:
    """Statistics of packs and of shards; their sums."""
    sums: Counter[str] = Counter()
    nothing = SCHEMA.empty_table()
    of_shards = [shard_stats(nothing)]
    with parquet_groups(out / PACKS, pack_stats(nothing, pack_size).schema) as packs:
        for group in _row_groups(chunks, num_packs):
            of_shards.append(shard_stats(group))
            packs.add(pack_stats(group, pack_size))
            sums.update({"packs": len(group)} | {name: column_sum(group[name]) for name in _COUNTED})
    shards = write_parquet(out / SHARDS, merged(pa.concat_tables(of_shards)))
    return dict(sums), {PACKS: packs.digest(), SHARDS: shards}


def write_media(out: Location, chunks: Sequence[Gathering]) -> dict[str, str]:
    """Statistics of media, and the list of downloads, if there are any."""
    *of_size, number = MediaSize._fields
    sizes = [media_stats({}), *(read_arrow(chunk.file("media")) for chunk in chunks)]
    summed = pa.concat_tables(sizes).group_by(of_size, use_threads=False).aggregate([(number, "sum")])
    media = summed.rename_columns([*of_size, number]).sort_by([(name, "ascending") for name in of_size])
    tables = {MEDIA: media.cast(sizes[0].schema)}
    downloads = pa.concat_tables([DOWNLOADS.empty_table(), *(read_arrow(chunk.file("fetched")) for chunk in chunks)])
    if len(downloads):
        each = downloads.group_by(DOWNLOADS.names, use_threads=False).aggregate([])
        tables[FETCHED] = each.sort_by([(name, "ascending") for name in DOWNLOADS.names]).cast(DOWNLOADS)
    return {name: write_parquet(out / name, table) for name, table in tables.items()}


def _row_groups(chunks: Sequence[Gathering], num_packs: Sequence[int]) -> Iterator[pa.Table]:
    """The lines of all shards, cut after every ROW_GROUP and behind each plan file: as many as are in memory."""
    ends = np.cumsum(num_packs).tolist()
    groups = [min(ROW_GROUP, end - at) for start, end in zip([0, *ends], ends, strict=False)
              for at in range(start, end, ROW_GROUP)]  # fmt: skip
    files = (read_arrow(chunk.file("lines")) for chunk in chunks)
    left = SCHEMA.empty_table()
    for length in groups:
        tables = [left]
        while sum(map(len, tables)) < length:
            tables.append(next(files))
        whole = pa.concat_tables(tables)
        yield whole.slice(0, length).combine_chunks()
        left = whole.slice(length)
