"""Phi-4 multimodal: pictures in crops of 448 and a global view, log-mel sounds, `<|user|>…<|end|>` turns.

A crop is stored as bytes. The global view is not: the processor shrinks the normalised floats to it, without
antialiasing, so that its values are no bytes any more, and the bits of such a shrinking depend on the device that does
it. It is stored as float32 beside the crops (as much as four of them) and put before them when a batch is made.

Three things to know about the model of transformers 5.22, whatever feeds it:
- it projects the sounds of a batch by other weights as soon as the batch has a picture. So a pack with sounds gets no
  fake image, and speech and pictures are better packed apart;
- it adds the mask of its sounds to the attention as a number, so the padding of a shorter sound has a small weight;
- it has no `input_mode`. The remote code's model has: see loaders/online/phi4.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from neatpack.format.layout import Delivery, MediaArray

from ..config import UserError
from ..media.pixels import Resize, padded, resize_torch, tiles_of
from ..media.resize import closest_tiles
from ..records import MeasuredMedia, Turn
from .base import Arrays, Family, Grid, ImageRule, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import HALF, SoundFeatures, refuse_settings
from .tiles import SquareTiles

IMAGE_DEFAULTS: dict[str, Any] = {
    "size": {"height": 448, "width": 448},
    "patch_size": 14,
    "dynamic_hd": 36,
    **HALF,
}
AUDIO_KEYS = (
    "feature_size", "sampling_rate", "hop_length", "n_fft", "win_length", "preemphasis", "padding_value",
    "audio_compression_rate", "audio_downsample_rate", "audio_feat_stride", "mel_min_frequency", "mel_max_frequency",
)  # fmt: skip
PATCHES = 32  # of a crop, either way: the processor counts tokens for this number, whatever its config says
GLOBAL_TOKENS = 16 * 17 + 1  # 16 rows of 16 and a line end each, and what parts them from the crops
SHORTEST_SIDE = 10  # pixels: a picture that is thinner once resized is refused by the processor
NO_BOUNDS = "has no bounds of pixels; set dynamic_hd, the most crops of a picture, in its preprocessor_config.json"
REMOTE_CODE = "Phi4MMProcessor"
CHAT = ChatFormat(
    assistant_header="<|assistant|>",
    header_tail=0,  # the answer follows at once
    end_of_turn="<|end|>",
    placeholders={"image": "<|image|>", "audio": "<|audio|>"},
    structural_tokens=(
        "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>", "<|image|>", "<|audio|>",
        "<|endoftext10|>", "<|endoftext11|>", "<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>",
        "<|tool_response|>",
    ),
)  # fmt: skip
# The remote code has two unused tokens of the vocabulary stand for media.
REMOTE_CHAT = replace(CHAT, placeholders={"image": "<|endoftext10|>", "audio": "<|endoftext11|>"})


@dataclass(frozen=True, kw_only=True)
class CropImages(SquareTiles, ImageRule):
    """As torchvision does, whatever --resize says: transformers has no other backend for this model."""

    resized_by = "torch"
    patch_size: int
    dynamic_hd: int  # the most crops

    @property
    def arrays(self) -> dict[str, MediaArray]:
        crop, view = self.tile, (PATCHES, PATCHES)
        kinds: Any = ("image",)
        return {
            "image_sizes": self.integers(2),
            "image_crops": self.integers(2),  # rows and columns of crops
            "image_global_view": MediaArray(kinds=kinds, dtype="float32", row=crop),
            "image_pixel_values": self.pixels(*crop, counts="image_crops", first="image_global_view"),
            # Of patches that are not white padding alone. Missing crops are padded with ones: attention that sees
            # nothing would be NaN, also in the gradients.
            "image_global_mask": MediaArray(kinds=kinds, dtype="uint8", row=view),
            "image_attention_mask": MediaArray(
                kinds=kinds, dtype="uint8", row=view, counts="image_crops",
                deliver=Delivery(first="image_global_mask", fill=1),
            ),
        }  # fmt: skip

    def table(self, resize: str) -> np.ndarray:
        return super().table("torch")

    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        return self.fitted(height, width, self.dynamic_hd)

    def fitted(self, height: int, width: int, most: int) -> tuple[Size, Grid]:
        """A picture is fitted into whole crops, enlarged where it must be; into `most` of them at the most.

        A picture of 500 x 900 has 2 rows of 3 crops, 896 x 1344: resized to 746 x 1344, the rest is white.
        """
        rows, columns = math.ceil(height / self.side), math.ceil(width / self.side)
        if rows * columns > most:
            rows, columns = closest_tiles(height, width, self.side, most)
        by_width, by_height = columns * self.side / width, rows * self.side / height
        if by_width < by_height:
            size = (int(height * by_width), columns * self.side)
        else:
            size = (rows * self.side, int(width * by_height))
        if min(size) < SHORTEST_SIDE:
            raise ValueError(f"{width}x{height} is too thin: {size[1]}x{size[0]} once resized")
        return size, (1, rows, columns)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the crops."""
        if medium.grid[1:] == (1, 1):
            return medium
        try:
            size, grid = self.fitted(medium.height, medium.width, max(1, medium.grid[1] * medium.grid[2] >> level))
        except ValueError:  # too thin for fewer crops
            return medium
        return replace(medium, size=size, grid=grid)

    def unpadded(self, medium: MeasuredMedia) -> tuple[int, int]:
        """Rows and columns of patches that are not white padding alone."""
        _, rows, columns = medium.grid
        height, width = medium.size
        below, beside = rows * self.side - height, columns * self.side - width
        return rows * PATCHES - below // self.patch_size, columns * PATCHES - beside // self.patch_size

    def tokens(self, medium: MeasuredMedia) -> int:
        """Patches are merged 2 x 2, and each row of them has a line end; then comes the global view."""
        rows, columns = (-(-patches // 2) for patches in self.unpadded(medium))
        return rows * (columns + 1) + GLOBAL_TOKENS

    @property
    def smallest(self) -> MeasuredMedia:
        """One crop of which only a line is not padding: 290 tokens, against 545 of a full one."""
        return self.blank((SHORTEST_SIDE, self.side), (1, 1, 1))

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        _, rows, columns = medium.grid
        size = (rows * self.side, columns * self.side)
        whole = padded(resize_torch(content, medium.size, "bilinear"), size, (255, 255, 255))
        mask = np.zeros((rows * PATCHES, columns * PATCHES, 1), dtype=np.uint8)
        down, across = self.unpadded(medium)
        mask[:down, :across] = 1
        return {
            "image_sizes": np.array([size], dtype=np.int64),
            "image_crops": np.array([(rows, columns)], dtype=np.int64),
            "image_global_view": self.global_view(whole)[None],
            "image_pixel_values": tiles_of(whole, self.side),
            "image_global_mask": np.ones((1, PATCHES, PATCHES), dtype=np.uint8),
            "image_attention_mask": tiles_of(mask, PATCHES)[:, 0],
        }

    def global_view(self, pixels: np.ndarray) -> np.ndarray:
        """The whole picture in one crop, float32: normalised first, then resized, bicubic and without antialiasing."""
        table = self.table("torch")
        planes = np.stack([table[channel][pixels[..., channel]] for channel in range(len(table))])
        if planes.shape[1:] == (self.side, self.side):
            return planes
        size = (self.side, self.side)
        view = torch.nn.functional.interpolate(torch.from_numpy(planes)[None], size=size, mode="bicubic")[0]
        return np.asarray(view)


@dataclass(frozen=True, kw_only=True)
class PhiSound(SoundFeatures):
    lengths_name = "audio_frames"
    features_name = "audio_input_features"
    delivery = Delivery(mask="audio_attention_mask", mask_dtype="bool")

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {"audio_embed_sizes": self.integers(), **super().arrays}

    def frames(self, num_samples: int) -> int:
        """Whole windows only: samples behind the last one are left out."""
        if num_samples < self.extractor.win_length:
            raise ValueError(f"{num_samples} samples are fewer than one window of {self.extractor.win_length}")
        return int((num_samples - self.extractor.win_length) // self.extractor.hop_length + 1)

    def tokens_of(self, frames: int) -> int:
        extractor = self.extractor
        compressed = -(-frames * extractor.audio_feat_stride // extractor.audio_compression_rate)
        return int(-(-compressed // extractor.audio_downsample_rate))

    def features(self, samples: np.ndarray) -> np.ndarray:
        heard = self.extractor(samples, sampling_rate=self.sampling_rate, return_tensors="np")
        features = heard["audio_input_features"][0]
        assert int(heard["audio_embed_sizes"][0]) == self.tokens_of(len(features))
        return np.asarray(features)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        tokens = np.array([self.tokens(medium)], dtype=np.int64)
        return {"audio_embed_sizes": tokens, **super().render(content, medium, resize)}


class RemoteChat(Chat):
    """The remote code's template takes texts only."""

    def content(self, turn: Turn) -> str:
        tokens = self.format.placeholders
        return "".join(part if isinstance(part, str) else tokens[part.kind] for part in turn.parts)


class Phi4MM(Family):
    name = "phi4_mm"
    processor_classes = ("Phi4MultimodalProcessor", REMOTE_CODE)
    fake_image_beside_sound = False

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=NO_BOUNDS, max_pixels=NO_BOUNDS)
        images = IMAGE_DEFAULTS | {name: files.image[name] for name in IMAGE_DEFAULTS if name in files.image}
        side, patch = images["size"]["height"], images["patch_size"]
        if images["size"]["width"] != side or side != PATCHES * patch:
            raise UserError(
                f"--processor {files.source}: crops of {images['size']} with patch_size {patch}; expected "
                f"squares of {PATCHES} x {PATCHES} patches, the number for which the processor counts tokens",
                code="processor-unsupported",
                key="size",
            )
        # Imported here: it takes seconds, for it brings all of transformers' processors along.
        from transformers import Phi4MultimodalFeatureExtractor

        audio = {name: files.audio[name] for name in AUDIO_KEYS if name in files.audio}
        is_remote = files.class_name == REMOTE_CODE
        chat = (RemoteChat if is_remote else Chat)(
            REMOTE_CHAT if is_remote else CHAT, files.tokenizer, source=files.source, takes=("image", "audio")
        )
        image = CropImages.of(images, side=side)
        return cls(chat, image=image, sound=PhiSound(extractor=Phi4MultimodalFeatureExtractor(**audio)))

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        tokens, start = int(media["audio_embed_sizes"].sum()), 0
        for rows, columns in media["image_crops"].tolist():
            crops = media["image_attention_mask"][start : start + rows * columns, ::2, ::2]
            down, across = int(crops[::columns, :, 0].sum()), int(crops[:columns, 0, :].sum())
            tokens += down * (across + 1) + GLOBAL_TOKENS
            start += rows * columns
        return tokens
