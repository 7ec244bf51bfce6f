"""Every source as lines of JSON: files cut by byte range, rows numbered before any is parsed.

JSONL is read where it lies. A JSON array, a compressed file or parquet is first rewritten as JSONL under the work
directory (embedded media into one `.bin` beside it), so that everything after this file knows one format.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ..config import UserError, fingerprint
from ..runtime.storage import Sink, sha256_of, write_whole

PART_BYTES = 4 << 20  # about a second of tokenizing; fixed, so that parts do not depend on the number of workers
logger = logging.getLogger(__name__)

_BLANK = b" \t\r\n\v\f"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The lines of `file` that start in the bytes [start, end), and the number of the first of them."""

    file: str
    start: int
    end: int
    first_row: int  # 0-based, blank lines not counted
    num_rows: int
    first_line: int  # 1-based, as editors count


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """A data file as JSONL: the file itself or its rewriting, which keeps the digest of what it was made from."""

    file: str
    rewritten_from: str = ""  # sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A data file made readable: a digest of its content, and its parts."""

    file: str
    digest: str
    parts: tuple[Part, ...]

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.parts)


ByteRange = tuple[int, int]  # [start, end)


class RangeCount(NamedTuple):
    """What one pass over a byte range tells."""

    num_lines: int
    num_rows: int  # lines that are not blank
    digest: str


def part_ranges(lines: Lines) -> list[ByteRange]:
    size = os.path.getsize(lines.file)
    return [(start, min(size, start + PART_BYTES)) for start in range(0, size, PART_BYTES)]


def scan(lines: Lines, ranges: Sequence[ByteRange]) -> list[RangeCount]:
    """Lines, rows and digest of each byte range: the one pass over the data that numbers its rows."""
    counts = []
    for start, end in ranges:
        texts = [text for _, text in _lines(Path(lines.file), start, end)]
        num_rows = sum(1 for text in texts if text.strip(_BLANK))
        counts.append(RangeCount(len(texts), num_rows, sha256_of(Path(lines.file), start, end)))
    return counts


def source_of(lines: Lines, ranges: Sequence[ByteRange], counts: Sequence[RangeCount]) -> Source:
    parts, first_row, first_line = [], 0, 1
    for (start, end), count in zip(ranges, counts, strict=True):
        part = Part(
            file=lines.file, start=start, end=end, first_row=first_row, num_rows=count.num_rows, first_line=first_line
        )
        parts.append(part)
        first_row += count.num_rows
        first_line += count.num_lines
    digest = lines.rewritten_from or fingerprint([count.digest for count in counts])
    return Source(file=lines.file, digest=digest, parts=tuple(parts))


def as_lines(file: Path, imported: Path) -> Lines:
    """The file itself if it is JSONL, else a rewriting of it under `imported`, in a folder named by its digest."""
    with open(file, "rb") as head:
        start = head.read(64).removeprefix(_BOM).lstrip(_BLANK)
    if start.startswith(b"version https://git-lfs"):
        raise UserError(f"{file}: a git-LFS pointer, not the data; run `git lfs pull`")
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    packed = bool(suffixes) and suffixes[-1] in (".gz", ".zst")
    suffix = (suffixes[-2] if len(suffixes) > 1 else "") if packed else (suffixes[-1] if suffixes else "")
    if suffix == ".parquet" and not packed:
        return _rewrite(file, imported, _parquet_rows)
    if suffix in (".jsonl", ".ndjson"):
        return _rewrite(file, imported, _unpacked_lines) if packed else Lines(file=str(file))
    if suffix == ".json" and not packed:
        if start.startswith(b"["):
            return _rewrite(file, imported, _array_rows)
        if start.startswith(b"{"):
            return Lines(file=str(file))  # JSONL under another name
        raise UserError(f"{file}: neither a JSON array nor JSON lines; it starts with {start[:20]!r}")
    raise UserError(f"{file}: unknown kind of file; known: .json .jsonl .ndjson .jsonl.gz .jsonl.zst .parquet")


class Row(NamedTuple):
    """A row as it lies in its file."""

    number: int  # 0-based, in its data set
    line: int  # 1-based
    offset: int  # of `text` in the file
    text: bytes


def rows(part: Part) -> Iterator[Row]:
    number, line = part.first_row, part.first_line
    for offset, text in _lines(Path(part.file), part.start, part.end):
        if text.strip(_BLANK):
            yield Row(number, line, offset, text)
            number += 1
        line += 1


def _lines(file: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    r"""Lines that start in [start, end), with their offsets; split on \n only: a U+2028 is no line break."""
    with open(file, "rb") as source:
        if start:
            source.seek(start - 1)
            source.readline()  # the rest of a line that belongs to the part before (or just its \n)
        while (position := source.tell()) < end and (line := source.readline()):
            text = line.removeprefix(_BOM) if position == 0 else line
            yield position + len(line) - len(text), text


def _rewrite(file: Path, imported: Path, write: Callable[[Path, BinaryIO], None]) -> Lines:
    digest = sha256_of(file)
    target = imported / digest / "rows.jsonl"
    if not target.exists():
        logger.info("%s: rewritten as JSONL, once, in %s", file, target.parent)
        with write_whole(target) as out:
            write(file, out)
    return Lines(file=str(target), rewritten_from=digest)


def media_beside(rows_file: str) -> Path:
    """Where a rewriting has the bytes of embedded media."""
    return Path(rows_file).with_name("media.bin")


def dumped(row: Any) -> bytes:
    """A row as a line; what JSON has no form for (a date in parquet) becomes text."""
    return json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"


def _array_rows(file: Path, out: BinaryIO) -> None:
    """Element by element: the file's text is in memory once, its parsed rows never are."""
    try:
        text = file.read_bytes().removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8: {error}") from None
    decoder, space = json.JSONDecoder(), " \t\r\n"

    def skip(position: int) -> int:
        while position < len(text) and text[position] in space:
            position += 1
        return position

    def fail(position: int, message: str) -> UserError:
        return UserError(f"{file}: broken JSON array at line {text.count(chr(10), 0, position) + 1}: {message}")

    position = skip(text.index("[") + 1)
    more = text[position : position + 1] != "]"
    while more:
        try:
            row, end = decoder.raw_decode(text, position)
            out.write(dumped(row))
        except json.JSONDecodeError as error:
            raise fail(error.pos, error.msg) from None
        except RecursionError:
            raise fail(position, "too deeply nested") from None
        except ValueError as error:  # a number of thousands of digits
            raise fail(position, str(error)) from None
        position = skip(end)
        more = text[position : position + 1] == ","
        if more:
            position = skip(position + 1)
        elif text[position : position + 1] != "]":
            raise fail(position, "expected , or ] after an element")
    position = skip(position + 1)
    if position < len(text):
        raise fail(position, "text after the array; is it two files in one?")


def _unpacked_lines(file: Path, out: BinaryIO) -> None:
    kind = "gzip" if file.suffix.lower() == ".gz" else "zstd"
    try:
        # Arrow's streams read on where one frame ends and another begins, and refuse a file that ends inside one.
        with pa.input_stream(str(file), compression=kind) as source:
            while block := source.read(1 << 20):
                out.write(block)
    except OSError as error:
        raise UserError(f"{file}: cannot be decompressed: {error}") from None


def _parquet_rows(file: Path, out: BinaryIO) -> None:
    """Rows as JSON; bytes of embedded media go to `media.bin` beside, and the row points there."""
    media_path = media_beside(out.name)
    with write_whole(media_path) as media:
        try:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    out.write(dumped(with_bytes_moved(row, media, str(media_path))))
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{file}: not a readable parquet file: {error}") from None


class MediaFile(Sink, Protocol):
    """Where the bytes of media are collected, end to end."""

    def tell(self) -> int: ...


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
