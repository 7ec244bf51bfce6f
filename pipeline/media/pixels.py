"""Pictures as arrays: resize, cut into patches, and what a stored byte stands for. Imports no module of ours.

torch takes two seconds to import, and who looks into an output needs none of it: what calls it imports it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

FIRST = "channels_first"  # as transformers calls the axis of an array

# (pixels [height, width, channels] uint8, (height, width)) -> pixels of that size
Resize = Callable[[np.ndarray, tuple[int, int]], np.ndarray]


def resize_torch(pixels: np.ndarray, size: tuple[int, int], mode: str = "bicubic") -> np.ndarray:
    """Bit-equal to the HF torchvision backend, which calls the same kernel; a channels-last view makes it fast."""
    if pixels.shape[:2] == size:
        return pixels
    import torch

    tensor = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(tensor, size=size, mode=mode, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def resize_pil(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bit-equal to the HF PIL backend."""
    height, width = size
    return np.asarray(Image.fromarray(pixels).resize((width, height), resample=Image.Resampling.BICUBIC))


RESIZE: dict[str, Resize] = {"torch": resize_torch, "pil": resize_pil}


def padded(
    pixels: np.ndarray, size: tuple[int, int], colour: Sequence[int] = (0, 0, 0), *, centred: bool = False
) -> np.ndarray:
    """A picture in the upper left corner of a larger one, or in its middle, where an odd pixel is right or below."""
    if pixels.shape[:2] == size:
        return pixels
    height, width, channels = pixels.shape
    larger = np.empty((*size, channels), dtype=pixels.dtype)
    larger[:] = colour
    top, left = ((size[0] - height) // 2, (size[1] - width) // 2) if centred else (0, 0)
    larger[top : top + height, left : left + width] = pixels
    return larger


def patchify(pixels: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """[height, width, channels] -> [patches, channels * patch * patch]; merged patches are neighbours.

    A 56 x 56 picture with patch 14 and merge 2 has 16 patches; the first four are its upper left 28 x 28. With merge 1
    they come row by row.
    """
    return patchify_video(pixels[None], patch, merge, 1)


def patchify_video(frames: np.ndarray, patch: int, merge: int, temporal: int) -> np.ndarray:
    """[frames, height, width, channels] -> [patches, channels * temporal * patch * patch]; merged ones neighbours."""
    row = frames.shape[-1] * temporal * patch**2
    return np.ascontiguousarray(in_patches(frames, patch, merge, temporal)).reshape(-1, row)


def in_patches(frames: np.ndarray, patch: int, merge: int, temporal: int) -> np.ndarray:
    """The same pixels in the order of patches, as a view: whoever lays them somewhere copies them once, and no more."""
    count, height, width, channels = frames.shape
    rows, columns = height // (merge * patch), width // (merge * patch)
    blocks = frames.reshape(count // temporal, temporal, rows, merge, patch, columns, merge, patch, channels)
    # time, row, column, row in merge, column in merge, channel, frame, y, x
    return blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)


def tiles_of(pixels: np.ndarray, side: int) -> np.ndarray:
    """[rows * side, columns * side, channels] -> [tiles, channels, side, side], row by row."""
    return patchify(pixels, side, 1).reshape(-1, pixels.shape[2], side, side)


def pixel_table(rescale_factor: float, mean: Sequence[float], std: Sequence[float], resize: str) -> np.ndarray:
    """What each byte stands for: float32 [channels, 256], by the arithmetic of the HF backend that `resize` equals."""
    ramp = np.tile(np.arange(256, dtype=np.uint8), (len(mean), 1))
    if resize == "pil":
        # Here and not above: a loader that renders pictures needs neither tables nor transformers.
        from transformers.image_transforms import normalize, rescale

        scaled = rescale(ramp[:, None, :], rescale_factor, input_data_format=FIRST)
        floats: np.ndarray = normalize(scaled, mean, std, input_data_format=FIRST)[:, 0, :]
        return floats.astype(np.float32)
    import torch

    # The torchvision backend folds the rescaling into mean and std.
    means, stds = (torch.tensor(values) * (1.0 / rescale_factor) for values in (mean, std))
    return ((torch.from_numpy(ramp).to(torch.float32) - means[:, None]) / stds[:, None]).numpy()


def rescale_table(rescale_factor: float, resize: str) -> np.ndarray:
    """As `pixel_table`, for processors that only rescale: float32 [1, 256], the same for every channel."""
    ramp = np.arange(256, dtype=np.uint8)
    if resize == "pil":
        from transformers.image_transforms import rescale

        floats: np.ndarray = rescale(ramp[None, None], rescale_factor, input_data_format=FIRST)[0]
        return floats.astype(np.float32)
    import torch

    return (torch.from_numpy(ramp)[None] * rescale_factor).numpy()
