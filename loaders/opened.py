"""Files of an output that a process keeps open, and reading ahead."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from neatpack.storage.files import inside, open_regular
from neatpack.storage.location import Location, ObjectReader

from .places import Locks

Argument = TypeVar("Argument")
Result = TypeVar("Result")

FILES_OPEN = 64  # shards that a process keeps open; the usual limit is 1,024 of all files
REMOTE_OPEN = 8192  # remote ones, which are a name, a size and a client: 1 KB each, and no file of this machine
_opening = Locks()


class FileVersion(NamedTuple):
    """Tells a file from another one under its name, and from itself after somebody wrote to it."""

    device: int
    inode: int
    bytes: int
    modified: int

    @classmethod
    def of(cls, found: os.stat_result) -> "FileVersion":
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


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
