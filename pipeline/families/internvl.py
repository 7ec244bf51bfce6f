"""InternVL 3: pictures as tiles of 448 pixels, 256 tokens each, and behind them the whole picture in one; a tile for
each frame of a video."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from ..media.pixels import Resize
from ..media.resize import closest_tiles
from ..records import MeasuredMedia, Turn
from .base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import CLIP, asked_rate, configured, refuse_settings
from .tiles import ONE_TILE, FrameTiles, TilesAndWhole, TilesOfBoth, check_alike

CHAT = ChatFormat(
    assistant_header="<|im_start|>assistant\n",
    end_of_turn="<|im_end|>",
    placeholders={"image": "<IMG_CONTEXT>", "video": "<video>"},
    opening={"video": ("Frame1: ",)},
    structural_tokens=("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
)
PIXELS = {  # defaults of the processor's classes
    "size": {"height": 384, "width": 384},
    **CLIP,
}
IMAGES = {**PIXELS, "min_patches": 1, "max_patches": 12}
VIDEOS = {**PIXELS, "fps": None, "num_frames": None, "initial_shift": True}
FIXED = "has tiles of one size; set max_patches, the most tiles of a picture, in its preprocessor_config.json"


class InternChat(Chat):
    """The template writes <video>, and the processor "Frame1: " and a tile in its place. These words merge with a text
    before them, so they are there before it is encoded."""

    def template(self, turns: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        return super().template(turns, tools).replace(self.format.placeholders["video"], self.medium_text("video"))


@dataclass(frozen=True, kw_only=True)
class Tiles(TilesOfBoth):
    """What pictures and videos have in common: the arrays, and how tiles are written."""

    counted = "num_patches"

    def written(self, num_tiles: int, chat: Chat) -> list[int]:
        """Between markers that the processor writes, not the template."""
        placeholders = [chat.placeholder_ids["image"]] * (num_tiles * self.tile_tokens)
        return [*chat.ids("<img>"), *placeholders, *chat.ids("</img>")]


@dataclass(frozen=True, kw_only=True)
class TiledImages(Tiles, TilesAndWhole):
    least: int
    most: int

    def shape(self, height: int, width: int, num_images: int = 1) -> tuple[Size, Grid]:
        rows, columns = closest_tiles(height, width, self.side, self.most, self.least)
        return self.in_tiles(rows, columns)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        return np.array(self.written(self.num_rows(medium), chat), dtype=np.int32)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the tiles."""
        most = max(1, medium.grid[1] * medium.grid[2] >> level)
        size, grid = replace(self, most=most, least=min(self.least, most)).shape(medium.height, medium.width)
        return replace(medium, size=size, grid=grid)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        return self.as_arrays(self.tiles(resize(content, medium.size), lambda size: resize(content, size)))


@dataclass(frozen=True, kw_only=True)
class TiledVideos(Tiles, FrameTiles):
    initial_shift: bool | float  # frames before the first that is taken; True: from the middle of each stretch

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """By the rate that a row asks for, by the config's number, or by its rate, evenly; else all frames.

        4 of 10 -> [1, 3, 6, 8]; with a shift of 0, [0, 2, 5, 7]. Where the processor refuses a video that has fewer
        frames, all are taken.
        """
        rate = self.fps if asked_fps is None else asked_fps
        wanted = self.num_frames if asked_fps is None else None
        if wanted is None:
            wanted = total if rate is None else int(total / fps * rate)
        wanted = max(1, min(wanted, total, self.max_frames or total))
        step = total / wanted
        first = step / 2 if self.initial_shift is True else min(float(self.initial_shift), total - 1)
        # By torch's own arithmetic, which for some numbers gives one index more, beyond the end.
        return torch.arange(first, total, step).int().numpy()[:wanted]

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """A line for each frame; "Frame1: " is there already."""
        ids = self.written(1, chat)
        for number in range(2, medium.grid[0] + 1):
            ids += [*chat.ids(f"\nFrame{number}: "), *self.written(1, chat)]
        return np.array(ids, dtype=np.int32)

    def render(self, content: Iterable[np.ndarray], medium: MeasuredMedia, resize: Resize) -> Arrays:
        return self.as_arrays(self.tiles(content))


class InternVL(Family):
    name = "internvl"
    revision = 2
    processor_classes = ("InternVLProcessor",)

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=FIXED, max_pixels=FIXED, video_min_pixels=ONE_TILE,
                        video_max_pixels=ONE_TILE, video_min_frames="takes frames by rate or number alone")  # fmt: skip
        images = configured(files.source, cls.name, IMAGES, files.image)
        videos = configured(files.source, cls.name, VIDEOS, files.video or files.image)
        check_alike(files.source, cls.name, images, videos, PIXELS)
        videos |= asked_rate(key)
        side, tokens = images["size"]["height"], files.processor.get("image_seq_length", 256)
        image = TiledImages.of(images, side=side, tile_tokens=tokens, least=images["min_patches"],
                               most=images["max_patches"])  # fmt: skip
        video = TiledVideos.of(videos, side=side, tile_tokens=tokens, max_frames=key.video_max_frames)
        chat = InternChat(CHAT, files.tokenizer, source=files.source, takes=("image", "video"))
        return cls(chat, image=image, video=video, facts={"tile_tokens": tokens})

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return int(media["num_patches"].sum()) * int(facts["tile_tokens"])
