"""Mistral 3, Ministral 3 and Pixtral: pictures as rows of tokens, each row closed by one; positions on one axis."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from neatpack.format.layout import MediaArray

from ..media.pixels import Resize, tiles_of
from ..records import MeasuredMedia, Turn
from .base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import CLIP, configured, refuse_settings
from .tiles import TileImages

CHAT = ChatFormat(
    assistant_header="[/INST]",
    header_tail=0,
    end_of_turn="</s>",
    placeholders={"image": "[IMG]"},
    reasoning=("[THINK]", "[/THINK]"),
    structural_tokens=(
        "<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]",
    ),
)  # fmt: skip
DEFAULTS = {  # of the processor's classes
    "size": {"longest_edge": 1024},
    **CLIP,
}
FIXED = "bounds the sides of a picture, and not its area; set size.longest_edge in its preprocessor_config.json"


class MistralChat(Chat):
    def content(self, turn: Turn) -> str | list[dict[str, Any]]:
        """A system prompt as text: templates put it together with others."""
        content = super().content(turn)
        if turn.role == "system" and not isinstance(content, str):
            return "".join(part["text"] for part in content if part["type"] == "text")
        return content


@dataclass(frozen=True, kw_only=True)
class RowImages(TileImages):
    """Each picture in its own size, in whole patches of `side` pixels: those that have a token each."""

    longest_edge: int

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "image_sizes": self.integers(2),
            "pixel_values": self.pixels(*self.tile, counts="image_sizes", pictures=True),
        }

    def shape(self, height: int, width: int, num_images: int = 1) -> tuple[Size, Grid]:
        """Never enlarged by more than a patch: 100x50 (h, w), patches of 28 -> (112, 56)."""
        ratio = max(height, width) / self.longest_edge
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        return self.in_tiles(-(-height // self.side), -(-width // self.side), self.longest_edge)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Rows of 3 tokens, 2 of them: [IMG] [IMG] [IMG] [IMG_BREAK] [IMG] [IMG] [IMG] [IMG_END]."""
        _, rows, columns = medium.grid
        ids = np.full((rows, columns + 1), chat.placeholder_ids["image"], dtype=np.int32)
        ids[:, -1] = chat.token_id("[IMG_BREAK]")
        ids[-1, -1] = chat.token_id("[IMG_END]")
        return ids.reshape(-1)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the area."""
        longest = max(self.side, int(min(self.longest_edge, max(medium.height, medium.width)) / math.sqrt(2**level)))
        try:
            size, grid = replace(self, longest_edge=longest).shape(medium.height, medium.width)
        except ValueError:
            return medium
        return replace(medium, size=size, grid=grid)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        tiles = tiles_of(resize(content, medium.size), self.side)
        return {"image_sizes": np.array([medium.size], dtype=np.int64), "pixel_values": tiles}


class Mistral3(Family):
    name = "mistral3"
    processor_classes = ("PixtralProcessor",)

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=FIXED, max_pixels=FIXED)
        config = configured(files.source, cls.name, DEFAULTS, files.image)
        side = files.processor.get("patch_size", 16) * files.processor.get("spatial_merge_size", 1)
        image = RowImages.of(config, side=side, longest_edge=config["size"]["longest_edge"])
        chat = MistralChat(CHAT, files.tokenizer, source=files.source, takes=("image",))
        return cls(chat, image=image, facts={"side": side})

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return int((media["image_sizes"] // facts["side"]).prod(axis=1).sum())
