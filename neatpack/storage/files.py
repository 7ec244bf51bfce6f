"""Files, on disk or in a store: ours are written whole or not at all, and read as what may be damaged."""

import contextlib
import errno
import hashlib
import io
import json
import mmap
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from neatpack.errors import OutputError
from neatpack.storage.location import FileStatus, Location, ObjectFile, PathLike

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_NESTING = 100  # of JSON; ours has less than ten, and Python's own limit is a crash somewhere later
BLOCK = 16 << 20  # bytes of a request, where a file is read from end to end
WRITE_BUFFER = 1 << 18  # bytes: a plan has a batch of some KB for each shard, and 8 KB, the usual, are a write for each
_NOT_CREATED = (errno.EEXIST, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # of a hard link
_NESTING = (dict, list)  # what JSON is nested by
_PART = re.compile(r"\.(.+)\.\d+\.part")


@contextlib.contextmanager
def name_errors(path: PathLike) -> Iterator[None]:
    """Name this file in errors that the block raises: the kernel does not say which file it cannot write or sync."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


class Sink(Protocol):
    """What can be appended to: an open file, or something that only hashes what it is given."""

    def write(self, data: bytes | memoryview, /) -> object: ...


class Counted:
    """A file that is counted while it is written; without one, what is written goes nowhere."""

    def __init__(self, file: Sink | None = None) -> None:
        self._file, self.size = file, 0

    def write(self, data: bytes | memoryview, /) -> None:
        if self._file is not None:
            self._file.write(data)
        self.size += len(data)

    def tell(self) -> int:
        return self.size

    # What writers of parquet and Arrow ask of a file

    closed = False

    def flush(self) -> None:
        """Whoever opened the file flushes and closes it."""

    close = flush


class Hashed(Counted):
    """The same, and hashed."""

    def __init__(self, file: Sink | None = None) -> None:
        super().__init__(file)
        self._sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview, /) -> None:
        super().write(data)
        self._sha256.update(data)

    def digest(self) -> str:
        return self._sha256.hexdigest()


class _Part(io.FileIO):
    """A new file at `place`, whose errors name the file that it will be: also at a write, where a full disk shows."""

    def __init__(self, place: Path, path: Path) -> None:
        with name_errors(path):
            opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        super().__init__(opened, "wb")
        self._path = path

    def write(self, data: "ReadableBuffer", /) -> int:
        with name_errors(self._path):
            return os.write(self.fileno(), data)


@contextlib.contextmanager
def write_whole(path: PathLike, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that appears under its name only when complete; a crash leaves nothing that anybody takes for it.

    On disk a `.part` file is left then, which the next run replaces. Its name carries the process id: two attempts at
    one task (a retry, a slow worker thought dead) must not write into each other's file. Whoever renames last wins,
    with the same bytes. A store gets an object that is complete on this machine's own disk (TMPDIR) first. What can be
    made again, and is found out if it is not whole, need not be `durable`: a machine that loses power may lose it.
    """
    target = Location.parse(path)
    if not target.is_local:
        with tempfile.TemporaryFile(prefix="neatpack-") as file:
            yield file
            file.flush()
            target.write_bytes(_map_file(file.fileno()))
        return
    path = target.path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with io.BufferedWriter(_Part(part, path), WRITE_BUFFER) as file:
            yield file
            file.flush()
            if durable:
                with name_errors(path):
                    os.fsync(file.fileno())
        with name_errors(path):
            os.replace(part, path)
        if durable:
            sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def create_file(target: Location, content: bytes) -> bool:
    """Write a file if there is none, and return whether it was written.

    A store cannot tell, nor a disk without hard links: then nothing is written.
    """
    if not target.is_local:
        return False
    path = target.path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with name_errors(path):
            part.write_bytes(content)
            os.link(part, path)
    except OSError as error:
        if error.errno in _NOT_CREATED:
            return False
        raise
    finally:
        part.unlink(missing_ok=True)
    return True


def _map_file(file: int) -> mmap.mmap | bytes:
    """The bytes of a file of ours, which nobody else can cut, without reading them into memory."""
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ) if os.fstat(file).st_size else b""


def sync_folder(folder: PathLike) -> None:
    """A rename is on disk only when its folder is: without this, a machine that loses power may forget it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with name_errors(folder):
            os.fsync(opened)
    finally:
        os.close(opened)


def write_json(path: PathLike, value: Any) -> None:
    with write_whole(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def remove_parts(folder: PathLike, pattern: str) -> None:
    """Remove what `write_whole` leaves in a folder if it is killed, of files whose names match `pattern` as a whole.

    Not while others write there. In a store it leaves none.
    """
    place = Location.parse(folder)
    for path in place.path.glob(".*.part") if place.is_local else ():
        if (name := _PART.fullmatch(path.name)) and re.fullmatch(pattern, name[1]):
            path.unlink(missing_ok=True)


def read_json(path: PathLike) -> Any:
    return parse_json(Location.parse(path).read_bytes())


def parse_json(content: bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """A JSON value of a sane depth. Raises ValueError for whatever is not one. `object_hook`: as of json.loads."""
    try:
        value = json.loads(content, object_hook=object_hook)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels") from None
    level = [value] if type(value) in _NESTING else []
    for _ in range(MAX_NESTING):
        values = (outer.values() if type(outer) is dict else outer for outer in level)
        level = [inner for inners in values for inner in inners if type(inner) in _NESTING]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MAX_NESTING} levels")


def inside(root: PathLike, name: str) -> Location:
    """A file under `root`. Raises ValueError where `name` leads out of it, by itself or by a symbolic link.

    `root` itself may be reached by links. What is not there yet is inside.
    """
    root = Location.parse(root)
    if not root.is_local:  # where a name is a name, and .. is no way
        if name.startswith("/") or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise OutputError(
                f"{name!r} is no name of a file in {root}", code="output-damaged", path=name, escapes=True
            )
        return root / name
    path = root.path / name
    place, top = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([place, top]) != top or place == top:
        raise OutputError(
            f"{path} leads out of {root}, to {place}; an output is read from its own folder only, so copy it",
            code="output-damaged",
            path=str(path),
            escapes=True,
        )
    return root / name


def read_inside(root: PathLike, name: str, most: int) -> bytes:
    """Read a plain file under `root`. Raises ValueError where it leads out of it or has more than `most` bytes."""
    path = inside(root, name)
    file, found = open_regular(path)
    with file:
        if found.st_size > most:
            raise OutputError(
                f"{path}: too large (got {found.st_size:,} bytes, expected at most {most:,})",
                code="data-limit",
                path=str(path),
                got=found.st_size,
                expected=most,
            )
        return file.read()


class NotPlain(FileNotFoundError):
    """A pipe, a device or a socket under the name of a file."""


def open_regular(path: PathLike) -> tuple[io.FileIO | io.BufferedReader, os.stat_result | FileStatus]:
    """A file for reading, and what it is at this moment. Raises OSError, also for what is no plain file.

    Without waiting: opening a FIFO would wait for its writer.
    """
    if isinstance(path, Location) and not path.is_local:
        reader = path.open_object()
        return reader.file(), FileStatus(reader.size, 0)
    file = io.FileIO(os.fspath(path), opener=_open_at_once)
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode):
        return file, found
    file.close()
    raise NotPlain(f"{path}: not a plain file")


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def read_ends(path: str, first: int, last: int) -> tuple[os.stat_result, bytes, bytes]:
    """What a plain file is at this moment, and its first and last bytes: all that most media are ever asked for."""
    opened = _open_at_once(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise NotPlain(f"{path}: not a plain file")
        beginning = os.pread(opened, first, 0)
        at = max(found.st_size - last, 0)
        whole = len(beginning) == found.st_size
        return found, beginning, beginning[at : at + last] if whole else os.pread(opened, last, at)
    finally:
        os.close(opened)


def read_into(file: BinaryIO, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a place in a file, in any thread; how much of it was filled before the file ended."""
    if isinstance(file, io.BufferedReader) and isinstance(file.raw, ObjectFile):
        content = file.raw.reader.read_at(len(buffer), offset)
        buffer[: len(content)] = content
        return len(content)
    done = 0
    while done < len(buffer) and (got := os.preadv(file.fileno(), [buffer[done:]], offset + done)):
        done += got
    return done


@contextlib.contextmanager
def local_copy(path: Location) -> Iterator[Location]:
    """A file of this machine with the bytes of a file: itself, or a copy that is gone afterwards.

    For readers that go through it more than once, or want to map it.
    """
    if path.is_local:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="neatpack-") as folder:
        copy = Path(folder, path.name)
        with path.open(BLOCK) as source, open(copy, "wb") as target:
            shutil.copyfileobj(source, target, BLOCK)
        yield Location.parse(copy)


def append(path: Location, sink: Sink) -> None:
    """The bytes of a file, block by block through one buffer that stays in the cache of the CPU."""
    buffer = bytearray(1 << 18)
    with path.open(BLOCK) as file:
        while size := file.readinto(buffer):  # type: ignore[attr-defined]  # BinaryIO does not tell of it
            sink.write(memoryview(buffer)[:size])


def sha256_of(path: PathLike, start: int = 0, end: int | None = None) -> str:
    """Digest of a file, or of its bytes [start, end)."""
    digest = hashlib.sha256()
    path = Location.parse(path)
    left = (path.stat().st_size if end is None else end) - start
    with path.open(min(max(left, 1), BLOCK)) as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
