"""Pictures: the size that a header tells, and the pixels as displayed. The only place that decodes a picture."""

import struct
import warnings
from threading import Lock
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from ..records import MediaRef
from .header import BEGINNING, jpeg_size
from .jpeg import decoded_jpeg
from .limits import Limits, limits
from .open import blamed, guarded, open_media, open_picture

# What Pillow may open. It knows others, of which some start programs (EPS: Ghostscript) and many have no reader.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO")
_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width


def image_size(ref: MediaRef) -> tuple[int, int]:
    """Height and width as displayed, that is after the EXIF orientation is applied; nothing is decoded."""
    if isinstance(ref.held, Image.Image):  # a picture that a program holds in memory is displayed as it is
        return ref.held.height, ref.held.width
    with open_media(ref) as file:
        with blamed(ref):
            beginning = file.read(BEGINNING)
        if (size := size_by_header(beginning, limits())) is not None:
            return size
        file.seek(0)
        return _size_by_pillow(ref, file)


def size_by_header(beginning: bytes, bounds: Limits) -> tuple[int, int] | None:
    """What `image_size` gives, by the first bytes of a picture alone; None: they do not tell, or it is too large."""
    size = jpeg_size(beginning)
    return size if size is not None and size[0] * size[1] <= bounds.max_image_pixels else None


def _size_by_pillow(ref: MediaRef, file: BinaryIO) -> tuple[int, int]:
    with _quiet, guarded(ref):
        image = _opened(ref, file)
        width, height = image.size
        return (width, height) if _orientation(image, file) in _TURNED else (height, width)


def decode_image(ref: MediaRef) -> np.ndarray:
    """RGB pixels [height, width, 3] as displayed: the first frame, turned by its EXIF orientation, alpha on white."""
    if isinstance(ref.held, Image.Image):
        with _quiet, blamed(ref):
            return _pixels(ref.held, turn=False)
    with _quiet, open_picture(ref) as file:
        image = _opened(ref, file)
        pixels = _jpeg_pixels(image, file)
        return _pixels(image, turn=True) if pixels is None else pixels


def rgb_image(ref: MediaRef) -> Image.Image:
    """As `decode_image`, for code that takes PIL images."""
    return Image.fromarray(decode_image(ref))


class _Quiet:
    """Ignores warnings while any thread decodes. Pillow warns of large images and odd metadata, and raises the rest.

    Filters of warnings belong to the process: if each thread restored what it found, one could restore another's.
    """

    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0
        self._before = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore")
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._before.__exit__(None, None, None)


_quiet = _Quiet()


def _opened(ref: MediaRef, file: BinaryIO) -> Image.Image:
    """An image whose header has been read and whose pixels have not."""
    image = Image.open(file, formats=FORMATS)
    limits().check("max_image_pixels", image.width * image.height, ref, f"pixels ({image.width}x{image.height})")
    return image


def _orientation(image: Image.Image, file: BinaryIO) -> object:
    """A number of 1 to 8, or whatever else the file has there: a text is no orientation, also not to Pillow."""
    if isinstance(image, TiffImageFile) and ExifTags.Base.Orientation in image.tag_v2:
        return 1  # Pillow turns TIFFs itself, and has exchanged `size` already
    try:
        if isinstance(image, PngImageFile):
            # PngImageFile.getexif decodes the whole picture to look for metadata behind the pixels.
            if _metadata_after_pixels(file):
                image.load()
            exif = Image.Image.getexif(image)
        else:
            exif = image.getexif()
        return exif.get(ExifTags.Base.Orientation, 1)
    except MemoryError:
        raise
    except Exception:  # a broken EXIF block must not cost the picture, and decoding treats it the same way
        return 1


def _metadata_after_pixels(file: BinaryIO) -> bool:
    """Whether a PNG has an eXIf or text chunk behind its first IDAT, found by stepping over the chunks."""
    position, seen_pixels = 8, False
    while True:
        file.seek(position)
        head = file.read(8)
        if len(head) < 8:
            return False
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IEND":
            return False
        seen_pixels |= kind == b"IDAT"
        if seen_pixels and kind in (b"eXIf", b"iTXt", b"tEXt", b"zTXt"):
            return True
        position += 12 + length


def _jpeg_pixels(image: Image.Image, file: BinaryIO) -> np.ndarray | None:
    """Of a JPEG that is displayed as it is stored: most are. Turning the others is Pillow's."""
    if type(image) is not JpegImageFile or _orientation(image, file) != 1:
        return None
    place = file.tell()
    file.seek(0)
    pixels = decoded_jpeg(file.read(), (image.height, image.width))
    file.seek(place)
    return pixels


def _pixels(image: Image.Image, *, turn: bool) -> np.ndarray:
    image.load()
    return _rgb(_as_displayed(image) if turn else image)


def _as_displayed(image: Image.Image) -> Image.Image:
    try:
        image.getexif()
    except Exception:  # a broken EXIF block must not cost the picture; `_orientation` treats it the same way
        return image
    ImageOps.exif_transpose(image, in_place=True)  # not a copy: the picture may have a gigabyte
    return image


def _rgb(image: Image.Image) -> np.ndarray:
    """As transformers' convert_to_rgb, but for 16-bit grey, which that clips at 255: white nearly everywhere."""
    if image.mode.startswith("I;16") or image.mode == "I":
        image = _eight_bits(image)
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):  # else white would add nothing, in a third of the time
            white = Image.new("RGBA", image.size, (255, 255, 255, 255))
            image = Image.alpha_composite(white, image)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))  # convert copies what is RGB already


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits by its high byte."""
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
