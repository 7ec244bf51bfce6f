"""Tables on disk, written whole: parquet for people and other programs, Arrow files for random access by row."""

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from neatpack.storage.files import Hashed, write_whole
from neatpack.storage.location import AT_ONCE, Location, PathLike

_ROOM, _RATIO, _WIDTH = 256 << 20, 256, 8  # bytes that any table may take, times its own, of a value at least
ROW_GROUP = 1 << 20  # lines of a row group: what pyarrow takes by itself, so that a table may be written in pieces


def column_sum(column: pa.ChunkedArray) -> int:
    """Arrow's sum of an empty column is null; here it is 0."""
    return int(pc.sum(column).as_py() or 0)


def value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(column).to_pylist()}


def write_parquet(path: PathLike, table: pa.Table) -> str:
    """The sha256 of what is written."""
    with write_whole(path) as file:
        hashed = Hashed(file)
        pq.write_table(table, pa.PythonFile(hashed, mode="w"), compression="zstd")
    return hashed.digest()


def read_parquet(path: PathLike, **options: Any) -> pa.Table:
    """Read a table; options (columns, filters) as of pyarrow."""
    place = Location.parse(path)
    with place.open() as file, pq.ParquetFile(file) as opened:
        refuse_bomb(opened.metadata, place.stat().st_size)
        if not place.is_local:
            return pq.read_table(file, **options)
    return pq.read_table(place.key, **options)


def read_groups(
    path: PathLike, columns: Sequence[str] | None = None, between: tuple[str, int, int] | None = None
) -> Iterator[pa.Table]:
    """A parquet file, or these columns of it, row group by row group: as much as is in memory at a time.

    `between`: a column of whole numbers, the least and the last one; groups in which it has none of them are not read.
    """
    place = Location.parse(path)
    with place.open() as opened:
        file = pq.ParquetFile(opened)
        refuse_bomb(file.metadata, place.stat().st_size)
        for number in range(file.num_row_groups):
            if between is not None:
                name, least, last = between
                group = file.metadata.row_group(number)
                told = group.column(file.schema_arrow.get_field_index(name)).statistics
                if told is not None and told.has_min_max and (told.max < least or told.min > last):
                    continue
            yield file.read_row_group(number, columns=None if columns is None else list(columns))


def schema_of(path: PathLike) -> pa.Schema:
    """The columns of a parquet file."""
    with Location.parse(path).open() as opened:
        return pq.ParquetFile(opened).schema_arrow.remove_metadata()


def num_lines(path: PathLike) -> int:
    """Of a parquet file, by what it says at its end."""
    with Location.parse(path).open() as opened:
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
def parquet_groups(path: PathLike, schema: pa.Schema) -> Iterator[ParquetGroups]:
    with write_whole(path) as file:
        hashed = Hashed(file)
        with pq.ParquetWriter(pa.PythonFile(hashed, mode="w"), schema, compression="zstd") as writer:
            yield ParquetGroups(hashed, writer)


def refuse_bomb(metadata: pq.FileMetaData, num_bytes: int) -> None:
    """Raise OSError where a parquet file of so many bytes would take far more memory than a table of ours."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(metadata.num_columns)]
    # Values are repeated by number and strings by reference: neither is in the size before compression.
    room = sum(max(column.total_uncompressed_size, _WIDTH * column.num_values) for column in columns)
    if room > _ROOM + _RATIO * num_bytes or metadata.num_rows > _ROOM + _RATIO * num_bytes:
        raise OSError(f"{num_bytes:,} bytes that would take {room:,} in memory")


def read_message(content: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of an Arrow message, a view of its bytes. Raises ValueError or OSError.

    A compressed body is refused: a few KB of it may take gigabytes of memory.
    """
    message = pa.ipc.read_message(content)
    if message.type != "record batch" or _has_compression(message.metadata):
        raise ValueError(f"a message of the kind {message.type}, or a compressed one; expected a plain record batch")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _has_compression(metadata: pa.Buffer) -> bool:
    """Whether a message's flatbuffer has a RecordBatch with the field `compression`, which pyarrow does not tell."""
    content = memoryview(metadata)

    def field(table: int, number: int) -> int:
        """Where a field of a table is; 0: it is absent."""
        vtable = table - struct.unpack_from("<i", content, table)[0]
        (size,) = struct.unpack_from("<H", content, vtable)
        place = 4 + 2 * number
        offset = struct.unpack_from("<H", content, vtable + place)[0] if place < size else 0
        return int(table + offset if offset else 0)

    def table_at(place: int) -> int:
        return int(place + struct.unpack_from("<I", content, place)[0])

    try:
        header = field(table_at(0), 2)
        return bool(header and field(table_at(header), 3))
    except struct.error:
        raise ValueError("a message without a header") from None


def arrow_blocks(content: pa.Buffer) -> list[tuple[int, int]]:
    """Return where the batches of an Arrow file are by its footer: [(offset, bytes)]. Raises ValueError."""
    found = memoryview(content)
    try:
        (size,) = struct.unpack_from("<i", found, len(found) - 10)
        footer = found[len(found) - 10 - size : len(found) - 10]
        root = struct.unpack_from("<I", footer, 0)[0]
        vtable = root - struct.unpack_from("<i", footer, root)[0]
        place = root + struct.unpack_from("<H", footer, vtable + 10)[0]  # the fourth field: recordBatches
        vector = place + struct.unpack_from("<I", footer, place)[0]
        (count,) = struct.unpack_from("<I", footer, vector)
        blocks = [struct.unpack_from("<qi4xq", footer, vector + 4 + 24 * number) for number in range(count)]
    except struct.error:
        raise ValueError("a footer that cannot be read") from None
    places = [(offset, head + body) for offset, head, body in blocks]
    if any(offset < 8 or room < 8 or offset + room > len(found) for offset, room in places):
        raise ValueError("batches that are not in the file")
    return places


def read_plain_arrow(content: bytes, schema: pa.Schema, num_rows: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file of this schema and number of rows, if it is given.

    Raises ValueError or OSError.
    """
    buffer = pa.py_buffer(content)
    found = pa.ipc.open_file(buffer).schema
    if found.remove_metadata() != schema:
        raise ValueError(f"columns are {', '.join(found.names)[:200]}, expected {', '.join(schema.names)}")
    num_read, names = 0, ", ".join(schema.names)
    for offset, size in arrow_blocks(buffer):
        batch = read_message(buffer.slice(offset, size), schema)
        num_read += len(batch)
        if any(column.null_count for column in batch.columns):
            raise ValueError(f"empty cells in {names}")
        if num_rows is not None and num_read > num_rows:
            break
        yield batch
    if num_rows is not None and num_read != num_rows:
        raise ValueError(f"{num_read} lines of {names}; expected {num_rows}")


def write_arrow(path: PathLike, table: pa.Table) -> None:
    """An uncompressed Arrow file of one batch: memory-mapped and read by row without decoding."""
    with write_whole(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=max(1, table.num_rows))


def write_batches(path: PathLike, table: pa.Table, ranges: Iterable[tuple[int, int]]) -> None:
    """An Arrow file with a batch for each range of lines, empty ones too: who needs one of them reads that one only."""
    whole = pa.record_batch([column.combine_chunks() for column in table.columns], schema=table.schema)
    with write_whole(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        for start, end in ranges:
            writer.write_batch(whole.slice(start, end - start))


def read_batch(path: PathLike, number: int) -> pa.Table:
    """Read one batch of an Arrow file; -1: the last."""
    place = Location.parse(path)
    source = pa.memory_map(place.key) if place.is_local else place.open()
    file = pa.ipc.open_file(source)
    return pa.Table.from_batches([file.get_batch(number % file.num_record_batches)])


def read_arrow(path: PathLike) -> pa.Table:
    """Read an Arrow file: on disk by a map of it, from a store in one request."""
    place = Location.parse(path)
    source = pa.memory_map(place.key) if place.is_local else place.read_bytes()
    return pa.ipc.open_file(source).read_all()


def open_arrow(path: PathLike) -> pa.Table:
    """As `read_arrow`, but a file on disk is opened once in a process, and again when it was replaced."""
    place = Location.parse(path)
    if not place.is_local:
        return read_arrow(place)
    stat = os.stat(place)
    return _open_arrow(place, stat.st_mtime_ns, stat.st_ino)


def open_arrows(paths: Sequence[PathLike]) -> Iterator[pa.Table]:
    """Each of them, in this order; those of a store are read ahead, several at once."""
    places = list(map(Location.parse, paths))
    if all(place.is_local for place in places):
        yield from map(open_arrow, places)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(places), 4 * AT_ONCE):  # as many are in memory
            yield from pool.map(open_arrow, places[start : start + 4 * AT_ONCE])


@lru_cache(maxsize=512)  # packs draw their documents from all over the token store
def _open_arrow(path: Location, _mtime: int, _inode: int) -> pa.Table:
    return read_arrow(path)
