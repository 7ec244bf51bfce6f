"""Files of ours on disk: written whole or not at all, and read as what may be damaged."""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from .faults import naming

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_NESTING = 100  # of JSON; ours has less than ten, and Python's own limit is a crash somewhere later
_PART = re.compile(r"\.(.+)\.\d+\.part")


class Sink(Protocol):
    """What can be appended to: an open file, or something that only hashes what it is given."""

    def write(self, data: bytes | memoryview, /) -> object: ...


class Hashed:
    """A file that is hashed and counted while it is written; without one, only the hash is kept.

    `crc32` is that of what was written since somebody set it to 0.
    """

    def __init__(self, file: Sink | None = None) -> None:
        self._file, self._sha256, self.size, self.crc32 = file, hashlib.sha256(), 0, 0

    def write(self, data: bytes | memoryview, /) -> None:
        if self._file is not None:
            self._file.write(data)
        self._sha256.update(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size += len(data)

    def tell(self) -> int:
        return self.size

    def digest(self) -> str:
        return self._sha256.hexdigest()


class _Part(io.FileIO):
    """A new file at `place`, whose errors name the file that it will be: also at a write, where a full disk shows."""

    def __init__(self, place: Path, path: Path) -> None:
        with naming(path):
            opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        super().__init__(opened, "wb")
        self._path = path

    def write(self, data: "ReadableBuffer", /) -> int:
        with naming(self._path):
            return os.write(self.fileno(), data)


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when complete; a crash leaves a `.part` file that the next run replaces.

    The name of the `.part` file carries the process id: two attempts at one task (a retry, a slow worker thought dead)
    must not write into each other's file. Whoever renames last wins, with the same bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with io.BufferedWriter(_Part(part, path)) as file:
            yield file
            file.flush()
            with naming(path):
                os.fsync(file.fileno())
        with naming(path):
            os.replace(part, path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """A rename is on disk only when its folder is: without this, a machine that loses power may forget it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(opened)
    finally:
        os.close(opened)


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    with write_whole(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def remove_parts(folder: Path, pattern: str) -> None:
    """Remove what `write_whole` leaves in a folder if it is killed, of files whose names match `pattern` as a whole.

    Not while others write there.
    """
    for path in folder.glob(".*.part"):
        if (name := _PART.fullmatch(path.name)) and re.fullmatch(pattern, name[1]):
            path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    return parse_json(path.read_bytes())


def parse_json(content: bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """A JSON value of a sane depth. Raises ValueError for whatever is not one. `object_hook`: as of json.loads."""
    try:
        value = json.loads(content, object_hook=object_hook)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels") from None
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _inner(outer) if isinstance(inner, dict | list)]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MAX_NESTING} levels")


def _inner(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def inside(root: Path, name: str) -> Path:
    """A file under `root`. Raises ValueError where `name` leads out of it, by itself or by a symbolic link.

    `root` itself may be reached by links. What is not there yet is inside.
    """
    path = root / name
    place, top = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([place, top]) != top or place == top:
        raise ValueError(
            f"{path} leads out of {root}, to {place}; an output is read from its own folder only, so copy it"
        )
    return path


class NotPlain(FileNotFoundError):
    """A pipe, a device or a socket under the name of a file."""


def open_regular(path: str | Path) -> tuple[io.FileIO, os.stat_result]:
    """A file for reading, and what it is at this moment. Raises OSError, also for what is no plain file.

    Without waiting: opening a FIFO would wait for its writer.
    """
    file = io.FileIO(str(path), opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY))
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode):
        return file, found
    file.close()
    raise NotPlain(f"{path}: not a plain file")


def read_into(file: BinaryIO, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a place in a file, in any thread; how much of it was filled before the file ended."""
    done = 0
    while done < len(buffer) and (got := os.preadv(file.fileno(), [buffer[done:]], offset + done)):
        done += got
    return done


def sha256_of(path: Path, start: int = 0, end: int | None = None) -> str:
    """Digest of a file, or of its bytes [start, end)."""
    digest = hashlib.sha256()
    left = (os.path.getsize(path) if end is None else end) - start
    with open(path, "rb") as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
