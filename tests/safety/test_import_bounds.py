"""Data files that unpack to far more than they are, and tars whose headers lie: refused, within memory and disk."""

import io
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import DEMO_PROCESSOR, ROOT, assert_verified, tiny_config
from support.errors import printed_code, raises

from neatpack.pipeline.cli import main
from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest import import_limits
from neatpack.pipeline.ingest.kinds import as_lines
from neatpack.pipeline.ingest.tars import _Header, tar_rows
from neatpack.pipeline.media import parquet
from neatpack.pipeline.media.limits import LIMITS, Limits
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger

pytestmark = pytest.mark.slow

MIB = 1 << 20


def dictionary(path: Path, num_bytes: int, num_rows: int) -> None:
    """One text, which each row has, stored once."""
    indices = pa.array(np.zeros(num_rows, np.int32))
    table = pa.table({"text": pa.DictionaryArray.from_arrays(indices, pa.array(["a" * num_bytes]))})
    if path.suffix == ".parquet":
        pq.write_table(table, path, compression="zstd")
    else:
        write_arrow(path, table)


def write_arrow(path: Path, table: pa.Table, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)


def plain(path: Path, num_bytes: int) -> None:
    """A single value that is so long, in one compressed page."""
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"text": ["a" * num_bytes]}), path, **options)


def compressed(path: Path, kind: str, start: bytes, unit: bytes, times: int) -> None:
    with pa.CompressedOutputStream(str(path), kind) as file:
        file.write(start)
        for _ in range(times):
            file.write(unit)


def xz(path: Path, times: int) -> None:
    with lzma.open(path, "wb", preset=0) as file:
        for _ in range(times):
            file.write(bytes(MIB))


BOMBS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "parquet, one text in 100 rows: 2 GB": ("a.parquet", lambda path: dictionary(path, 20 * MIB, 100)),
    "parquet, one text in 256 rows: 50 GB": ("a.parquet", lambda path: dictionary(path, 200 * MIB, 256)),
    "parquet, a page": ("a.parquet", lambda path: plain(path, 400 * MIB)),
    "parquet, empty rows": (
        "a.parquet", lambda path: pq.write_table(pa.table({"text": pa.nulls(10_000_000)}), path)
    ),
    "a line in zst: 1.1 GB": ("a.jsonl.zst", lambda path: compressed(path, "zstd", b"", b"a" * MIB, 1100)),
    "rows in zst": ("a.jsonl.zst", lambda path: compressed(path, "zstd", b"", b'{"text": "a"}\n' * 75_000, 1100)),
    "an array in gz": ("a.json.gz", lambda path: compressed(path, "gzip", b"[", b" " * MIB, 1000)),
    "a cell in bz2": ("a.csv.bz2", lambda path: compressed(path, "bz2", b'text\n"', b"a" * MIB, 300)),
    "lines in xz": ("a.jsonl.xz", lambda path: xz(path, 300)),
    "arrow, compressed": (
        "a.arrow",
        lambda path: write_arrow(
            path, pa.table({"text": pa.array(["a" * MIB]).take(pa.array(np.zeros(1000, np.int64)))}), "zstd"
        ),
    ),
    "arrow, one text in each row": ("a.arrow", lambda path: dictionary(path, MIB, 3000)),
    "arrow, nulls": ("a.arrow", lambda path: write_arrow(path, pa.table({"text": pa.nulls(10**9)}))),
    "arrow, lists of nothing": (
        "a.arrow",
        lambda path: write_arrow(
            path, pa.table({"text": pa.FixedSizeListArray.from_arrays(pa.nulls(3 << 29), 1 << 29)})
        ),
    ),
}  # fmt: skip
# Imports as a worker of a run does, and prints the error and how many MiB that took.
CHILD = """
import resource, sys
from pathlib import Path
from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.kinds import as_lines
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    as_lines(Path(sys.argv[1]), Path(sys.argv[2]))
except UserError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


@pytest.mark.parametrize("bomb", BOMBS)
def test_import_bomb_is_refused(bomb: str, tmp_path: Path) -> None:
    name, make = BOMBS[bomb]
    make(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 2 * MIB or "page" in bomb or "one text" in bomb
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / name), str(tmp_path / "imported")],
        cwd=ROOT, env={**os.environ, LIMITS: Limits().as_text()}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said, _, megabytes = done.stdout.strip().rpartition("\n")
    assert "--max-import-ratio" in said or "MiB of memory to read" in said, done.stdout
    assert int(megabytes) < 5000, done.stdout
    assert not [path for path in (tmp_path / "imported").rglob("*") if path.is_file()]


def test_bomb_ends_the_run_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dictionary(tmp_path / "a.parquet", 20 * MIB, 100)
    (tmp_path / "meta.json").write_text(json.dumps({"d": {"file_name": "a.parquet"}}))
    command = ["pack", "--meta", str(tmp_path / "meta.json"), "--processor", str(DEMO_PROCESSOR), "--engine", "inline"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert printed_code(printed) == "data-limit" and "a.parquet" in printed and "Traceback" not in printed


def test_import_ratio_is_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files may unpack to anything that is small; larger ones to so many times their size."""
    monkeypatch.setattr(import_limits, "MIN_BYTES", 1000)
    row = b'{"text": "a"}\n'
    compressed(tmp_path / "a.jsonl.gz", "gzip", b"", row, 70)  # 980 bytes
    compressed(tmp_path / "b.jsonl.gz", "gzip", b"", row, 1000)
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        for ratio in (2, 10_000):
            monkeypatch.setenv(LIMITS, Limits(max_import_ratio=ratio).as_text())
            if name == "b.jsonl.gz" and ratio == 2:
                with raises(UserError, "data-limit", option="max_import_ratio"):
                    as_lines(tmp_path / name, tmp_path / f"imported-{ratio}")
            else:
                lines = as_lines(tmp_path / name, tmp_path / f"imported-{ratio}")
                assert set(Path(lines.file).read_bytes().splitlines(keepends=True)) == {row}


def test_memory_of_an_import_is_bounded(tmp_path: Path) -> None:
    """In a run; a program that imports by itself has no such bound. In a process of its own: what others have freed
    there does not count."""
    plain(tmp_path / "a.parquet", 300 * MIB)
    ran = subprocess.run(
        [sys.executable, "-c", BOUNDED_IMPORT, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr


BOUNDED_IMPORT = """
import os, pathlib, resource, sys
from neatpack.errors import UserError
from neatpack.pipeline.ingest import import_limits
from neatpack.pipeline.ingest.kinds import as_lines
from neatpack.pipeline.media.limits import LIMITS, Limits

folder = pathlib.Path(sys.argv[1])
import_limits.MEMORY, import_limits.MIN_BYTES = 100 << 20, 1 << 40
before = resource.getrlimit(resource.RLIMIT_DATA)
os.environ[LIMITS] = Limits().as_text()
try:
    as_lines(folder / "a.parquet", folder / "imported")
except UserError as error:
    assert error.code == "data-limit" and error.fields["file"].endswith("a.parquet"), error
    assert error.fields["limit"] > 100 << 20, error
else:
    raise SystemExit("the import was not refused")
assert resource.getrlimit(resource.RLIMIT_DATA) == before
del os.environ[LIMITS]
lines = as_lines(folder / "a.parquet", folder / "imported")
assert pathlib.Path(lines.file).stat().st_size > 300 << 20
"""


def test_large_rows_of_parquet_are_decoded_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same rows as all at once."""
    rows = [{"text": str(number) * 100, "image": {"bytes": bytes([number]) * 1000}} for number in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=20, use_dictionary=False)
    imported = {}
    for num_bytes in (64 * MIB, 1):
        monkeypatch.setattr(parquet, "BATCH_BYTES", num_bytes)
        with pq.ParquetFile(tmp_path / "a.parquet") as table:
            assert parquet.rows_at_once(table.metadata) == (1 if num_bytes == 1 else 256)
        for how in ("copy", "in-place"):
            lines = as_lines(tmp_path / "a.parquet", tmp_path / f"in-{num_bytes}", parquet_media=how)  # type: ignore[arg-type]
            read = Path(lines.file).read_bytes().replace(f"/in-{num_bytes}/".encode(), b"/")
            assert imported.setdefault(how, read) == read


def test_arrow_file_without_columns_is_refused(tmp_path: Path) -> None:
    """A batch of no columns may claim 2^60 rows."""
    write_arrow(tmp_path / "a.arrow", pa.table({}))
    with raises(UserError, "data-unreadable", columns=[]):
        as_lines(tmp_path / "a.arrow", tmp_path / "imported")


# ---------------------------------------------------------------- tars


def header(name: bytes = b"b.json", size: int = 0, kind: bytes = b"0", magic: bytes = b"ustar  \0") -> bytes:
    """A header of a tar; a negative size as GNU writes large numbers, in base 256."""
    number = b"%011o\0" % size if 0 <= size < 8**11 else b"\xff" * 4 + struct.pack(">q", size)
    if size >= 8**11:
        number = b"\x80" + bytes(3) + struct.pack(">q", size)
    found = bytearray(512)
    found[: len(name)] = name
    found[100:108], found[124:136], found[136:148], found[156:157] = b"0000644\0", number, b"00000000000\0", kind
    found[257:265], found[148:156] = magic, b" " * 8
    found[148:156] = b"%06o\0 " % sum(found)
    return bytes(found)


def attributes(kind: bytes = b"x", **told: str) -> bytes:
    """A pax header that tells these of the next."""
    content = b""
    for name, value in told.items():
        rest = f" {name.replace('_', '.')}={value}\n".encode()
        length = len(rest) + next(digits for digits in (1, 2, 3) if len(str(len(rest) + digits)) == digits)
        content += str(length).encode() + rest
    return header(b"pax", len(content), kind, b"ustar\x0000") + content.ljust(-(-len(content) // 512) * 512, b"\0")


GOOD = b'{"text": "a"}'
MEMBER = header(b"a.json", len(GOOD)) + GOOD.ljust(512, b"\0")
LIES = {
    "a negative size": header(size=-512),
    "a negative size that is no block": header(size=-1),
    "a negative size back to the start": header(size=-2048),
    "a size of 2^62": header(size=1 << 62),
    "a long name of a negative size": header(size=-512, kind=b"L"),
    "a long link of a negative size": header(size=-512, kind=b"K"),
    "attributes of a negative size": header(size=-512, kind=b"x"),
    "a sparse file of a negative size": header(size=-512, kind=b"S"),
    "a kind that nobody knows, of a negative size": header(size=-512, kind=b"Z"),
    "a long name of 4 GB": header(size=1 << 32, kind=b"L"),
    "attributes of 4 GB": header(size=1 << 32, kind=b"x"),
    "a size in the attributes": attributes(size="-2048") + header(),
    "a size in the attributes of all": attributes(b"g", size="-512") + header(),
    "a size of 10^30": attributes(size="1" + "0" * 30) + header(),
    "3,000 long names": header(kind=b"L") * 3000,
    "3,000 attributes": header(kind=b"x", magic=b"ustar\x0000") * 3000,
    "3,000 attributes of all": attributes(b"g", a="b") * 3000,
    "a sparse map that does not end": attributes(GNU_sparse_major="1", GNU_sparse_minor="0") + header(size=512)
    + b"99999999\n".ljust(512, b"0"),
    "a sparse map that is none": attributes(GNU_sparse_map="x") + header(),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("has_end", [True, False])
def test_tar_with_a_header_that_lies_is_refused(lie: str, is_first: bool, has_end: bool, tmp_path: Path) -> None:
    content = LIES[lie] if is_first else MEMBER + LIES[lie]
    (tmp_path / "a.tar").write_bytes(content + bytes(1024 if has_end else 0))
    with pytest.raises(UserError):
        for number, _ in enumerate(tar_rows(tmp_path / "a.tar")):
            assert number < 3


def test_size_below_zero_is_found_before_tarfile_acts_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the version of Python does with it."""
    monkeypatch.setattr(_Header, "_proc_member", lambda *_: pytest.fail("it is acted on"))
    for name in ("a negative size", "a negative size that is no block", "a long name of 4 GB"):
        with pytest.raises(tarfile.ReadError, match="size"):
            _Header.frombuf(LIES[name], "utf-8", "surrogateescape")


def test_tar_with_long_names_is_read(tmp_path: Path) -> None:
    """As tar writes them: GNU, pax, with attributes of all members."""
    for form, more in ((tarfile.GNU_FORMAT, {}), (tarfile.PAX_FORMAT, {"comment": "a" * 2000})):
        with tarfile.open(tmp_path / "a.tar", "w", format=form, pax_headers=more) as tar:
            for number in range(20):
                member = tarfile.TarInfo(f"{'d' * 90}/{'e' * 150}/{number}.json")
                member.size, member.linkname, member.uname = len(GOOD), "f" * 300, "ö"
                tar.addfile(member, io.BytesIO(GOOD))
        rows = list(tar_rows(tmp_path / "a.tar"))
        assert [row["text"] for row in rows] == ["a"] * 20


def test_json_in_a_tar_is_read_up_to_the_longest_row(tmp_path: Path) -> None:
    """A member of 3 GiB of which no block is on disk costs its row."""
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(MEMBER + header(b"big.json", 3 << 30))
        file.seek(3 << 30, os.SEEK_CUR)
        file.write(header(b"text.txt", 200 << 20))
        file.seek(200 << 20, os.SEEK_CUR)
        file.write(MEMBER.replace(b"a.json", b"c.json").replace(MEMBER[148:156], header(b"c.json", len(GOOD))[148:156]))
        file.write(bytes(1024))
    (tmp_path / "meta.json").write_text(json.dumps({"d": {"file_name": "a.tar", "format": "document"}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", max_skipped=1.0))
    found: list[dict[str, Any]] = read_ledger(tmp_path / "out", assert_verified(tmp_path / "out")).to_pylist()
    assert [line["reason"] for line in found] == ["", "bad_row", "bad_row", ""]
    assert "--max-row-bytes 67108864" in found[1]["detail"]
