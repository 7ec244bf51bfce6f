"""LLaVA-OneVision: a lone picture is cut into tiles of the resolution that suits it; one of several is a single tile.

    name                 rows     of a row
    pixel_values         tiles    [3, side, side]; a lone picture's are the whole of it, then its tiles row by row
    num_tiles            images   how many tiles are an image's
    image_sizes          images   height and width of the source
    batch_num_images     groups   images of each document that has any: 1 tells the model to look for tiles
    pixel_values_videos  videos   stored as frames; handed over as [videos, most frames, 3, side, side]
    num_frames           videos   how many frames are a video's; num_frames_mask tells them from padding

The model's forward passes over num_tiles, num_frames and num_frames_mask. It cannot tell padding frames from others,
though: loaders/mended.py lets it, or set `num_frames` in the processor's video config (32, say), which takes that many
from any video.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from neatpack.format.layout import MediaArray

from ..config import UserError
from ..media.limits import limits
from ..media.pixels import Resize, padded, tiles_of
from ..media.resize import best_resolution, fitted
from ..records import MeasuredMedia
from .base import Arrays, Family, Grid, ImageRule, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import CLIP, asked_rate, configured, refuse_settings, uniform_frames
from .tiles import FrameTiles, SquareTiles

CHAT = ChatFormat(
    assistant_header="<|im_start|>assistant \n",
    end_of_turn="<|im_end|>",
    placeholders={"image": "<image>", "video": "<video>"},
    structural_tokens=("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<image>", "<video>"),
)
PIXEL_DEFAULTS = {
    "size": {"height": 384, "width": 384},
    **CLIP,
}
PINPOINTS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
IMAGE_DEFAULTS = {**PIXEL_DEFAULTS, "image_grid_pinpoints": PINPOINTS}
VIDEO_DEFAULTS = {**PIXEL_DEFAULTS, "fps": None, "num_frames": None}
ONE_OF_SEVERAL = (1, 0, 0)  # the grid of a picture without tiles beside the whole
PIXELS_ARE_FIXED = "gives every picture the resolutions that its model knows (image_grid_pinpoints)"


@dataclass(frozen=True, kw_only=True)
class AnyresImages(SquareTiles, ImageRule):
    facts: Mapping[str, Any]  # by which tokens are counted

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "num_tiles": self.integers(),
            "image_sizes": self.integers(2),
            "batch_num_images": MediaArray(kinds=("image",), dtype="int64", row=(), groups=True),
            "pixel_values": self.pixels(*self.tile, counts="num_tiles"),
        }

    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        """Of a lone picture the size inside its tiles, and their rows and columns."""
        if num_images > 1:
            longer, most = max(height, width), limits().max_image_pixels
            if longer**2 > most:
                raise ValueError(
                    f"{width}x{height} is padded to a square of {longer**2} pixels, as one of several pictures, above "
                    f"--max-image-pixels {most}; crop it"
                )
            return (self.side, self.side), ONE_OF_SEVERAL
        best = best_resolution(height, width, self.facts["resolutions"])
        return fitted(height, width, best), (1, best[0] // self.side, best[1] // self.side)

    def num_rows(self, medium: MeasuredMedia) -> int:
        """Tiles: the whole picture is one, too."""
        return 1 + medium.grid[1] * medium.grid[2]

    def tokens(self, medium: MeasuredMedia) -> int:
        return image_tokens((medium.height, medium.width), self.num_rows(medium), self.facts)

    @property
    def smallest(self) -> MeasuredMedia:
        """A line as wide as a tile: of its tile, one row of tokens is left."""
        size, grid = self.shape(1, self.side, 1)
        return self.blank(size, grid, source=(1, self.side))

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        if medium.grid == ONE_OF_SEVERAL:
            colour = [int(mean * 255) for mean in self.image_mean]
            longer = max(content.shape[:2])
            tiles = tiles_of(resize(padded(content, (longer, longer), colour, centred=True), medium.size), self.side)
        else:
            whole = resize(content, (self.side, self.side))
            _, rows, columns = medium.grid
            larger = padded(resize(content, medium.size), (rows * self.side, columns * self.side), centred=True)
            tiles = np.concatenate([tiles_of(whole, self.side), tiles_of(larger, self.side)])
        return {
            "pixel_values": tiles,
            "num_tiles": np.array([len(tiles)], dtype=np.int64),
            "image_sizes": np.array([[medium.height, medium.width]], dtype=np.int64),
        }

    def of_document(self, media: Sequence[MeasuredMedia]) -> Arrays:
        return {"batch_num_images": np.array([len(media)] if media else [], dtype=np.int64)}

    def can_be_all(self, media: Sequence[MeasuredMedia]) -> bool:
        """One of several pictures has no tiles, and the model looks for them where it is the only one."""
        return len(media) != 1 or media[0].grid != ONE_OF_SEVERAL


@dataclass(frozen=True, kw_only=True)
class TileVideos(FrameTiles):
    facts: Mapping[str, Any]

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "num_frames": self.integers(),
            "pixel_values_videos": self.pixels(*self.tile, counts="num_frames", mask="num_frames_mask"),
        }

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """A rate or a number in the config is there to be used, whatever the class's do_sample_frames; a number also
        where a row asks for a rate, so that all videos have as many frames."""
        rate = asked_fps if asked_fps is not None and self.num_frames is None else self.fps
        return uniform_frames(total, fps, num_frames=self.num_frames, asked_fps=rate, max_frames=self.max_frames)

    def tokens(self, medium: MeasuredMedia) -> int:
        return video_tokens(medium.grid[0], self.facts)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """As it is: the model takes videos of one batch by one number of frames."""
        return medium

    def render(self, content: Iterable[np.ndarray], medium: MeasuredMedia, resize: Resize) -> Arrays:
        tiles = self.tiles(content)
        return {"pixel_values_videos": tiles, "num_frames": np.array([len(tiles)], dtype=np.int64)}


class LlavaOnevision(Family):
    name = "llava_onevision"
    processor_classes = ("LlavaOnevisionProcessor",)

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        if not files.image:
            raise UserError(
                f"--processor {files.source}: has neither preprocessor_config.json nor processor_config.json",
                code="processor-missing",
            )
        refuse_settings(key, cls.name, min_pixels=PIXELS_ARE_FIXED, max_pixels=PIXELS_ARE_FIXED,
                        video_min_pixels="gives every frame one size", video_max_pixels="gives every frame one size",
                        video_min_frames="takes frames by rate or number alone")  # fmt: skip
        images = configured(files.source, cls.name, IMAGE_DEFAULTS, files.image)
        videos = configured(files.source, cls.name, VIDEO_DEFAULTS, files.video or files.image)
        videos |= asked_rate(key)
        side = _side(files.source, images)
        if _side(files.source, videos) != side:
            raise UserError(
                f"--processor {files.source}: frames have {_side(files.source, videos)} pixels on a side and tiles "
                f"{side}; {cls.name} needs the same",
                code="processor-unsupported",
                key="size",
            )
        counts = {"num_image_tokens": 729, "vision_feature_select_strategy": "full",
                  "vision_aspect_ratio": "anyres_max_9"}  # fmt: skip
        counts |= {name: files.processor[name] for name in counts if files.processor.get(name) is not None}
        most = str(counts["vision_aspect_ratio"]).removeprefix("anyres_max_")
        if not most.isdecimal():
            raise UserError(
                f"--processor {files.source}: vision_aspect_ratio is {counts['vision_aspect_ratio']}, expected "
                "anyres_max_9 or another number",
                code="processor-unsupported",
                key="vision_aspect_ratio",
                got=counts["vision_aspect_ratio"],
            )
        facts = {
            "side": side,
            "resolutions": images["image_grid_pinpoints"],
            "tile_tokens": counts["num_image_tokens"],
            "max_tiles": int(most),
            "dropped_tokens": int(counts["vision_feature_select_strategy"] == "default"),  # CLIP's class token
        }
        return cls(
            Chat(CHAT, files.tokenizer, source=files.source, takes=("image", "video")),
            image=AnyresImages.of(images, side=side, facts=facts),
            video=TileVideos.of(videos, side=side, facts=facts, max_frames=key.video_max_frames),
            facts=facts,
        )

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        images = zip(media["image_sizes"].tolist(), media["num_tiles"].tolist(), strict=True)
        return sum(image_tokens(size, tiles, facts) for size, tiles in images) + sum(
            video_tokens(frames, facts) for frames in media["num_frames"].tolist()
        )


def _side(source: str, config: dict[str, Any]) -> int:
    """Pixels on a side of a tile."""
    size = config["size"]
    sides = {size.get(name, size.get("shortest_edge")) for name in ("height", "width")}
    pinpoints = config.get("image_grid_pinpoints", [])
    uneven = [sizes for sizes in pinpoints for pixels in sizes if pixels % max(sides)]
    if len(sides) > 1 or config.get("do_center_crop") or uneven:
        raise UserError(
            f"--processor {source}: llava_onevision needs square tiles that are not cropped, and "
            "image_grid_pinpoints in whole tiles; it has "
            f"size {size}, do_center_crop {config.get('do_center_crop')}, {uneven[:1]}",
            code="processor-unsupported",
            key="image_grid_pinpoints",
        )
    return int(sides.pop())


def image_tokens(size: Sequence[int], num_tiles: int, facts: Mapping[str, Any]) -> int:
    """Tokens of a picture whose source has a size, as the processor counts them.

    One tile: its tokens and a line break. Several: those of the whole, and those of the tiles less the padding, with a
    line break after each row; where these are more than max_tiles' worth, as many as the model shrinks them to.
    """
    if num_tiles == 1:
        return int(facts["tile_tokens"] + 1 - facts["dropped_tokens"])
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
    return int(facts["tile_tokens"] + rows * columns + rows - facts["dropped_tokens"])


def video_tokens(num_frames: int, facts: Mapping[str, Any]) -> int:
    """The model halves the sides of each frame; one line break after all: 3 frames of 27 x 27 -> 3 * 14 * 14 + 1."""
    return num_frames * math.ceil(math.isqrt(facts["tile_tokens"]) / 2) ** 2 + 1
