"""smart_resize for images and videos, the only copy: which size a picture is given before it is cut into patches."""

import math

MAX_ASPECT_RATIO = 200


def smart_resize_image(
    height: int,
    width: int,
    factor: int = 28,
    min_pixels: int = 56 * 56,
    max_pixels: int = 14 * 14 * 4 * 1280,
) -> tuple[int, int]:
    """Height and width, multiples of `factor`, with the area in [min_pixels, max_pixels] and the ratio about kept.

    640x480 (h, w) with factor 28 -> (644, 476). Equal to transformers' `smart_resize` of Qwen2-VL for every size.
    """
    _check_aspect_ratio(height, width)
    new_height = round(height / factor) * factor
    new_width = round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def smart_resize_video(
    num_frames: int,
    height: int,
    width: int,
    temporal_factor: int = 2,
    factor: int = 32,
    min_pixels: int = 128 * 128,
    max_pixels: int = 16 * 16 * 2 * 2 * 2 * 6144,
) -> tuple[int, int]:
    """As for images, but the pixel bounds cover the whole clip (Qwen3-VL). Equal to transformers' own."""
    if height < factor or width < factor:
        # Tiny frames are first blown up to one patch block, as the reference does.
        grow = max(factor / height, factor / width)
        height, width = int(height * grow), int(width * grow)
    _check_aspect_ratio(height, width)
    new_height = round(height / factor) * factor
    new_width = round(width / factor) * factor
    # A clip of fewer frames than one temporal patch is padded up to one by the caller.
    counted_frames = max(1, round(num_frames / temporal_factor)) * temporal_factor
    if counted_frames * new_height * new_width > max_pixels:
        shrink = math.sqrt((num_frames * height * width) / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif counted_frames * new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (num_frames * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def _check_aspect_ratio(height: int, width: int) -> None:
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise ValueError(
            f"aspect ratio {ratio:.0f}:1 is above {MAX_ASPECT_RATIO}:1 ({width}x{height}); crop the picture"
        )
