"""Pictures as arrays: resize, cut into patches, and what a stored byte stands for. Imports nothing of ours."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from transformers.image_transforms import normalize, rescale

# (pixels [height, width, channels] uint8, (height, width)) -> pixels of that size
Resize = Callable[[np.ndarray, tuple[int, int]], np.ndarray]


def resize_torch(pixels: np.ndarray, size: tuple[int, int], mode: str = "bicubic") -> np.ndarray:
    """Bit-equal to the HF torchvision backend, which calls the same kernel; a channels-last view makes it fast."""
    if pixels.shape[:2] == size:
        return pixels
    tensor = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(tensor, size=size, mode=mode, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def resize_pil(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bit-equal to the HF PIL backend."""
    height, width = size
    return np.asarray(Image.fromarray(pixels).resize((width, height), resample=Image.Resampling.BICUBIC))


RESIZE: dict[str, Resize] = {"torch": resize_torch, "pil": resize_pil}


def padded(pixels: np.ndarray, size: tuple[int, int], fill: int = 0) -> np.ndarray:
    """A picture in the upper left corner of a larger one."""
    if pixels.shape[:2] == size:
        return pixels
    larger = np.full((*size, pixels.shape[2]), fill, dtype=pixels.dtype)
    larger[: pixels.shape[0], : pixels.shape[1]] = pixels
    return larger


def patchify(pixels: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """[height, width, channels] -> [patches, channels * patch * patch]; merged patches are neighbours.

    A 56 x 56 picture with patch 14 and merge 2 has 16 patches; the first four are its upper left 28 x 28. With merge 1
    they come row by row.
    """
    height, width, channels = pixels.shape
    rows, columns = height // (merge * patch), width // (merge * patch)
    blocks = pixels.reshape(rows, merge, patch, columns, merge, patch, channels)
    ordered = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # row, column, row in merge, column in merge, channel, y, x
    return np.ascontiguousarray(ordered).reshape(rows * columns * merge**2, channels * patch**2)


def patchify_video(frames: np.ndarray, patch: int, merge: int, temporal: int) -> np.ndarray:
    """[frames, height, width, channels] -> [patches, channels * temporal * patch * patch]; merged ones neighbours."""
    count, height, width, channels = frames.shape
    rows, columns = height // (merge * patch), width // (merge * patch)
    blocks = frames.reshape(count // temporal, temporal, rows, merge, patch, columns, merge, patch, channels)
    # time, row, column, row in merge, column in merge, channel, frame, y, x
    ordered = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(ordered).reshape(
        count // temporal * rows * columns * merge**2, channels * temporal * patch**2
    )


def tiles_of(pixels: np.ndarray, side: int) -> np.ndarray:
    """[rows * side, columns * side, channels] -> [tiles, channels, side, side], row by row."""
    height, width, channels = pixels.shape
    blocks = pixels.reshape(height // side, side, width // side, side, channels)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 1, 3)).reshape(-1, channels, side, side)


def centred(pixels: np.ndarray, size: tuple[int, int], colour: Sequence[int]) -> np.ndarray:
    """A picture in the middle of a larger one; an odd pixel is to the right or below."""
    if pixels.shape[:2] == size:
        return pixels
    larger = np.empty((*size, pixels.shape[2]), dtype=pixels.dtype)
    larger[:] = colour
    top, left = (size[0] - pixels.shape[0]) // 2, (size[1] - pixels.shape[1]) // 2
    larger[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return larger


def pixel_table(rescale_factor: float, mean: Sequence[float], std: Sequence[float], resize: str) -> np.ndarray:
    """What each byte stands for: float32 [channels, 256], by the arithmetic of the HF backend that `resize` equals."""
    ramp = np.tile(np.arange(256, dtype=np.uint8), (len(mean), 1))
    if resize == "pil":
        scaled = rescale(
            ramp[:, None, :], rescale_factor, data_format="channels_first", input_data_format="channels_first"
        )
        floats = normalize(scaled, mean, std, data_format="channels_first", input_data_format="channels_first")
        return floats[:, 0, :].astype(np.float32)
    # The torchvision backend folds the rescaling into mean and std.
    means, stds = (torch.tensor(values) * (1.0 / rescale_factor) for values in (mean, std))
    return ((torch.from_numpy(ramp).to(torch.float32) - means[:, None]) / stds[:, None]).numpy()


def rescale_table(rescale_factor: float, resize: str) -> np.ndarray:
    """As `pixel_table`, for processors that only rescale: float32 [1, 256], the same for every channel."""
    ramp = np.arange(256, dtype=np.uint8)
    if resize == "pil":
        return rescale(ramp[None, None], rescale_factor, input_data_format="channels_first")[0].astype(np.float32)
    return (torch.from_numpy(ramp)[None] * rescale_factor).numpy()
