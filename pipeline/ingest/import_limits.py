"""How much a data file may unpack to while it is rewritten as JSONL: 600 bytes of parquet can hold 2 GB."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from ..config import UserError
from ..media.budget import bound_memory
from ..media.limits import LIMITS, limits

MIN_BYTES = 64 << 20  # that a file of any size may unpack to
MEMORY = 4 << 30  # bytes beyond what the process has,
MEMORY_RATIO = 4  # and for each byte of the file: the text of a JSON array is in memory as a whole


class UnpackedBytes:
    """Counts what a data file unpacks to.

    Raises:
        UserError: it is more than `--max-import-ratio` times the file, and more than `MIN_BYTES`.
    """

    def __init__(self, file: object, size: int) -> None:
        self._file, self._size = file, size
        self._most = max(MIN_BYTES, limits().max_import_ratio * size)

    def check(self, num_bytes: int) -> None:
        if num_bytes > self._most:
            raise UserError(
                f"{self._file}: unpacks to too much (got more than {self._most:,} bytes of {self._size:,}, expected at "
                f"most {limits().max_import_ratio} times its size). If it should, give a larger --max-import-ratio.",
                code="data-limit",
                option="max_import_ratio",
                file=str(self._file),
            )


class BoundedReader(io.RawIOBase):
    """A decompressed file that is counted while it is read."""

    def __init__(self, content: BinaryIO, unpacked: UnpackedBytes) -> None:
        self._content, self._unpacked, self._num_bytes = content, unpacked, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._content.read(len(buffer))
        self._num_bytes += len(found)
        self._unpacked.check(self._num_bytes)
        buffer[: len(found)] = found
        return len(found)


@contextmanager
def bounded_memory(file: object, size: int) -> Iterator[None]:
    """Bound the memory of this process, if it is a worker of a run. A program that imports by itself has none."""
    if LIMITS not in os.environ:
        yield
        return
    most = MEMORY + MEMORY_RATIO * size
    bound_memory(most)
    try:
        yield
    except MemoryError:
        raise UserError(
            f"{file}: takes more than {most >> 20} MiB of memory to read. Write it in smaller pieces.",
            code="data-limit",
            file=str(file),
            limit=most,
        ) from None
    finally:
        bound_memory(None)
