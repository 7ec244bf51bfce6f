"""Kimi-VL: pictures in their own size within a budget of patches, padded to whole merged ones. Kimi-K2.5 builds on it.

Its processor exists as remote code only (image_processing_kimi_vl.py beside the weights); what it does is done here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch

from neatpack.format.layout import MediaArray

from ..config import UserError
from ..media.pixels import Resize, padded, resize_pil, tiles_of
from ..media.resize import navit_resize
from ..records import MeasuredMedia
from .base import Arrays, Family, Grid, ImageRule, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import PixelRule, configured, refuse_settings

CHAT = ChatFormat(
    assistant_header="<|im_assistant|>assistant<|im_middle|>",
    header_tail=0,  # a special token ends it, and none merges with the answer
    end_of_turn="<|im_end|>",
    placeholders={"image": "<|media_pad|>"},
    opening={"image": ("<|media_start|>", "image", "<|media_content|>")},
    closing={"image": ("<|media_end|>",)},
    structural_tokens=(
        "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
        "<|media_start|>", "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>",
        "[BOS]", "[EOS]", "[EOT]", "[PAD]",
    ),
)  # fmt: skip
IMAGE_DEFAULTS = {
    "patch_size": 14,
    "merge_kernel_size": [2, 2],
    "in_token_limit": 4096,
    "pad_input": False,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
MAX_SIDE = 511  # patches: the published processor refuses 512, which its position embedding does not reach


def patches_within(max_pixels: int, patch_size: int) -> int:
    """A bound of pixels as a budget of patches."""
    return max(1, max_pixels // patch_size**2)


@dataclass(frozen=True, kw_only=True)
class MoonViT(PixelRule):
    """How pixels become patches in MoonViT, the vision tower of all Kimi models."""

    patch_size: int
    merge_size: int
    max_patches: int
    max_side: int | None  # patches on a side: a picture with more is made smaller; None: it is not
    wishes: ClassVar[tuple[str, ...]] = ("max_pixels",)

    def wished(self, asked: Mapping[str, int]) -> Self:
        if "max_pixels" not in asked:
            return self
        return replace(self, max_patches=patches_within(asked["max_pixels"], self.patch_size))

    def pixel_array(self, counts: str) -> MediaArray:
        return self.pixels(len(self.image_mean), self.patch_size, self.patch_size, counts=counts)

    def cut(self, height: int, width: int) -> tuple[Size, Grid]:
        """The size before padding, and the patches after it."""
        size, whole = navit_resize(height, width, self.patch_size, self.merge_size, self.max_patches, self.max_side)
        return size, (1, whole[0] // self.patch_size, whole[1] // self.patch_size)

    def merged(self, grid: Grid) -> int:
        """Tokens of a picture, or of a chunk of frames: those are pooled, so their number does not matter."""
        return grid[1] * grid[2] // self.merge_size**2

    def patches(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> np.ndarray:
        """[patches, channels, patch, patch], row by row. Black around the picture: it is padded before it is scaled."""
        rows, columns = medium.grid[1:]
        whole = padded(resize(pixels, medium.size), (rows * self.patch_size, columns * self.patch_size))
        return tiles_of(whole, self.patch_size)

    def halved(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """With a budget of half the patches that it has, `level` times; as it is where that saves no token."""
        fewer = max(1, medium.size[0] // self.patch_size) * max(1, medium.size[1] // self.patch_size) >> level
        size, grid = replace(self, max_patches=max(1, fewer)).cut(medium.height, medium.width)
        return medium if grid[1:] == medium.grid[1:] else replace(medium, size=size, grid=(medium.grid[0], *grid[1:]))


@dataclass(frozen=True, kw_only=True)
class MoonViTImages(MoonViT, ImageRule):
    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        return self.cut(height, width)

    def tokens(self, medium: MeasuredMedia) -> int:
        return self.merged(medium.grid)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        return self.halved(medium, level)

    @property
    def smallest(self) -> MeasuredMedia:
        """One merged patch."""
        side = self.patch_size * self.merge_size
        return self.blank((side, side), (1, self.merge_size, self.merge_size))


@dataclass(frozen=True, kw_only=True)
class KimiVLImages(MoonViTImages):
    """Always resized as Pillow does, whatever is asked for: the published processor has no other way."""

    resized_by = "pil"

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "image_grid_hws": self.integers(2),
            "pixel_values": self.pixel_array("image_grid_hws"),
        }

    def table(self, resize: str) -> np.ndarray:
        """By the arithmetic of torchvision's to_tensor and normalize, whatever `resize` is."""
        bytes_ = torch.arange(256, dtype=torch.float32).div(255)
        means, stds = (torch.tensor(values)[:, None] for values in (self.image_mean, self.image_std))
        return np.asarray(bytes_.sub(means).div(stds))

    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        size, grid = self.cut(height, width)
        if max(grid) > MAX_SIDE:
            raise ValueError(f"{max(grid)} patches on a side, above {MAX_SIDE} ({width}x{height}); crop the picture")
        return size, grid

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        return {
            "pixel_values": self.patches(content, medium, resize_pil),
            "image_grid_hws": np.array([medium.grid[1:]], dtype=np.int64),
        }


class KimiVL(Family):
    name = "kimi_vl"
    processor_classes = ("KimiVLProcessor",)

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels="never enlarges a picture")
        config = configured(files.source, cls.name, IMAGE_DEFAULTS, files.image)
        if not config["pad_input"]:
            raise UserError(
                f"--processor {files.source}: pad_input is false, so pictures would be cropped to patches that cannot "
                f"be merged; {cls.name} supports true, as the published models have it",
                code="processor-unsupported",
                key="pad_input",
            )
        merge = {int(side) for side in config["merge_kernel_size"]}
        if len(merge) > 1:
            raise UserError(
                f"--processor {files.source}: merge_kernel_size {config['merge_kernel_size']} is not square, as "
                f"{cls.name} needs",
                code="processor-unsupported",
                key="merge_kernel_size",
            )
        if key.max_pixels:
            config["in_token_limit"] = patches_within(key.max_pixels, config["patch_size"])
        image = KimiVLImages.of(config, merge_size=merge.pop(), max_patches=config["in_token_limit"], max_side=None)
        chat = Chat(CHAT, files.tokenizer, source=files.source, takes=("image",))
        return cls(chat, image=image, facts={"merge_size": image.merge_size})

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return int(media["image_grid_hws"].prod(axis=1).sum()) // int(facts["merge_size"]) ** 2
