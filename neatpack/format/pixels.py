"""Pixels of media as they are stored: encoded when a pack is written, restored when it is read.

An array of pixels of a kind that `--pixels` does not store as u8 becomes two members: NAME_coded, the media end to end,
and NAME_media, a line of numbers for each (`COLUMNS`). Each medium has a codec of its own, because an image whose file
does not save space, or that is in no file, is compressed instead. Restored rows are bit-equal to those that u8 stores;
their crc32 proves it. docs/FORMAT.md describes the members for other readers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from neatpack.errors import OutputError

from .layout import Layout, MediaArray, MediaKind, layout_of
from .manifest import REMEDY, SOURCE, U8, ZSTD, Codecs, Manifest, Pixels

CODED, MEDIA = "_coded", "_media"  # suffixes of the names of an array's two members
COLUMNS = ("codec", "bytes", "rows", "crc32", "height", "width", "resized_height", "resized_width",
           "grid_t", "grid_h", "grid_w")  # fmt: skip
NUMBERS = {U8: 0, ZSTD: 1, SOURCE: 2}  # of codecs, in the first column
LEVEL = 1  # of zstd: higher ones take longer and gain a few percent of pixels
# Restored bytes may be more than a file has. These limits bound what a forged file makes a reader allocate: so many for
# each token of the pack, and in any case so many. Patches have 2 to 6 KB a token; media beyond are stored as u8.
BYTES_PER_TOKEN, BYTES_ALWAYS = 64 << 10, 16 << 20
LONGEST_SIDE = 10_000  # of an image that is decoded at load: some rules pad it to a square first
MOST_SCANS = 100  # of a JPEG that is decoded at load: each passes over the whole image and costs 30 bytes
SMALL = 8  # an image file is stored without trying zstd if its rows are so many times larger
DECODING = ("pillow", "torch", "simplejpeg")  # packages whose versions may change pixels
_LINE = len(COLUMNS)


class PixelsChangedError(OutputError):
    """An image that decodes here to other pixels than when it was packed."""

    code = "pixels-changed"


class MediaLine(NamedTuple):
    """What NAME_media says of a medium: `COLUMNS`."""

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


class ImageFile(NamedTuple):
    """An image as its original file, and what it was measured to be."""

    content: bytes
    height: int
    width: int
    size: tuple[int, int]  # height and width after resizing
    grid: tuple[int, int, int]


class ImageRenderer(Protocol):
    """Decodes and resizes images by the rule of a model family."""

    @property
    def arrays(self) -> Mapping[str, MediaArray]: ...
    def count_rows(self, image: ImageFile) -> Mapping[str, int]:
        """Return the rows of each array; raise OutputError where the rule cannot render such an image."""

    def render(self, image: ImageFile) -> Mapping[str, np.ndarray]:
        """Return the rows of each array; raise PixelsChangedError or OutputError."""


def array_codec(array: MediaArray, codecs: Codecs) -> str:
    """Return the codec with the highest number that media of an array may have."""
    names = (codecs.get(kind, U8) for kind in array.kinds if array.deliver.table)
    return max(names, key=NUMBERS.__getitem__, default=U8)


def stored_names(layout: Layout, codecs: Codecs) -> tuple[str, ...]:
    """Return the names of the media arrays of a pack as they are stored."""
    names: list[str] = []
    for name, array in layout.items():
        names += [name] if array_codec(array, codecs) == U8 else [name + CODED, name + MEDIA]
    return tuple(names)


def rows_per_medium(name: str, arrays: Mapping[str, np.ndarray], layout: Layout) -> np.ndarray:
    """Return the rows of an array that belong to each medium, in order: grids [[1, 2, 2], [1, 4, 2]] -> [4, 8]."""
    counts = layout[name].counts
    if not counts:
        return np.ones(len(arrays[name]), np.int64)
    counting = arrays[counts]
    per_row = counting.prod(axis=tuple(range(1, counting.ndim)), dtype=np.int64) // layout[name].counted
    ends = np.cumsum(per_row)
    of_media = np.cumsum(rows_per_medium(counts, arrays, layout))
    return np.diff(np.append(0, ends)[of_media], prepend=0)


def room(num_tokens: int) -> int:
    """Return the bytes that the coded media of an array may have, restored."""
    return max(BYTES_ALWAYS, BYTES_PER_TOKEN * num_tokens)


def is_restorable(renderer: ImageRenderer, name: str, image: ImageFile, num_bytes: int, num_rows: int) -> bool:
    """Return whether a loader would decode and render an image to `num_rows` rows: it trusts no number in a file."""
    sides = (image.height, image.width)
    if min(sides) < 1 or max(sides) > LONGEST_SIDE or min(image.size) < 1 or min(image.grid) < 0:
        return False
    if 3 * image.size[0] * image.size[1] > 2 * num_bytes:
        return False
    if image.content[:2] == b"\xff\xd8" and image.content.count(b"\xff\xda") > MOST_SCANS:
        return False
    return renderer.count_rows(image).get(name) == num_rows


@dataclass(frozen=True, kw_only=True)
class PixelEncoder:
    """Encodes the arrays of packs by `codecs`."""

    layout: Layout
    codecs: Codecs
    renderer: ImageRenderer | None = None  # where images are stored as `source`

    @property
    def keeps_sources(self) -> bool:
        return any(array_codec(array, self.codecs) == SOURCE for array in self.layout.values())

    def encode(
        self,
        arrays: Mapping[str, np.ndarray],
        sources: Sequence[tuple[MediaKind, ImageFile | None]] = (),
        encoded: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of a pack as they are stored.

        Args:
            arrays: of the pack.
            sources: its media in the order of the text, images with their files. Media after them are in no file.
            encoded: arrays that are encoded already.
        """
        stored: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            codec = array_codec(self.layout[name], self.codecs) if name in self.layout else U8
            if codec == U8:
                stored[name] = array
            elif encoded and name + CODED in encoded:
                stored |= {name + end: encoded[name + end] for end in (CODED, MEDIA)}
            else:
                kinds = self.layout[name].kinds if codec == SOURCE else ()
                images = [image for kind, image in sources if kind in kinds]
                stored[name + CODED], stored[name + MEDIA] = self._encode_array(name, arrays, images)
        return stored

    def _encode_array(
        self, name: str, arrays: Mapping[str, np.ndarray], images: Sequence[ImageFile | None]
    ) -> tuple[np.ndarray, np.ndarray]:
        array, left, start = np.ascontiguousarray(arrays[name]), room(len(arrays["input_ids"])), 0
        contents: list[bytes | memoryview] = []
        lines: list[MediaLine] = []
        for number, count in enumerate(rows_per_medium(name, arrays, self.layout).tolist()):
            rows = array[start : start + count]
            start += count
            if 0 < rows.nbytes <= left:
                line, content = self._encode_medium(name, rows, images[number] if number < len(images) else None)
            else:
                line, content = _store_plain(rows)
            left -= rows.nbytes if line.codec else 0
            lines.append(line)
            contents.append(content)
        assert start == len(array), f"{name}: {len(array)} rows, of media {start}"
        coded = np.frombuffer(b"".join(contents), np.uint8)
        return coded, np.array(lines, np.int64).reshape(len(lines), _LINE)

    def _encode_medium(
        self, name: str, rows: np.ndarray, image: ImageFile | None
    ) -> tuple[MediaLine, bytes | memoryview]:
        """Encode a medium by the codec that takes the fewest bytes."""
        crc32 = zlib_ng.crc32(rows.data)
        if image is not None:
            assert self.renderer is not None
            assert self.renderer.count_rows(image)[name] == len(rows), f"{name}: {len(rows)} rows are of another image"
            if not is_restorable(self.renderer, name, image, rows.nbytes, len(rows)):
                image = None
        compressed: bytes | None = None
        if image is None or SMALL * len(image.content) > rows.nbytes:
            compressed = pa.Codec("zstd", compression_level=LEVEL).compress(rows.data.cast("B"), asbytes=True)
        if image is not None and (compressed is None or len(image.content) < len(compressed)):
            shape = (image.height, image.width, *image.size, *image.grid)
            return MediaLine(NUMBERS[SOURCE], len(image.content), len(rows), crc32, *shape), image.content
        if compressed is None or len(compressed) >= rows.nbytes:
            return _store_plain(rows)
        return MediaLine(NUMBERS[ZSTD], len(compressed), len(rows), crc32), compressed


def _store_plain(rows: np.ndarray) -> tuple[MediaLine, bytes | memoryview]:
    plain = rows.data.cast("B") if rows.size else b""  # a memoryview of an empty array cannot be cast
    return MediaLine(NUMBERS[U8], len(plain), len(rows), zlib_ng.crc32(plain)), plain


class PixelDecoder:
    """Restores the arrays of packs of an output. Cheap to pickle, safe in threads."""

    def __init__(self, manifest: Manifest, load_renderer: Callable[[Pixels], ImageRenderer]) -> None:
        """Raise OutputError where the manifest describes arrays that cannot be restored.

        Args:
            manifest: of the output.
            load_renderer: makes what renders images of the codec `source`; called when the first one is read.
        """
        self.layout, self.codecs = layout_of(manifest.family), manifest.pixels.codec
        self.coded = tuple(n for n, array in self.layout.items() if array_codec(array, self.codecs) != U8)
        stored = stored_names(self.layout, self.codecs)
        if len(set(stored)) < len(stored):
            raise OutputError(
                f"family.media: {', '.join(stored)}: two arrays of one name", key="family.media", arrays=list(stored)
            )
        if wrong := [name for name in self.coded if min((1, *self.layout[name].row)) < 1]:
            raise OutputError(
                f"family.media.{wrong[0]}: rows of {self.layout[wrong[0]].row} bytes cannot be restored",
                key=f"family.media.{wrong[0]}",
            )
        self._pixels, self._versions, self._load_renderer = manifest.pixels, manifest.identity.versions, load_renderer
        self._renderer: ImageRenderer | None = None

    def find_remedy(self, error: ValueError) -> str:
        """Return what helps where `restore` raises an error."""
        if not isinstance(error, PixelsChangedError):
            return REMEDY
        packed_by = ", ".join(f"{name} {self._versions[name]}" for name in DECODING if name in self._versions)
        return f"it was packed by {packed_by}: install these versions here, or pack again with --pixels zstd"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_renderer": None}

    def restore(self, arrays: Mapping[str, np.ndarray], *, compare: bool = True) -> dict[str, np.ndarray]:
        """Return the arrays of a pack as u8 stores them.

        Args:
            arrays: as they are stored.
            compare: the crc32 of the restored rows of each medium.

        Raises:
            PixelsChangedError: an image file gives other pixels here.
            OutputError: the arrays are damaged.
        """
        restored: dict[str, np.ndarray] = {}
        by_stored = {name + CODED: name for name in self.coded}
        lines_of = {name + MEDIA for name in self.coded}
        for stored, array in arrays.items():
            if stored in lines_of:
                continue
            if stored not in by_stored:
                restored[stored] = array
                continue
            name = by_stored[stored]
            lines = self._read_lines(name, array, arrays[name + MEDIA], len(arrays["input_ids"]))
            into = np.empty((sum(line.rows for line in lines), *self.layout[name].row), np.uint8)
            self._restore_array(name, array, lines, into, compare)
            restored[name] = into
        return restored

    def _read_lines(self, name: str, coded: np.ndarray, media: np.ndarray, num_tokens: int) -> list[MediaLine]:
        """Return the lines of the media. No line makes a reader allocate more than `room` and the file allow."""
        if coded.ndim != 1 or coded.dtype != np.uint8 or media.ndim != 2 or media.dtype != np.int64:
            raise OutputError(
                f"{name}{CODED} {coded.shape} of {coded.dtype}, {name}{MEDIA} {media.shape}",
                array=name + CODED,
                shape=coded.shape,
                coded=str(coded.dtype),
                media=str(media.dtype),
            )
        if media.shape[1] != _LINE or (media.size and (media.min() < 0 or media.max() >= 1 << 40)):
            raise OutputError(
                f"{name}{MEDIA} {media.shape}: numbers that no medium has", array=name + MEDIA, shape=media.shape
            )
        lines = [MediaLine(*line) for line in media.tolist()]
        if (total := sum(line.size for line in lines)) != len(coded):
            raise OutputError(
                f"{name}{CODED}: {len(coded)} bytes, by {name}{MEDIA} {total}",
                array=name + CODED,
                got=len(coded),
                expected=total,
            )
        array, restored_bytes = self.layout[name], 0
        most = NUMBERS[array_codec(array, self.codecs)]
        for line in lines:
            if line.codec > most or (line.codec == NUMBERS[U8] and line.size != line.rows * array.row_bytes):
                raise OutputError(
                    f"{name}{MEDIA}: a medium of codec {line.codec}, {line.rows} rows, {line.size} bytes",
                    array=name + MEDIA,
                    codec=line.codec,
                    rows=line.rows,
                    bytes=line.size,
                )
            restored_bytes += line.rows * array.row_bytes if line.codec else 0
        if restored_bytes > room(num_tokens):
            raise OutputError(
                f"{name}{MEDIA}: {restored_bytes} bytes once restored, above {room(num_tokens)}",
                array=name + MEDIA,
                got=restored_bytes,
                expected=room(num_tokens),
            )
        return lines

    def _restore_array(
        self, name: str, coded: np.ndarray, lines: Sequence[MediaLine], into: np.ndarray, compare: bool
    ) -> None:
        at = row = 0
        for number, line in enumerate(lines):
            content, rows = coded[at : at + line.size], into[row : row + line.rows]
            at, row = at + line.size, row + line.rows
            where = f"{name}, medium {number}"
            try:
                self._restore_medium(name, line, content, rows)
            except OutputError as error:
                raise type(error)(
                    f"{where}: {error}", **dict(error.fields) | {"array": name, "medium": number}
                ) from None
            if compare and (crc32 := zlib_ng.crc32(rows.data)) != line.crc32:
                kind = PixelsChangedError if line.codec == NUMBERS[SOURCE] else OutputError
                message = f"{where}: restored to other pixels than were packed"
                raise kind(message, array=name, medium=number, crc32=line.crc32, got=crc32)

    def _restore_medium(self, name: str, line: MediaLine, content: np.ndarray, into: np.ndarray) -> None:
        if line.codec == NUMBERS[SOURCE]:
            rows = self._render(name, line, content.tobytes(), into)
            into.reshape(rows.shape)[...] = rows  # which may be a view in the order of patches: copied once, here
        elif line.codec == NUMBERS[U8]:
            into[...] = content.reshape(into.shape)
        else:
            try:
                plain = pa.decompress(pa.py_buffer(content), decompressed_size=into.nbytes, codec="zstd")
            except (pa.ArrowException, OSError) as error:
                raise OutputError(str(error)) from None
            into[...] = np.frombuffer(plain, np.uint8).reshape(into.shape)

    def _render(self, name: str, line: MediaLine, content: bytes, into: np.ndarray) -> np.ndarray:
        image = ImageFile(content, line.height, line.width, line[6:8], line[8:11])
        if not is_restorable(self.renderer, name, image, into.nbytes, line.rows):
            raise OutputError(f"{line} cannot be an image")
        rows = self.renderer.render(image)[name]
        if rows.size != into.size or rows.dtype != np.uint8:
            raise OutputError(f"rendered as {rows.shape} of {rows.dtype}, expected {into.shape} of uint8")
        return rows

    @property
    def renderer(self) -> ImageRenderer:
        """What renders images. Raises OutputError where the manifest has no rule that fits its arrays."""
        if self._renderer is None:
            renderer = self._load_renderer(self._pixels)
            for name in self.coded:
                array = self.layout[name]
                if array_codec(array, self.codecs) == SOURCE and renderer.arrays.get(name) != array:
                    raise OutputError(
                        f"pixels.rule: renders another {name} than family.media has", key="pixels.rule", array=name
                    )
            self._renderer = renderer
        return self._renderer
