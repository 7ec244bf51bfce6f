"""The index: one line per pack, where it is and what is in it; read as what may be damaged.

index.parquet has all of it, for people and other programs. The loader reads index.arrow and loads.arrow, which have
numbers of fixed width alone. An Arrow file is a row of batches; where those of index.arrow begin, and their crc32, is
in the manifest, so that a process of a training reads, and checks, the packs that it needs: 130 KB for 1,024 packs, of
a file that has 1.3 GB where there are ten million. loads.arrow has what the order of an epoch depends on, 8 bytes each.

Of the places, the manifest and the sizes of members leave nothing open: shards have their packs in order and without
gaps, a pack its members. So every one of them is checked, before anybody reads where it points.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from zlib_ng import zlib_ng

from neatpack.errors import OutputError, ShardError
from neatpack.format.layout import TOKEN_TYPES
from neatpack.format.manifest import (
    FORMAT,
    INDEX,
    LOADS,
    PLACES,
    REMEDY,
    IndexFile,
    Manifest,
    Shards,
    most_times,
    shard_name,
)
from neatpack.format.members import BLOCK, END, members_of
from neatpack.storage.files import Hashed, write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import read_message, refuse_bomb

SCHEMA = pa.schema(
    [
        ("pack", pa.int32()),
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("crc32", pa.uint32()),  # of these bytes
        ("tokens", pa.int32()),  # length of input_ids
        ("padding_tokens", pa.int32()),  # of which alignment
        ("fake_tokens", pa.int32()),  # of which the fake image's
        ("visual_tokens", pa.int32()),
        ("target_tokens", pa.int32()),
        ("squares", pa.int64()),  # sum of squared document lengths: what attention costs
        ("num_documents", pa.int32()),
        ("num_images", pa.int32()),
        ("num_videos", pa.int32()),
        ("num_audios", pa.int32()),
        ("times", pa.float64()),  # how often it comes in an epoch: see --repeat-at-load
        ("members", pa.list_(pa.struct([("name", pa.string()), ("offset", pa.int64()), ("size", pa.int64())]))),
    ]
)
PACKS_PER_BATCH = 1024  # two groups of the usual size, in 150 KB: what a remote reader fetches for one of them
LOADS_PER_BATCH = 1 << 20
LOADS_SCHEMA = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in ("visual_tokens", "tokens")])
_NUMBERS = {pa.int32(): np.int32, pa.uint32(): np.uint32, pa.int64(): np.int64}
_COUNTED = tuple(f"num_{kind}s" for kind in TOKEN_TYPES)
TOO_LARGE = "the sizes of its members are not those of parts of a file"
_PLACE = ("name", "offset", "size")  # of a member
_OF_TOKENS = ("padding_tokens", "fake_tokens", "visual_tokens", "target_tokens", "num_documents")  # at most one each
_COUNTS = (*_OF_TOKENS, "squares", "num_images", "num_videos", "num_audios")


class Finding(NamedTuple):
    """Something wrong, and where it is: the name of a shard and the number of a pack, where it is one."""

    words: str
    shard: str = ""
    pack: int | None = None
    column: str = ""


def parse_index(content: bytes, manifest: Manifest, out: str) -> pa.Table:
    """The index from its bytes, whose digest was compared; `out` is for messages.

    Raises ShardError for the first thing in it that cannot be, OutputError where it is no index at all.
    """
    where = f"{out}/{INDEX}"
    try:
        with pq.ParquetFile(io.BytesIO(content)) as file:
            refuse_bomb(file.metadata, len(content))
            index = file.read()
    except (pa.ArrowException, OSError) as error:
        raise OutputError(
            f"{where}: not parquet: {str(error)[:200]}; {REMEDY}", code="output-damaged", out=out, file=INDEX
        ) from None
    for words, shard, pack, column in index_problems(index, manifest):
        raise ShardError(f"{where}: {words}; {REMEDY}", shard, pack, out=out, file=INDEX, column=column)
    return index


def index_problems(index: pa.Table, manifest: Manifest) -> Iterator[Finding]:
    """What is wrong with an index: each kind of damage once, at the first pack that has it."""
    if index.schema.remove_metadata() != SCHEMA:
        columns = ", ".join(f"{field.name} {field.type}" for field in index.schema)
        yield Finding(f"columns are {columns[:200]}, expected those of format {FORMAT}", column="schema")
        return
    places = index["members"].combine_chunks().flatten()
    cells = {name: index[name] for name in SCHEMA.names} | {f"members.{n}": places.field(n) for n in _PLACE}
    if with_nulls := [name for name, column in cells.items() if column.null_count or places.null_count]:
        yield Finding(f"{', '.join(with_nulls)}: cells are empty", column=with_nulls[0])
        return
    shards, packs = index["shard"].to_pylist(), index["pack"].to_numpy()
    expected = [shard.name for shard in manifest.shards for _ in range(min(shard.num_packs, len(index) + 1))]
    if shards != expected:
        pairs = zip_longest(shards, expected)
        at = next(at for at, (has, wanted) in enumerate(pairs) if has != wanted)
        has, wanted = (names[at] if at < len(names) else "none" for names in (shards, expected))
        pack = int(packs[at]) if at < len(packs) else None
        yield Finding(f"line {at}, pack {pack}, is of shard {has!r}, by the manifest of {wanted}", has, pack, "shard")
        return
    for wrong, words, column in _impossible(index, manifest):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            yield Finding(f"pack {packs[at]} in {shards[at]}: {words}", shards[at], int(packs[at]), column)


def _impossible(index: pa.Table, manifest: Manifest) -> Iterator[tuple[np.ndarray, str, str]]:
    """Which packs cannot be as the index says, and why. Shards and their numbers of packs are as in the manifest."""
    packs, tokens, times = (index[name].to_numpy() for name in ("pack", "tokens", "times"))
    yield np.diff(packs, prepend=-1) != 1, "its number is not the next after that of the line before", "pack"
    for name in _COUNTS:
        counts = index[name].to_numpy()
        most = tokens if name in _OF_TOKENS else np.iinfo(np.int64).max
        yield (counts < 0) | (counts > most), f"{name} cannot be", name
    yield ~((times > 0) & (times <= most_times(len(times)))), "times cannot be", "times"  # so written, also for NaN
    names = members_of(manifest)
    members = index["members"].combine_chunks()
    is_other = members.value_lengths().to_numpy(zero_copy_only=False) != len(names)
    yield is_other, f"its members are not the {len(names)} of every pack", "members"
    if is_other.any():
        return
    listed = members.flatten()
    shape = (len(index), len(names))
    codes = pc.index_in(listed.field("name"), pa.array(names)).fill_null(-1).to_numpy().reshape(shape)
    yield (codes != np.arange(len(names))).any(axis=1), "its members have other names, or another order", "members.name"
    starts = listed.field("offset").to_numpy().reshape(shape)
    places = places_of(index, len(names))
    too_large = _too_large(places, 0, manifest.shards)
    yield too_large, TOO_LARGE, "members.size"
    if too_large.any():
        return  # sums might overflow
    yield index["bytes"].to_numpy() != places.bytes, "its bytes are not the sum of its members", "bytes"
    yield from impossible_places(places, 0, manifest)
    expected = places.offset[:, None] + places.starts
    yield (starts != expected).any(axis=1), "offsets of its members are not those of their sizes", "members.offset"


def most_loads(num_packs: int) -> int:
    """Return the most bytes that loads.arrow may have; a reader takes them into memory at once."""
    return 16 * num_packs + (1 << 20)


# For the loader


class Places(NamedTuple):
    """Of some packs, end to end: where they are, and what the loader must know of them."""

    shard: np.ndarray  # int32: its number
    offset: np.ndarray  # int64: of the pack in its shard
    crc32: np.ndarray  # uint32: of its bytes
    tokens: np.ndarray  # int32
    counts: np.ndarray  # int32 [packs, 3]: images, videos, audios
    sizes: np.ndarray  # int64 [packs, members]: of the members, without headers

    @property
    def starts(self) -> np.ndarray:
        """Of the members in their pack: each comes behind a header, and is padded to whole blocks."""
        ends = np.cumsum(_padded(self.sizes), axis=1)
        return np.asarray(ends - _padded(self.sizes) + BLOCK)

    @property
    def bytes(self) -> np.ndarray:
        return np.asarray(_padded(self.sizes).sum(axis=1))

    def batch(self) -> pa.RecordBatch:
        columns = [self.shard, self.offset, self.crc32, self.tokens, *self.counts.T]
        schema = places_schema(self.sizes.shape[1])
        sizes = pa.FixedSizeListArray.from_arrays(pa.array(self.sizes.reshape(-1)), type=schema.field("sizes").type)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=False)]
        return pa.record_batch([*arrays, sizes], schema=schema)

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Places":
        """The places of a batch of `places_schema`."""
        *columns, sizes = batch.columns
        shard, offset, crc32, tokens, *counts = map(numbers_in, columns)
        rows = numbers_in(sizes.flatten()).reshape(len(batch), sizes.type.list_size)
        return cls(shard, offset, crc32, tokens, np.stack(counts, axis=1), rows)


def numbers_in(column: pa.Array) -> np.ndarray:
    """As `column.to_numpy()`, which imports pandas where that is installed: 0.2 s and 30 MB in each process."""
    kind = _NUMBERS[column.type]
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[-1], kind, len(column), column.offset * np.dtype(kind).itemsize)


def places_schema(num_members: int) -> pa.Schema:
    """Columns of index.arrow; packs are numbered by their lines, members in the order of the tar."""
    kinds = {"shard": pa.int32(), "offset": pa.int64(), "crc32": pa.uint32(), "tokens": pa.int32()}
    kinds |= dict.fromkeys(_COUNTED, pa.int32())
    kinds["sizes"] = pa.list_(pa.field("item", pa.int64(), nullable=False), num_members)
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


def write_places(out: Location, tables: Iterable[pa.Table], num_members: int) -> tuple[IndexFile, dict[str, str]]:
    """index.arrow and loads.arrow of a whole index, which comes in pieces: one of them is in memory at a time.

    What the manifest says of them, and their digests.
    """
    offsets, crc32, times, num_packs = list[int](), list[int](), list[tuple[int, float]](), 0
    with ExitStack() as opened:
        file, loads_file = (Hashed(opened.enter_context(write_whole(out / name))) for name in (PLACES, LOADS))
        writer, loads_writer = (
            opened.enter_context(pa.ipc.new_file(pa.PythonFile(each, mode="w"), schema))
            for each, schema in ((file, places_schema(num_members)), (loads_file, LOADS_SCHEMA))
        )

        def write_places(columns: list[np.ndarray]) -> None:
            batch = Places(*columns).batch()
            content = batch.serialize()  # as it will be in the file
            writer.write_batch(batch)
            offsets.append(file.tell() - content.size)
            crc32.append(zlib_ng.crc32(content))

        def write_loads(columns: list[np.ndarray]) -> None:
            loads_writer.write_batch(pa.record_batch(list(map(pa.array, columns)), schema=LOADS_SCHEMA))

        places, loads = _Cut(PACKS_PER_BATCH, write_places), _Cut(LOADS_PER_BATCH, write_loads)
        for table in tables:
            found = runs(table["times"].to_numpy(), times[-1][1] if times else np.nan)
            times += [(num_packs + first, each) for first, each in found]
            num_packs += len(table)
            places.add(places_of(table, num_members))
            loads.add([table[name].to_numpy() for name in LOADS_SCHEMA.names])
        places.end()
        loads.end()
        offsets.append(file.tell())
    index = IndexFile(packs_per_batch=PACKS_PER_BATCH, offsets=tuple(offsets), crc32=tuple(crc32), times=tuple(times))
    return index, {PLACES: file.digest(), LOADS: loads_file.digest()}


def parse_batch(content: bytes | memoryview, number: int, manifest: Manifest, out: str) -> Places:
    """A batch of index.arrow from its bytes, whose crc32 was compared; `out` is for messages.

    Raises ShardError for the first thing in it that cannot be, OutputError where it is no batch at all.
    """
    assert manifest.index is not None
    where, first = f"{out}/{PLACES}", number * manifest.index.packs_per_batch
    num_packs = min(manifest.shards.num_packs - first, manifest.index.packs_per_batch)
    schema = places_schema(len(members_of(manifest)))
    try:
        batch = read_message(pa.py_buffer(content), schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OutputError(
            f"{where}: batch {number} is not Arrow: {str(error)[:200]}; {REMEDY}",
            code="output-damaged",
            out=out,
            file=PLACES,
            batch=number,
        ) from None
    if len(batch) != num_packs or any(column.null_count for column in batch.columns):
        raise OutputError(
            f"{where}: batch {number} has {len(batch)} packs, or empty cells; expected {num_packs}; {REMEDY}",
            code="output-damaged",
            out=out,
            file=PLACES,
            batch=number,
            got=len(batch),
            expected=num_packs,
        )
    places = Places.of(batch)
    for words, shard, pack, column in places_problems(places, first, manifest):
        raise ShardError(f"{where}: {words}; {REMEDY}", shard, pack, out=out, file=PLACES, column=column)
    return places


def places_problems(places: Places, first: int, manifest: Manifest) -> Iterator[Finding]:
    """What is wrong with the places of packs from `first` on: each kind of damage once, at the first that has it."""
    expected = _shards_of(len(places.shard), first, manifest.shards)
    for at in np.flatnonzero(places.shard != expected)[:1].tolist():
        has, wanted = places.shard[at], shard_name(int(expected[at]))
        yield Finding(f"pack {first + at} is of shard {has}, by the manifest of {wanted}", wanted, first + at, "shard")
        return
    negative = (places.counts < 0).any(axis=1)
    for wrong, words, column in (
        (negative, "its media cannot be so many", "counts"),
        *impossible_places(places, first, manifest),
    ):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            name = shard_name(int(expected[at]))
            yield Finding(f"pack {first + at} in {name}: {words}", name, first + at, column)


def impossible_places(places: Places, first: int, manifest: Manifest) -> Iterator[tuple[np.ndarray, str, str]]:
    """Which packs, from number `first` on, cannot be where they are said to be, and why; their shards are right."""
    pack_size, shards = manifest.identity.config["pack_size"], manifest.shards
    tokens, offset = places.tokens, places.offset
    yield (tokens < 1) | (tokens > pack_size), f"its tokens are not between 1 and pack_size {pack_size}", "tokens"
    too_large = _too_large(places, first, shards)
    yield too_large, TOO_LARGE, "members.size"
    if too_large.any():
        return  # sums might overflow
    of, packs = _shards_of(len(tokens), first, shards), np.arange(first, first + len(tokens))
    firsts, room = np.asarray(shards.firsts), np.asarray(shards.bytes)[of] - END
    is_outside = (offset < 0) | (offset > room)
    ends = np.where(is_outside, 0, offset) + places.bytes
    is_first, is_last = packs == firsts[of], packs == firsts[of + 1] - 1
    is_misplaced = is_outside | (is_first & (offset != 0))
    is_misplaced[1:] |= ~is_first[1:] & (offset[1:] != ends[:-1])
    yield is_misplaced, "it does not start where the one before it ends", "offset"
    yield np.where(is_last, ends != room, ends > room), "the shard does not end with its last pack", "end"


def runs(times: np.ndarray, before: float = np.nan) -> list[tuple[int, float]]:
    """How often packs come: each pack that comes more or less often than the one before it, and how often that is."""
    changed = np.flatnonzero(np.diff(times, prepend=before) != 0)
    return [(at, float(times[at])) for at in changed.tolist()]


def _too_large(places: Places, first: int, shards: Shards) -> np.ndarray:
    room = np.asarray(shards.bytes)[_shards_of(len(places.sizes), first, shards)]
    return np.asarray(((places.sizes < 0) | (places.sizes > room[:, None])).any(axis=1))


def _shards_of(num_packs: int, first: int, shards: Shards) -> np.ndarray:
    """The numbers of the shards of packs from `first` on."""
    firsts = np.asarray(shards.firsts)
    return np.searchsorted(firsts, np.arange(first, first + num_packs), side="right") - 1


def places_of(index: pa.Table, num_members: int) -> Places:
    """The places in lines of index.parquet."""
    named = index["shard"].combine_chunks().dictionary_encode()
    numbers = [int(name.removeprefix("pack-").removesuffix(".tar")) for name in named.dictionary.to_pylist()]
    shard = np.array(numbers, np.int32)[named.indices.to_numpy()]
    offset, crc32, tokens = (index[name].to_numpy() for name in ("offset", "crc32", "tokens"))
    counts = np.stack([index[name].to_numpy() for name in _COUNTED], axis=1)
    sizes = index["members"].combine_chunks().flatten().field("size").to_numpy().reshape(len(index), num_members)
    return Places(shard, offset, crc32, tokens, counts, sizes)


def _padded(sizes: np.ndarray) -> np.ndarray:
    """Members with their headers, and what pads them."""
    return np.asarray(BLOCK + sizes + -sizes % BLOCK)


class _Cut:
    """Columns that come in pieces of any length, given on in pieces of one length, and what is left at the end."""

    def __init__(self, length: int, write: Callable[[list[np.ndarray]], None]) -> None:
        self._length, self._write, self._left = length, write, list[np.ndarray]()

    def add(self, columns: Sequence[np.ndarray]) -> None:
        whole = [np.concatenate(pair) for pair in zip(self._left, columns, strict=True)] if self._left else columns
        ends = range(0, len(whole[0]) + 1, self._length)
        for first, last in pairwise(ends):
            self._write([column[first:last] for column in whole])
        self._left = [column[ends[-1] :].copy() for column in whole]

    def end(self) -> None:
        if self._left and len(self._left[0]):
            self._write(self._left)
