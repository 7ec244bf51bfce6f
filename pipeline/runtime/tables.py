"""Tables on disk, written whole: parquet for people and other programs, Arrow files for random access by row."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .storage import write_whole

ROW_GROUP = 1 << 20  # lines of a row group: what pyarrow takes by itself, so that a table may be written in pieces


def column_sum(column: pa.ChunkedArray) -> int:
    """Arrow's sum of an empty column is null; here it is 0."""
    return int(pc.sum(column).as_py() or 0)


def value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(column).to_pylist()}


def write_parquet(path: Path, table: pa.Table) -> None:
    with write_whole(path) as file:
        pq.write_table(table, file, compression="zstd")


@contextlib.contextmanager
def parquet_groups(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """A parquet file written piece by piece: what is called with a table adds it, by row groups of its own.

    Pieces of ROW_GROUP lines give the same bytes as `write_parquet` of all of them.
    """
    with write_whole(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        yield lambda table: writer.write_table(table, row_group_size=ROW_GROUP)


def write_arrow(path: Path, table: pa.Table) -> None:
    """An uncompressed Arrow file of one batch: memory-mapped and read by row without decoding."""
    with write_whole(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=max(1, table.num_rows))


def write_batches(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """An Arrow file of one batch per table, empty ones too: who needs one of them reads that one only."""
    with write_whole(path) as file, pa.ipc.new_file(file, schema) as writer:
        for table in tables:
            columns = [column.combine_chunks() for column in table.columns]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_batch(path: Path, number: int) -> pa.Table:
    """One batch of an Arrow file; -1: the last."""
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    return pa.Table.from_batches([file.get_batch(number % file.num_record_batches)])


def read_arrow(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def open_arrow(path: Path) -> pa.Table:
    """As `read_arrow`, but a file is opened once in a process; one that was written anew is opened anew."""
    stat = path.stat()
    return _open_arrow(path, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=512)  # packs draw their documents from all over the token store
def _open_arrow(path: Path, _mtime: int, _inode: int) -> pa.Table:
    return read_arrow(path)
