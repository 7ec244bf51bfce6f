"""A picture as displayed: decoded, turned, in RGB."""

import warnings

import numpy as np
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

from pipeline.measure.probe import bad_media, open_image, open_media
from pipeline.records import MediaRef


def decode_image(ref: MediaRef) -> np.ndarray:
    """RGB pixels [height, width, 3] as displayed: the first frame, turned by its EXIF orientation, alpha on white."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(ref.held, Image.Image):  # what a program holds is displayed as it is
            return _pixels(ref, ref.held, turn=False)
        with open_media(ref) as file:
            return _pixels(ref, open_image(ref, file), turn=True)


def _pixels(ref: MediaRef, image: Image.Image, *, turn: bool) -> np.ndarray:
    try:
        image.load()
        return _rgb(_as_displayed(image) if turn else image)
    except MemoryError:
        raise  # our trouble, not the picture's
    except Exception as error:  # broken files raise anything: OSError, SyntaxError, zlib.error, struct.error …
        raise bad_media(ref, error) from None


def _as_displayed(image: Image.Image) -> Image.Image:
    try:
        image.getexif()
    except Exception:  # a broken EXIF block must not cost the picture; probing treats it the same way
        return image
    ImageOps.exif_transpose(image, in_place=True)  # not a copy: the picture may have a gigabyte
    return image


def _rgb(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I;16") or image.mode == "I":
        image = _eight_bits(image)
    return convert_to_rgb(image, return_numpy=True)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits by its high byte; Pillow's own conversion clips at 255, white nearly everywhere."""
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
