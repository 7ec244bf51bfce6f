"""Rows of an Arrow file or stream (.arrow, .feather, what save_to_disk wrote), their media by place.

Arrow keeps the bytes of a value as they are, one after the other, unless the file is compressed. So an embedded picture
is a stretch of the file, and the row says which: {"path": "data.arrow", "offset": 4096, "length": 81920}.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from neatpack.storage.location import Location
from neatpack.storage.uris import redact_uri

from ..config import UserError
from ..media.parquet import items_of

ROWS = 256  # in memory at once: a batch may be the whole file
Places = Callable[[pa.Array, tuple[str, ...]], list[Any]]  # bytes at names of columns and fields -> where they are
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream; Arrow would take one that is cut between two batches for whole


def arrow_rows(file: Location, name: str = "") -> Iterator[dict[str, Any]]:
    """Media by their place in the file, which is called `name` where `file` is a copy of it; bytes that do not lie
    there as they are come as bytes."""
    name = name or str(file)
    shown = redact_uri(name)
    try:
        with pa.memory_map(str(file)) as mapped:  # local: the file, or its copy
            content = mapped.read_buffer()
        for batch in _batches(shown, content):
            batch.validate(full=True)  # offsets of a damaged file would lead anywhere
            for start in range(0, batch.num_rows, ROWS):
                piece = batch.slice(start, ROWS)
                yield from rows_of(piece, lambda array, _: _places(array, name, content))
    except (UserError, MemoryError):
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8, odd buffers
        raise UserError(
            f"{shown}: not a readable Arrow file: {error}; write it anew", code="data-unreadable", file=str(shown)
        ) from None


def _batches(file: str, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    source = pa.BufferReader(content)
    if content[:6].to_pybytes() == b"ARROW1":
        table = pa.ipc.open_file(source)
        batches = map(table.get_batch, range(table.num_record_batches))
    else:
        table = pa.ipc.open_stream(source)
        batches = iter(table)
        if content[-len(_END) :].to_pybytes() != _END:
            raise UserError(
                f"{file}: an Arrow stream without its end; it was cut off: write or download it again",
                code="data-unreadable",
                file=str(file),
            )
    names = table.schema.names
    if not names:  # a batch of no columns may claim any number of rows
        raise UserError(f"{file}: no columns; write it anew", code="data-unreadable", file=str(file), columns=[])
    if len(set(names)) < len(names):
        raise UserError(
            f"{file}: two columns of one name in {', '.join(names)}; rename one",
            code="data-unreadable",
            file=str(file),
            columns=names,
        )
    yield from batches


def rows_of(batch: pa.RecordBatch, places: Places) -> Iterator[dict[str, Any]]:
    columns = [_values(batch.column(name), places, (name,)) for name in batch.schema.names]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _values(array: pa.Array, places: Places, at: tuple[str, ...]) -> list[Any]:
    """The values of an array for JSON."""
    kind = array.type
    if _is_bytes(kind):
        return places(array, at)
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        fields = {
            field.name: _values(array.field(number), places, (*at, field.name)) for number, field in enumerate(kind)
        }
        rows = [{name: values[row] for name, values in fields.items()} for row in range(len(array))]
        if "bytes" in fields and _is_bytes(kind.field("bytes").type):
            # {"bytes": …, "path": "cat.png"}, as `datasets` has it, is its bytes where it has some.
            rows = [row["bytes"] if isinstance(row["bytes"], dict) else row for row in rows]
        return [row if is_there else None for row, is_there in zip(rows, valid, strict=True)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ends = array.offsets.to_pylist()
        items = _values(items_of(array), places, at)
        bounds = [end - ends[0] for end in ends]
        return [items[bounds[row] : bounds[row + 1]] if is_there else None for row, is_there in enumerate(valid)]
    plain: list[Any] = array.to_pylist()
    return plain


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _places(array: pa.Array, file: str, content: pa.Buffer) -> list[Any]:
    """Where in the file each value is; a compressed file has its values elsewhere in memory, and no place for them."""
    _, ends, data = array.buffers()
    size = 0 if data is None else data.size  # 0: nothing but nulls and empty values, which are anywhere
    start = data.address - content.address if size else 0
    if ends is None or not 0 <= start <= content.size - size:
        values: list[Any] = array.to_pylist()
        return values
    number = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    own = np.frombuffer(ends, dtype=number)[array.offset : array.offset + len(array) + 1]
    bounds = (start + own.astype(np.int64)).tolist()
    return [
        {"path": file, "offset": bounds[row], "length": bounds[row + 1] - bounds[row]} if valid else None
        for row, valid in enumerate(array.is_valid().to_pylist())
    ]
