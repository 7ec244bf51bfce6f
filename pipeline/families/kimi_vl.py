"""Kimi-VL: pictures in their own size within a budget of patches, padded to whole merged ones. Kimi-K2.5 builds on it.

Its processor exists as remote code only (image_processing_kimi_vl.py beside the weights); what it does is done here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey
from neatpack.pipeline.families.uniform import configured, refuse_settings
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.media.pixels import Resize, padded, patchify, resize_pil
from neatpack.pipeline.media.resize import navit_resize
from neatpack.pipeline.records import MeasuredMedia, MediaKind, MediaRef

IMAGE_DEFAULTS = {
    "patch_size": 14,
    "merge_kernel_size": [2, 2],
    "in_token_limit": 4096,
    "pad_input": False,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
MAX_SIDE = 511  # patches: the published processor refuses 512, which its position embedding does not reach


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchBudget:
    """How pixels become patches in MoonViT."""

    patch_size: int
    merge_size: int
    max_patches: int
    max_side: int | None  # patches on a side: a picture with more is made smaller; None: it is not
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def shape(self, height: int, width: int) -> tuple[tuple[int, int], Grid]:
        """The size before padding, and the patches after it."""
        size, whole = navit_resize(height, width, self.patch_size, self.merge_size, self.max_patches, self.max_side)
        return size, (1, whole[0] // self.patch_size, whole[1] // self.patch_size)

    def tokens(self, grid: Grid) -> int:
        """Frames of a chunk are pooled, so their number does not matter."""
        return grid[1] * grid[2] // self.merge_size**2

    def patches(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> np.ndarray:
        """[patches, channels, patch, patch], row by row. Black around the picture: it is padded before it is scaled."""
        rows, columns = medium.grid[1:]
        whole = padded(resize(pixels, medium.size), (rows * self.patch_size, columns * self.patch_size))
        return patchify(whole, self.patch_size, 1).reshape(-1, len(self.mean), self.patch_size, self.patch_size)

    def halved(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """With a budget of half the patches that it has, `level` times; as it is where that saves no token."""
        fewer = max(1, medium.size[0] // self.patch_size) * max(1, medium.size[1] // self.patch_size) >> level
        size, grid = replace(self, max_patches=max(1, fewer)).shape(medium.height, medium.width)
        return medium if grid[1:] == medium.grid[1:] else replace(medium, size=size, grid=(medium.grid[0], *grid[1:]))


class KimiVL(Family):
    name = "kimi_vl"
    processor_classes: tuple[str, ...] = ("KimiVLProcessor",)
    takes: tuple[MediaKind, ...] = ("image",)
    placeholders = {"image": "<|media_pad|>"}
    opening = {"image": ("<|media_start|>", "image", "<|media_content|>")}
    closing = {"image": ("<|media_end|>",)}
    structural_tokens: tuple[str, ...] = (
        "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
        "<|media_start|>", "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>",
        "[BOS]", "[EOS]", "[EOT]", "[PAD]",
    )  # fmt: skip
    assistant_header = "<|im_assistant|>assistant<|im_middle|>"
    header_tail = 0  # a special token ends it, and none merges with the answer
    end_of_turn = "<|im_end|>"
    resized_by = "pil"  # the published processor has no other way
    position_axes = 1

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        super().__init__(files, key)
        refuse_settings(key, self.name, min_pixels="never enlarges a picture")
        self.config = {"image": self.image_config(files, key)}
        self.image: PatchBudget = self.budget(self.config["image"])
        self.facts = {"merge_size": self.image.merge_size}

    def image_config(self, files: ProcessorFiles, key: ProcessorKey) -> dict[str, Any]:
        images = configured(self.source, self.name, IMAGE_DEFAULTS, files.image)
        if not images["pad_input"]:
            raise UserError(
                f"--processor {self.source}: pad_input is false, so pictures would be cropped to patches that cannot "
                f"be merged; {self.name} supports true, as the published models have it"
            )
        if key.max_pixels:
            images["in_token_limit"] = max(1, key.max_pixels // images["patch_size"] ** 2)
        return images

    def budget(self, config: dict[str, Any]) -> PatchBudget:
        merge = {int(side) for side in config["merge_kernel_size"]}
        if len(merge) > 1:
            raise UserError(
                f"--processor {self.source}: merge_kernel_size {config['merge_kernel_size']} is not square, as "
                f"{self.name} needs"
            )
        return PatchBudget(
            patch_size=config["patch_size"],
            merge_size=merge.pop(),
            max_patches=config["in_token_limit"],
            max_side=None,
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
        )

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        return {
            "image_grid_hws": MediaArray(kind="image", dtype="int64", row=(2,)),
            "pixel_values": self.patch_array("image_grid_hws"),
        }

    def patch_array(self, counts: str) -> MediaArray:
        side = self.image.patch_size
        return MediaArray(
            kind="image", dtype="uint8", row=(len(self.image.mean), side, side), counts=counts, table="image"
        )

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """By the arithmetic of torchvision's to_tensor and normalize, whatever `resize` is."""
        bytes_ = torch.arange(256, dtype=torch.float32).div(255)
        means, stds = (torch.tensor(values)[:, None] for values in (self.image.mean, self.image.std))
        return {"image": bytes_.sub(means).div(stds).numpy()}

    def image_shape(self, height: int, width: int, num_images: int) -> tuple[tuple[int, int], Grid]:
        size, grid = self.image.shape(height, width)
        if max(grid) > MAX_SIDE:
            raise ValueError(f"{max(grid)} patches on a side, above {MAX_SIDE} ({width}x{height}); crop the picture")
        return size, grid

    def shrunk(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        return self.image.halved(medium, level)

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        return np.full(self.image.tokens(medium.grid), self.placeholder_ids["image"], dtype=np.int32)

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        return {"image_grid_hws": 1, "pixel_values": int(np.prod(medium.grid))}

    @property
    def smallest_image(self) -> MeasuredMedia:
        """One merged patch."""
        merge = self.image.merge_size
        side = self.image.patch_size * merge
        ref = MediaRef(kind="image", path="")
        return MeasuredMedia(ref=ref, height=side, width=side, size=(side, side), grid=(1, merge, merge))

    def image_arrays(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        """Always resized as Pillow does, whatever `resize` is: the published processor has no other way."""
        return {
            "pixel_values": self.image.patches(pixels, medium, resize_pil),
            "image_grid_hws": np.array([medium.grid[1:]], dtype=np.int64),
        }

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return int(media["image_grid_hws"].prod(axis=1).sum()) // facts["merge_size"] ** 2
