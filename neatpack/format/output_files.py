"""The files of a finished output, compared with its manifest: local, or remote and read by range or through a cache."""

import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

import numpy as np

from neatpack.errors import OutputError, ShardError, UserError, fields_of
from neatpack.storage.files import inside, open_regular, read_inside
from neatpack.storage.location import Location, ObjectReader, PathLike

from .manifest import (
    FILE as MANIFEST,
    MOST_BYTES,
    REMEDY,
    Manifest,
    ShardEntry,
    missing_manifest,
    shard_name,
)

logger = logging.getLogger(__name__)
Argument = TypeVar("Argument")
Result = TypeVar("Result")

SIZED_AT_ONCE = 4096  # local shards: 20 ms, and 0.8 s for 156,250; what is read is compared in any case
LISTED = 16  # of more remote shards than this, the sizes are taken from a listing
CHUNK = 16 << 20  # a shard is downloaded by ranges of this size,
CHUNKS_AT_ONCE = 4  # several at once: a single connection to an object store does not fill the network
FILES_OPEN = 64  # shards that a process keeps open; the usual limit is 1,024 of all files
REMOTE_OPEN = 8192  # remote ones, which are a name, a size and a client: 1 KB each, and no file of this machine


class ShardCache(Protocol):
    """Whole shards of remote outputs on a local disk."""

    folder: Path
    max_bytes: int

    def opened(self, shard: ShardEntry, out: str, chunks: Callable[[], Iterable[bytes]]) -> BinaryIO: ...


class FileVersion(NamedTuple):
    """Tells a file from another one under its name, and from itself after somebody wrote to it."""

    device: int
    inode: int
    bytes: int
    modified: int

    @classmethod
    def of(cls, found: os.stat_result) -> "FileVersion":
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class OutputFiles:
    """Reads the files of OUT, a local directory or a URI. Cheap to pickle: files are opened where they are used."""

    def __init__(self, out: PathLike, make_cache: Callable[[], ShardCache] | None = None) -> None:
        # Absolute: files are opened later, and a program may change its working directory before (Hydra does).
        self._place = Location.parse(out).absolute()
        self.out = str(self._place)  # for messages
        self.is_local = self._place.is_local
        self.manifest = self._read_manifest()
        self.cache = None if make_cache is None or self.is_local else self._check_cache(make_cache())
        self._warned: set[int | None] = set()
        # A FileVersion for every local shard, as it was when last looked at; zeros: not yet.
        self._versions = np.zeros((len(self.manifest.shards) if self.is_local else 0, 4), np.uint64)

    def _read_manifest(self) -> Manifest:
        try:
            content = self._read_file(MANIFEST, MOST_BYTES)
        except FileNotFoundError:
            raise missing_manifest(self.out) from None
        return Manifest.parse(content, self.out)

    def _check_cache(self, cache: ShardCache) -> ShardCache:
        sizes = self.manifest.shards.bytes
        if (largest := max(sizes, default=0)) > cache.max_bytes:
            name = shard_name(sizes.index(largest))
            raise UserError(
                f"cache_gb={cache.max_bytes / 1e9:g}: the largest shard of {self.out}, {name}, has {largest / 1e9:.3f} "
                "GB; give room for several shards, or no cache",
                code="cache-unusable",
                cache_gb=cache.max_bytes / 1e9,
                shard=name,
                bytes=largest,
            )
        return cache

    # Beside the shards

    def read_checked(self, name: str, most: int = MOST_BYTES) -> bytes:
        """Read a file that the manifest has the digest of; one of more than `most` bytes is refused."""
        try:
            content = self._read_file(name, most)
        except FileNotFoundError:
            raise OutputError(
                f"{self.out}/{name} is missing; {REMEDY}", code="output-damaged", out=self.out, file=name
            ) from None
        if hashlib.sha256(content).hexdigest() != self.manifest.files[name]:
            raise OutputError(
                f"{self.out}/{name}: sha256 differs from the manifest's; {REMEDY}",
                code="output-damaged",
                out=self.out,
                file=name,
            )
        return content

    def _read_file(self, name: str, most: int) -> bytes:
        """Raises FileNotFoundError if it is not there."""
        try:
            return read_inside(self._place, name, most)
        except NotADirectoryError:
            raise FileNotFoundError(name) from None
        except IsADirectoryError:
            raise OutputError(
                f"{self.out}/{name}: a directory, expected a file; {REMEDY}",
                code="output-damaged",
                out=self.out,
                file=name,
            ) from None

    def _remote(self, name: str) -> ObjectReader:
        assert not self.is_local, "a local output is read otherwise"
        return opened_remote(self._place / name)

    # Shards

    def opened(self, shard: int) -> BinaryIO | None:
        """A shard as a local file; None: it is remote, and there is no cache, or the cache cannot take it."""
        if self.is_local:
            name = shard_name(shard)
            try:
                return opened_local(self.out, f"shards/{name}", self._version(shard))
            except FileNotFoundError:
                raise self._wrong_size(self.manifest.shards[shard], None) from None
            except (OSError, ValueError) as error:
                raise ShardError(
                    f"{self.out}/shards/{name}: cannot be read: {error}", name, **fields_of(error) | {"out": self.out}
                ) from error
        if self.cache is None:
            return None
        entry = self.manifest.shards[shard]
        try:
            return self.cache.opened(entry, self.out, partial(self._download, entry))
        except OSError as error:  # a full disk must not end a training; what else is wrong, the ranged read will say
            if error.errno not in self._warned:
                self._warned.add(error.errno)
                where = self.cache.folder
                logger.warning("%s: %s; reading by range what the cache cannot take (warned of once)", where, error)
            return None

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        """Bytes of a remote shard; fewer, if it ends before."""
        try:
            return self._remote(f"shards/{shard_name(shard)}").read_at(size, offset)
        except FileNotFoundError:
            raise self._wrong_size(self.manifest.shards[shard], None) from None

    def changed(self, shard: int, file: BinaryIO) -> FileVersion | None:
        """What a local shard is now, if it is no longer the file that it was."""
        version, expected = FileVersion.of(os.fstat(file.fileno())), self.manifest.shards.bytes[shard]
        if version.bytes != expected:
            raise self._wrong_size(self.manifest.shards[shard], version.bytes)
        return None if version == self._version(shard) else version

    def remember(self, shard: int, version: FileVersion) -> None:
        """From here on it is known as that."""
        self._versions[shard] = version

    def _version(self, shard: int) -> FileVersion:
        if not self._versions[shard, 1]:  # every file has an inode
            self._versions[shard] = FileVersion.of(Path(self.out, "shards", shard_name(shard)).stat())
        return FileVersion(*self._versions[shard].tolist())

    def _download(self, shard: ShardEntry) -> Iterator[bytes]:
        file = self._remote(f"shards/{shard.name}")
        if file.size != shard.bytes:
            raise self._wrong_size(shard, file.size)
        return in_advance(lambda start: file.read_at(CHUNK, start), range(0, shard.bytes, CHUNK), CHUNKS_AT_ONCE)

    # Whether they are as they were written

    def check_shards(self, *, at_once: bool, full: bool) -> None:
        """Their sizes; `full`: their sha256, too. Not `at_once`: of very many local ones, whether they are there."""
        shards = self.manifest.shards
        if self.is_local and not at_once and len(shards) > SIZED_AT_ONCE:
            self._check_names()
            return
        sizes = self._local_sizes() if self.is_local else self._remote_sizes()
        for number, (expected, size) in enumerate(zip(shards.bytes, sizes, strict=True)):
            if size != expected:
                raise self._wrong_size(shards[number], size)
            if full and self._sha256(number) != shards[number].sha256:
                name = shard_name(number)
                raise ShardError(
                    f"{self.out}/shards/{name}: sha256 differs from the manifest's; {REMEDY}", name, out=self.out
                )

    def _sha256(self, shard: int) -> str:
        entry, digest = self.manifest.shards[shard], hashlib.sha256()
        if self.is_local:
            with open_regular(inside(Path(self.out), f"shards/{entry.name}"))[0] as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        for chunk in self._download(entry):
            digest.update(chunk)
        return digest.hexdigest()

    def _wrong_size(self, shard: ShardEntry, size: int | None) -> ShardError:
        found = "is missing" if size is None else f"has {size} bytes, the manifest {shard.bytes}"
        return ShardError(
            f"{self.out}/shards/{shard.name} {found}; {REMEDY}",
            shard.name,
            out=self.out,
            got=size,
            expected=shard.bytes,
        )

    def _check_names(self) -> None:
        """That every shard is there, by the listing of the folder alone."""
        found = self._listed(lambda entry: None)
        for number in range(len(self.manifest.shards)):
            if shard_name(number) not in found:
                raise self._wrong_size(self.manifest.shards[number], None)

    def _listed(self, what: Callable[[os.DirEntry[str]], Result]) -> dict[str, Result]:
        """Of every file among the shards, by its name."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(Path(self.out, "shards")) as entries:
            return {entry.name: what(entry) for entry in entries if entry.is_file()}
        return {}

    def _local_sizes(self) -> Iterator[int | None]:
        """Of every shard; None: it is missing. They are remembered as they are now."""
        found = self._listed(lambda entry: FileVersion.of(entry.stat()))
        for number in range(len(self.manifest.shards)):
            version = found.get(shard_name(number))
            if version is not None:
                self._versions[number] = version
            yield None if version is None else version.bytes

    def _remote_sizes(self) -> Iterator[int | None]:
        """A listing tells a thousand sizes at a time. Of few shards each is asked for: that opens it, once for all."""
        if len(self.manifest.shards) > LISTED:
            found = (self._place / "shards").sizes()
            yield from (found.get(shard_name(number)) for number in range(len(self.manifest.shards)))
            return
        for number in range(len(self.manifest.shards)):
            try:
                yield self._remote(f"shards/{shard_name(number)}").size
            except FileNotFoundError:
                yield None


def in_advance(
    function: Callable[[Argument], Result],
    arguments: Iterable[Argument],
    depth: int,
    pool: ThreadPoolExecutor | None = None,
) -> Iterator[Result]:
    """Return results in order, computed by threads before they are asked for.

    Args:
        function: computes a result.
        arguments: of each call; taken `depth` calls ahead.
        depth: how many results are computed ahead.
        pool: the threads, shut down at the end; None makes as many as `depth`.
    """
    results: deque[Future[Result]] = deque()
    pool = pool or ThreadPoolExecutor(depth)
    try:
        for argument in arguments:
            results.append(pool.submit(function, argument))
            if len(results) > depth:
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Locks:
    """Lets one of several threads do what all of them want; the others wait for it.

    A forked process gets new ones: it would inherit locks of threads that it does not inherit.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._locks = [Lock() for _ in range(64)]

    def of(self, key: Hashable) -> Lock:
        return self._locks[hash(key) % len(self._locks)]


_opening = Locks()


@lru_cache(maxsize=FILES_OPEN)
def opened_local(out: str, name: str, _version: FileVersion) -> BinaryIO:
    """A file of a local output, kept open until others have taken its place here, and nobody reads it any more.

    An output may be packed again while this process lives: who has seen another version opens another file.
    """
    return open_regular(inside(Path(out), name))[0]


def opened_remote(file: Location) -> ObjectReader:
    """A remote file, kept open: opening costs a request, by which pyarrow asks the store for the size.

    It does so even where the size is known: of Arrow's ways to open a file, Python lacks the one that takes it (pyarrow
    26: no FileInfo for a path; streams, and fragments of data sets with a file_size, ask all the same). Threads
    that read ahead come here at once for packs of one shard; one of them asks.
    """
    with _opening.of(file):
        return _opened_once(file, os.getpid())


@lru_cache(maxsize=REMOTE_OPEN)
def _opened_once(file: Location, _process: int) -> ObjectReader:
    """Once per process: clients of object stores have threads, which a forked worker does not inherit."""
    return file.open_object()
