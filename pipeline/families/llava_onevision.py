"""LLaVA-OneVision: a lone picture is cut into tiles of the resolution that suits it; one of several is a single tile.

    name                 rows     of a row
    pixel_values         tiles    [3, side, side]; a lone picture's are the whole of it, then its tiles row by row
    num_tiles            images   how many tiles are an image's
    image_sizes          images   height and width of the source
    batch_num_images     groups   images of each document that has any: 1 tells the model to look for tiles
    pixel_values_videos  videos   stored as frames; handed over as [videos, most frames, 3, side, side]
    num_frames           videos   how many frames are a video's; num_frames_mask tells them from padding

The model's forward passes over num_tiles, num_frames and num_frames_mask. It cannot tell padding frames from others,
though: all videos of a batch must have as many frames, so set `num_frames` in the processor's video config (32, say),
which takes that many from any video.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import Arrays, Decoded, Family, Grid, ProcessorFiles, ProcessorKey
from neatpack.pipeline.families.uniform import configured, refuse_settings, uniform_frames
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.media.pixels import Resize, pixel_table, resize_torch
from neatpack.pipeline.media.resize import best_resolution, fitted
from neatpack.pipeline.records import MeasuredMedia, MediaRef

PIXEL_DEFAULTS = {
    "size": {"height": 384, "width": 384},
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PINPOINTS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
IMAGE_DEFAULTS = {**PIXEL_DEFAULTS, "image_grid_pinpoints": PINPOINTS}
VIDEO_DEFAULTS = {**PIXEL_DEFAULTS, "fps": None, "num_frames": None}
ONE_OF_SEVERAL = (1, 0, 0)  # the grid of a picture without tiles beside the whole
PIXELS_ARE_FIXED = "gives every picture the resolutions that its model knows (image_grid_pinpoints)"


class LlavaOnevision(Family):
    name = "llava_onevision"
    processor_classes = ("LlavaOnevisionProcessor",)
    takes = ("image", "video")
    placeholders = {"image": "<image>", "video": "<video>"}
    structural_tokens = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<image>", "<video>")
    assistant_header = "<|im_start|>assistant \n"
    header_tail = 1
    end_of_turn = "<|im_end|>"
    position_axes = 1

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        super().__init__(files, key)
        if not files.image:
            raise UserError(
                f"--processor {self.source}: has neither preprocessor_config.json nor processor_config.json"
            )
        refuse_settings(key, self.name, min_pixels=PIXELS_ARE_FIXED, max_pixels=PIXELS_ARE_FIXED,
                        video_min_pixels="gives every frame one size", video_max_pixels="gives every frame one size",
                        video_min_frames="takes frames by rate or number alone")  # fmt: skip
        images = configured(self.source, self.name, IMAGE_DEFAULTS, files.image)
        videos = configured(self.source, self.name, VIDEO_DEFAULTS, files.video or files.image)
        if key.video_fps:
            videos |= {"fps": key.video_fps, "num_frames": None}
        videos["max_frames"] = key.video_max_frames
        self.side = self._side(images)
        if self._side(videos) != self.side:
            raise UserError(
                f"--processor {self.source}: frames have {self._side(videos)} pixels on a side and tiles {self.side}; "
                f"{self.name} needs the same"
            )
        counts = {"num_image_tokens": 729, "vision_feature_select_strategy": "full",
                  "vision_aspect_ratio": "anyres_max_9"}  # fmt: skip
        counts |= {name: files.processor[name] for name in counts if files.processor.get(name) is not None}
        most = str(counts["vision_aspect_ratio"]).removeprefix("anyres_max_")
        if not most.isdecimal():
            raise UserError(
                f"--processor {self.source}: vision_aspect_ratio is {counts['vision_aspect_ratio']}, expected "
                "anyres_max_9 or another number"
            )
        self.config = {"image": images, "video": videos, **counts}
        self.facts = {
            "side": self.side,
            "resolutions": images["image_grid_pinpoints"],
            "tile_tokens": counts["num_image_tokens"],
            "max_tiles": int(most),
            "dropped_tokens": int(counts["vision_feature_select_strategy"] == "default"),  # CLIP's class token
        }

    def _side(self, config: dict[str, Any]) -> int:
        """Pixels on a side of a tile."""
        size = config["size"]
        sides = {size.get(name, size.get("shortest_edge")) for name in ("height", "width")}
        pinpoints = config.get("image_grid_pinpoints", [])
        uneven = [sizes for sizes in pinpoints for pixels in sizes if pixels % max(sides)]
        if len(sides) > 1 or config.get("do_center_crop") or uneven:
            raise UserError(
                f"--processor {self.source}: {self.name} needs square tiles that are not cropped, and "
                "image_grid_pinpoints in whole tiles; it has "
                f"size {size}, do_center_crop {config.get('do_center_crop')}, {uneven[:1]}"
            )
        return int(sides.pop())

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        tile = (len(self.config["image"]["image_mean"]), self.side, self.side)
        return {
            "num_tiles": MediaArray(kind="image", dtype="int64", row=()),
            "image_sizes": MediaArray(kind="image", dtype="int64", row=(2,)),
            "batch_num_images": MediaArray(kind="image", dtype="int64", row=(), groups=True),
            "pixel_values": MediaArray(kind="image", dtype="uint8", row=tile, counts="num_tiles", table="image"),
            "num_frames": MediaArray(kind="video", dtype="int64", row=()),
            "pixel_values_videos": MediaArray(
                kind="video", dtype="uint8", row=tile, counts="num_frames", table="video", mask="num_frames_mask"
            ),
        }

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """Videos are always resized and normalised as torchvision does: transformers has no other way."""
        return {
            kind: pixel_table(config["rescale_factor"], config["image_mean"], config["image_std"], backend)
            for kind, config, backend in (
                ("image", self.config["image"], resize), ("video", self.config["video"], "torch"),
            )
        }  # fmt: skip

    # Images

    def image_shape(self, height: int, width: int, num_images: int) -> tuple[tuple[int, int], Grid]:
        """Of a lone picture the size inside its tiles, and their rows and columns."""
        if num_images > 1:
            return (self.side, self.side), ONE_OF_SEVERAL
        best = best_resolution(height, width, self.facts["resolutions"])
        return fitted(height, width, best), (1, best[0] // self.side, best[1] // self.side)

    def image_arrays(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        if medium.grid == ONE_OF_SEVERAL:
            colour = [int(mean * 255) for mean in self.config["image"]["image_mean"]]
            longer = max(pixels.shape[:2])
            tiles = resize(centred(pixels, (longer, longer), colour), medium.size)[None]
        else:
            whole = resize(pixels, (self.side, self.side))
            _, rows, columns = medium.grid
            larger = centred(resize(pixels, medium.size), (rows * self.side, columns * self.side), [0] * whole.shape[2])
            cut = larger.reshape(rows, self.side, columns, self.side, -1).swapaxes(1, 2)
            tiles = np.concatenate([whole[None], cut.reshape(-1, self.side, self.side, whole.shape[2])])
        return {
            "pixel_values": np.ascontiguousarray(tiles.transpose(0, 3, 1, 2)),
            "num_tiles": np.array([len(tiles)], dtype=np.int64),
            "image_sizes": np.array([[medium.height, medium.width]], dtype=np.int64),
        }

    def document_arrays(
        self, measured_ids: np.ndarray, media: Sequence[MeasuredMedia], decoded: Decoded, resize: Resize
    ) -> Arrays:
        arrays = super().document_arrays(measured_ids, media, decoded, resize)
        num_images = len(arrays["num_tiles"])
        return arrays | {"batch_num_images": np.array([num_images] if num_images else [], dtype=np.int64)}

    def stands_alone(self, media: Sequence[MeasuredMedia]) -> bool:
        """One of several pictures has no tiles, and the model looks for them where it is the only one."""
        images = [medium for medium in media if medium.ref.kind == "image"]
        return len(images) != 1 or images[0].grid != ONE_OF_SEVERAL

    # Videos

    def sample_frames(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """A rate or a number in the config is there to be used, whatever the class's do_sample_frames; a number also
        where a row asks for a rate, so that all videos have as many frames."""
        videos = self.config["video"]
        number, rate = videos["num_frames"], videos["fps"]
        if asked_fps is not None and number is None:
            rate = asked_fps
        return uniform_frames(total, fps, num_frames=number, asked_fps=rate, max_frames=videos["max_frames"])

    def video_shape(self, num_frames: int, height: int, width: int) -> tuple[tuple[int, int], Grid]:
        return (self.side, self.side), (num_frames, 1, 1)

    def video_arrays(self, frames: Iterable[np.ndarray], medium: MeasuredMedia) -> Arrays:
        tiles = np.stack([resize_torch(frame, medium.size) for frame in frames])
        return {
            "pixel_values_videos": np.ascontiguousarray(tiles.transpose(0, 3, 1, 2)),
            "num_frames": np.array([len(tiles)], dtype=np.int64),
        }

    # Tokens

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        if medium.ref.kind == "video":
            tokens = video_tokens(medium.grid[0], self.facts)
        else:
            tokens = image_tokens((medium.height, medium.width), 1 + medium.grid[1] * medium.grid[2], self.facts)
        return np.full(tokens, self.placeholder_ids[medium.ref.kind], dtype=np.int32)

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        """The group is counted with every image of it: a few bytes too many."""
        if medium.ref.kind == "video":
            return {"num_frames": 1, "pixel_values_videos": medium.grid[0]}
        tiles = 1 + medium.grid[1] * medium.grid[2]
        return {"num_tiles": 1, "image_sizes": 1, "batch_num_images": 1, "pixel_values": tiles}

    @property
    def smallest_image(self) -> MeasuredMedia:
        """A line as wide as a tile: of its tile, one row of tokens is left."""
        size, grid = self.image_shape(1, self.side, 1)
        return MeasuredMedia(ref=MediaRef(kind="image", path=""), height=1, width=self.side, size=size, grid=grid)

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        images = zip(media["image_sizes"].tolist(), media["num_tiles"].tolist(), strict=True)
        return sum(image_tokens(size, tiles, facts) for size, tiles in images) + sum(
            video_tokens(frames, facts) for frames in media["num_frames"].tolist()
        )


def image_tokens(size: Sequence[int], num_tiles: int, facts: Mapping[str, Any]) -> int:
    """Tokens of a picture whose source has a size, as the processor counts them.

    One tile: its tokens and a line break. Several: those of the whole, and those of the tiles less the padding, with a
    line break after each row; where these are more than max_tiles' worth, as many as the model shrinks them to.
    """
    if num_tiles == 1:
        return facts["tile_tokens"] + 1 - facts["dropped_tokens"]
    height, width = size
    best = best_resolution(height, width, facts["resolutions"])
    per_side = math.isqrt(facts["tile_tokens"])
    rows, columns = (per_side * (pixels // facts["side"]) for pixels in best)
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    excess = math.sqrt(rows * columns / (facts["max_tiles"] * per_side**2))
    if excess > 1.1:
        rows, columns = int(rows // excess), int(columns // excess)
    return facts["tile_tokens"] + rows * columns + rows - facts["dropped_tokens"]


def video_tokens(num_frames: int, facts: Mapping[str, Any]) -> int:
    """The model halves the sides of each frame; one line break after all: 3 frames of 27 x 27 -> 3 * 14 * 14 + 1."""
    return num_frames * math.ceil(math.isqrt(facts["tile_tokens"]) / 2) ** 2 + 1


def centred(pixels: np.ndarray, size: tuple[int, int], colour: Sequence[int]) -> np.ndarray:
    """A picture in the middle of a larger one; an odd pixel is to the right or below."""
    if pixels.shape[:2] == size:
        return pixels
    larger = np.empty((*size, pixels.shape[2]), dtype=pixels.dtype)
    larger[:] = colour
    top, left = (size[0] - pixels.shape[0]) // 2, (size[1] - pixels.shape[1]) // 2
    larger[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return larger
