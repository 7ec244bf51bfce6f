"""Pixels of packs, restored from what is stored of them, whatever a file says: the other half of pixels.py.

Loaders, verify, show and recode restore by this. A picture's own bytes are decoded and rendered by the functions that
packed it, which are imported when there is one.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from neatpack.errors import OutputError

from ..codecs import SOURCE, U8
from ..layout import layout_of
from ..manifest import REMEDY, Manifest
from ..records import MediaError
from .pixels import CODED, COLUMNS, MEDIA, NUMBERS, Line, array_codec, is_restorable, room, stored_names

if TYPE_CHECKING:
    from ..families.base import ImageRule

DECODING = ("pillow", "torch", "simplejpeg")  # packages by whose versions pixels may differ
# What a rule may raise where the numbers that it gets make no sense.
_SENSELESS = (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, AssertionError, MemoryError)
_LINE = len(COLUMNS)


class OtherPixelsError(OutputError):
    """A picture that is not decoded here to the pixels that it was decoded to when it was packed."""

    code = "pixels-changed"


class PixelDecoder:
    """Restores the arrays of packs of an output. Cheap to pickle, safe in threads."""

    def __init__(self, manifest: Manifest) -> None:
        """Raises ValueError where the manifest asks for what cannot be."""
        self.layout, self.codecs = layout_of(manifest.family), manifest.pixels.codec
        self.coded = tuple(n for n, array in self.layout.items() if array_codec(array, self.codecs) != U8)
        stored = stored_names(self.layout, self.codecs)
        if len(set(stored)) < len(stored):
            raise OutputError(
                f"family.media: {', '.join(stored)}: two arrays of one name",
                code="output-damaged",
                key="family.media",
                arrays=list(stored),
            )
        if wrong := [name for name in self.coded if min((1, *self.layout[name].row)) < 1]:
            raise OutputError(
                f"family.media.{wrong[0]}: rows of {self.layout[wrong[0]].row} bytes cannot be restored",
                code="output-damaged",
                key=f"family.media.{wrong[0]}",
            )
        self._resize = manifest.pixels.resize
        self._described, self._versions = manifest.pixels.rule, manifest.identity.versions
        self._rule: ImageRule | None = None

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
        return self.__dict__ | {"_rule": None}

    def restored(self, arrays: Mapping[str, np.ndarray], *, compare: bool = True) -> dict[str, np.ndarray]:
        """The arrays of a pack as u8 has them, from those that are stored; `compare`: their crc32.

        Raises ValueError where they cannot be, OtherPixelsError where a picture's own bytes give other pixels here.
        """
        if not self.coded:
            return dict(arrays)
        restored: dict[str, np.ndarray] = {}
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
            self._restore_all(name, array, lines, into, compare)
            restored[name] = into
        return restored

    def _lines(self, name: str, coded: np.ndarray, media: np.ndarray, num_tokens: int) -> list[Line]:
        """What is said of the media, if it can be: then no more memory is asked for than `room` and the file allow."""
        if coded.ndim != 1 or coded.dtype != np.uint8 or media.ndim != 2 or media.dtype != np.int64:
            raise OutputError(
                f"{name}{CODED} {coded.shape} of {coded.dtype}, {name}{MEDIA} {media.shape}",
                code="output-damaged",
                array=name + CODED,
                shape=coded.shape,
                coded=str(coded.dtype),
                media=str(media.dtype),
            )
        if media.shape[1] != _LINE or (media.size and (media.min() < 0 or media.max() >= 1 << 40)):
            raise OutputError(
                f"{name}{MEDIA} {media.shape}: numbers that no medium has",
                code="output-damaged",
                array=name + MEDIA,
                shape=media.shape,
            )
        lines = [Line(*line) for line in media.tolist()]
        if sum(line.size for line in lines) != len(coded):
            raise OutputError(
                f"{name}{CODED}: {len(coded)} bytes, by {name}{MEDIA} {sum(line.size for line in lines)}",
                code="output-damaged",
                array=name + CODED,
                got=len(coded),
                expected=sum(line.size for line in lines),
            )
        array, expanded = self.layout[name], 0
        most = NUMBERS[array_codec(array, self.codecs)]
        for line in lines:
            if line.codec > most or (line.codec == NUMBERS[U8] and line.size != line.rows * array.row_bytes):
                raise OutputError(
                    f"{name}{MEDIA}: a medium of codec {line.codec}, {line.rows} rows, {line.size} bytes",
                    code="output-damaged",
                    array=name + MEDIA,
                    codec=line.codec,
                    rows=line.rows,
                    bytes=line.size,
                )
            expanded += line.rows * array.row_bytes if line.codec else 0
        if expanded > room(num_tokens):
            raise OutputError(
                f"{name}{MEDIA}: {expanded} bytes once restored, above {room(num_tokens)}",
                code="output-damaged",
                array=name + MEDIA,
                got=expanded,
                expected=room(num_tokens),
            )
        return lines

    def _restore_all(
        self, name: str, coded: np.ndarray, lines: Sequence[Line], into: np.ndarray, compare: bool
    ) -> None:
        at = row = 0
        for number, line in enumerate(lines):
            content, rows = coded[at : at + line.size], into[row : row + line.rows]
            at, row = at + line.size, row + line.rows
            self._restore(name, number, line, content, rows)
            if compare and zlib_ng.crc32(rows.data) != line.crc32:
                what = f"{name}, medium {number}: restored to other pixels than were packed"
                if line.codec == NUMBERS[SOURCE]:
                    raise OtherPixelsError(what, array=name, medium=number)
                raise OutputError(what, code="output-damaged", array=name, medium=number, crc32=line.crc32)

    def _restore(self, name: str, number: int, line: Line, content: np.ndarray, into: np.ndarray) -> None:
        if line.codec == NUMBERS[SOURCE]:
            rows = self._rendered(name, number, line, content.tobytes(), into)
            into.reshape(rows.shape)[...] = rows  # which may be a view in the order of patches: copied once, here
        elif line.codec == NUMBERS[U8]:
            into[...] = content.reshape(into.shape)
        else:
            try:
                plain = pa.decompress(pa.py_buffer(content), decompressed_size=into.nbytes, codec="zstd")
            except (pa.ArrowException, OSError) as error:
                raise OutputError(
                    f"{name}, medium {number}: {error}", code="output-damaged", array=name, medium=number
                ) from None
            into[...] = np.frombuffer(plain, np.uint8).reshape(into.shape)

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
            raise OutputError(f"{where}: {line} cannot be a picture", code="output-damaged", array=name, medium=number)
        try:
            if (size := image_size(medium.ref)) != (line.height, line.width):
                raise OtherPixelsError(
                    f"{where}: {line.width}x{line.height} when packed, now {size[1]}x{size[0]}",
                    array=name,
                    medium=number,
                    got=size,
                    expected=(line.height, line.width),
                )
            rows: np.ndarray = rule.render(decode_image(medium.ref), medium, RESIZE[self._resize])[name]
        except MediaError as error:
            raise OtherPixelsError(f"{where}: cannot be decoded here: {error}", array=name, medium=number) from None
        except OtherPixelsError:
            raise
        except _SENSELESS as error:
            raise OutputError(
                f"{where}: {line} cannot be rendered: {type(error).__name__}: {error}",
                code="output-damaged",
                array=name,
                medium=number,
            ) from None
        if rows.size != into.size or rows.dtype != np.uint8:
            raise OutputError(
                f"{where}: rendered as {rows.shape} of {rows.dtype}, expected {into.shape} of uint8",
                code="output-damaged",
                array=name,
                medium=number,
            )
        return rows

    @property
    def rule(self) -> "ImageRule":
        """Of pictures. Raises ValueError where the manifest has none that fits its arrays."""
        if self._rule is None:
            from ..families.restore import restored_rule

            if self._described is None or self._resize not in ("torch", "pil"):
                raise OutputError(
                    f"pixels: no rule for pictures that are resized by {self._resize!r}",
                    code="output-damaged",
                    key="pixels",
                    resize=self._resize,
                )
            rule = restored_rule(self._described)
            try:
                own = rule.arrays
            except _SENSELESS as error:
                raise OutputError(
                    f"pixels.rule: {type(error).__name__}: {error}", code="output-damaged", key="pixels.rule"
                ) from None
            for name in self.coded:
                if array_codec(self.layout[name], self.codecs) == SOURCE and own.get(name) != self.layout[name]:
                    raise OutputError(
                        f"pixels.rule: renders another {name} than family.media has",
                        code="output-damaged",
                        key="pixels.rule",
                        array=name,
                    )
            self._rule = rule
        return self._rule
