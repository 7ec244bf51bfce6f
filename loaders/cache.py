"""Shards of remote outputs on a node's own disk: downloaded once for all its processes; the least recently used go.

FOLDER/SHA256.tar is a shard, named by its content: several outputs and jobs may share a folder, a shard that two of
them have is stored once, and one that was packed again is another file. SHA256.part is a shard in download, and its
lock at the same time: who holds the lock downloads, the others wait. The kernel takes the lock from a process that is
killed, and the next one starts the file anew.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from neatpack.errors import ShardError, UserError
from neatpack.format.manifest import REMEDY, ShardEntry
from neatpack.storage.files import open_regular

Chunks = Callable[[], Iterable[bytes]]


class ShardCache:
    """Whole shards in a folder of at most max_bytes.

    An evicted shard stays readable for who has it open, as POSIX says of unlinked files; its room on the disk is free
    when the last of them has closed it.
    """

    def __init__(self, folder: str | Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = Path(folder).absolute(), max_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._renaming():
                pass
        except OSError as error:
            raise UserError(
                f"cache={str(folder)!r}: {error}; give a folder that this process may write to",
                code="cache-unusable",
                folder=str(folder),
            ) from None

    def opened(self, shard: ShardEntry, out: str, chunks: Chunks) -> BinaryIO:
        """The shard as a file. If it is not here, `chunks` gives its bytes, in one process of the node only.

        Raises ShardError if they are not those of the manifest, OSError if there is no room for them, and whatever
        `chunks` raises; nothing is left behind. `out` is for messages.
        """
        path = self.folder / f"{shard.sha256}.tar"
        while True:
            try:
                os.utime(path)  # used now
                return self._whole(path, shard)
            except FileNotFoundError:
                file = self._download(shard, out, chunks, path)
                if file is not None:
                    return file

    def _download(self, shard: ShardEntry, out: str, chunks: Chunks, path: Path) -> BinaryIO | None:
        """None: another process did it while we waited, or gave it up."""
        part = path.with_suffix(".part")
        with _locked(part) as file:
            if not _is_named(file, part):
                return None  # what we waited for is in place now, or removed
            try:
                if not path.exists():  # it may be there since we looked, and the part be a new one of ours
                    self._reserve(shard.bytes, file, part)
                    _fill(file, shard, out, chunks())
                    with self._renaming():
                        part.rename(path)
                        return open_regular(path)[0]
            except BaseException:
                self._remove(part)
                raise
            self._remove(part)
            return None

    def _whole(self, path: Path, shard: ShardEntry) -> BinaryIO:
        """A file that is here. One of another size, which a full disk or somebody's hand has cut, is removed."""
        file, found = open_regular(path)
        if found.st_size == shard.bytes:
            return file
        file.close()
        with self._renaming():
            path.unlink(missing_ok=True)
        raise FileNotFoundError(path)

    def _reserve(self, size: int, file: BinaryIO, part: Path) -> None:
        """Room for a shard in the folder and on the disk, before a byte of it is downloaded."""
        with self._renaming():
            used = sum(_in_download(other) for other in self.folder.glob("*.part") if other != part)
            if used + size > self.max_bytes:
                raise OSError(
                    errno.ENOSPC,
                    f"other processes are downloading {used} bytes, and {size} more do not fit into the "
                    f"{self.max_bytes} of cache_gb",
                )
            shards = [(path.stat(), path) for path in self.folder.glob("*.tar")]
            used += sum(stat.st_size for stat, _ in shards)
            for stat, path in sorted(shards, key=lambda shard: shard[0].st_mtime_ns):
                if used + size <= self.max_bytes:
                    break
                path.unlink()
                used -= stat.st_size
            file.truncate(0)  # what a killed process has left
            os.posix_fallocate(file.fileno(), 0, size)

    def _remove(self, part: Path) -> None:
        with self._renaming():
            part.unlink(missing_ok=True)

    @contextmanager
    def _renaming(self) -> Iterator[None]:
        """Names in the folder change in one process at a time, so that sums over them hold."""
        with _locked(self.folder / ".lock"):
            yield


@contextmanager
def _locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[BinaryIO]:
    """A file, made if it is not there, that nobody else has locked."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:  # local: the cache
        fcntl.flock(file, how)
        try:
            yield file
        finally:
            # Closing is not enough: a process that was forked meanwhile has a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)


def _is_named(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _fill(file: BinaryIO, shard: ShardEntry, out: str, chunks: Iterable[bytes]) -> None:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        file.write(chunk)
    if digest.hexdigest() != shard.sha256:
        raise ShardError(
            f"{out}/shards/{shard.name}: {file.tell()} bytes came, with the sha256 {digest.hexdigest()}; the manifest "
            f"says {shard.bytes} and {shard.sha256}; {REMEDY}",
            shard.name,
            got=file.tell(),
            expected=shard.bytes,
        )
    file.flush()
    os.fdatasync(file.fileno())  # or a node that loses power may come up with zeros under the final name


def _in_download(part: Path) -> int:
    """Bytes that a download will have. One that was killed is removed, and has none."""
    try:
        with _locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB):
            part.unlink()
            return 0
    except BlockingIOError:
        return part.stat().st_size
