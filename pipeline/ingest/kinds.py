"""Every kind of data file as lines of JSON.

JSONL is read where it lies. Everything else is rewritten as JSONL once, under the work directory, in a folder named by
what it was made from. Embedded media stay where they are if their bytes lie in the file as they are (tar, Arrow): the
row then has path, offset and length. Otherwise (parquet, compressed Arrow) they go into one `media.bin` beside it.
Parquet can be read in place, too, if the user wants it, but only by whole row groups: 100 pictures are read and
decompressed for one.
"""

import codecs
import csv
import io
import json
import logging
import lzma
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from neatpack.format.layout import MediaKind
from neatpack.format.manifest import fingerprint
from neatpack.storage.files import Sink, local_copy, sha256_of, write_whole
from neatpack.storage.location import Location, PathLike
from neatpack.storage.uris import redact_uri

from ..config import ParquetMedia, UserError
from ..media.limits import limits
from ..media.parquet import Cell, batches, rows_at_once
from .arrow import arrow_rows, rows_of
from .import_limits import BoundedReader, UnpackedBytes, bounded_memory
from .lines import BLANK, BOM, PROBLEM, Lines, dumped, media_beside
from .tars import COLUMNS, KIND_OF, tar_rows
from .twice import problems

TEXT_KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
BINARY_KINDS = (".parquet", ".arrow", ".feather", ".tar")
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
KNOWN = f"{' '.join(TEXT_KINDS)} (also with {' or '.join(COMPRESSED)}) {' '.join(BINARY_KINDS)}"
_GOES_ON = re.compile(rb"\s*\{[ \t]*\r?\n")  # as what is indented begins
_ARRAY = re.compile(rb"\s*\[\s*\{")
_MAGIC = {
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"BZh": ".bz2",
    b"\xfd7zXZ\0": ".xz",
    b"PAR1": ".parquet",
    b"ARROW1\0\0": ".arrow",
}
_TO_UTF8 = "Save it as UTF-8 (Excel: CSV UTF-8), or iconv -f ENCODING -t UTF-8"
_OTHER_COMPRESSIONS = (".7z", ".br", ".gzip", ".lz4", ".lzma", ".lzo", ".snappy", ".z", ".zip", ".zstd")
_XZ_MEMORY = 1 << 30  # bytes that a stream may ask for; xz -9 takes 65 MiB
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")

logger = logging.getLogger(__name__)


class MediaFile(Sink, Protocol):
    """Where the bytes of media are collected, end to end."""

    def tell(self) -> int: ...


class _Beside:
    """A `media.bin` that is there only if something is written to it."""

    def __init__(self, path: Location) -> None:
        self.path, self._stack = path, ExitStack()
        self._file: BinaryIO | None = None
        self._num_bytes = 0

    def __enter__(self) -> "_Beside":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write(self, data: bytes | memoryview, /) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(write_whole(self.path))
        self._file.write(data)
        self._num_bytes += len(data)

    def tell(self) -> int:
        return self._num_bytes


Reader = Callable[["DataFile", _Beside], Iterator[bytes]]  # a file -> its rewriting, piece by piece


def kind_of(file: Location) -> str:
    """The suffix of a data file without that of its compression: ".jsonl"; "" for what is no data file."""
    name = file.name.lower()
    if name.endswith(_COMPRESSED_TARS):
        return ".tar.*"
    stem, suffix = os.path.splitext(name)
    if suffix in COMPRESSED:
        inner = os.path.splitext(stem)[1]
        return inner if inner in TEXT_KINDS else ""
    return suffix if suffix in TEXT_KINDS + BINARY_KINDS else ""


def is_packed_otherwise(file: Location) -> bool:
    """Whether its name is that of a data file in a compression that is not read: "a.jsonl.lz4", "a.parquet.gz"."""
    stem, suffix = os.path.splitext(file.name.lower())
    is_packed = suffix in COMPRESSED or suffix in _OTHER_COMPRESSIONS
    return is_packed and not kind_of(file) and os.path.splitext(stem)[1] in TEXT_KINDS + BINARY_KINDS


def as_lines(
    file: PathLike, imported: PathLike, columns: Mapping[MediaKind, str] = COLUMNS, parquet_media: ParquetMedia = "copy"
) -> Lines:
    """The file itself if it is JSONL, else a rewriting of it under `imported`. `columns`: where a tar's media go."""
    file, imported = Location.parse(file).absolute(), Location.parse(imported)  # rows of a rewriting may name it
    with file.open(64) as head:
        start = head.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise UserError(
            f"{file}: a git-LFS pointer, not the data; run `git lfs pull`",
            code="data-format",
            file=str(file),
            kind="git-lfs",
        )
    kind, is_compressed = kind_of(file), file.suffix.lower() in COMPRESSED
    if kind in TEXT_KINDS and not is_compressed:
        _check_start(file, kind, start)
    if kind == ".tar.*":
        raise UserError(
            f"{file}: a compressed tar, which cannot be read in place; unpack the compression (gunzip, unzstd …) and "
            "give the .tar",
            code="data-format",
            file=str(file),
            kind=kind,
        )
    if kind == ".tar":
        names = [columns[medium] for medium in COLUMNS]
        longest = str(limits().max_row_bytes)  # of which depends what a row of the rewriting is
        return _rewrite(file, imported, partial(_tar_rows, columns), file.uri, *names, *KIND_OF, longest)
    if kind in (".arrow", ".feather"):
        return _rewrite(file, imported, _arrow_rows, file.uri)
    if kind == ".parquet":
        if parquet_media == "in-place":
            return _rewrite(file, imported, _parquet_rows_in_place, file.uri, parquet_media)
        return _rewrite(file, imported, _parquet_rows)
    if kind in (".csv", ".tsv"):
        return _rewrite(file, imported, _table_rows)
    if kind == ".json":
        return _json_lines(file, imported, is_compressed=is_compressed)
    if kind:
        return _rewrite(file, imported, _unpacked_lines) if is_compressed else Lines(file=file.uri)
    raise UserError(f"{file}: unknown kind of file; known: {KNOWN}", code="data-format", file=str(file))


def _check_start(file: Location, kind: str, start: bytes) -> None:
    """Refuses a text whose every line would be a broken row."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{file}: UTF-16; expected UTF-8. {_TO_UTF8}", code="data-format", file=str(file), kind="utf-16"
        )
    if other := next((suffix for magic, suffix in _MAGIC.items() if start.startswith(magic)), None):
        raise UserError(
            f"{file}: its content is that of a {other}; give it a name that ends so",
            code="data-format",
            file=str(file),
            kind=other,
        )
    if kind in (".jsonl", ".ndjson") and _ARRAY.match(start.removeprefix(BOM)):
        raise UserError(
            f"{file}: an array of objects; expected an object on each line. Call it .json, or jq -c '.[]'",
            code="data-format",
            file=str(file),
            kind="array",
        )
    if kind not in (".csv", ".tsv") and _GOES_ON.match(start.removeprefix(BOM)):
        raise UserError(
            f"{file}: an object that goes on over several lines; expected an object on each line, or an array of them "
            f"in a .json: jq -c . {file.name} > new.jsonl, or .data[] instead of . if that is where its rows are",
            code="data-format",
            file=str(file),
            kind="object",
        )


def _json_lines(file: Location, imported: Location, *, is_compressed: bool) -> Lines:
    with local_copy(file) as copy, _content(DataFile(file.uri, copy)) as content:
        start = content.read(64).removeprefix(BOM).lstrip(BLANK)
    if start.startswith(b"["):
        return _rewrite(file, imported, _array_rows)
    if start.startswith(b"{"):  # JSONL under another name
        return _rewrite(file, imported, _unpacked_lines) if is_compressed else Lines(file=file.uri)
    raise UserError(
        f"{file}: neither a JSON array nor JSON lines; it starts with {start[:20]!r}",
        code="data-format",
        file=str(file),
    )


def _rewrite(file: Location, imported: Location, read: Reader, *also: str) -> Lines:
    """`also`: what the rewriting depends on besides the file's content, as its place if rows name it."""
    with local_copy(file) as copy:  # gone through twice, for its digest and for its rows
        digest = sha256_of(copy)
        target = imported / (fingerprint(digest, *also) if also else digest) / "rows.jsonl"
        if not target.exists():
            logger.info("%s: rewritten as JSONL, once, in %s", file, target.parent)
            beside = media_beside(target.uri)
            size, num_bytes = copy.stat().st_size, 0
            unpacked = UnpackedBytes(file, size)
            # Media are there first, rows last.
            with bounded_memory(file, size), write_whole(target) as out, _Beside(beside) as media:
                for piece in read(DataFile(file.uri, copy), media):
                    num_bytes += len(piece)
                    unpacked.check(num_bytes + media.tell())
                    out.write(piece)
                if media.tell():
                    logger.info("%s: %d bytes of media copied out of it into %s", file, media.tell(), media.path)
    return Lines(file=target.uri, rewritten_from=digest, origin=file.uri)


class DataFile(NamedTuple):
    """A data file that is rewritten."""

    name: str  # by which rows name it, and people
    copy: Location  # its bytes: the file itself, or a copy of one in a store

    def __str__(self) -> str:
        return redact_uri(self.name)


@contextmanager
def _content(file: DataFile) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed where its name says so."""
    compression = COMPRESSED.get(file.copy.suffix.lower())
    try:
        with ExitStack() as stack:
            content = stack.enter_context(Location.parse(file.copy).open())
            if compression == "xz":
                content = stack.enter_context(io.BufferedReader(_Xz(content), 1 << 20))
            elif compression is not None:
                # Arrow's streams read on where one frame ends and another begins, and refuse a file that ends inside.
                content = stack.enter_context(pa.input_stream(content, compression=compression))
            if compression is not None:
                unpacked = UnpackedBytes(file, file.copy.stat().st_size)
                content = stack.enter_context(io.BufferedReader(BoundedReader(content, unpacked), 1 << 20))
            yield content
    except OSError as error:
        if compression is None:
            raise
        raise UserError(
            f"{file}: cannot be decompressed: {error}; write or download it again, or call it by what it is",
            code="data-unreadable",
            file=str(file),
        ) from None


class _Xz(io.RawIOBase):
    """The content of an xz file, to its very end: Arrow knows none, and lzma.LZMAFile takes no notice of what follows
    the last stream."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._stream, self._ahead = (
            packed,
            lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
            b"",
        )
        self._is_between = True  # before a stream, where a file may end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._read(len(buffer))
        except lzma.LZMAError as error:
            raise OSError(str(error)) from None
        buffer[: len(found)] = found
        return len(found)

    def _read(self, size: int) -> bytes:
        while True:
            if self._stream.eof:
                self._ahead = self._stream.unused_data
                self._stream, self._is_between = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY), True
            if self._stream.needs_input and not self._ahead:
                self._ahead = self._packed.read(1 << 20)
                if not self._ahead and self._is_between:
                    return b""
                if not self._ahead:
                    raise lzma.LZMAError("it ends inside of a stream")
            if self._is_between:
                self._ahead = self._ahead.lstrip(b"\0")  # with which streams may be filled up
                self._is_between = not self._ahead
                if self._is_between:
                    continue
            found, self._ahead = self._stream.decompress(self._ahead, size), b""
            if found:
                return found


def _unpacked_lines(file: DataFile, _: _Beside) -> Iterator[bytes]:
    with _content(file) as content:
        while block := content.read(1 << 20):
            yield block


def _array_rows(file: DataFile, _: _Beside) -> Iterator[bytes]:
    """Element by element: the file's text is in memory once, its parsed rows never are."""
    with _content(file) as content:
        whole = content.read()
    try:
        text = whole.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8: {error}", code="data-unreadable", file=str(file)) from None
    decoder, space = json.JSONDecoder(), " \t\r\n"

    def skip(position: int) -> int:
        while position < len(text) and text[position] in space:
            position += 1
        return position

    def line_of(position: int) -> int:
        return text.count("\n", 0, position) + 1

    def fail(position: int, message: str) -> UserError:
        return UserError(
            f"{file}: broken JSON array at line {line_of(position)}: {message}",
            code="data-unreadable",
            file=str(file),
            line=line_of(position),
        )

    position = skip(text.index("[") + 1)
    more = text[position : position + 1] != "]"
    while more:
        try:
            row, end = decoder.raw_decode(text, position)
            if problem := problems([text[position:end].encode("utf-8")], [row]):
                row = {PROBLEM: f"line {line_of(position)}: {problem[0]}"}
            line = dumped(row)
        except json.JSONDecodeError as error:
            raise fail(error.pos, error.msg) from None
        except RecursionError:
            raise fail(position, "too deeply nested") from None
        except ValueError as error:  # a number of thousands of digits
            raise fail(position, str(error)) from None
        yield line
        position = skip(end)
        more = text[position : position + 1] == ","
        if more:
            position = skip(position + 1)
        elif text[position : position + 1] != "]":
            raise fail(position, "expected , or ] after an element")
    position = skip(position + 1)
    if position < len(text):
        raise fail(position, "text after the array; is it two files in one?")


def _table_rows(file: DataFile, _: _Beside) -> Iterator[bytes]:
    """Of CSV and TSV: every cell is a text, and an empty one is absent."""
    csv.field_size_limit(sys.maxsize)  # the default refuses cells above 128 KiB, and a conversation may have more
    dialect = "excel-tab" if kind_of(file.copy) == ".tsv" else "excel"
    with _content(file) as content:
        # strict: otherwise a quote that is never closed takes all rows that follow into its cell.
        table = csv.reader(io.TextIOWrapper(content, "utf-8-sig", newline=""), dialect, strict=True)
        try:
            header = next(table, None)
            if header is None:
                return  # an empty file
            # Not the first: it is "" where pandas writes its index.
            if not any(header) or "" in header[1:] or len(set(header)) < len(header):
                raise UserError(
                    f"{file}: the first line must name the columns, each differently; got {header}",
                    code="data-unreadable",
                    file=str(file),
                    line=1,
                    columns=header,
                )
            if len(header) == 1 and (other := next((mark for mark in ";\t," if mark in header[0]), None)):
                mark = "tabs" if dialect == "excel-tab" else "commas"
                raise UserError(
                    f"{file}: one column, {header[0]!r}, with {other!r} in its name; expected {mark} between columns: "
                    "commas in a .csv, tabs in a .tsv. Save it with these, or under the other name",
                    code="data-unreadable",
                    file=str(file),
                    line=1,
                    columns=header,
                )
            for cells in table:
                if len(cells) > len(header):
                    told = f"line {table.line_num}: {len(cells)} cells where the first line names {len(header)} columns"
                    yield dumped({PROBLEM: told})
                elif cells:  # a blank line is no row
                    yield dumped({name: cell for name, cell in zip(header, cells, strict=False) if cell})
        except csv.Error as error:
            raise UserError(
                f"{file}: line {table.line_num}: {error}; is a quotation mark not doubled?",
                code="data-unreadable",
                file=str(file),
                line=table.line_num,
            ) from None
        except UnicodeDecodeError as error:
            raise UserError(f"{file}: not UTF-8: {error}. {_TO_UTF8}", code="data-unreadable", file=str(file)) from None


def _parquet_rows(file: DataFile, media: _Beside) -> Iterator[bytes]:
    """Rows as JSON; bytes of embedded media go to `media.bin` beside, and the row points there."""
    try:
        with pq.ParquetFile(file.copy) as table:
            for batch in table.iter_batches(batch_size=rows_at_once(table.metadata)):
                for row in batch.to_pylist():
                    yield dumped(with_bytes_moved(row, media, media.path.uri))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise UserError(
            f"{file}: not a readable parquet file: {error}", code="data-unreadable", file=str(file)
        ) from None


def _parquet_rows_in_place(file: DataFile, media: _Beside) -> Iterator[bytes]:
    """Rows as JSON; embedded media by the cell they are in."""
    try:
        with pq.ParquetFile(file.copy) as table:
            num_groups = table.num_row_groups
        for group in range(num_groups):
            counts: Counter[tuple[str, ...]] = Counter()
            for batch in batches(file.copy, group):
                for row in rows_of(batch, partial(_cells, file.name, group, counts)):
                    yield dumped(with_bytes_moved(row, media, media.path.uri))  # what is in no cell of its own
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise UserError(
            f"{file}: not a readable parquet file: {error}", code="data-unreadable", file=str(file)
        ) from None


def _cells(
    file: str, group: int, counts: Counter[tuple[str, ...]], array: pa.Array, column: tuple[str, ...]
) -> list[Any]:
    """`counts`: the values of each column that are counted already; these follow."""
    first = counts[column]
    counts[column] += len(array)
    return [
        {"path": file, "cell": str(Cell(row_group=group, number=number, column=column))} if is_there else None
        for number, is_there in enumerate(array.is_valid().to_pylist(), first)
    ]


def _tar_rows(columns: Mapping[MediaKind, str], file: DataFile, _: _Beside) -> Iterator[bytes]:
    return map(dumped, tar_rows(file.copy, columns, file.name))


def _arrow_rows(file: DataFile, media: _Beside) -> Iterator[bytes]:
    for row in arrow_rows(file.copy, file.name):
        yield dumped(with_bytes_moved(row, media, media.path.uri))


def with_bytes_moved(value: Any, media: MediaFile, path: str) -> Any:
    """A JSON value of the row (or of a part of it): its bytes move to the end of `media`, and `path` and offset stay.

    {"image": b"abc"} and 10 bytes in media.bin -> {"image": {"path": "media.bin", "offset": 10, "length": 3}}
    """
    if isinstance(value, bytes):
        value = {"bytes": value}
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        start = media.tell()
        media.write(value["bytes"])
        return {"path": path, "offset": start, "length": len(value["bytes"])}
    if isinstance(value, dict):
        return {key: with_bytes_moved(item, media, path) for key, item in value.items()}
    if isinstance(value, list):
        return [with_bytes_moved(item, media, path) for item in value]
    return value
