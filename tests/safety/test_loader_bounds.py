"""A forged output takes neither memory nor time: bodies that are compressed, sizes that are claimed, endless epochs."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import ROOT, packed_rows, picture
from support.errors import raises

from jobs.fuzzing.output import sign
from neatpack import PackedShards
from neatpack.errors import OutputError
from neatpack.format.index import LOADER_SCHEMA
from neatpack.format.pixels import MOST_SCANS, ImageFile, is_restorable
from neatpack.storage.tables import arrow_blocks, read_message, read_parquet, read_plain_arrow

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_rows(tmp_path_factory.mktemp("bounds"), 4, 2)


@pytest.fixture
def out(packed: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", str(packed), str(tmp_path / "out")], check=True)
    return tmp_path / "out"


def arrow_file(schema: pa.Schema, columns: list[Any], compression: str | None) -> bytes:
    """A file of one batch."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue()


def bomb_loader_index(out: Path, rows: int, compression: str = "zstd") -> None:
    """index.arrow of so many lines, all the same, compressed: 100 KB for 2.8 GB."""
    columns = [pa.array(np.zeros(rows, field.type.to_pandas_dtype())) for field in LOADER_SCHEMA]
    (out / "index.arrow").write_bytes(arrow_file(LOADER_SCHEMA, columns, compression))
    sign(out)


def bomb_index(out: Path, rows: int) -> None:
    """index.parquet of so many equal lines."""
    table = pq.read_table(out / "index.parquet").slice(0, 1)
    table = table.take(pa.array(np.zeros(rows, np.int64)))
    pq.write_table(table, out / "index.parquet", compression="zstd")
    sign(out)


def bomb_statistics(out: Path, rows: int) -> None:
    table = pq.read_table(out / "stats/packs.parquet").slice(0, 1)
    with pq.ParquetWriter(out / "stats/packs.parquet", table.schema, compression="zstd") as writer:
        for _ in range(rows // 1_000_000):
            writer.write_table(table.take(pa.array(np.zeros(1_000_000, np.int64))))
    sign(out)


BOMBS: dict[str, Callable[[Path], None]] = {
    "loader index": lambda out: bomb_loader_index(out, 50_000_000),
    "loader index, lz4": lambda out: bomb_loader_index(out, 15_000_000, "lz4"),
    "statistics": lambda out: bomb_statistics(out, 40_000_000),
}
READ = """
import resource, sys
from neatpack import PackedShards
from neatpack.pipeline.cli import main
from neatpack.errors import OutputError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
codes = [main(["verify", sys.argv[1]])]
try:
    next(iter(PackedShards(sys.argv[1], check="none")))
except OutputError as error:
    codes.append(str(error))
print(codes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_takes_no_memory(out: Path, bomb: str) -> None:
    """Neither the loader nor verify, in a process whose largest size is asked afterwards."""
    BOMBS[bomb](out)
    assert sum(path.stat().st_size for path in out.rglob("*.arrow")) < 4 << 20
    done = subprocess.run([sys.executable, "-c", READ, str(out)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    told, megabytes = done.stdout.splitlines()[-1].rsplit(" ", 1)
    assert told.startswith("[1"), done.stdout
    assert int(megabytes) < 600, done.stdout


def test_compressed_messages_are_refused_and_plain_ones_read(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    column = pa.array(np.arange(1000, dtype=np.int32))
    for compression in ("zstd", "lz4", None):
        content = arrow_file(schema, [column], compression)
        ((first, size),) = arrow_blocks(pa.py_buffer(content))
        message = pa.py_buffer(content).slice(first, size)
        if compression is None:
            assert read_message(message, schema).column(0).equals(column)
            assert sum(map(len, read_plain_arrow(content, schema, 1000))) == 1000
            continue
        with pytest.raises(ValueError, match="compressed"):
            read_message(message, schema)
        with pytest.raises(ValueError, match="compressed"):
            list(read_plain_arrow(content, schema, 1000))


def test_a_footer_that_points_anywhere_is_refused() -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    content = arrow_file(schema, [pa.array(np.arange(1000, dtype=np.int32))], None)
    rng = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 4):
            damaged[place] = rng.integers(0, 256)
        try:
            batches = list(read_plain_arrow(bytes(damaged), schema, 1000))
        except (ValueError, OSError, pa.ArrowException):
            continue
        assert sum(map(len, batches)) == 1000


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["shards"][0].update(num_packs=1 << 40),
        lambda found: found["shards"][0].update(num_packs=1 << 20),
    ],
)
def test_numbers_of_a_manifest_are_bounded(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    sign(out, change)
    with raises(OutputError, "output-damaged"):
        PackedShards(out, check="none")


def test_files_are_read_up_to_their_bound(out: Path) -> None:
    import os

    os.truncate(out / "index.arrow", 1 << 41)  # of which no block is on disk
    with raises(OutputError, "data-limit", got=1 << 41):
        next(iter(PackedShards(out, check="none")))


def test_slow_pictures_are_not_decoded_at_load(tmp_path: Path) -> None:
    """A progressive JPEG whose scan comes again and again: 30 bytes each, and all of the picture to go over."""

    class Renderer:
        arrays: ClassVar[dict[str, Any]] = {}

        def count_rows(self, image: ImageFile) -> dict[str, int]:
            return {"pixel_values": 4}

        def render(self, image: ImageFile) -> dict[str, Any]:
            raise NotImplementedError

    content = picture(tmp_path / "a.jpg", 56, 56, progressive=True).read_bytes()
    scan = content[content.rindex(b"\xff\xda") : -2]

    def restorable(content: bytes) -> bool:
        image = ImageFile(content, 56, 56, (56, 56), (1, 4, 4))
        return is_restorable(Renderer(), "pixel_values", image, 3 * 56 * 56, 4)

    assert restorable(content)
    assert not restorable(content[:-2] + scan * MOST_SCANS + content[-2:])


def test_a_parquet_bomb_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(np.zeros(60_000_000, np.int64))})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(OSError, match="in memory"):
        read_parquet(tmp_path / "a.parquet")
