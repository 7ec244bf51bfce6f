"""Pixels <-> what is stored of them: the one seam between a pack, whose pixels are rows of bytes, and its tar.

An array of pixels of a kind that `--pixels` stores otherwise than as u8 gives way to two members: NAME_coded, the media
end to end, and NAME_media, a line of numbers for each (`COLUMNS`). Each medium has a codec of its own: what a picture's
own bytes do not make smaller, or what is in no file, is compressed. Restored, the rows are those that u8 has, to the
bit; their crc32 tells. docs/FORMAT.md describes it for other readers.
"""

import logging
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from ..codecs import SOURCE, U8, ZSTD, Codecs, parse_codecs, spelled
from ..errors import UserError
from ..extras import first_missing, remedy
from ..layout import Layout, MediaArray, layout_of
from ..manifest import REMEDY, Manifest
from ..records import MeasuredMedia, MediaError, MediaRef

if TYPE_CHECKING:
    from ..families.base import Family, ImageRule

CODED, MEDIA = "_coded", "_media"  # behind the name of an array
COLUMNS = ("codec", "bytes", "rows", "crc32", "height", "width", "resized_height", "resized_width",
           "grid_t", "grid_h", "grid_w")  # fmt: skip
NUMBERS = {U8: 0, ZSTD: 1, SOURCE: 2}  # of codecs, in the first column
DECODING = ("pillow", "torch", "simplejpeg")  # packages by whose versions pixels may differ
LEVEL = 1  # of zstd: higher ones take longer, and gain a few percent of pixels
# Restored bytes may be more than a file has; so that no file asks for any amount of memory, at most so many for a token
# of its pack, and in any case so many. Patches have 2 to 6 KB a token. Beyond, media are stored as they are.
BYTES_PER_TOKEN, BYTES_ALWAYS = 64 << 10, 16 << 20
LONGEST_SIDE = 10_000  # of a picture that is decoded at load: some rules pad it to a square first
SMALL = 8  # a picture's own bytes are taken, without a look at zstd, if its rows have so many times as many
_LINE = len(COLUMNS)
# What a rule may raise where the numbers that it gets make no sense.
_SENSELESS = (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, AssertionError, MemoryError)

logger = logging.getLogger(__name__)


class OtherPixelsError(ValueError):
    """A picture that is not decoded here to the pixels that it was decoded to when it was packed."""


def array_codec(array: MediaArray, codecs: Codecs) -> str:
    """Of an array's media, at the most: one with several kinds of media keeps no medium's own bytes."""
    found = {codecs.get(kind, U8) for kind in array.kinds} if array.deliver.table else {U8}
    if found == {SOURCE}:
        return SOURCE
    return U8 if found == {U8} else ZSTD


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
    ends = np.cumsum(counting.prod(axis=tuple(range(1, counting.ndim)), dtype=np.int64))
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
    return is_small and is_sized and min(medium.grid) >= 0 and rule.rows(medium).get(name) == num_rows


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
    """Whether loaders can render its pictures: by a rule that is known by name, into one array of pictures alone."""
    from ..families.restore import described_rule

    arrays = [array for array in family.media.values() if array.deliver.table and "image" in array.kinds]
    return [array.kinds for array in arrays] == [("image",)] and described_rule(family.image) is not None


def _instead(asked: str, kind: str, codec: str, other: str, why: str) -> str:
    if asked:
        raise UserError(f"--pixels {asked}: {why}; give --pixels {kind}={other}")
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
        """The arrays of a pack as they are stored. `sources`: its pictures in order, their bytes held; those that come
        after them are in no file. `kept`: what is stored of some of them already, by this codec."""
        stored: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            codec = array_codec(self.layout[name], self.codecs) if name in self.layout else U8
            if codec == U8:
                stored[name] = array
            elif kept and name + CODED in kept:
                stored |= {name + end: kept[name + end] for end in (CODED, MEDIA)}
            else:
                media = sources if codec == SOURCE else ()
                stored[name + CODED], stored[name + MEDIA] = self._coded(name, arrays, media)
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
        crc32, num_bytes = zlib.crc32(plain), len(plain)
        if not may_be_coded:
            return Line(NUMBERS[U8], num_bytes, len(rows), crc32), plain
        own = source.ref.held if source is not None and isinstance(source.ref.held, bytes) else b""
        if own and not (self.rule and source and is_restorable(self.rule, name, source, num_bytes, len(rows))):
            own = b""
        if not own or SMALL * len(own) > num_bytes:
            compressed: bytes = pa.Codec("zstd", compression_level=LEVEL).compress(plain, asbytes=True)
            if not own or len(compressed) <= len(own):
                if len(compressed) >= num_bytes:
                    return Line(NUMBERS[U8], num_bytes, len(rows), crc32), plain
                return Line(NUMBERS[ZSTD], len(compressed), len(rows), crc32), compressed
        assert source is not None
        size = (source.height, source.width, *source.size, *source.grid)
        return Line(NUMBERS[SOURCE], len(own), len(rows), crc32, *size), own


# Reading


class PixelDecoder:
    """Restores the arrays of packs of an output. Cheap to pickle; a process has threads of its own."""

    def __init__(self, manifest: Manifest) -> None:
        """Raises ValueError where the manifest asks for what cannot be."""
        self.layout, self.codecs = layout_of(manifest.family), manifest.pixels.codec
        self.coded = tuple(n for n, array in self.layout.items() if array_codec(array, self.codecs) != U8)
        stored = stored_names(self.layout, self.codecs)
        if len(set(stored)) < len(stored):
            raise ValueError(f"family.media: {', '.join(stored)}: two arrays of one name")
        if wrong := [name for name in self.coded if min((1, *self.layout[name].row)) < 1]:
            raise ValueError(f"family.media.{wrong[0]}: rows of {self.layout[wrong[0]].row} bytes cannot be restored")
        self._resize = manifest.pixels.resize
        self._described, self._versions = manifest.pixels.rule, manifest.identity.versions
        self._rule: ImageRule | None = None
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def remedy(self, error: ValueError, out: str) -> str:
        """What helps where `restored` raises it."""
        if not isinstance(error, OtherPixelsError):
            return REMEDY
        told = ", ".join(f"{name} {version}" for name, version in self._versions.items() if name in DECODING)
        return (
            f"it was packed by {told}: install these here, or store the pixels themselves, by `neatpack recode {out} "
            "--pixels zstd --out NEW` where it was packed"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rule": None, "_pool": None}

    def restored(
        self, arrays: Mapping[str, np.ndarray], *, compare: bool = True, threads: int = 0
    ) -> dict[str, np.ndarray]:
        """The arrays of a pack as u8 has them, from those that are stored; `compare`: their crc32.

        threads: that restore media beside each other; 0: this one does it.

        Raises ValueError where they cannot be, OtherPixelsError where a picture's own bytes give other pixels here.
        """
        if not self.coded:
            return dict(arrays)
        restored: dict[str, np.ndarray] = {}
        jobs: list[Callable[[], None]] = []
        by_stored = {name + CODED: name for name in self.coded}
        done = {name + MEDIA for name in self.coded}
        for stored, array in arrays.items():
            if stored in done:
                continue
            if stored not in by_stored:
                restored[stored] = array
                continue
            name = by_stored[stored]
            lines = self._lines(name, array, arrays[name + MEDIA], len(arrays["input_ids"]))
            into = np.empty((sum(line.rows for line in lines), *self.layout[name].row), np.uint8)
            jobs += self._jobs(name, array, lines, into, compare)
            restored[name] = into
        self._run(jobs, threads)
        return restored

    def _lines(self, name: str, coded: np.ndarray, media: np.ndarray, num_tokens: int) -> list[Line]:
        """What is said of the media, if it can be: then no more memory is asked for than `room` and the file have."""
        if coded.ndim != 1 or coded.dtype != np.uint8 or media.ndim != 2 or media.dtype != np.int64:
            raise ValueError(f"{name}{CODED} {coded.shape} of {coded.dtype}, {name}{MEDIA} {media.shape}")
        if media.shape[1] != _LINE or (media.size and (media.min() < 0 or media.max() >= 1 << 40)):
            raise ValueError(f"{name}{MEDIA} {media.shape}: numbers that no medium has")
        lines = [Line(*line) for line in media.tolist()]
        if sum(line.size for line in lines) != len(coded):
            raise ValueError(f"{name}{CODED}: {len(coded)} bytes, by {name}{MEDIA} {sum(line.size for line in lines)}")
        array, expanded = self.layout[name], 0
        most = NUMBERS[array_codec(array, self.codecs)]
        for line in lines:
            if line.codec > most or (line.codec == NUMBERS[U8] and line.size != line.rows * array.row_bytes):
                raise ValueError(f"{name}{MEDIA}: a medium of codec {line.codec}, {line.rows} rows, {line.size} bytes")
            expanded += line.rows * array.row_bytes if line.codec else 0
        if expanded > room(num_tokens):
            raise ValueError(f"{name}{MEDIA}: {expanded} bytes once restored, above {room(num_tokens)}")
        return lines

    def _jobs(
        self, name: str, coded: np.ndarray, lines: Sequence[Line], into: np.ndarray, compare: bool
    ) -> Iterator[Callable[[], None]]:
        at = row = 0
        for number, line in enumerate(lines):
            content, rows = coded[at : at + line.size], into[row : row + line.rows]
            at, row = at + line.size, row + line.rows

            def job(
                number: int = number, line: Line = line, content: np.ndarray = content, rows: np.ndarray = rows
            ) -> None:
                self._restore(name, number, line, content, rows)
                if compare and zlib.crc32(rows.data) != line.crc32:
                    what = f"{name}, medium {number}: restored to other pixels than were packed"
                    raise (OtherPixelsError if line.codec == NUMBERS[SOURCE] else ValueError)(what)

            yield job

    def _restore(self, name: str, number: int, line: Line, content: np.ndarray, into: np.ndarray) -> None:
        if line.codec == NUMBERS[SOURCE]:
            into[...] = self._rendered(name, number, line, content.tobytes(), into)
        elif line.codec == NUMBERS[U8]:
            into[...] = content.reshape(into.shape)
        else:
            try:
                rows = pa.decompress(pa.py_buffer(content), decompressed_size=into.nbytes, codec="zstd")
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"{name}, medium {number}: {error}") from None
            into[...] = np.frombuffer(rows, np.uint8).reshape(into.shape)

    def _rendered(self, name: str, number: int, line: Line, content: bytes, into: np.ndarray) -> np.ndarray:
        """As render/sample.py does it, by the same functions."""
        medium, where, rule = line.medium(content, number), f"{name}, medium {number}", self.rule
        from ..media.image import decode_image, image_size
        from ..media.pixels import RESIZE

        try:
            can_be = is_restorable(rule, name, medium, into.nbytes, line.rows)
        except _SENSELESS:
            can_be = False
        if not can_be:
            raise ValueError(f"{where}: {line} cannot be a picture")
        try:
            if (size := image_size(medium.ref)) != (line.height, line.width):
                raise OtherPixelsError(f"{where}: {line.width}x{line.height} when packed, now {size[1]}x{size[0]}")
            rows: np.ndarray = rule.render(decode_image(medium.ref), medium, RESIZE[self._resize])[name]
        except MediaError as error:
            raise OtherPixelsError(f"{where}: cannot be decoded here: {error}") from None
        except OtherPixelsError:
            raise
        except _SENSELESS as error:
            raise ValueError(f"{where}: {line} cannot be rendered: {type(error).__name__}: {error}") from None
        if rows.shape != into.shape or rows.dtype != np.uint8:
            raise ValueError(f"{where}: rendered as {rows.shape} of {rows.dtype}, expected {into.shape} of uint8")
        return rows

    @property
    def rule(self) -> "ImageRule":
        """Of pictures. Raises ValueError where the manifest has none that fits its arrays."""
        if self._rule is None:
            if missing := first_missing("source"):
                raise ModuleNotFoundError(remedy(missing, "reading pictures that are stored as they came", "source"))
            from ..families.restore import restored_rule

            if self._described is None or self._resize not in ("torch", "pil"):
                raise ValueError(f"pixels: no rule for pictures that are resized by {self._resize!r}")
            rule = restored_rule(self._described)
            try:
                own = rule.arrays
            except _SENSELESS as error:
                raise ValueError(f"pixels.rule: {type(error).__name__}: {error}") from None
            for name in self.coded:
                if array_codec(self.layout[name], self.codecs) == SOURCE and own.get(name) != self.layout[name]:
                    raise ValueError(f"pixels.rule: renders another {name} than family.media has")
            self._rule = rule
        return self._rule

    def _run(self, jobs: Sequence[Callable[[], None]], threads: int) -> None:
        if not threads or len(jobs) < 2:
            for job in jobs:
                job()
            return
        if self._pool is None or self._pool[0] != os.getpid():  # a forked process has none of the threads
            self._pool = os.getpid(), ThreadPoolExecutor(threads, thread_name_prefix="neatpack-pixels")
        with _one_thread_each():
            # All of them end, whichever fails: they write to arrays that are given back, or are not.
            futures = [self._pool[1].submit(job) for job in jobs]
            errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Around what several threads do: torch's own would multiply with them, and Python's filters of warnings, which
    decoders of pictures set, are those of the process."""
    import torch

    before = torch.get_num_threads()
    with warnings.catch_warnings():
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
