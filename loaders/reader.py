"""Packs of a finished output by number: local shards are mapped, remote ones read by range or through a cache."""

import hashlib
import io
import json
import logging
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
from pyarrow import NativeFile, fs

from ..pipeline.layout import MediaArray, layout_of
from ..pipeline.manifest import FILE as MANIFEST, Manifest, OutputError, ShardEntry, missing_manifest
from ..pipeline.records import TOKEN_TYPES
from ..pipeline.shard.codec import read_array
from .cache import ShardCache, map_shard

logger = logging.getLogger(__name__)
Argument = TypeVar("Argument")
Result = TypeVar("Result")

SHARDS_AHEAD = 2  # whole shards that a reader with a cache downloads ahead of need
CHUNK = 16 << 20  # a shard is downloaded by ranges of this size,
CHUNKS_AT_ONCE = 4  # several at once: a single connection to an object store does not fill the network


class ShardReader:
    """Reads OUT, a local directory or a URI (s3://bucket/out). Cheap to pickle: files are opened where they are used.

    check: "none"; "sizes" compares the size of every shard with the manifest; "full" its sha256.
    cache, cache_gb: a folder on this node's disk for whole shards of a remote output, and its size in GB (10^9 bytes).
    """

    def __init__(
        self, out: str | Path, *, check: str = "sizes", cache: str | Path | None = None, cache_gb: float | None = None
    ) -> None:
        if check not in ("none", "sizes", "full"):
            raise ValueError(f"check is {check!r}; it must be none, sizes or full")
        if (cache is None) != (cache_gb is None):
            raise ValueError(f"cache={cache!r}, cache_gb={cache_gb!r}: give both, or neither")
        self.out = str(out)
        self.is_local = "://" not in self.out
        self.manifest = self._read_manifest()
        content = self._read_file("index.parquet")
        if hashlib.sha256(content).hexdigest() != self.manifest.files["index.parquet"]:
            raise OutputError(f"{self.out}/index.parquet: sha256 differs from the manifest's; run `neatpack verify`")
        index = pq.read_table(io.BytesIO(content))
        self.packs = index["pack"].to_numpy()
        self.visual_tokens, self.tokens = (
            index[name].to_numpy().astype(np.int64) for name in ("visual_tokens", "tokens")
        )
        self.times = index["times"].to_numpy()  # how often a pack comes in an epoch
        self._shard = index["shard"].to_pylist()
        self._entries = {shard.name: shard for shard in self.manifest.shards}
        self._offset, self._bytes = index["offset"].to_numpy(), index["bytes"].to_numpy()
        self._counts = {f"num_{kind}s": index[f"num_{kind}s"].to_numpy() for kind in TOKEN_TYPES}
        # Every pack has the same members in the same order, so their places are two matrices.
        self.members: list[str] = [place["name"] for place in index["members"][0].as_py()] if len(index) else []
        places = index["members"].combine_chunks().flatten()
        shape = (len(index), len(self.members))
        self._starts, self._sizes = (places.field(name).to_numpy().reshape(shape) for name in ("offset", "size"))
        self.cache: ShardCache | None = None
        self._warned: set[int | None] = set()
        if cache is not None and cache_gb is not None and not self.is_local:
            self.cache = self._open_cache(cache, cache_gb)
        if check != "none":
            self._check_shards(full=check == "full")

    @property
    def group_size(self) -> int:
        return int(self.manifest.identity.config["group_size"])

    @property
    def layout(self) -> dict[str, MediaArray]:
        """What the media arrays are."""
        return layout_of(self.manifest.family)

    def pixel_tables(self) -> dict[str, np.ndarray]:
        """float32 [channels, 256]: what each stored byte stands for, in images and in videos."""
        tables = self.manifest.pixels.tables
        return {kind: np.load(io.BytesIO(self._read_file(name)), allow_pickle=False) for kind, name in tables.items()}

    def content(self, pack: int) -> memoryview:
        """The bytes of a pack: a view of the mapped shard, or one ranged read."""
        return self._content(pack, self._map(self._shard[self._row(pack)]))

    def contents(self, packs: list[int], prefetch: int) -> Iterator[tuple[int, memoryview]]:
        """Packs with their bytes, in this order. Remote ones are read ahead: `prefetch` packs, or whole shards."""
        if self.is_local or not prefetch:
            yield from ((pack, self.content(pack)) for pack in packs)
        elif self.cache is None:
            yield from zip(packs, in_advance(self.content, packs, prefetch), strict=True)
        else:
            # Mapped as soon as it is there, a shard stays until its packs are read, even if it is evicted meanwhile.
            runs = [(name, list(run)) for name, run in groupby(packs, lambda pack: self._shard[self._row(pack)])]
            maps = in_advance(self._map, [name for name, _ in runs], SHARDS_AHEAD)
            for (_, run), mapped in zip(runs, maps, strict=True):
                content = partial(self._content, mapped=mapped)
                read = in_advance(content, run, prefetch) if mapped is None else map(content, run)
                yield from zip(run, read, strict=True)

    def _content(self, pack: int, mapped: mmap.mmap | None) -> memoryview:
        row = self._row(pack)
        start, size = int(self._offset[row]), int(self._bytes[row])
        if mapped is not None:
            return memoryview(mapped)[start : start + size]
        file = _opened(self.out, os.getpid(), f"shards/{self._shard[row]}")
        # pyarrow's buffer is read-only, and torch wants to be able to write
        return memoryview(bytearray(file.read_at(size, start)))

    def _map(self, name: str) -> mmap.mmap | None:
        """A shard in memory; None: it is remote, and there is no cache, or the cache cannot take it."""
        if self.is_local:
            return _mapped(f"{self.out}/shards/{name}")
        if self.cache is None:
            return None
        try:
            return self.cache.mapped(self._entries[name], self.out, partial(self._download, self._entries[name]))
        except OSError as error:  # a full disk must not end a training; what else is wrong, the ranged read will say
            if error.errno not in self._warned:
                self._warned.add(error.errno)
                where = self.cache.folder
                logger.warning("%s: %s; reading by range what the cache cannot take (warned of once)", where, error)
            return None

    def _download(self, shard: ShardEntry) -> Iterator[bytes]:
        file = _opened(self.out, os.getpid(), f"shards/{shard.name}")
        if file.size() != shard.bytes:
            raise self._wrong_size(shard, file.size())
        return in_advance(lambda start: file.read_at(CHUNK, start), range(0, shard.bytes, CHUNK), CHUNKS_AT_ONCE)

    def _open_cache(self, folder: str | Path, gb: float) -> ShardCache:
        largest = max(self.manifest.shards, key=lambda shard: shard.bytes, default=None)
        if largest is not None and largest.bytes > gb * 1e9:
            raise ValueError(
                f"cache_gb={gb}: the largest shard of {self.out}, {largest.name}, has {largest.bytes / 1e9:.3f} GB; "
                "give room for several shards per loader worker, or no cache"
            )
        return ShardCache(folder, int(gb * 1e9))

    def members_of(self, pack: int, content: memoryview) -> dict[str, memoryview]:
        """The members of a pack, as views of its bytes."""
        row = self._row(pack)
        starts, sizes = (self._starts[row] - self._offset[row]).tolist(), self._sizes[row].tolist()
        places = zip(self.members, starts, sizes, strict=True)
        return {name: content[start : start + size] for name, start, size in places}

    def arrays(self, pack: int, content: memoryview) -> dict[str, np.ndarray]:
        """The arrays of a pack, as views of its bytes."""
        members = self.members_of(pack, content)
        return {name.removesuffix(".npy"): read_array(member) for name, member in members.items() if name != "json"}

    def header(self, pack: int, content: memoryview) -> dict[str, Any]:
        """The JSON of a pack."""
        header: dict[str, Any] = json.loads(bytes(self.members_of(pack, content)["json"]))
        return header

    def counts(self, pack: int) -> dict[str, int]:
        """num_images, num_videos and num_audios of a pack, from the index: parsing its JSON would take longer."""
        row = self._row(pack)
        return {name: int(counts[row]) for name, counts in self._counts.items()}

    def _row(self, pack: int) -> int:
        row = int(np.searchsorted(self.packs, pack))
        if row == len(self.packs) or self.packs[row] != pack:
            raise IndexError(f"pack {pack} is not in {self.out}, which has {len(self.packs)} packs")
        return row

    def _read_manifest(self) -> Manifest:
        try:
            content = self._read_file(MANIFEST)
        except FileNotFoundError:
            raise missing_manifest(self.out) from None
        return Manifest.parse(content, self.out)

    def _read_file(self, name: str) -> bytes:
        if self.is_local:
            return Path(self.out, name).read_bytes()
        filesystem, path = _filesystem(self.out, os.getpid())
        with filesystem.open_input_stream(f"{path}/{name}") as file:
            content: bytes = file.read()
        return content

    def _check_shards(self, *, full: bool) -> None:
        for shard in self.manifest.shards:
            name = f"shards/{shard.name}"
            size = self._file_size(name)
            if size != shard.bytes:
                raise self._wrong_size(shard, size)
            if full and hashlib.sha256(self._read_file(name)).hexdigest() != shard.sha256:
                raise OutputError(f"{self.out}/{name}: sha256 differs from the manifest's; pack again")

    def _wrong_size(self, shard: ShardEntry, size: int | None) -> OutputError:
        found = "is missing" if size is None else f"has {size} bytes, the manifest {shard.bytes}"
        remedy = "run `neatpack verify`, and pack again what is broken"
        return OutputError(f"{self.out}/shards/{shard.name} {found}; {remedy}")

    def _file_size(self, name: str) -> int | None:
        if self.is_local:
            path = Path(self.out, name)
            return path.stat().st_size if path.is_file() else None
        filesystem, base = _filesystem(self.out, os.getpid())
        info = filesystem.get_file_info(f"{base}/{name}")
        return info.size if info.is_file else None


def in_advance(function: Callable[[Argument], Result], arguments: Iterable[Argument], depth: int) -> Iterator[Result]:
    """The results in order, computed by threads, up to `depth` of them before they are asked for."""
    results: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(depth)
    try:
        for argument in arguments:
            results.append(pool.submit(function, argument))
            if len(results) > depth:
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# Of local shards only: the map of an evicted shard of the cache would keep its room on the disk.
_mapped = lru_cache(maxsize=4096)(map_shard)


@lru_cache(maxsize=256)
def _opened(uri: str, process: int, name: str) -> NativeFile:
    """A remote file, kept open: opening costs a request, by which pyarrow asks the store for the size."""
    filesystem, path = _filesystem(uri, process)
    return filesystem.open_input_file(f"{path}/{name}")


@lru_cache(maxsize=8)
def _filesystem(uri: str, _process: int) -> tuple[fs.FileSystem, str]:
    """One per process: clients of object stores have threads, which a forked worker does not inherit."""
    filesystem, path = fs.FileSystem.from_uri(uri)
    return filesystem, path
