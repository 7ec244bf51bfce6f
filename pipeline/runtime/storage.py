"""Files of ours on disk: written whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol


class Sink(Protocol):
    """What can be appended to: an open file, or something that only hashes what it is given."""

    def write(self, data: bytes | memoryview, /) -> object: ...


class Hashed:
    """A file that is hashed and counted while it is written; without one, only the hash is kept."""

    def __init__(self, file: Sink | None = None) -> None:
        self._file, self._sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview, /) -> None:
        if self._file is not None:
            self._file.write(data)
        self._sha256.update(data)
        self.size += len(data)

    def tell(self) -> int:
        return self.size

    def digest(self) -> str:
        return self._sha256.hexdigest()


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when complete; a crash leaves a `.part` file that the next run replaces.

    The name of the `.part` file carries the process id: two attempts at one task (a retry, a slow worker thought dead)
    must not write into each other's file. Whoever renames last wins, with the same bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """A rename is on disk only when its folder is: without this, a machine that loses power may forget it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
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


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


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
