"""Lines of JSON: files cut by byte range, rows numbered before any is parsed.

Files that are not JSONL are rewritten first (see kinds.py), so that everything after this file knows one format.
"""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple

from neatpack.format.manifest import fingerprint
from neatpack.storage.location import Location
from neatpack.storage.uris import is_stored

from ..config import PackConfig
from ..runtime.even import even_ends
from ..runtime.work import did

RANGE_BYTES = 4 << 20  # that have a digest of their own, of which that of the content is made
# A part is of one range, and has so many seconds of measuring at most, unless a single row has more. Fixed, like the
# range, so that parts do not depend on the number of workers.
PART_SECONDS = 0.25
BEYOND = 64 << 10  # bytes that are read with a part of a file in a store: the rest of its last line
_PIECE = 1 << 20  # bytes of a long line that are read at once
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
    seconds: float = 0.0  # about what measuring it takes on one core
    origin: str = ""  # what `file` was rewritten from: a file or a named source; "": it lies as the user has it
    digest: str = ""  # of the bytes that its lines are in: its range and the rest of the last line

    @property
    def byte_range(self) -> tuple[str, int]:
        """Which range it is of: the file, and the number of the range in it."""
        return self.file, self.start // RANGE_BYTES

    @property
    def media_files(self) -> tuple[str, ...]:
        """What a rewriting names as places of media: what it was made from, and what was copied out of that."""
        if not self.origin:
            return ()
        is_file = os.path.isabs(self.origin) or is_stored(self.origin)
        return (*((self.origin,) if is_file else ()), media_beside(self.file).uri)


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


class Cut(NamedTuple):
    """The lines of a part, before it is known how many come before it."""

    start: int
    num_lines: int
    num_rows: int  # lines that are not blank
    seconds: float


class RangeCount(NamedTuple):
    """What one pass over a byte range tells."""

    digest: str
    cuts: tuple[Cut, ...]  # one at least
    beyond: str  # digest of what its last line has behind its end


def part_ranges(lines: Lines) -> list[ByteRange]:
    size = Location.parse(lines.file).stat().st_size
    return [(start, min(size, start + RANGE_BYTES)) for start in range(0, size, RANGE_BYTES)]


def scan(lines: Lines, ranges: Sequence[ByteRange]) -> list[RangeCount]:
    """Digest and parts of each byte range: the one pass over the data that numbers its rows."""
    counts = []
    with Location.parse(lines.file).open(BEYOND) as source:
        for start, end in ranges:
            inside, beyond = hashlib.sha256(), hashlib.sha256()
            found = [
                (offset, row_seconds(text))
                for offset, text in _lines(source, start, end, MAX_ROW_BYTES, (inside, beyond))
            ]
            cuts = _cut(start, found)
            counts.append(RangeCount(inside.hexdigest(), cuts, beyond.hexdigest()))
            did(rows=sum(cut.num_rows for cut in cuts), bytes=end - start)
    return counts


def _cut(start: int, lines: Sequence[tuple[int, float]]) -> tuple[Cut, ...]:
    """Lines with their offsets and seconds, as parts of about equal seconds."""
    seconds = [each for _, each in lines]
    cuts: list[Cut] = []
    for first, end in itertools.pairwise([0, *even_ends(seconds, PART_SECONDS)]):
        own = seconds[first:end]
        cuts.append(Cut(lines[first][0] if cuts else start, len(own), sum(each > 0 for each in own), sum(own)))
    return tuple(cuts) or (Cut(start, 0, 0, 0.0),)


# Seconds that measuring takes on one core, by what can be told of a row without parsing it: fitted to 48 parts of 17
# real data sets, with the tokenizer of Qwen2.5-VL. A row, an object in it (a turn, mostly), a byte of ASCII, and one of
# other writing, which has more tokens: alpaca, 884 bytes, 240 us; in Chinese, 652 bytes, 260 us; dialogues of 18 turns
# and 1,605 bytes, 420 us. The header of a JPEG is mostly read without Pillow, that of others by it; the packets of a
# clip of 5 s are counted. That of a picture inside the row: 1 ms and 5 ns a byte.
ROW_SECONDS, OBJECT_SECONDS, BYTE_SECONDS, OTHER_BYTE_SECONDS = 130e-6, 8.5e-6, 0.08e-6, 0.18e-6
JPEG_SECONDS, PICTURE_SECONDS, VIDEO_SECONDS, AUDIO_SECONDS = 0.18e-3, 0.38e-3, 18e-3, 5e-3
INSIDE_SECONDS, INSIDE_BYTE_SECONDS = 1e-3, 5e-9
_LONG = 16 << 10  # bytes of a line from which on it is looked whether most of it is a medium
_ENDING = re.compile(rb'\.([A-Za-z0-9]{2,5})["?]')  # of the name of a file, or of a URL
_ENDINGS = {
    ending: seconds
    for seconds, endings in (
        (JPEG_SECONDS, b"jpg jpeg"),
        (PICTURE_SECONDS, b"png webp gif bmp tif tiff avif"),
        (VIDEO_SECONDS, b"mp4 avi mkv mov webm m4v mpg mpeg"),
        (AUDIO_SECONDS, b"mp3 wav flac ogg m4a opus aac"),
    )
    for ending in endings.split()
}
_PLACES = (b'"offset":', b'"cell":')  # of media in our rewritings, beside their path; pictures mostly
_ASCII = bytes(range(128))


def row_seconds(line: bytes) -> float:
    """About what measuring a row takes; 0 for a blank line. Parts are cut by it: nothing else depends on it."""
    return text_seconds(line) + media_seconds(line) if line.strip(BLANK) else 0.0


def media_seconds(line: bytes) -> float:
    """Of it, what the media take that it names."""
    seconds = 0.0
    if endings := _ENDING.findall(line):
        seconds += sum(_ENDINGS.get(ending.lower(), 0.0) for ending in endings)
    if b'"path": ' in line:
        seconds += PICTURE_SECONDS * sum(map(line.count, _PLACES))
    return seconds


def text_seconds(line: bytes) -> float:
    """All else that measuring it takes."""
    seconds = ROW_SECONDS + OBJECT_SECONDS * line.count(b'{"')  # JSON that a text quotes has a backslash between
    if line.isascii():
        if len(line) > _LONG and 50 * line.count(b" ") < len(line):  # base64 has no spaces, text has
            return seconds + INSIDE_SECONDS + INSIDE_BYTE_SECONDS * len(line)
        return seconds + BYTE_SECONDS * len(line)
    others = len(line.translate(None, _ASCII))
    return seconds + BYTE_SECONDS * (len(line) - others) + OTHER_BYTE_SECONDS * others


def source_of(lines: Lines, ranges: Sequence[ByteRange], counts: Sequence[RangeCount]) -> Source:
    parts, first_row, first_line = [], 0, 1
    for (_, end), count in zip(ranges, counts, strict=True):
        ends = [cut.start for cut in count.cuts[1:]] + [end]
        content = fingerprint(lines.rewritten_from, count.digest, count.beyond)
        for cut, own_end in zip(count.cuts, ends, strict=True):
            part = Part(
                file=lines.file,
                start=cut.start,
                end=own_end,
                first_row=first_row,
                num_rows=cut.num_rows,
                first_line=first_line,
                seconds=cut.seconds,
                origin=lines.origin,
                digest=content,
            )
            parts.append(part)
            first_row += cut.num_rows
            first_line += cut.num_lines
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


def rows(part: Part, max_bytes: int = 0) -> Iterator[Row]:
    """Yield the rows of a part. Of a line with more bytes than `max_bytes`, if it is given, one byte more than that is
    read: enough to see that it is too long, and not the gigabytes that it may have."""
    number, line = part.first_row, part.first_line
    with Location.parse(part.file).open(BEYOND) as source:
        for offset, text in _lines(source, part.start, part.end, max_bytes):
            if text.strip(BLANK):
                yield Row(number, line, offset, text)
                number += 1
            line += 1


def _lines(
    source: BinaryIO,
    start: int,
    end: int,
    max_bytes: int = 0,
    digests: "tuple[hashlib._Hash, hashlib._Hash] | None" = None,
) -> Iterator[tuple[int, bytes]]:
    r"""Lines that start in [start, end), with their offsets; split on \n only: a U+2028 is no line break.

    The range is read at once: in a store, by one request, and one more for the rest of its last line, of which all is
    read and `max_bytes` are kept. `digests` get the bytes of the range, and those of that rest.
    """
    before = 1 if start else 0  # a line begins at `start` if the one before ends there
    source.seek(start - before)
    block = source.read(end - start + before)
    if digests is not None:
        digests[0].update(memoryview(block)[before:])
    at = block.find(b"\n") + 1 if before else 0
    if before and not at:
        return  # it is all in the middle of a line, which belongs to the part where it begins
    while at < len(block):
        stop = block.find(b"\n", at) + 1
        line = block[at:stop] if stop else block[at:] + _rest_of_line(source, max_bytes, digests and digests[1])
        if 0 < max_bytes < len(line):
            line = line[:max_bytes] + _mark(line[max_bytes:])
        position = start - before + at
        text = line.removeprefix(BOM) if position == 0 else line
        yield position + len(line) - len(text), text
        at = stop or len(block)


def _rest_of_line(source: BinaryIO, max_bytes: int, digest: "hashlib._Hash | None") -> bytes:
    """Read on to the end of a line. Return what follows, or its first bytes, more than `max_bytes`, and a mark."""
    kept: list[bytes] = []
    num_kept = 0
    while piece := source.readline(_PIECE):
        if digest is not None:
            digest.update(piece)
        is_over = 0 < max_bytes < num_kept
        kept.append(_mark(piece) if is_over else piece)
        num_kept += len(kept[-1])
        if piece.endswith(b"\n"):
            break
    return b"".join(kept)


def _mark(rest: bytes) -> bytes:
    """Return one byte for the rest of a line, blank if that is: so a line that is cut off stays blank or not."""
    return b"#" if rest.strip(BLANK) else b" "


def media_beside(rows_file: str) -> Location:
    """Where a rewriting has the bytes of embedded media."""
    return Location.parse(rows_file).with_name("media.bin")


def constant(name: str) -> float | None:
    """NaN, Infinity or -Infinity, which Python writes into JSON. NaN is what pandas has for a cell without anything."""
    return None if name == "NaN" else float(name)


def dumped(row: Any) -> bytes:
    """A row as a line; what JSON has no form for (a date in parquet) becomes text."""
    return json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
