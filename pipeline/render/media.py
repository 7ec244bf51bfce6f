"""Pixels: decode, turn, RGB, resize, cut into patches. What is stored is uint8; a table restores the model's floats."""

import warnings

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb, normalize, rescale

from pipeline.families.geometry import Geometry, ImageGeometry
from pipeline.measure.probe import MediaError, bad_media, open_image, open_media
from pipeline.records import MeasuredMedia, MediaRef


def image_patches(medium: MeasuredMedia, geometry: ImageGeometry, resize: str) -> np.ndarray:
    """The patches [t * h * w, channels * patch * patch] of an image, in the order of the HF processor."""
    pixels = decode_image(medium.ref)
    if pixels.shape[:2] != (medium.height, medium.width):
        was, now = f"{medium.width}x{medium.height}", f"{pixels.shape[1]}x{pixels.shape[0]}"
        raise MediaError("bad_media", f"{medium.ref.path}: was {was} when measured and is {now} now")
    size = (medium.grid[1] * geometry.patch_size, medium.grid[2] * geometry.patch_size)
    return patchify(RESIZE[resize](pixels, size), geometry.patch_size, geometry.merge_size)


def decode_image(ref: MediaRef) -> np.ndarray:
    """RGB pixels [height, width, 3] as displayed: the first frame, turned by its EXIF orientation, alpha on white."""
    with open_media(ref) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = open_image(ref, file)
        try:
            image.load()
            image = _as_displayed(image)
            if image.mode.startswith("I;16") or image.mode == "I":
                image = _eight_bits(image)
            return convert_to_rgb(image, return_numpy=True)
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


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits by its high byte; Pillow's own conversion clips at 255, white nearly everywhere."""
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))


def _resize_torch(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bit-equal to the HF torchvision backend, which calls the same kernel; a channels-last view makes it fast."""
    if pixels.shape[:2] == size:
        return pixels
    tensor = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(tensor, size=size, mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def _resize_pil(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bit-equal to the HF PIL backend."""
    height, width = size
    return np.asarray(Image.fromarray(pixels).resize((width, height), resample=Image.Resampling.BICUBIC))


RESIZE = {"torch": _resize_torch, "pil": _resize_pil}


def patchify(pixels: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """[height, width, channels] -> [patches, channels * patch * patch]; merged patches are neighbours.

    A 56 x 56 picture with patch 14 and merge 2 has 16 patches; the first four are its upper left 28 x 28.
    """
    height, width, channels = pixels.shape
    rows, columns = height // (merge * patch), width // (merge * patch)
    blocks = pixels.reshape(rows, merge, patch, columns, merge, patch, channels)
    ordered = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # row, column, row in merge, column in merge, channel, y, x
    return np.ascontiguousarray(ordered).reshape(rows * columns * merge**2, channels * patch**2)


def pixel_table(geometry: Geometry, resize: str) -> np.ndarray:
    """What each byte stands for: float32 [channels, 256], by the arithmetic of the HF backend that `resize` equals."""
    ramp = np.tile(np.arange(256, dtype=np.uint8), (len(geometry.mean), 1))
    if resize == "pil":
        scaled = rescale(
            ramp[:, None, :], geometry.rescale_factor, data_format="channels_first", input_data_format="channels_first"
        )
        floats = normalize(
            scaled, geometry.mean, geometry.std, data_format="channels_first", input_data_format="channels_first"
        )
        return floats[:, 0, :].astype(np.float32)
    # The torchvision backend folds the rescaling into mean and std.
    mean, std = (torch.tensor(values) * (1.0 / geometry.rescale_factor) for values in (geometry.mean, geometry.std))
    return ((torch.from_numpy(ramp).to(torch.float32) - mean[:, None]) / std[:, None]).numpy()
