"""The size that a picture is given before it is cut into patches: smart_resize and its kin, the only copies."""

import math
from collections.abc import Sequence

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
    return _within(height, width, factor, min_pixels, max_pixels)


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
        # Frames smaller than one merged patch are enlarged to it first, as transformers does.
        grow = max(factor / height, factor / width)
        height, width = int(height * grow), int(width * grow)
    _check_aspect_ratio(height, width)
    # A clip of fewer frames than one temporal patch is padded up to one by the caller.
    counted_frames = max(1, round(num_frames / temporal_factor)) * temporal_factor
    return _within(height, width, factor, min_pixels, max_pixels, num_frames, counted_frames)


def _within(
    height: int, width: int, factor: int, low: int, high: int, num_frames: int = 1, counted_frames: int = 1
) -> tuple[int, int]:
    """Multiples of `factor`, about of the same ratio, with an area of all frames in [low, high].

    Whether an area is within the bounds goes by the frames in whole temporal patches, how far to scale by the others:
    so transformers has it.
    """
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if counted_frames * new_height * new_width > high:
        shrink = math.sqrt((num_frames * height * width) / high)
        new_height, new_width = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
    elif counted_frames * new_height * new_width < low:
        grow = math.sqrt(low / (num_frames * height * width))
        new_height, new_width = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return new_height, new_width


def _check_aspect_ratio(height: int, width: int) -> None:
    ratio = height / width if height > width else width / height
    if ratio > MAX_ASPECT_RATIO:
        raise ValueError(
            f"aspect ratio {ratio:.0f}:1 is above {MAX_ASPECT_RATIO}:1 ({width}x{height}); crop the picture"
        )


def budget_resize(height: int, width: int, block: int = 48, max_blocks: int = 280) -> tuple[int, int]:
    """The largest height and width, multiples of `block`, of at most `max_blocks` blocks and about the same ratio.

    640x480 (h, w), blocks of 48, 280 of them -> (912, 672): small pictures are enlarged to the budget, too. A picture
    so long that its short side would vanish gets one row of blocks. Equal to transformers'
    `get_aspect_ratio_preserving_size` of Gemma 4 (patches of 16, pooled 3 x 3, are blocks of 48) for every size.
    """
    scale = math.sqrt(max_blocks * block**2 / (height * width))
    rows, columns = math.floor(scale * height / block), math.floor(scale * width / block)
    if rows == columns == 0:
        raise ValueError(f"a {width}x{height} picture does not fit {max_blocks} blocks of {block}x{block}")
    if rows == 0:
        rows, columns = 1, min(math.floor(width / height), max_blocks)
    elif columns == 0:
        rows, columns = min(math.floor(height / width), max_blocks), 1
    return rows * block, columns * block


def navit_resize(
    height: int,
    width: int,
    patch: int = 14,
    merge: int = 2,
    max_patches: int = 16384,
    max_side: int | None = 512,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """A size within a budget of patches, never enlarged, and that size padded to whole merged patches (MoonViT).

    100x50 (h, w) -> (100, 50) and (112, 56). `max_side`: patches on a side that may not be passed; None: any number.
    Equal to transformers' `navit_resize` of Kimi-K2.5, and without max_side to Kimi-VL's own rule.
    """
    patches = max(1, height // patch) * max(1, width // patch)
    scale = min(1.0, math.sqrt(max_patches / patches))
    if max_side is not None:
        scale = min(scale, max_side * patch / height, max_side * patch / width)
    new_height, new_width = max(1, int(height * scale)), max(1, int(width * scale))
    if max_side is not None:  # the product may be a rounding above it
        new_height, new_width = min(new_height, max_side * patch), min(new_width, max_side * patch)
    block = patch * merge
    return (new_height, new_width), (-(-new_height // block) * block, -(-new_width // block) * block)


def best_resolution(height: int, width: int, resolutions: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Of several (height, width), the one that keeps most of a picture's pixels, and wastes the least (LLaVA's anyres).

    500x300 (h, w) among 384x384, 768x384 and 768x768 -> (768, 384). Of equals, the first.
    """

    def merits(resolution: Sequence[int]) -> tuple[int, int]:
        high, wide = resolution
        scale = min(wide / width, high / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - high * wide

    high, wide = max(resolutions, key=merits)
    return high, wide


def fitted(height: int, width: int, into: tuple[int, int]) -> tuple[int, int]:
    """The largest size of a picture's ratio inside another, rounded up: 100x50 (h, w) into (384, 384) -> (384, 192)."""
    by_height, by_width = into[0] / height, into[1] / width
    if by_width < by_height:
        return min(math.ceil(height * by_width), into[0]), into[1]
    return into[0], min(math.ceil(width * by_height), into[1])


def closest_tiles(height: int, width: int, side: int, most: int, least: int = 1) -> tuple[int, int]:
    """Rows and columns, `least` to `most` tiles, whose aspect ratio is closest to a picture's (InternVL, Phi-4).

    Where several are (1 x 1, 2 x 2, 3 x 3 …) the largest that the picture fills by half: 500x900 (h, w), tiles of 448,
    12 at most -> 1 row of 2. Equal to transformers' `get_optimal_tiled_canvas`, which has columns first.
    """
    best, smallest = (1, 1), math.inf
    grids = [(rows, columns) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    for rows, columns in sorted(grids, key=math.prod):
        if rows * columns < least:
            continue
        distance = abs(width / height - columns / rows)
        if distance < smallest or (distance == smallest and height * width > 0.5 * side**2 * rows * columns):
            best, smallest = (rows, columns), distance
    return best
