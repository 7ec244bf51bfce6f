"""The token store: per part of a data file an Arrow file with one line per row read, good or skipped, which planning
reads, and beside it the good rows themselves, end to end, each read by its place.

What planning needs of a row are 60 bytes; its tokens and media are a few KB. A shard draws its rows from all over the
store, so each is one stretch of bytes: on disk one read, in a store one request, or less where several lie together.
"""

import dataclasses
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng import zlib_ng

from neatpack.format.layout import Form, MediaKind
from neatpack.storage.files import write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import open_arrow, write_arrow

from ..ingest.lines import Part
from ..media.stamp import content_of, is_changed
from ..records import NO_MEDIA, Measured, MeasuredMedia, MediaRef, Skip

_INT32 = np.dtype("<i4")
_CRC32 = struct.Struct("<I")
# A row: crc32 of what follows, its number, how many ids, how many numbers of targets, bytes of JSON; then these three.
_HEAD = struct.Struct("<IqIII")
_NO_MEDIA = b",[]]"  # how the JSON of a row ends that has none, and no other: see `_packed`
_JSON = json.JSONDecoder()  # its raw_decode takes a fifth of the time of json.loads, of so short a text
_OF_REF = ("kind", "path", "offset", "length", "inside")  # fields of a MediaRef that are kept, beside its frames
_OF_MEDIUM = tuple(field.name for field in dataclasses.fields(MeasuredMedia) if field.name != "ref")
_OF_MEASURED = ("tokens", "form", "loss", "visual_tokens", "audio_tokens", "media_bytes", "picture_bytes")  # likewise
_of_ref, _of_medium, _of_measured = (attrgetter(*names) for names in ((*_OF_REF, "frames"), _OF_MEDIUM, _OF_MEASURED))
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("tokens", pa.int32()),
        ("visual_tokens", pa.int32()),
        ("audio_tokens", pa.int32()),
        ("media_bytes", pa.int64()),
        ("picture_bytes", pa.int64()),
        ("reason", pa.string()),  # "" for a good row
        ("detail", pa.string()),
        ("id", pa.string()),  # what the row calls itself, or ""
        ("group", pa.int64()),  # the same number for rows that are about the same thing; 0: of none
        ("at", pa.int64()),  # where in the file of rows it is, and how long; of a skipped row nothing is there
        ("size", pa.int32()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPart:
    """A part of a data file and its file in the token store."""

    corpus: int  # index into the run's corpora
    part: Part
    path: Location


def rows_beside(path: Location) -> Location:
    return path.with_suffix(".rows")


def write_measured(
    path: Location,
    numbers: Sequence[int],
    ids: Sequence[str],
    results: Sequence[Measured | Skip],
    groups: Sequence[int] | None = None,
) -> None:
    """Write a part. `ids`: what each row calls itself. The index is last: its existence means that it is measured."""
    rows = [
        _packed(number, result) if isinstance(result, Measured) else b""
        for number, result in zip(numbers, results, strict=True)
    ]
    with write_whole(rows_beside(path), durable=False) as file:  # each row has a checksum
        file.write(b"".join(rows))
    sizes = np.array(list(map(len, rows)), dtype=np.int64)
    skips = [result if isinstance(result, Skip) else None for result in results]
    columns: dict[str, Any] = {
        "row": numbers,
        **{
            name: [getattr(result, name, 0) for result in results]  # a Skip has some of them
            for name in ("tokens", "visual_tokens", "audio_tokens", "media_bytes", "picture_bytes")
        },
        **{name: [getattr(skip, name) if skip else "" for skip in skips] for name in ("reason", "detail")},
        "id": ids,
        "group": [0] * len(ids) if groups is None else groups,
        "at": np.cumsum(sizes) - sizes,
        "size": sizes,
    }
    write_arrow(path, pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA))


def _packed(number: int, measured: Measured) -> bytes:
    """A row as bytes: see `_HEAD`. Its JSON are values alone, [_OF_MEASURED, [medium, …]], and of a medium _OF_REF, the
    files of its frames, and _OF_MEDIUM: names would be a quarter of a row with a picture."""
    media = [(*_of_ref(each.ref), *_of_medium(each)) for each in measured.media]
    text = _as_json((_of_measured(measured), media)).encode(errors="surrogatepass")
    ids, targets = measured.ids.astype(_INT32, copy=False), measured.targets.astype(_INT32, copy=False)
    head = _HEAD.pack(0, number, ids.size, targets.size, len(text))
    rest = b"".join([head[_CRC32.size :], ids.tobytes(), targets.tobytes(), text])
    return _CRC32.pack(zlib_ng.crc32(rest)) + rest


def _plain(value: Any) -> Any:
    """A number of numpy's, as rules of families give them."""
    return value.item()


_as_json = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_plain).encode


def unpacked(number: int, content: bytes | memoryview) -> Measured | None:
    """A row from its bytes; None where they are not those of this row: its part was measured again."""
    if len(content) < _HEAD.size:
        return None
    crc32, found, num_ids, num_targets, _ = _HEAD.unpack_from(content)
    if found != number or zlib_ng.crc32(content[4:]) != crc32:
        return None
    numbers = np.frombuffer(content, "<i4", num_ids + num_targets, _HEAD.size)
    (values, media), _ = _JSON.raw_decode(str(content[_HEAD.size + numbers.nbytes :], "utf-8", "surrogatepass"))
    return Measured(
        ids=numbers[:num_ids],
        targets=numbers[num_ids:].reshape(-1, 2),
        media=tuple(map(_medium, media)),
        **dict(zip(_OF_MEASURED, values, strict=True)),
    )


class TextRow(NamedTuple):
    """What a document of text needs of its row, as the bytes of that: a pack makes one array of all of them."""

    ids: memoryview  # of int32, as in `Measured`
    targets: memoryview
    tokens: int
    form: Form
    loss: str

    @property
    def media(self) -> tuple[()]:
        return ()

    @property
    def num_media(self) -> Mapping[MediaKind, int]:
        return NO_MEDIA


def text_row(number: int, content: memoryview) -> TextRow | None:
    """A row without media from its bytes, in a third of the time of `unpacked`; None: it has some, or is another."""
    if content[-len(_NO_MEDIA) :] != _NO_MEDIA or len(content) < _HEAD.size:
        return None
    crc32, found, num_ids, num_targets, _ = _HEAD.unpack_from(content)
    if found != number or zlib_ng.crc32(content[4:]) != crc32:
        return None
    middle = _HEAD.size + 4 * num_ids
    end = middle + 4 * num_targets
    return TextRow(content[_HEAD.size : middle], content[middle:end], *_of_text(bytes(content[end:])))


@lru_cache(maxsize=4096)  # rows of text differ in their number of tokens alone
def _of_text(text: bytes) -> tuple[int, Form, str]:
    ((tokens, form, loss, *_), _), _ = _JSON.raw_decode(text.decode("utf-8", "surrogatepass"))
    return tokens, form, loss


def _medium(values: Sequence[Any]) -> MeasuredMedia:
    """Lists of JSON are tuples here."""
    values = [tuple(value) if isinstance(value, list) else value for value in values]
    of_ref, files, of_medium = values[: len(_OF_REF)], values[len(_OF_REF)], values[len(_OF_REF) + 1 :]
    ref = MediaRef(**dict(zip(_OF_REF, of_ref, strict=True)), frames=files)
    return MeasuredMedia(ref=ref, **dict(zip(_OF_MEDIUM, of_medium, strict=True)))


def check_media(paths: Sequence[Location], level: str) -> tuple[bool, str]:
    """The task of --check-media: whether a medium of these parts has changed, and a digest of what media there are."""
    digest = hashlib.sha256()
    changed = False
    for measured in (measured for path in paths for measured in _good_rows(path)):
        changed |= measured is None
        for medium in measured.media if measured else ():
            changed |= is_changed(medium.ref, medium.stamp)
            digest.update(content_of(medium.ref, medium.stamp, level).encode() + b"\n")
    return changed, digest.hexdigest()


def _good_rows(path: Location) -> Iterator[Measured | None]:
    """None: it is not what was written."""
    table = open_arrow(path)
    content = memoryview(rows_beside(path).read_bytes())
    for row, at, size in zip(*(table[name].to_pylist() for name in ("row", "at", "size")), strict=True):
        if size:
            yield unpacked(row, content[at : at + size])


def has_media_trouble(path: Location) -> bool:
    """Whether any row of a part was skipped for its media files."""
    trouble = pa.array(["missing_media", "bad_media"])
    return bool(pc.any(pc.is_in(open_arrow(path)["reason"], trouble)).as_py())


def read_measured(path: Location, index: int) -> Measured | None:
    """Line `index` of a part's file; None where it is a skipped row."""
    row, at, size = (open_arrow(path)[name][index].as_py() for name in ("row", "at", "size"))
    if not size:
        return None
    return unpacked(row, rows_beside(path).read_range(size, at))
