"""Pixels <-> what is stored of them: the one seam between a pack, whose pixels are rows of bytes, and its tar.

An array of pixels of a kind that `--pixels` stores otherwise than as u8 gives way to two members: NAME_coded, the media
end to end, and NAME_media, a line of numbers for each (`COLUMNS`). Each medium has a codec of its own: what a picture's
own bytes do not make smaller, or what is in no file, is compressed. Restored, the rows are those that u8 has, to the
bit; their crc32 tells. docs/FORMAT.md describes it for other readers.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from neatpack.errors import UserError

from ..codecs import SOURCE, U8, ZSTD, Codecs, parse_codecs, spelled
from ..layout import Layout, MediaArray
from ..records import MeasuredMedia, MediaRef

if TYPE_CHECKING:
    from ..families.base import Family, ImageRule

CODED, MEDIA = "_coded", "_media"  # behind the name of an array
COLUMNS = ("codec", "bytes", "rows", "crc32", "height", "width", "resized_height", "resized_width",
           "grid_t", "grid_h", "grid_w")  # fmt: skip
NUMBERS = {U8: 0, ZSTD: 1, SOURCE: 2}  # of codecs, in the first column
LEVEL = 1  # of zstd: higher ones take longer, and gain a few percent of pixels
# Restored bytes may be more than a file has; so that no file asks for any amount of memory, at most so many for a token
# of its pack, and in any case so many. Patches have 2 to 6 KB a token. Beyond, media are stored as they are.
BYTES_PER_TOKEN, BYTES_ALWAYS = 64 << 10, 16 << 20
LONGEST_SIDE = 10_000  # of a picture that is decoded at load: some rules pad it to a square first
MOST_SCANS = 100  # of a JPEG that is decoded at load: each goes over all of the picture, and costs 30 bytes
SMALL = 8  # a picture's own bytes are taken, without a look at zstd, if its rows have so many times as many
_LINE = len(COLUMNS)

logger = logging.getLogger(__name__)


def array_codec(array: MediaArray, codecs: Codecs) -> str:
    """Of an array's media, at the most: what is of a picture's own bytes in an array of several kinds is by zstd there
    for a video."""
    return max(
        (codecs.get(kind, U8) for kind in array.kinds if array.deliver.table), key=NUMBERS.__getitem__, default=U8
    )


def stored_names(layout: Layout, codecs: Codecs) -> tuple[str, ...]:
    """The media arrays of a pack as they are stored."""
    names: list[str] = []
    for name, array in layout.items():
        names += [name] if array_codec(array, codecs) == U8 else [name + CODED, name + MEDIA]
    return tuple(names)


def rows_per_medium(name: str, arrays: Mapping[str, np.ndarray], layout: Layout) -> np.ndarray:
    """Rows of an array that belong to each medium, in order: grids [[1, 2, 2], [1, 4, 2]] -> [4, 8]."""
    counts = layout[name].counts
    if not counts:
        return np.ones(len(arrays[name]), np.int64)
    counting = arrays[counts]
    per_row = counting.prod(axis=tuple(range(1, counting.ndim)), dtype=np.int64) // layout[name].counted
    ends = np.cumsum(per_row)
    of_media = np.cumsum(rows_per_medium(counts, arrays, layout))
    return np.diff(np.append(0, ends)[of_media], prepend=0)


def room(num_tokens: int) -> int:
    """Bytes that the coded media of an array may have, restored."""
    return max(BYTES_ALWAYS, BYTES_PER_TOKEN * num_tokens)


class Line(NamedTuple):
    """Of a medium: `COLUMNS`."""

    codec: int
    size: int  # bytes
    rows: int
    crc32: int
    height: int = 0
    width: int = 0
    resized_height: int = 0
    resized_width: int = 0
    grid_t: int = 0
    grid_h: int = 0
    grid_w: int = 0

    def medium(self, content: bytes, number: int) -> MeasuredMedia:
        """A picture of the codec `source`, as it was measured."""
        return MeasuredMedia(
            ref=MediaRef(kind="image", path=f"picture {number}", held=content),
            height=self.height,
            width=self.width,
            size=(self.resized_height, self.resized_width),
            grid=(self.grid_t, self.grid_h, self.grid_w),
        )


class Rendering(Protocol):
    """What the rule of a family does with a picture."""

    def rows(self, medium: MeasuredMedia) -> dict[str, int]: ...


def is_restorable(rule: Rendering, name: str, medium: MeasuredMedia, num_bytes: int, num_rows: int) -> bool:
    """Whether a loader would decode and render a picture to `num_rows` rows: it takes no numbers on trust."""
    is_small = min(medium.height, medium.width) >= 1 and max(medium.height, medium.width) <= LONGEST_SIDE
    is_sized = min(medium.size) >= 1 and 3 * medium.size[0] * medium.size[1] <= 2 * num_bytes
    own = medium.ref.held
    is_slow = isinstance(own, bytes) and own[:2] == b"\xff\xd8" and own.count(b"\xff\xda") > MOST_SCANS
    is_right = min(medium.grid) >= 0 and rule.rows(medium).get(name) == num_rows
    return is_small and is_sized and not is_slow and is_right


# Writing


def pixels_for(asked: str, family: "Family") -> str:
    """What `--pixels` means for a family, spelled out; what it cannot do is an error if it was asked for, and else left
    out with a word."""
    codecs = parse_codecs(asked)
    has_pixels = {kind for array in family.media.values() if array.deliver.table for kind in array.kinds}
    for kind, codec in codecs.items():
        if kind in family.rules and kind not in has_pixels and codec != U8:
            codecs[kind] = _instead(asked, kind, codec, U8, f"{family.name} stores what its processor gives, as floats")
        elif codec == SOURCE and kind in family.rules and not keeps_sources(family):
            codecs[kind] = _instead(asked, kind, codec, ZSTD, f"{family.name} cannot render pictures at load")
    return spelled(codecs)


def keeps_sources(family: "Family") -> bool:
    """Whether loaders can render its pictures: by a rule that is known by name, into one array."""
    from ..families.restore import described_rule

    arrays = [array for array in family.media.values() if array.deliver.table and "image" in array.kinds]
    return len(arrays) == 1 and described_rule(family.image) is not None


def _instead(asked: str, kind: str, codec: str, other: str, why: str) -> str:
    if asked:
        raise UserError(
            f"--pixels {asked}: {why}; give --pixels {kind}={other}",
            code="option-conflict",
            option="pixels",
            got=asked,
            kind=kind,
            other=other,
        )
    logger.info("pixels: %s=%s and not %s: %s", kind, other, codec, why)
    return other


@dataclass(frozen=True, kw_only=True)
class PixelEncoder:
    layout: Layout
    codecs: Codecs
    rule: "ImageRule | None" = None  # of pictures, where they are stored as `source`

    @property
    def keeps_sources(self) -> bool:
        return any(array_codec(array, self.codecs) == SOURCE for array in self.layout.values())

    def stored(
        self,
        arrays: Mapping[str, np.ndarray],
        sources: Sequence[MeasuredMedia] = (),
        kept: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """The arrays of a pack as they are stored. `sources`: its media in the order of the text, the bytes of pictures
        held; what comes after them is in no file. `kept`: what is stored of some of them already, by this codec."""
        stored: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            codec = array_codec(self.layout[name], self.codecs) if name in self.layout else U8
            if codec == U8:
                stored[name] = array
            elif kept and name + CODED in kept:
                stored |= {name + end: kept[name + end] for end in (CODED, MEDIA)}
            else:
                media = [medium for medium in sources if medium.ref.kind in self.layout[name].kinds]
                stored[name + CODED], stored[name + MEDIA] = self._coded(name, arrays, media if codec == SOURCE else ())
        return stored

    def _coded(
        self, name: str, arrays: Mapping[str, np.ndarray], sources: Sequence[MeasuredMedia]
    ) -> tuple[np.ndarray, np.ndarray]:
        array, left, start = np.ascontiguousarray(arrays[name]), room(len(arrays["input_ids"])), 0
        contents: list[bytes | memoryview] = []
        lines: list[Line] = []
        for number, count in enumerate(rows_per_medium(name, arrays, self.layout).tolist()):
            rows = array[start : start + count]
            start += count
            may_be_coded = 0 < rows.nbytes <= left
            line, content = self._medium(name, rows, sources[number] if number < len(sources) else None, may_be_coded)
            left -= rows.nbytes if line.codec else 0
            lines.append(line)
            contents.append(content)
        assert start == len(array), f"{name}: {len(array)} rows, of media {start}"
        coded = np.frombuffer(b"".join(contents), np.uint8)
        return coded, np.array(lines, np.int64).reshape(len(lines), _LINE)

    def _medium(
        self, name: str, rows: np.ndarray, source: MeasuredMedia | None, may_be_coded: bool
    ) -> tuple[Line, bytes | memoryview]:
        plain = rows.data.cast("B") if rows.size else b""
        crc32, num_bytes = zlib_ng.crc32(plain), len(plain)
        if not may_be_coded:
            return Line(NUMBERS[U8], num_bytes, len(rows), crc32), plain
        own = b""
        if source is not None and source.ref.kind == "image" and isinstance(source.ref.held, bytes):
            own = source.ref.held
        if own:
            assert self.rule is not None and source is not None
            assert self.rule.rows(source)[name] == len(rows), f"{name}: {len(rows)} rows are of another picture"
            own = own if is_restorable(self.rule, name, source, num_bytes, len(rows)) else b""
        if not own or SMALL * len(own) > num_bytes:
            compressed: bytes = pa.Codec("zstd", compression_level=LEVEL).compress(plain, asbytes=True)
            if not own or len(compressed) <= len(own):
                if len(compressed) >= num_bytes:
                    return Line(NUMBERS[U8], num_bytes, len(rows), crc32), plain
                return Line(NUMBERS[ZSTD], len(compressed), len(rows), crc32), compressed
        assert source is not None
        size = (source.height, source.width, *source.size, *source.grid)
        return Line(NUMBERS[SOURCE], len(own), len(rows), crc32, *size), own
