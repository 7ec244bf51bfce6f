"""Media in cells of parquet files, read where they are.

Parquet keeps a column of a row group as one compressed stretch, so that for one picture the pictures of its whole row
group are read. The last ones that were read are kept.
"""

import io
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq

from neatpack.storage.files import open_regular
from neatpack.storage.location import Location
from neatpack.storage.uris import is_stored

from .ahead import ahead
from .inline import pointer, steps

ROWS = 256  # decoded at once, at most
BATCH_BYTES = 64 << 20  # of rows that are decoded at once, by what their file says of its row groups
KEPT_BYTES = 256 << 20  # in each process; one stretch is kept whatever its size
MAX_STRETCH_BYTES = 2 << 30  # of a column in a row group, unpacked: all of it is read for any cell in it
_MOST = 1 << 31  # row groups and values; Arrow counts both by 32 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The value `number` of a column of bytes in a row group, lists in it laid end to end.

    ("images", "bytes"): in the column `images`, of lists of {"bytes", "path"} or of one, the bytes.
    """

    row_group: int
    number: int
    column: tuple[str, ...]

    def __str__(self) -> str:
        """ "0/17/images/bytes": a JSON pointer but for the slash that it begins with."""
        return pointer(self.row_group, self.number, *self.column)[1:]


def is_cell(inside: str) -> bool:
    """Of MediaRef.inside, which may be a JSON pointer."""
    return bool(inside) and not inside.startswith("/")


def cell_of(text: str) -> Cell:
    """Of a cell's text. Raises ValueError where it is none."""
    try:
        row_group, number, *column = steps(f"/{text}")
        cell = Cell(row_group=int(row_group), number=int(number), column=tuple(column))
    except ValueError:
        cell = None
    if cell is None or not cell.column or not (0 <= cell.row_group < _MOST and 0 <= cell.number < _MOST):
        raise ValueError("expected row group/number/column, as in 0/17/image/bytes")
    return cell


def cell_bytes(file: str, cell: Cell) -> bytes:
    """Return the bytes in a cell. Call it within a `Budget`: a row names the file, and may name any.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
        ValueError: The file is not parquet, or has no such cell, or not one of bytes.
    """
    number = cell.number
    for values in _kept().stretch(file, cell.row_group, cell.column):
        if number < len(values):
            if (found := values[number].as_py()) is not None:
                return bytes(found)
            break
        number -= len(values)
    raise ValueError(f"no bytes in cell {cell}")


def batches(file: str | Location, row_group: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    with Location.parse(file).open() as source, pq.ParquetFile(source) as table:
        rows = rows_at_once(table.metadata)
        yield from table.iter_batches(batch_size=rows, row_groups=[row_group], columns=columns)


def rows_at_once(metadata: pq.FileMetaData) -> int:
    """Return how many rows of a file are decoded at once: 256, or fewer of large rows."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    largest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return min(ROWS, max(1, BATCH_BYTES // max(largest, 1)))


@dataclass(slots=True)
class _Kept:
    """Stretches by file, row group and column; the one that was used last is at the end."""

    num_bytes: int = 0
    stretches: OrderedDict[tuple[str, int, tuple[str, ...]], list[pa.Array]] = field(default_factory=OrderedDict)

    def stretch(self, file: str, row_group: int, column: tuple[str, ...]) -> list[pa.Array]:
        key = file, row_group, column
        if key not in self.stretches:
            self.stretches[key] = _read(*key)
            self.num_bytes += _size(self.stretches[key])
        self.stretches.move_to_end(key)
        while self.num_bytes > KEPT_BYTES and len(self.stretches) > 1:
            self.num_bytes -= _size(self.stretches.popitem(last=False)[1])
        return self.stretches[key]


@cache
def _kept() -> _Kept:
    return _Kept()


def _size(arrays: list[pa.Array]) -> int:
    return sum(array.nbytes for array in arrays)


def _read(file: str, row_group: int, column: tuple[str, ...]) -> list[pa.Array]:
    """The values of a column of bytes in a row group. What the file's metadata rule out is not read."""
    name = ".".join(column)[:100]
    opened = ahead.opened(file).file() if is_stored(file) else io.BufferedReader(open_regular(file)[0])
    try:
        with opened as source, pq.ParquetFile(source) as table:
            _check(table, row_group, column)
            found = table.iter_batches(batch_size=ROWS, row_groups=[row_group], columns=[column[0]])
            return [_inner(batch.column(column[0]), column[1:]) for batch in found]
    except MemoryError:
        raise
    except (pa.ArrowException, LookupError, OverflowError) as error:
        raise ValueError(f"no column {name} in row group {row_group}: {str(error)[:200]}") from None


def _check(table: pq.ParquetFile, row_group: int, column: tuple[str, ...]) -> None:
    metadata, names = table.metadata, table.schema_arrow.names
    if row_group >= metadata.num_row_groups:
        raise LookupError(f"the file has {metadata.num_row_groups} row groups")
    if column[0] not in names:
        raise LookupError(f"the file has {', '.join(names[:8])[:100]}")
    kind = _inner_type(table.schema_arrow.field(column[0]).type, column[1:])
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise LookupError(f"it holds {str(kind)[:100]}, not bytes")
    group = metadata.row_group(row_group)
    own = [group.column(index) for index in range(group.num_columns)]
    size = sum(each.total_uncompressed_size for each in own if each.path_in_schema.split(".")[0] == column[0])
    if not 0 <= size <= MAX_STRETCH_BYTES:
        raise LookupError(f"it has {size} bytes there (at most {MAX_STRETCH_BYTES})")


def _inner_type(kind: pa.DataType, names: tuple[str, ...]) -> pa.DataType:
    """The type of what `_inner` gives."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _inner_type(kind.value_type, names)
    if not names:
        return kind
    if not pa.types.is_struct(kind) or kind.get_field_index(names[0]) < 0:
        raise LookupError(names[0])
    return _inner_type(kind.field(names[0]).type, names[1:])


def _inner(array: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """The bytes inside of lists and objects."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _inner(items_of(array), names)
    if not names:
        return array
    if not pa.types.is_struct(array.type):
        raise KeyError(names[0])
    return _inner(array.field(names[0]), names[1:])


def items_of(lists: pa.Array) -> pa.Array:
    """The items of all lists, end to end."""
    ends = lists.offsets
    return lists.values.slice(ends[0].as_py(), ends[-1].as_py() - ends[0].as_py())
