"""InternVL 3: pictures as tiles of 448 pixels, 256 tokens each, and behind them the whole picture in one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ..layout import MediaArray
from ..media.pixels import Resize
from ..media.resize import closest_tiles
from ..records import MeasuredMedia
from .base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import TilesAndWhole, configured, refuse_settings

CHAT = ChatFormat(
    assistant_header="<|im_start|>assistant\n",
    end_of_turn="<|im_end|>",
    placeholders={"image": "<IMG_CONTEXT>"},
    structural_tokens=("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
)
DEFAULTS = {  # of the processor's classes
    "size": {"height": 384, "width": 384},
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "min_patches": 1,
    "max_patches": 12,
}
FIXED = "has tiles of one size; set max_patches, the most tiles of a picture, in its preprocessor_config.json"


@dataclass(frozen=True, kw_only=True)
class TiledImages(TilesAndWhole):
    least: int
    most: int

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "num_patches": self.integers(),
            "pixel_values": self.pixels(*self.tile, counts="num_patches"),
        }

    def shape(self, height: int, width: int, num_images: int = 1) -> tuple[Size, Grid]:
        rows, columns = closest_tiles(height, width, self.side, self.most, self.least)
        return self.in_tiles(rows, columns)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Between markers that the processor writes, not the template."""
        return np.array([*chat.ids("<img>"), *super().expansion(medium, chat), *chat.ids("</img>")], dtype=np.int32)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the tiles."""
        most = max(1, medium.grid[1] * medium.grid[2] >> level)
        size, grid = replace(self, most=most, least=min(self.least, most)).shape(medium.height, medium.width)
        return replace(medium, size=size, grid=grid)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        tiles = self.tiles(resize(content, medium.size), lambda size: resize(content, size))
        return {"num_patches": np.array([len(tiles)]), "pixel_values": tiles}


class InternVL(Family):
    name = "internvl"
    processor_classes = ("InternVLProcessor",)

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=FIXED, max_pixels=FIXED)
        config = configured(files.source, cls.name, DEFAULTS, files.image)
        tokens = files.processor.get("image_seq_length", 256)
        image = TiledImages.of(config, side=config["size"]["height"], tile_tokens=tokens, least=config["min_patches"],
                               most=config["max_patches"])  # fmt: skip
        chat = Chat(CHAT, files.tokenizer, source=files.source, takes=("image",))
        return cls(chat, image=image, facts={"tile_tokens": tokens})

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return int(media["num_patches"].sum()) * int(facts["tile_tokens"])
