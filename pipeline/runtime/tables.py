"""Tables on disk, written whole: parquet for people and other programs, Arrow files for random access by row."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .objects import Remote
from .storage import AT_ONCE, Hashed, Place, open_file, write_whole

ROW_GROUP = 1 << 20  # lines of a row group: what pyarrow takes by itself, so that a table may be written in pieces


def column_sum(column: pa.ChunkedArray) -> int:
    """Arrow's sum of an empty column is null; here it is 0."""
    return int(pc.sum(column).as_py() or 0)


def value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(column).to_pylist()}


def write_parquet(path: Place, table: pa.Table) -> str:
    """The sha256 of what is written."""
    with write_whole(path) as file:
        hashed = Hashed(file)
        pq.write_table(table, pa.PythonFile(hashed, mode="w"), compression="zstd")
    return hashed.digest()


def read_parquet(path: Place, **options: Any) -> pa.Table:
    """A table of a file; options (columns, filters) as of pyarrow."""
    if isinstance(path, Remote):
        with open_file(path) as file:
            return pq.read_table(file, **options)
    return pq.read_table(path, **options)


def read_groups(
    path: Place, columns: Sequence[str] | None = None, between: tuple[str, int, int] | None = None
) -> Iterator[pa.Table]:
    """A parquet file, or these columns of it, row group by row group: as much as is in memory at a time.

    `between`: a column of whole numbers, the least and the last one; groups in which it has none of them are not read.
    """
    with open_file(path) as opened:
        file = pq.ParquetFile(opened)
        for number in range(file.num_row_groups):
            if between is not None:
                name, least, last = between
                group = file.metadata.row_group(number)
                told = group.column(file.schema_arrow.get_field_index(name)).statistics
                if told is not None and told.has_min_max and (told.max < least or told.min > last):
                    continue
            yield file.read_row_group(number, columns=None if columns is None else list(columns))


def num_lines(path: Place) -> int:
    """Of a parquet file, by what it says at its end."""
    with open_file(path) as opened:
        return int(pq.ParquetFile(opened).metadata.num_rows)


class ParquetGroups:
    """A parquet file that is written piece by piece, by row groups.

    Pieces of ROW_GROUP lines give the same bytes as `write_parquet` of all of them.
    """

    def __init__(self, file: Hashed, writer: Any) -> None:
        self._file, self._writer = file, writer

    def add(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=ROW_GROUP)

    def digest(self) -> str:
        """Of the whole, when it is closed."""
        return self._file.digest()


@contextlib.contextmanager
def parquet_groups(path: Place, schema: pa.Schema) -> Iterator[ParquetGroups]:
    with write_whole(path) as file:
        hashed = Hashed(file)
        with pq.ParquetWriter(pa.PythonFile(hashed, mode="w"), schema, compression="zstd") as writer:
            yield ParquetGroups(hashed, writer)


def write_arrow(path: Place, table: pa.Table) -> None:
    """An uncompressed Arrow file of one batch: memory-mapped and read by row without decoding."""
    with write_whole(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=max(1, table.num_rows))


def write_batches(path: Place, table: pa.Table, ranges: Iterable[tuple[int, int]]) -> None:
    """An Arrow file with a batch for each range of lines, empty ones too: who needs one of them reads that one only."""
    whole = pa.record_batch([column.combine_chunks() for column in table.columns], schema=table.schema)
    with write_whole(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        for start, end in ranges:
            writer.write_batch(whole.slice(start, end - start))


def read_batch(path: Place, number: int) -> pa.Table:
    """One batch of an Arrow file; -1: the last."""
    source = open_file(path) if isinstance(path, Remote) else pa.memory_map(str(path))
    file = pa.ipc.open_file(source)
    return pa.Table.from_batches([file.get_batch(number % file.num_record_batches)])


def read_arrow(path: Place) -> pa.Table:
    """On disk by a map of it, of a store in one request."""
    source = path.read_bytes() if isinstance(path, Remote) else pa.memory_map(str(path))
    return pa.ipc.open_file(source).read_all()


def open_arrow(path: Place) -> pa.Table:
    """As `read_arrow`, but a file is opened once in a process; one that was written anew is opened anew."""
    if isinstance(path, Remote):
        return read_arrow(path)
    stat = path.stat()
    return _open_arrow(path, stat.st_mtime_ns, stat.st_ino)


def open_arrows(paths: Sequence[Place]) -> Iterator[pa.Table]:
    """Each of them, in this order; those of a store are read ahead, several at once."""
    if not any(isinstance(path, Remote) for path in paths):
        yield from map(open_arrow, paths)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(paths), 4 * AT_ONCE):  # as many are in memory
            yield from pool.map(open_arrow, paths[start : start + 4 * AT_ONCE])


@lru_cache(maxsize=512)  # packs draw their documents from all over the token store
def _open_arrow(path: Place, _mtime: int, _inode: int) -> pa.Table:
    return read_arrow(path)
