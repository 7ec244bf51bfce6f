"""Tables on disk, written whole: parquet for people and other programs, Arrow files for random access by row."""

from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .objects import Remote
from .storage import Hashed, Place, open_file, write_whole


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


def write_arrow(path: Place, table: pa.Table) -> None:
    """An uncompressed Arrow file of one batch: memory-mapped and read by row without decoding."""
    with write_whole(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=max(1, table.num_rows))


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


@lru_cache(maxsize=512)  # packs draw their documents from all over the token store
def _open_arrow(path: Place, _mtime: int, _inode: int) -> pa.Table:
    return read_arrow(path)
