"""Where packs are, and what is in them: the index as a process of a training reads it, batch by batch.

Read, not mapped: a mapped index that somebody cuts, or whose file system fails, would end the process by a signal. And
there is nothing to gain: a batch is read once for all of its packs that follow each other, which takes about 0.4 ms for
1,024 of them, most of it for checks that a mapped one needs, too.
"""

import os
from collections.abc import Callable, Hashable
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from neatpack.errors import ItemError, OutputError
from neatpack.format.index import (
    LOADS_SCHEMA,
    Places,
    most_loads,
    numbers_in,
    parse_batch,
    parse_index,
    places_of,
    runs,
)
from neatpack.format.manifest import INDEX, LOADS, MOST_BYTES, PLACES, REMEDY, Manifest
from neatpack.format.members import members_of
from neatpack.storage.tables import read_plain_arrow

BATCHES_KEPT = 64  # in a process, of 110 KB each
PLACES_KEPT = 256  # of packs that are being read: each is asked for several times


class Locks:
    """Threads that want the same at once wait for the one that gets it.

    A forked process gets new ones: it would inherit locks of threads that it does not inherit.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._locks = [Lock() for _ in range(64)]

    def of(self, key: Hashable) -> Lock:
        return self._locks[hash(key) % len(self._locks)]


_reading = Locks()


class Place(NamedTuple):
    """Of one pack."""

    shard: int
    offset: int
    bytes: int
    crc32: int
    tokens: int
    counts: list[int]  # of images, videos, audios
    starts: list[int]  # of the members, from the start of the pack
    sizes: list[int]


class _Batch(NamedTuple):
    places: Places
    starts: np.ndarray
    bytes: np.ndarray


class PackPlaces:
    """The places of all packs of an output. An output of format 5 has only index.parquet, which is kept as a whole.

    read: bytes of a file of the output, from a place on
    whole: a file of the output, of so many bytes at most, whose digest was compared
    """

    def __init__(
        self,
        manifest: Manifest,
        out: str,
        read: Callable[[str, int, int], bytes | memoryview],
        whole: Callable[[str, int], bytes],
    ) -> None:
        self._manifest, self._out, self._read, self._whole = manifest, out, read, whole
        self.members = members_of(manifest)
        self._table: pa.Table | None = None
        if manifest.index is None:
            self._table = parse_index(whole(INDEX, MOST_BYTES), manifest, out)
            self.times = runs(self._table["times"].to_numpy())
        else:
            self.times = list(manifest.index.times)
        self._set_up()

    def _set_up(self) -> None:
        index = self._manifest.index
        self._per_batch = index.packs_per_batch if index else max(1, len(self._table or ()))
        self._batch = lru_cache(maxsize=BATCHES_KEPT)(self._read_batch)
        self._place = lru_cache(maxsize=PLACES_KEPT)(self._find)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_batch", "_place")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    def of(self, pack: int) -> Place:
        """Raises IndexError for a pack that is not there, OutputError where the index is damaged."""
        return self._place(pack)

    def _find(self, pack: int) -> Place:
        if not 0 <= pack < self._manifest.shards.num_packs:
            raise ItemError(
                f"pack {pack} is not in {self._out}, which has {self._manifest.shards.num_packs} packs",
                code="document-unknown",
                out=self._out,
                pack=pack,
                packs=self._manifest.shards.num_packs,
            )
        number, row = divmod(pack, self._per_batch)
        with _reading.of(number):
            (shard, offset, crc32, tokens, counts, sizes), starts, num_bytes = self._batch(number)
        return Place(int(shard[row]), int(offset[row]), int(num_bytes[row]), int(crc32[row]), int(tokens[row]),
                     counts[row].tolist(), starts[row].tolist(), sizes[row].tolist())  # fmt: skip

    def loads(self) -> tuple[np.ndarray, np.ndarray]:
        """Visual tokens and tokens of every pack, int32: what the order of an epoch depends on."""
        if self._table is not None:
            return self._table["visual_tokens"].to_numpy(), self._table["tokens"].to_numpy()
        where, num_packs = f"{self._out}/{LOADS}", self._manifest.shards.num_packs
        try:
            content = self._whole(LOADS, most_loads(num_packs))
            table = pa.Table.from_batches(read_plain_arrow(content, LOADS_SCHEMA, num_packs), LOADS_SCHEMA)
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(
                f"{where}: not Arrow: {str(error)[:200]}; {REMEDY}", code="output-damaged", out=self._out, file=LOADS
            ) from None
        most = self._manifest.identity.config["pack_size"]
        visual_tokens, tokens = (np.empty(num_packs, np.int32) for _ in LOADS_SCHEMA)
        for name, load, column in zip(LOADS_SCHEMA.names, (visual_tokens, tokens), table.columns, strict=True):
            np.concatenate([np.empty(0, np.int32), *map(numbers_in, column.chunks)], out=load)
            if load.size and (load.min() < 0 or load.max() > most):
                raise OutputError(
                    f"{where}: {name} from {load.min()} to {load.max()}, in packs of {most}; {REMEDY}",
                    code="output-damaged",
                    out=self._out,
                    file=LOADS,
                    column=name,
                    least=int(load.min()),
                    most=int(load.max()),
                )
        return visual_tokens, tokens

    def _read_batch(self, number: int) -> _Batch:
        index = self._manifest.index
        if index is None:
            assert self._table is not None
            places = places_of(self._table, len(self.members))
        else:
            first, last = index.offsets[number : number + 2]
            content = self._read(PLACES, first, last - first)
            problem, facts = "", {}
            if missing := last - first - len(content):
                problem, facts = f"the file ends {missing} bytes before it does", {"missing": missing}
            elif (crc32 := zlib_ng.crc32(content)) != index.crc32[number]:
                problem = f"its crc32 is {crc32:08x}, by the manifest {index.crc32[number]:08x}"
                facts = {"got": crc32, "expected": index.crc32[number]}
            if problem:
                raise OutputError(
                    f"{self._out}/{PLACES}: batch {number}: {problem}; {REMEDY}",
                    code="output-damaged",
                    out=self._out,
                    file=PLACES,
                    batch=number,
                    **facts,
                )
            places = parse_batch(content, number, self._manifest, self._out)
        return _Batch(places, places.starts, places.bytes)
