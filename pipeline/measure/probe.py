"""Media headers: the size of a picture as displayed, without decoding it."""

import io
import os
import struct
import warnings
from typing import BinaryIO

from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from pipeline.records import MediaError, MediaRef

_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width


def open_media(ref: MediaRef) -> BinaryIO:
    """The bytes of a medium as a file."""
    if isinstance(ref.held, bytes):
        return io.BytesIO(ref.held)
    try:
        file = open(ref.path, "rb")  # noqa: SIM115 (the caller closes it)
        if not ref.offset and ref.length < 0:
            return file
        with file:
            size = os.fstat(file.fileno()).st_size
            end = ref.offset + ref.length if ref.length >= 0 else size
            if max(ref.offset, end) > size:
                raise MediaError("bad_media", f"{ref.path}: has {size} bytes, and not {ref.offset} to {end}")
            file.seek(ref.offset)
            return io.BytesIO(file.read(end - ref.offset))
    except OSError as error:
        raise MediaError("missing_media", f"{ref.path}: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have, with a zero byte in it
        raise MediaError("missing_media", f"{ref.path!r}: {error}") from None


def open_image(ref: MediaRef, file: BinaryIO) -> Image.Image:
    """An image whose header has been read and whose pixels have not."""
    with warnings.catch_warnings():
        # Pillow warns of large pictures and odd metadata; what it cannot read it raises.
        warnings.simplefilter("ignore")
        try:
            return Image.open(file)
        except MemoryError:
            raise  # our trouble, not the picture's
        except UnidentifiedImageError:  # its own words hold the file object and its address, other in every run
            raise MediaError("bad_media", f"{ref.path}: not a picture of a kind that Pillow knows") from None
        except Exception as error:  # broken files raise anything: OSError, SyntaxError, struct.error, EOFError …
            raise bad_media(ref, error) from None


def bad_media(ref: MediaRef, error: Exception) -> MediaError:
    return MediaError("bad_media", f"{ref.path}: {type(error).__name__}: {error}")


def ffmpeg_trouble(ref: MediaRef, error: Exception) -> MediaError:
    """What FFmpeg says, without the name of the file object that PyAV adds: it has an address in it."""
    words = (getattr(error, "strerror", None) or str(error)).split(":")[0]
    return MediaError("bad_media", f"{ref.path}: {type(error).__name__}: {words}")


def image_size(ref: MediaRef) -> tuple[int, int]:
    """Height and width as displayed, that is after the EXIF orientation is applied."""
    if isinstance(ref.held, Image.Image):  # what a program holds in memory is displayed as it is
        return ref.held.height, ref.held.width
    with open_media(ref) as file:
        image = open_image(ref, file)
        width, height = image.size
        return (width, height) if _orientation(image, file) in _TURNED else (height, width)


def _orientation(image: Image.Image, file: BinaryIO) -> int:
    if isinstance(image, TiffImageFile) and ExifTags.Base.Orientation in image.tag_v2:
        return 1  # Pillow turns TIFFs itself, and has exchanged `size` already
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
        except Exception:  # a broken EXIF block must not cost the picture, and rendering treats it the same way
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
