"""The index: one line per pack, where it is and what is in it. Read as files that may be damaged or forged.

index.parquet has all of it, for people and other programs. The loader reads index.arrow: 28 bytes for each pack, of
fixed width, in one read. The manifest has the first pack and the size of each shard, shards hold their packs in order
and without gaps, and a pack is a whole number of 512-byte blocks, so these numbers say where each pack is.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack.errors import ItemError, OutputError, ShardError
from neatpack.storage.files import Hashed, write_whole
from neatpack.storage.location import Location, PathLike
from neatpack.storage.tables import read_plain_arrow

from .layout import TOKEN_TYPES
from .manifest import FORMAT, LOADER_INDEX, REMEDY, Manifest, Shards
from .members import BLOCK, END, members_of

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
        ("members", pa.list_(pa.struct([("name", pa.string()), ("offset", pa.int64()), ("size", pa.int64())]))),
    ]
)
PER_BATCH = 1 << 20  # packs of a batch of index.arrow; a reader takes any number
LOADER_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("blocks", pa.int32()),  # of 512 bytes, in its shard
            ("crc32", pa.uint32()),  # of these bytes
            ("tokens", pa.int32()),
            ("visual_tokens", pa.int32()),
            *((f"num_{kind}s", pa.int32()) for kind in TOKEN_TYPES),
        )
    ]
)
_KINDS = {field.name: np.uint32 if field.name == "crc32" else np.int32 for field in LOADER_SCHEMA}
_COUNTED = tuple(f"num_{kind}s" for kind in TOKEN_TYPES)
_PLACE = ("name", "offset", "size")  # of a member
_OF_TOKENS = ("padding_tokens", "fake_tokens", "visual_tokens", "target_tokens", "num_documents")  # at most one each
_COUNTS = (*_OF_TOKENS, "squares", "num_images", "num_videos", "num_audios")


class Finding(NamedTuple):
    """Something wrong, and where it is: the name of a shard and the number of a pack, where it is one."""

    words: str
    shard: str = ""
    pack: int | None = None
    column: str = ""


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
    packs, tokens = (index[name].to_numpy() for name in ("pack", "tokens"))
    yield np.diff(packs, prepend=-1) != 1, "its number is not the next after that of the line before", "pack"
    for name in _COUNTS:
        counts = index[name].to_numpy()
        most = tokens if name in _OF_TOKENS else np.iinfo(np.int64).max
        yield (counts < 0) | (counts > most), f"{name} cannot be", name
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
    sizes = listed.field("size").to_numpy().reshape(shape)
    shard = _shards_of(len(index), manifest.shards)
    room = np.asarray(manifest.shards.bytes)[shard]
    too_large = ((sizes < 0) | (sizes > room[:, None])).any(axis=1)
    yield too_large, "the sizes of its members are not those of parts of a file", "members.size"
    if too_large.any():
        return  # sums might overflow
    padded = BLOCK + sizes + -sizes % BLOCK
    num_bytes, offset = index["bytes"].to_numpy(), index["offset"].to_numpy()
    yield num_bytes != padded.sum(axis=1), "its bytes are not the sum of its members", "bytes"
    yield from _misplaced(num_bytes, offset, manifest)
    pack_size = manifest.identity.config["pack_size"]
    yield (tokens < 1) | (tokens > pack_size), f"its tokens are not between 1 and pack_size {pack_size}", "tokens"
    starts = listed.field("offset").to_numpy().reshape(shape)
    expected = offset[:, None] + np.cumsum(padded, axis=1) - padded + BLOCK
    yield (starts != expected).any(axis=1), "offsets of its members are not those of their sizes", "members.offset"


def _misplaced(num_bytes: np.ndarray, offset: np.ndarray, manifest: Manifest) -> Iterator[tuple[np.ndarray, str, str]]:
    expected = _offsets(num_bytes, manifest.shards)
    yield offset != expected, "it does not start where the one before it ends", "offset"
    ends, room = _ends(num_bytes, manifest.shards), np.asarray(manifest.shards.bytes, np.int64) - END
    last = np.asarray(manifest.shards.firsts)[1:] - 1
    is_last = np.zeros(len(num_bytes), np.bool_)
    is_last[last[ends != room]] = True
    yield is_last, "the shard does not end with its last pack", "end"


def _shards_of(num_packs: int, shards: Shards) -> np.ndarray:
    """Return the number of the shard of each pack."""
    found: np.ndarray = np.searchsorted(np.asarray(shards.firsts), np.arange(num_packs), side="right") - 1
    return found


def _offsets(num_bytes: np.ndarray, shards: Shards) -> np.ndarray:
    """Return where each pack begins in its shard."""
    before: np.ndarray = np.cumsum(num_bytes, dtype=np.int64) - num_bytes
    firsts = np.asarray(shards.firsts)
    if not len(before):
        return before
    starts: np.ndarray = before - np.repeat(before[firsts[:-1]], np.diff(firsts))
    return starts


def _ends(num_bytes: np.ndarray, shards: Shards) -> np.ndarray:
    """Return where the packs of each shard end."""
    if not len(num_bytes):
        return np.zeros(0, np.int64)
    ends: np.ndarray = np.add.reduceat(num_bytes.astype(np.int64), np.asarray(shards.firsts)[:-1])
    return ends


class PackPlace(NamedTuple):
    """Where a pack is, and what the loader must know of it."""

    pack: int
    shard: int
    offset: int
    bytes: int
    crc32: int
    tokens: int
    counts: tuple[int, ...]  # of images, videos and audios


class PackIndex:
    """index.arrow of an output in memory: 28 bytes for each pack."""

    def __init__(self, content: bytes, manifest: Manifest, out: str) -> None:
        """Read the file, whose digest was compared. Raise OutputError for what cannot be in it.

        Args:
            content: of index.arrow.
            manifest: of the output.
            out: for messages.
        """
        self._shards, self._out = manifest.shards, out
        where, num_packs = f"{out}/{LOADER_INDEX}", manifest.shards.num_packs
        try:
            batches = list(read_plain_arrow(content, LOADER_SCHEMA, num_packs))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise OutputError(f"{where}: not Arrow: {str(error)[:200]}; {REMEDY}", out=out, file=LOADER_INDEX) from None
        self._columns = {
            name: np.concatenate([np.empty(0, kind), *(_to_numpy(batch.column(name), kind) for batch in batches)])
            for name, kind in _KINDS.items()
        }
        for wrong, words, column in self._find_problems(manifest.identity.config["pack_size"]):
            if len(found := np.flatnonzero(wrong)):
                pack = int(found[0])
                name = self._shards[self.find_shard(pack)].name
                raise ShardError(
                    f"{where}: pack {pack} in {name}: {words}; {REMEDY}", name, pack, out=out, file=LOADER_INDEX,
                    column=column,
                )  # fmt: skip

    def _find_problems(self, pack_size: int) -> Iterator[tuple[np.ndarray, str, str]]:
        blocks, tokens, visual = (self._columns[name] for name in ("blocks", "tokens", "visual_tokens"))
        yield blocks < 1, "its size is not that of a pack", "blocks"
        is_wrong = np.zeros(len(blocks), np.bool_)
        ends, room = _ends(blocks, self._shards) * BLOCK, np.asarray(self._shards.bytes, np.int64) - END
        is_wrong[np.asarray(self._shards.firsts)[:-1][ends != room]] = True
        yield is_wrong, "its shard has another size than its packs", "blocks"
        yield (tokens < 1) | (tokens > pack_size), f"its tokens are not between 1 and pack_size {pack_size}", "tokens"
        yield (visual < 0) | (visual > tokens), "its visual tokens are not between 0 and its tokens", "visual_tokens"
        for name in _COUNTED:
            yield self._columns[name] < 0, "its media cannot be so many", name

    @property
    def loads(self) -> tuple[np.ndarray, np.ndarray]:
        """Visual tokens and tokens of every pack, int32: what the order of an epoch depends on."""
        return self._columns["visual_tokens"], self._columns["tokens"]

    def find_shard(self, pack: int) -> int:
        return bisect_right(self._shards.firsts, pack) - 1

    def locate(self, pack: int) -> PackPlace:
        """Return where a pack is. Raise ItemError for a number that the output does not have."""
        num_packs = self._shards.num_packs
        if not 0 <= pack < num_packs:
            raise ItemError(
                f"pack {pack} is not in {self._out}, which has {num_packs} packs",
                code="document-unknown",
                out=self._out,
                pack=pack,
                packs=num_packs,
            )
        shard, blocks = self.find_shard(pack), self._columns["blocks"]
        before = int(blocks[self._shards.firsts[shard] : pack].sum(dtype=np.int64))
        crc32, tokens, *counts = (int(self._columns[name][pack]) for name in ("crc32", "tokens", *_COUNTED))
        return PackPlace(pack, shard, before * BLOCK, int(blocks[pack]) * BLOCK, crc32, tokens, tuple(counts))


def _to_numpy(column: pa.Array, kind: type[np.generic]) -> np.ndarray:
    """Return a column as `column.to_numpy()` does, without importing pandas: 0.2 s and 30 MB in each process."""
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[-1], kind, len(column), column.offset * np.dtype(kind).itemsize)


def largest_index(num_packs: int) -> int:
    """Return the most bytes that index.arrow may have."""
    return 32 * num_packs + (1 << 20)


def to_loader_index(index: pa.Table) -> pa.Table:
    """Return the lines of index.arrow for lines of index.parquet."""
    blocks = pc.cast(pc.divide(index["bytes"], BLOCK), pa.int32())
    return pa.table([blocks, *(index[name] for name in LOADER_SCHEMA.names[1:])], schema=LOADER_SCHEMA)


def write_loader_index(out: PathLike, tables: Iterable[pa.Table]) -> dict[str, str]:
    """Write index.arrow from lines of index.parquet, which come in pieces; return its digest by name."""
    left = LOADER_SCHEMA.empty_table()
    with write_whole(Location.parse(out) / LOADER_INDEX) as opened:
        file = Hashed(opened)
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), LOADER_SCHEMA) as writer:
            for table in tables:
                left = pa.concat_tables([left, to_loader_index(table)])
                while len(left) >= PER_BATCH:
                    writer.write_table(left.slice(0, PER_BATCH).combine_chunks(), max_chunksize=PER_BATCH)
                    left = left.slice(PER_BATCH)
            if len(left):
                writer.write_table(left.combine_chunks(), max_chunksize=PER_BATCH)
    return {LOADER_INDEX: file.digest()}
