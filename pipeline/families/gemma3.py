"""Gemma 3: every picture one square of 256 tokens, which see each other both ways."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from neatpack.format.layout import MediaArray, MediaKind

from ..config import UserError
from ..media.pixels import Resize, resize_torch, tiles_of
from ..records import MeasuredMedia, Turn
from .base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import HALF, configured, refuse_settings, resampling
from .tiles import TileImages

OPENS, CLOSES = "<start_of_image>", "<end_of_image>"
CHAT = ChatFormat(
    assistant_header="<start_of_turn>model\n",
    end_of_turn="<end_of_turn>",
    placeholders={"image": "<image_soft_token>"},
    opening={"image": (OPENS,)},
    closing={"image": (CLOSES,)},
    structural_tokens=(
        "<bos>",
        "<eos>",
        "<pad>",
        "<start_of_turn>",
        "<end_of_turn>",
        OPENS,
        CLOSES,
        "<image_soft_token>",
    ),
)
DEFAULTS = {  # of the processor's classes
    "size": {"height": 224, "width": 224},
    "resample": 2,
    **HALF,
}
FIXED = "has pictures of one size"


class Gemma3Chat(Chat):
    """The template writes <start_of_image> alone, and the processor makes of it a paragraph of its own. Its empty lines
    merge with line breaks beside them, so they are there before the text is encoded.
    """

    def medium_text(self, kind: MediaKind) -> str:
        return f"\n\n{super().medium_text(kind)}\n\n"

    def template(self, turns: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        return super().template(turns, tools).replace(OPENS, self.medium_text("image"))


@dataclass(frozen=True, kw_only=True)
class SquareImages(TileImages):
    resized_by = "torch"
    mode: str  # of resizing

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {"pixel_values": self.pixels(*self.tile)}

    def shape(self, height: int, width: int, num_images: int = 1) -> tuple[Size, Grid]:
        return self.in_tiles(1, 1)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        return {"pixel_values": tiles_of(resize_torch(content, medium.size, self.mode), self.side)}


class Gemma3(Family):
    name = "gemma3"
    processor_classes = ("Gemma3Processor",)

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=FIXED, max_pixels=FIXED)
        config = configured(files.source, cls.name, DEFAULTS, files.image)
        side, width = config["size"]["height"], config["size"]["width"]
        if side != width:
            raise UserError(
                f"--processor {files.source}: size {side} x {width}, and {cls.name} takes squares only",
                code="processor-unsupported",
                key="size",
            )
        tokens = files.processor.get("image_seq_length", 256)
        image = SquareImages.of(config, side=side, tile_tokens=tokens, mode=resampling(files.source, config))
        chat = Gemma3Chat(CHAT, files.tokenizer, source=files.source, takes=("image",))
        text = files.model.get("text_config") or {}
        facts = {
            "tile_tokens": tokens,
            # For collaters; None where the processor came without the model's config.
            "sliding_window": text.get("sliding_window"),
            "bidirectional_vision": "all",
        }
        return cls(chat, image=image, facts=facts)

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return len(media["pixel_values"]) * int(facts["tile_tokens"])
