"""Media arrays of a document back to pictures: the inverse of each family's cutting, byte by byte.

A stored byte is a pixel as it was after resizing, so nothing is computed here, only put back into place. By numpy alone
and from the manifest's facts: families themselves import torch and transformers, which takes longer than all of
`neatpack show`. What cannot be put back for certain is told in a sentence and not drawn.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neatpack.format.layout import IMAGE, VIDEO, Layout, MediaKind

from ..labels import mask_spans
from ..media.resize import best_resolution

Arrays = Mapping[str, np.ndarray]
Facts = Mapping[str, Any]
FRAMES_PER_SECOND = 100  # of sound features: hops of 160 at 16 kHz, in every processor of the families that hear
GLOBAL_VIEW = "its global view is stored as floats and not drawn"
KINDS = "visual_kinds"  # an array: IMAGE or VIDEO for each medium, where both are in one array of pixels
GIVEN = "stored as the processor itself gives it, which is not drawn"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Picture:
    pixels: np.ndarray  # uint8 [height, width, 3]: what the model sees, padding included
    caption: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Seen:
    """What the arrays tell of one medium."""

    pictures: tuple[Picture, ...] = ()  # one, or the frames of a video
    note: str = ""  # why something is not drawn
    source: tuple[int, int] | None = None  # width and height of the file, where arrays have them
    blocks: int = 1  # runs of tokens that it is written in: a frame or chunk each
    seconds: float | None = None  # of a sound
    loudness: np.ndarray | None = None  # of a sound, 0 to 1, a number per feature frame


Grids = Sequence[tuple[int, int] | None]  # rows and columns of tiles, where something else than the arrays tells them


def seen_media(
    family: str, media: Arrays, layout: Layout, facts: Facts, counts: Mapping[MediaKind, int], tiles: Grids = ()
) -> dict[MediaKind, list[Seen]]:
    """The media of one document by kind, each in the order of the text. `tiles`: of its images, where known."""
    makers: dict[MediaKind, Callable[[], Iterator[Seen]]] = {
        "image": lambda: IMAGES[family](media, layout, {**facts, "tiles": tiles}),
        "video": lambda: VIDEOS[family](media, layout, facts),
        "audio": lambda: _sounds(media, layout),
    }
    result: dict[MediaKind, list[Seen]] = {}
    for kind, make in makers.items():
        count, known = counts[kind], {"image": IMAGES, "video": VIDEOS}.get(kind)
        if known is not None and family not in known:
            why = GIVEN if family == "default" else f"how {family} cuts {kind}s is not known here, so none is drawn"
            result[kind] = [Seen(note=why)] * count
            continue
        try:
            found = list(make()) if count else []
            if len(found) != count:
                raise ValueError(f"{len(found)} of {count} in the arrays")
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:  # numbers of a manifest that do not fit
            found = [Seen(note=f"not drawn: its arrays are not as {family} cuts {kind}s ({error})")] * count
        result[kind] = found
    return result


def types_of_kinds(types: np.ndarray, media: Arrays) -> np.ndarray:
    """Token types, where a family writes frames of videos by the token of pictures and its arrays tell which is which:
    a block of tokens for each picture, one for each frame. Types [1, 0, 1, 0, 1], a video of 2 frames and a picture ->
    [2, 0, 2, 0, 1].
    """
    if KINDS not in media:
        return types
    blocks, is_video = mask_spans(types == IMAGE), media[KINDS] == VIDEO
    tiles = media["num_patches" if "num_patches" in media else "num_tiles"]
    # SmolVLM writes each tile of a picture by itself, InternVL all of them in one block.
    counts = tiles if tiles.sum() == len(blocks) else np.where(is_video, tiles, 1)
    if counts.sum() != len(blocks) or (counts < 1).any():
        return types
    result = types.copy()
    for start, stop in blocks[np.repeat(is_video, counts)].tolist():
        result[start:stop] = VIDEO
    return result


# Patches and tiles back in place


def from_patches(patches: np.ndarray, grid: Sequence[int], patch: int, merge: int, temporal: int = 1) -> np.ndarray:
    """The inverse of `media.pixels.patchify_video`: frames [count, height, width, channels].

    A grid of (1, 4, 4), patch 14 and merge 2: 16 patches, the first four of them the upper left 28 x 28.
    """
    time, rows, columns = grid
    blocks = patches.reshape(time, rows // merge, columns // merge, merge, merge, -1, temporal, patch, patch)
    # time, frame, row, row in merge, y, column, column in merge, x, channel
    ordered = blocks.transpose(0, 6, 1, 3, 7, 2, 4, 8, 5)
    frames: np.ndarray = np.ascontiguousarray(ordered).reshape(time * temporal, rows * patch, columns * patch, -1)
    return frames


def from_tiles(tiles: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The inverse of `media.pixels.tiles_of`: [tiles, channels, side, side] -> [height, width, channels]."""
    side = tiles.shape[-1]
    (picture,) = from_patches(tiles.reshape(len(tiles), -1), (1, rows, columns), side, 1)
    return np.asarray(picture)


def from_places(patches: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Patches with their places (x, y), channels innermost; -1: padding. Gemma 4's."""
    patch = _side(patches.shape[-1])
    real = places[:, 0] >= 0
    x, y = places[real].T.astype(np.int64)
    rows, columns = int(y.max()) + 1, int(x.max()) + 1
    if rows * columns != len(x):
        raise ValueError(f"{len(x)} patches on {rows} x {columns} places")
    cells = np.zeros((rows, columns, patch, patch, 3), dtype=np.uint8)
    cells[y, x] = patches[real].reshape(-1, patch, patch, 3)
    return np.ascontiguousarray(cells.transpose(0, 2, 1, 3, 4)).reshape(rows * patch, columns * patch, 3)


def _side(row_bytes: int) -> int:
    """588 -> 14: pixels on a side of a patch of three channels."""
    side = math.isqrt(row_bytes // 3)
    if 3 * side**2 != row_bytes:
        raise ValueError(f"rows of {row_bytes} bytes are no square patches")
    return side


def _cut(rows: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Rows of each medium."""
    return np.split(rows, np.cumsum(counts)[:-1]) if counts else []


# Images, by family


def _patch_images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    grids = media["image_grid_thw"].tolist()
    patch = _side(layout["pixel_values"].row[0])
    for rows, grid in zip(_cut(media["pixel_values"], [math.prod(grid) for grid in grids]), grids, strict=True):
        yield Seen(pictures=(Picture(pixels=from_patches(rows, grid, patch, facts["merge_size"])[0]),))


def _gemma_images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    for patches, places in zip(media["pixel_values"], media["image_position_ids"], strict=True):
        yield Seen(pictures=(Picture(pixels=from_places(patches, places)),))


def _square_images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    for tile in media["pixel_values"]:
        yield Seen(pictures=(Picture(pixels=from_tiles(tile[None], 1, 1)),))


def _moonvit_images(name: str) -> Callable[[Arrays, Layout, Facts], Iterator[Seen]]:
    def images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
        grids = [grid[-2:] for grid in media[name].tolist()]
        for tiles, grid in zip(_cut(media["pixel_values"], [math.prod(grid) for grid in grids]), grids, strict=True):
            yield Seen(pictures=(Picture(pixels=from_tiles(tiles, *grid)),))

    return images


def _tiled_images(name: str, *, block_per_tile: bool) -> Callable[[Arrays, Layout, Facts], Iterator[Seen]]:
    """`name`: the array with the number of a picture's tiles; the last of several is the whole."""

    def images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
        counts, pieces = _tiles_of_kind(media, IMAGE, name)
        arrangements = [*facts["tiles"], *[None] * len(counts)]
        for tiles, grid in zip(pieces, arrangements, strict=False):
            blocks = len(tiles) if block_per_tile else 1
            if len(tiles) == 1:
                yield Seen(pictures=(Picture(pixels=from_tiles(tiles, 1, 1)),))
                continue
            whole = Picture(pixels=from_tiles(tiles[-1:], 1, 1), caption="the whole in one tile")
            if grid is None or math.prod(grid) != len(tiles) - 1:
                untold = f"how its other {len(tiles) - 1} tiles are arranged is not stored, so they are not drawn"
                yield Seen(pictures=(whole,), note=untold, blocks=blocks)
            else:
                rows, columns = grid
                tiled = Picture(pixels=from_tiles(tiles[:-1], rows, columns), caption=f"{rows} x {columns} tiles")
                yield Seen(pictures=(tiled, whole), blocks=blocks)

    return images


def _tiles_of_kind(media: Arrays, kind: int, name: str) -> tuple[list[int], list[np.ndarray]]:
    """Numbers of tiles, and tiles, of pictures or videos in an array that may hold both; if nothing tells which is
    which, it holds pictures alone.
    """
    counts, pixels = media[name], media["pixel_values"]
    if KINDS in media:
        mine = media[KINDS] == kind
        counts, pixels = counts[mine], pixels[np.repeat(mine, counts)]
    return counts.tolist(), _cut(pixels, counts.tolist())


def _row_images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    grids = (media["image_sizes"] // facts["side"]).tolist()
    for tiles, grid in zip(_cut(media["pixel_values"], [math.prod(grid) for grid in grids]), grids, strict=True):
        yield Seen(pictures=(Picture(pixels=from_tiles(tiles, *grid)),))


def _llava_images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    counts, sizes = media["num_tiles"].tolist(), media["image_sizes"].tolist()
    for tiles, (height, width) in zip(_cut(media["pixel_values"], counts), sizes, strict=True):
        whole = Picture(pixels=from_tiles(tiles[:1], 1, 1), caption="" if len(tiles) == 1 else "the whole in one tile")
        if len(tiles) == 1:
            yield Seen(pictures=(whole,), source=(width, height))
            continue
        best = best_resolution(height, width, facts["resolutions"])
        rows, columns = (side // facts["side"] for side in best)
        larger = Picture(pixels=from_tiles(tiles[1:], rows, columns), caption=f"{rows} x {columns} tiles")
        yield Seen(pictures=(larger, whole), source=(width, height))


def _phi_images(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    grids = media["image_crops"].tolist()
    crops = _cut(media["image_pixel_values"], [math.prod(grid) for grid in grids])
    for tiles, (rows, columns) in zip(crops, grids, strict=True):
        picture = Picture(pixels=from_tiles(tiles, rows, columns), caption=f"{rows} x {columns} crops")
        yield Seen(pictures=(picture,), note=GLOBAL_VIEW)


# Videos, by family


def _frames(pixels: Sequence[np.ndarray]) -> tuple[Picture, ...]:
    return tuple(Picture(pixels=frame, caption=f"frame {number}") for number, frame in enumerate(pixels, 1))


def _patch_videos(*, block_per_patch: bool) -> Callable[[Arrays, Layout, Facts], Iterator[Seen]]:
    def videos(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
        grids = media["video_grid_thw"].tolist()
        # Image and video patches have the same side: one layer of the model takes both.
        of_image, of_video = (layout[name].row[0] for name in ("pixel_values", "pixel_values_videos"))
        temporal = layout["pixel_values"].deliver.repeat
        if of_video != of_image * temporal:
            raise ValueError(f"rows of {of_video} bytes are not {temporal} patches of {of_image}")
        pieces = _cut(media["pixel_values_videos"], [math.prod(grid) for grid in grids])
        for rows, grid in zip(pieces, grids, strict=True):
            frames = from_patches(rows, grid, _side(of_image), facts["merge_size"], temporal)
            yield Seen(pictures=_frames(list(frames)), blocks=grid[0] if block_per_patch else 1)

    return videos


def _gemma_videos(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    counts = media["num_frames_per_video"].tolist()
    pixels, places = (_cut(media[name], counts) for name in ("pixel_values_videos", "video_position_ids"))
    for frames, where in zip(pixels, places, strict=True):
        drawn = [from_places(patches, place) for patches, place in zip(frames, where, strict=True)]
        yield Seen(pictures=_frames(drawn), blocks=len(drawn))


def _kimi_videos(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    chunks = _cut(media["video_grid_thw"], media["num_chunks_per_video"].tolist())
    rows = _cut(media["pixel_values_videos"], [int(grids.prod(axis=1).sum()) for grids in chunks])
    for tiles, grids in zip(rows, chunks, strict=True):
        height, width = grids[0, 1:].tolist()
        frames = np.split(tiles, int(grids[:, 0].sum()))
        yield Seen(pictures=_frames([from_tiles(frame, height, width) for frame in frames]), blocks=len(grids))


def _llava_videos(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
    for tiles in _cut(media["pixel_values_videos"], media["num_frames"].tolist()):
        yield Seen(pictures=_frames([from_tiles(tile[None], 1, 1) for tile in tiles]))


def _tiled_videos(name: str) -> Callable[[Arrays, Layout, Facts], Iterator[Seen]]:
    def videos(media: Arrays, layout: Layout, facts: Facts) -> Iterator[Seen]:
        for tiles in _tiles_of_kind(media, VIDEO, name)[1]:
            yield Seen(pictures=_frames([from_tiles(tile[None], 1, 1) for tile in tiles]), blocks=len(tiles))

    return videos


# Sounds, of every family: rows of features over time


def _sounds(media: Arrays, layout: Layout) -> Iterator[Seen]:
    ((name, array),) = (
        (name, array) for name, array in layout.items() if array.kinds == ("audio",) and array.dtype == "float32"
    )
    for features in _cut(media[name], media[array.counts].tolist()):
        level = features.mean(axis=1)
        low, high = float(level.min()), float(level.max())
        loudness = (level - low) / (high - low) if high > low else np.zeros(len(level), np.float32)
        yield Seen(seconds=len(features) / FRAMES_PER_SECOND, loudness=loudness)


IMAGES: dict[str, Callable[[Arrays, Layout, Facts], Iterator[Seen]]] = {
    "qwen2_vl": _patch_images,
    "qwen3_vl": _patch_images,
    "qwen2_5_omni": _patch_images,
    "qwen3_omni": _patch_images,
    "glm4v": _patch_images,
    "gemma4": _gemma_images,
    "gemma3": _square_images,
    "kimi_vl": _moonvit_images("image_grid_hws"),
    "kimi_k25": _moonvit_images("image_grid_thw"),
    "llava_onevision": _llava_images,
    "internvl": _tiled_images("num_patches", block_per_tile=False),
    "idefics3": _tiled_images("num_tiles", block_per_tile=True),
    "smolvlm": _tiled_images("num_tiles", block_per_tile=True),
    "mistral3": _row_images,
    "phi4_mm": _phi_images,
}
VIDEOS: dict[str, Callable[[Arrays, Layout, Facts], Iterator[Seen]]] = {
    "qwen2_vl": _patch_videos(block_per_patch=False),
    "qwen3_vl": _patch_videos(block_per_patch=True),
    "qwen2_5_omni": _patch_videos(block_per_patch=False),
    "qwen3_omni": _patch_videos(block_per_patch=False),
    "glm4v": _patch_videos(block_per_patch=True),
    "gemma4": _gemma_videos,
    "kimi_k25": _kimi_videos,
    "llava_onevision": _llava_videos,
    "internvl": _tiled_videos("num_patches"),
    "smolvlm": _tiled_videos("num_tiles"),
}
