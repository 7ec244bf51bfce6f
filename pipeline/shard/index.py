"""index.parquet: one line per pack, where it is and what is in it; read as what may be damaged.

Of the places, the manifest and the sizes of members leave nothing open: shards have their packs in order and without
gaps, a pack its members. So every one of them is checked, before anybody reads where it points.
"""

import io
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..layout import layout_of
from ..manifest import FORMAT, INDEX, REMEDY, Manifest, OutputError, ShardError
from .codec import BLOCK, END, member_names

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
MAX_EPOCH = 1 << 30  # packs of an epoch, with all repetitions: more than anybody trains on, and few enough to count
_PLACE = ("name", "offset", "size")  # of a member
_OF_TOKENS = ("padding_tokens", "fake_tokens", "visual_tokens", "target_tokens", "num_documents")  # at most one each
_COUNTS = (*_OF_TOKENS, "squares", "num_images", "num_videos", "num_audios")


class Finding(NamedTuple):
    """Something wrong, and where it is: the name of a shard and the number of a pack, where it is one."""

    words: str
    shard: str = ""
    pack: int | None = None


def parse_index(content: bytes, manifest: Manifest, out: str) -> pa.Table:
    """The index from its bytes, whose digest was compared; `out` is for messages.

    Raises ShardError for the first thing in it that cannot be, OutputError where it is no index at all.
    """
    where = f"{out}/{INDEX}"
    try:
        index = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise OutputError(f"{where}: not parquet: {str(error)[:200]}; {REMEDY}") from None
    for words, shard, pack in index_problems(index, manifest):
        raise ShardError(f"{where}: {words}; {REMEDY}", shard, pack)
    return index


def index_problems(index: pa.Table, manifest: Manifest) -> Iterator[Finding]:
    """What is wrong with an index: each kind of damage once, at the first pack that has it."""
    if index.schema.remove_metadata() != SCHEMA:
        columns = ", ".join(f"{field.name} {field.type}" for field in index.schema)
        yield Finding(f"columns are {columns[:200]}, expected those of format {FORMAT}")
        return
    places = index["members"].combine_chunks().flatten()
    cells = {name: index[name] for name in SCHEMA.names} | {f"members.{n}": places.field(n) for n in _PLACE}
    if with_nulls := [name for name, column in cells.items() if column.null_count or places.null_count]:
        yield Finding(f"{', '.join(with_nulls)}: cells are empty")
        return
    shards, packs = index["shard"].to_pylist(), index["pack"].to_numpy()
    expected = [shard.name for shard in manifest.shards for _ in range(min(shard.num_packs, len(index) + 1))]
    if shards != expected:
        pairs = zip_longest(shards, expected)
        at = next(at for at, (has, wanted) in enumerate(pairs) if has != wanted)
        has, wanted = (names[at] if at < len(names) else "none" for names in (shards, expected))
        pack = int(packs[at]) if at < len(packs) else None
        yield Finding(f"line {at}, pack {pack}, is of shard {has!r}, by the manifest of {wanted}", has, pack)
        return
    for wrong, words in _impossible(index, manifest):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            yield Finding(f"pack {packs[at]} in {shards[at]}: {words}", shards[at], int(packs[at]))


def _impossible(index: pa.Table, manifest: Manifest) -> Iterator[tuple[np.ndarray, str]]:
    """Which packs cannot be as the index says, and why. Shards and their numbers of packs are as in the manifest."""
    packs, tokens, times = (index[name].to_numpy() for name in ("pack", "tokens", "times"))
    yield np.diff(packs, prepend=-1) != 1, "its number is not the next after that of the line before"
    shards = manifest.shards
    lasts = np.cumsum([shard.num_packs for shard in shards], dtype=np.int64) - 1
    is_first = np.zeros(len(index), bool)
    is_first[[0, *(lasts[:-1] + 1)] if shards else []] = True
    first_packs = np.zeros(len(index), np.int64)
    first_packs[is_first] = [shard.first_pack for shard in shards]
    yield is_first & (packs != first_packs), "by the manifest, another pack is the first of the shard"
    pack_size = manifest.identity.config["pack_size"]
    yield (tokens < 1) | (tokens > pack_size), f"its tokens are not between 1 and pack_size {pack_size}"
    for name in _COUNTS:
        counts = index[name].to_numpy()
        most = tokens if name in _OF_TOKENS else np.iinfo(np.int64).max
        yield (counts < 0) | (counts > most), f"{name} cannot be"
    yield ~((times > 0) & (times < MAX_EPOCH / max(1, len(times)))), "times cannot be"  # so written, also for NaN
    names = member_names(layout_of(manifest.family))
    members = index["members"].combine_chunks()
    is_other = members.value_lengths().to_numpy(zero_copy_only=False) != len(names)
    yield is_other, f"its members are not the {len(names)} of every pack"
    if is_other.any():
        return
    places = members.flatten()
    shape = (len(index), len(names))
    codes = pc.index_in(places.field("name"), pa.array(names)).fill_null(-1).to_numpy().reshape(shape)
    yield (codes != np.arange(len(names))).any(axis=1), "its members have other names, or another order"
    starts, sizes = (places.field(name).to_numpy().reshape(shape) for name in ("offset", "size"))
    offset, length = index["offset"].to_numpy(), index["bytes"].to_numpy()
    sizes_of_shards = np.zeros(len(index), np.int64)
    sizes_of_shards[lasts] = [shard.bytes for shard in shards]
    too_large = ((sizes < 0) | (sizes > max((shard.bytes for shard in shards), default=0))).any(axis=1)
    yield too_large, "the sizes of its members are not those of parts of a file"
    if too_large.any():
        return  # sums might overflow
    ends = np.cumsum(BLOCK + sizes + -sizes % BLOCK, axis=1)  # from the start of the pack
    befores = np.concatenate([np.zeros((len(index), 1), np.int64), ends[:, :-1]], axis=1)
    yield length != ends[:, -1], "its bytes are not the sum of its members"
    yield offset != np.where(is_first, 0, np.roll(offset + length, 1)), "it does not start where the one before it ends"
    yield (
        (starts != offset[:, None] + BLOCK + befores).any(axis=1),
        "offsets of its members are not those of their sizes",
    )
    is_last = np.zeros(len(index), bool)
    is_last[lasts] = True
    yield is_last & (offset + length + END != sizes_of_shards), "the shard does not end with its last pack"
