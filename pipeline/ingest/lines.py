"""Lines of JSON: files cut by byte range, rows numbered before any is parsed.

Files that are not JSONL are rewritten first (see kinds.py), so that everything after this file knows one format.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..config import PackConfig, fingerprint
from ..runtime.storage import Place, open_file, place, sha256_of
from ..runtime.work import did

PART_BYTES = 4 << 20  # about a second of tokenizing; fixed, so that parts do not depend on the number of workers
BEYOND = 64 << 10  # bytes that are read with a part of a file in a store: the rest of its last line
MAX_ROW_BYTES: int = PackConfig().max_row_bytes  # where no config says otherwise
# A row of a rewriting that could not be made: {PROBLEM: why}. It is a row all the same, and ends in the ledger.
PROBLEM = "__problem__"

BLANK = b" \t\r\n\v\f"
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The lines of `file` that start in the bytes [start, end), and the number of the first of them."""

    file: str
    start: int
    end: int
    first_row: int  # 0-based, blank lines not counted
    num_rows: int
    first_line: int  # 1-based, as editors count
    origin: str = ""  # what `file` was rewritten from: a file or a named source; "": it lies as the user has it


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """A data file as JSONL: the file itself or its rewriting, which keeps the digest of what it was made from."""

    file: str
    rewritten_from: str = ""  # sha256
    origin: str = ""  # as of a Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Data files made readable: a digest of their content, and their parts, in order."""

    files: tuple[str, ...]
    digests: tuple[str, ...]  # of each file
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
    size = place(lines.file).stat().st_size
    return [(start, min(size, start + PART_BYTES)) for start in range(0, size, PART_BYTES)]


def scan(lines: Lines, ranges: Sequence[ByteRange]) -> list[RangeCount]:
    """Lines, rows and digest of each byte range: the one pass over the data that numbers its rows."""
    counts = []
    for start, end in ranges:
        texts = [text for _, text in _lines(lines.file, start, end)]
        num_rows = sum(1 for text in texts if text.strip(BLANK))
        counts.append(RangeCount(len(texts), num_rows, sha256_of(lines.file, start, end)))
        did(rows=num_rows, bytes=end - start)
    return counts


def source_of(lines: Lines, ranges: Sequence[ByteRange], counts: Sequence[RangeCount]) -> Source:
    parts, first_row, first_line = [], 0, 1
    for (start, end), count in zip(ranges, counts, strict=True):
        part = Part(
            file=lines.file,
            start=start,
            end=end,
            first_row=first_row,
            num_rows=count.num_rows,
            first_line=first_line,
            origin=lines.origin,
        )
        parts.append(part)
        first_row += count.num_rows
        first_line += count.num_lines
    digest = lines.rewritten_from or fingerprint([count.digest for count in counts])
    return Source(files=(lines.file,), digests=(digest,), digest=digest, parts=tuple(parts))


def joined(sources: Sequence[Source]) -> Source:
    """The files of a data set as one: rows numbered through, lines by file. One file keeps its digest."""
    if len(sources) == 1:
        return sources[0]
    parts: list[Part] = []
    first_row = 0
    for source in sources:
        parts += [replace(part, first_row=part.first_row + first_row) for part in source.parts]
        first_row += source.num_rows
    return Source(
        files=tuple(file for source in sources for file in source.files),
        digests=tuple(source.digest for source in sources),
        digest=fingerprint([source.digest for source in sources]),
        parts=tuple(parts),
    )


class Row(NamedTuple):
    """A row as it lies in its file."""

    number: int  # 0-based, in its data set
    line: int  # 1-based
    offset: int  # of `text` in the file
    text: bytes


def rows(part: Part) -> Iterator[Row]:
    number, line = part.first_row, part.first_line
    for offset, text in _lines(part.file, part.start, part.end):
        if text.strip(BLANK):
            yield Row(number, line, offset, text)
            number += 1
        line += 1


def _lines(file: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    r"""Lines that start in [start, end), with their offsets; split on \n only: a U+2028 is no line break."""
    with open_file(file, max(1, end - start) + BEYOND) as source:
        if start:
            source.seek(start - 1)
            source.readline()  # the rest of a line that belongs to the part before (or just its \n)
        while (position := source.tell()) < end and (line := source.readline()):
            text = line.removeprefix(BOM) if position == 0 else line
            yield position + len(line) - len(text), text


def media_beside(rows_file: str) -> Place:
    """Where a rewriting has the bytes of embedded media."""
    return place(rows_file).with_name("media.bin")


def dumped(row: Any) -> bytes:
    """A row as a line; what JSON has no form for (a date in parquet) becomes text."""
    return json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
