"""Idefics3: pictures as rows of square tiles, each named by its place, and behind them the whole in one."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from neatpack.format.layout import MediaArray

from ..media.pixels import Resize, resize_torch
from ..records import MeasuredMedia
from .base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import HALF, configured, refuse_settings, resampling
from .tiles import TilesAndWhole

AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
PLACES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
CHAT = ChatFormat(
    # What closes the question is part of it: "Assistant:" alone is plain text, and a user may write it.
    assistant_header="<end_of_utterance>\nAssistant:",
    header_tail=0,
    end_of_turn="<end_of_utterance>",
    placeholders={"image": "<image>"},
    structural_tokens=(
        "<image>", "<video>", AROUND, WHOLE, "<end_of_utterance>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
        "<|begin_of_text|>", *PLACES,
    ),
)  # fmt: skip
DEFAULTS = {  # of the processor's classes
    "size": {"longest_edge": 4 * 364},
    "max_image_size": {"longest_edge": 364},
    "do_image_splitting": True,
    "resample": 1,
    **HALF,
}
MOST_PIXELS_ON_A_SIDE = 4096  # whatever the config says
FIXED = "has tiles of one size; set size.longest_edge, the longer side of a picture, in its preprocessor_config.json"


def rescaled(height: int, width: int, longest_edge: int) -> Size:
    """The longer side as configured, the other even: 100x333 (h, w), 96 -> (28, 96)."""
    ratio = width / height
    other = int(longest_edge / ratio if width >= height else longest_edge * ratio)
    other = max(other + other % 2, 1)
    return (other, longest_edge) if width >= height else (longest_edge, other)


def one_tile(tile_tokens: int, chat: Chat) -> list[int]:
    """A picture that is not cut, as the processor writes it."""
    return [*chat.ids(AROUND, WHOLE), *[chat.placeholder_ids["image"]] * tile_tokens, *chat.ids(AROUND)]


@dataclass(frozen=True, kw_only=True)
class PlacedTiles(TilesAndWhole):
    """Resized twice: to a longer side of `longest_edge`, and from there to whole tiles; the whole from those."""

    resized_by = "torch"
    longest_edge: int
    do_image_splitting: bool
    mode: str  # of resizing

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "num_tiles": self.integers(),
            "pixel_values": self.pixels(*self.tile, counts="num_tiles", batch_axis=True),
        }

    def as_arrays(self, tiles: np.ndarray) -> Arrays:
        return {"num_tiles": np.array([len(tiles)]), "pixel_values": tiles}

    def first_size(self, height: int, width: int) -> Size:
        height, width = rescaled(height, width, self.longest_edge)
        ratio, bound = width / height, MOST_PIXELS_ON_A_SIDE
        if max(height, width) > bound:
            height, width = (int(bound / ratio), bound) if width >= height else (bound, int(bound * ratio))
        return max(height, 1), max(width, 1)

    def shape(self, height: int, width: int, num_images: int = 1) -> tuple[Size, Grid]:
        side = self.side
        if not self.do_image_splitting:
            return self.in_tiles(1, 1)
        high, wide = self.first_size(height, width)
        ratio = wide / high
        if wide >= high:
            columns = -(-wide // side)
            rows = math.ceil(int(columns * side / ratio) / side)
        else:
            rows = -(-high // side)
            columns = math.ceil(int(rows * side * ratio) / side)
        return self.in_tiles(rows, columns, self.longest_edge)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Each tile behind its place, rows on lines of their own, and the whole behind an empty line."""
        _, rows, columns = medium.grid
        tile = [chat.placeholder_ids["image"]] * self.tile_tokens
        ids: list[int] = []
        for row in range(1, rows + 1) if rows * columns > 1 else ():
            for column in range(1, columns + 1):
                ids += [*chat.ids(AROUND, f"<row_{row}_col_{column}>"), *tile]
            ids += chat.ids("\n" if row < rows else "\n\n")
        return np.array([*ids, *one_tile(self.tile_tokens, chat)], dtype=np.int32)

    def levels(self) -> Iterator[Self]:
        """This rule, and those for smaller and smaller pictures: each has a tile less on the longer side."""
        yield self
        for tiles in range(math.ceil(self.longest_edge / self.side) - 1, 0, -1):
            yield replace(self, longest_edge=tiles * self.side)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        *_, last = (rule for _, rule in zip(range(level + 1), self.levels(), strict=False))
        size, grid = last.shape(medium.height, medium.width)
        return replace(medium, size=size, grid=grid)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        height, width = content.shape[:2]
        rule = next((rule for rule in self.levels() if rule.shape(height, width)[0] == medium.size), self)
        first = resize_torch(content, rule.first_size(height, width), self.mode)
        resized = resize_torch(first, medium.size, self.mode)
        return self.as_arrays(self.tiles(resized, lambda size: resize_torch(resized, size, self.mode)))


class Idefics3(Family):
    name = "idefics3"
    revision = 2
    processor_classes = ("Idefics3Processor",)
    image_rule: ClassVar[type[PlacedTiles]] = PlacedTiles

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=FIXED, max_pixels=FIXED)
        image = cls.images(files)
        chat = Chat(CHAT, files.tokenizer, source=files.source, takes=("image",))
        return cls(chat, image=image, facts={"tile_tokens": image.tile_tokens})

    @classmethod
    def images(cls, files: ProcessorFiles) -> PlacedTiles:
        config = configured(files.source, cls.name, DEFAULTS, files.image)
        return cls.image_rule.of(
            config, side=config["max_image_size"]["longest_edge"], longest_edge=config["size"]["longest_edge"],
            tile_tokens=files.processor.get("image_seq_len", 169), mode=resampling(files.source, config),
        )  # fmt: skip

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return int(media["num_tiles"].sum()) * int(facts["tile_tokens"])
