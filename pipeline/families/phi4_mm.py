"""Phi-4 multimodal: pictures in crops of 448 and a global view, log-mel sounds, `<|user|>…<|end|>` turns.

A crop is stored as bytes. The global view is not: the processor shrinks the normalised floats to it, without
antialiasing, so that its values are no bytes any more, and the bits of such a shrinking depend on the device that does
it. It is stored as float32 beside the crops (as much as four of them) and put before them when a batch is made.

Three things to know about the model of transformers 5.22, whatever feeds it:
- it projects the sounds of a batch by other weights as soon as the batch has a picture. So a pack with sounds gets no
  fake image, and speech and pictures are better packed apart;
- it adds the mask of its sounds to the attention as a number, so that the padding of a shorter sound is heard a little;
- it has no `input_mode`. The remote code's model has: see loaders/phi4.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.media.pixels import Resize, padded, pixel_table, resize_torch
from neatpack.pipeline.records import MeasuredMedia, MediaRef, Turn

IMAGE_DEFAULTS: dict[str, Any] = {
    "size": {"height": 448, "width": 448},
    "patch_size": 14,
    "dynamic_hd": 36,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
AUDIO_KEYS = (
    "feature_size", "sampling_rate", "hop_length", "n_fft", "win_length", "preemphasis", "padding_value",
    "audio_compression_rate", "audio_downsample_rate", "audio_feat_stride", "mel_min_frequency", "mel_max_frequency",
)  # fmt: skip
PATCHES = 32  # of a crop, either way: the processor counts tokens for this number, whatever its config says
GLOBAL_TOKENS = 16 * 17 + 1  # 16 rows of 16 and a line end each, and what parts them from the crops
SHORTEST_SIDE = 10  # pixels: a picture that is thinner once resized is refused by the processor
REMOTE_CODE = "Phi4MMProcessor"


class Phi4MM(Family):
    name = "phi4_mm"
    processor_classes = ("Phi4MultimodalProcessor", REMOTE_CODE)
    takes = ("image", "audio")
    placeholders = {"image": "<|image|>", "audio": "<|audio|>"}
    structural_tokens = (
        "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>", "<|image|>", "<|audio|>",
        "<|endoftext10|>", "<|endoftext11|>", "<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>",
        "<|tool_response|>",
    )  # fmt: skip
    assistant_header = "<|assistant|>"
    header_tail = 0  # the answer follows at once
    end_of_turn = "<|end|>"
    resized_by = "torch"
    position_axes = 1

    def wants_fake_image(self, num_seen: int, num_heard: int) -> bool:
        return not num_heard and super().wants_fake_image(num_seen, num_heard)

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        super().__init__(files, key)
        if key.min_pixels or key.max_pixels:
            raise UserError(
                f"--processor {self.source}: {self.name} has no bounds of pixels (--min-pixels, --max-pixels); set "
                "dynamic_hd, the most crops of a picture, in its preprocessor_config.json"
            )
        self.images = IMAGE_DEFAULTS | {name: files.image[name] for name in IMAGE_DEFAULTS if name in files.image}
        self.side, self.patch = self.images["size"]["height"], self.images["patch_size"]
        if self.images["size"]["width"] != self.side or self.side != PATCHES * self.patch:
            raise UserError(
                f"--processor {self.source}: crops of {self.images['size']} with patch_size {self.patch}; expected "
                f"squares of {PATCHES} x {PATCHES} patches, the number for which the processor counts tokens"
            )
        audio = {name: files.audio[name] for name in AUDIO_KEYS if name in files.audio}
        # Imported here: it takes seconds, for it brings all of transformers' processors along.
        from transformers import Phi4MultimodalFeatureExtractor

        self.extractor = Phi4MultimodalFeatureExtractor(**audio)
        # The remote code's template takes texts only, and has two unused tokens of the vocabulary stand for media.
        self.is_remote_code = files.class_name == REMOTE_CODE
        if self.is_remote_code:
            self.placeholders = {"image": "<|endoftext10|>", "audio": "<|endoftext11|>"}
        self.config = {"image": self.images, "audio": audio, "placeholders": self.placeholders}

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        crop, view = (3, self.side, self.side), (PATCHES, PATCHES)
        return {
            "image_sizes": MediaArray(kind="image", dtype="int64", row=(2,)),
            "image_crops": MediaArray(kind="image", dtype="int64", row=(2,)),  # rows and columns of crops
            "image_global_view": MediaArray(kind="image", dtype="float32", row=crop),
            "image_pixel_values": MediaArray(
                kind="image", dtype="uint8", row=crop, counts="image_crops", table="image", first="image_global_view"
            ),
            # Of patches that are not white padding alone. Missing crops are padded with ones: attention that sees
            # nothing would be NaN, also in the gradients.
            "image_global_mask": MediaArray(kind="image", dtype="uint8", row=view),
            "image_attention_mask": MediaArray(
                kind="image", dtype="uint8", row=view, counts="image_crops", first="image_global_mask", fill=1
            ),
            "audio_embed_sizes": MediaArray(kind="audio", dtype="int64", row=()),
            "audio_frames": MediaArray(kind="audio", dtype="int64", row=()),
            "audio_input_features": MediaArray(
                kind="audio", dtype="float32", row=(self.extractor.feature_size,), counts="audio_frames",
                mask="audio_attention_mask", mask_dtype="bool",
            ),
        }  # fmt: skip

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """As torchvision does, whatever `resize` says: transformers has no other backend for this model."""
        images = self.images
        return {"image": pixel_table(images["rescale_factor"], images["image_mean"], images["image_std"], "torch")}

    # Pictures

    def image_shape(self, height: int, width: int, num_images: int) -> tuple[tuple[int, int], Grid]:
        return self.fitted(height, width, self.images["dynamic_hd"])

    def fitted(self, height: int, width: int, most: int) -> tuple[tuple[int, int], Grid]:
        """A picture is fitted into whole crops, enlarged where it must be; into `most` of them at the most.

        A picture of 500 x 900 has 2 rows of 3 crops, 896 x 1344: resized to 746 x 1344, the rest is white.
        """
        rows, columns = math.ceil(height / self.side), math.ceil(width / self.side)
        if rows * columns > most:
            rows, columns = closest_crops(height, width, most, self.side)
        by_width, by_height = columns * self.side / width, rows * self.side / height
        if by_width < by_height:
            size = (int(height * by_width), columns * self.side)
        else:
            size = (rows * self.side, int(width * by_height))
        if min(size) < SHORTEST_SIDE:
            raise ValueError(f"{width}x{height} is too thin: {size[1]}x{size[0]} once resized")
        return size, (1, rows, columns)

    def shrunk(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the crops of a picture; sounds stay as they are."""
        crops = medium.grid[1] * medium.grid[2] >> level
        if medium.ref.kind != "image" or medium.grid[1:] == (1, 1):
            return medium
        try:
            size, grid = self.fitted(medium.height, medium.width, max(1, crops))
        except ValueError:  # too thin for fewer crops
            return medium
        return replace(medium, size=size, grid=grid)

    def seen(self, medium: MeasuredMedia) -> tuple[int, int]:
        """Rows and columns of patches that are not white padding alone."""
        _, rows, columns = medium.grid
        height, width = medium.size
        below, beside = rows * self.side - height, columns * self.side - width
        return rows * PATCHES - below // self.patch, columns * PATCHES - beside // self.patch

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        """Patches are merged 2 x 2, and each row of them has a line end; then comes the global view."""
        if medium.ref.kind == "audio":
            return np.full(self.audio_tokens(medium.grid[0]), self.placeholder_ids["audio"], dtype=np.int32)
        rows, columns = (-(-patches // 2) for patches in self.seen(medium))
        return np.full(rows * (columns + 1) + GLOBAL_TOKENS, self.placeholder_ids["image"], dtype=np.int32)

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        if medium.ref.kind == "audio":
            return {"audio_embed_sizes": 1, "audio_frames": 1, "audio_input_features": medium.grid[0]}
        crops = medium.grid[1] * medium.grid[2]
        return {"image_sizes": 1, "image_crops": 1, "image_global_view": 1, "image_pixel_values": crops,
                "image_global_mask": 1, "image_attention_mask": crops}  # fmt: skip

    @property
    def smallest_image(self) -> MeasuredMedia:
        """One crop of which only a line is not padding: 290 tokens, against 545 of a full one."""
        height, width = SHORTEST_SIDE, self.side
        ref = MediaRef(kind="image", path="")
        return MeasuredMedia(ref=ref, height=height, width=width, size=(height, width), grid=(1, 1, 1))

    def image_arrays(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        """Resized as torchvision does: see `tables`."""
        _, rows, columns = medium.grid
        size = (rows * self.side, columns * self.side)
        whole = padded(resize_torch(pixels, medium.size, "bilinear"), size, 255)
        mask = np.zeros((rows * PATCHES, columns * PATCHES), dtype=np.uint8)
        down, across = self.seen(medium)
        mask[:down, :across] = 1
        return {
            "image_sizes": np.array([size], dtype=np.int64),
            "image_crops": np.array([(rows, columns)], dtype=np.int64),
            "image_global_view": self.global_view(whole)[None],
            "image_pixel_values": crops_of(whole.transpose(2, 0, 1), self.side),
            "image_global_mask": np.ones((1, PATCHES, PATCHES), dtype=np.uint8),
            "image_attention_mask": crops_of(mask[None], PATCHES)[:, 0],
        }

    def global_view(self, pixels: np.ndarray) -> np.ndarray:
        """The whole picture in one crop, float32: normalised first, then resized, bicubic and without antialiasing."""
        (table,) = self.tables("torch").values()
        planes = np.stack([table[channel][pixels[..., channel]] for channel in range(len(table))])
        if planes.shape[1:] == (self.side, self.side):
            return planes
        size = (self.side, self.side)
        return torch.nn.functional.interpolate(torch.from_numpy(planes)[None], size=size, mode="bicubic")[0].numpy()

    # Sounds

    @property
    def sampling_rate(self) -> int:
        return self.extractor.sampling_rate

    def audio_frames(self, num_samples: int) -> int:
        """Whole windows only: what is left at the end is not heard."""
        if num_samples < self.extractor.win_length:
            raise ValueError(f"{num_samples} samples are fewer than one window of {self.extractor.win_length}")
        return (num_samples - self.extractor.win_length) // self.extractor.hop_length + 1

    def audio_tokens(self, frames: int) -> int:
        extractor = self.extractor
        compressed = -(-frames * extractor.audio_feat_stride // extractor.audio_compression_rate)
        return -(-compressed // extractor.audio_downsample_rate)

    def audio_arrays(self, samples: np.ndarray, medium: MeasuredMedia) -> Arrays:
        """Each sound by itself, so that its features do not depend on its neighbours in a batch."""
        heard = self.extractor(samples, sampling_rate=self.sampling_rate, return_tensors="np")
        features = heard["audio_input_features"][0]
        tokens = int(heard["audio_embed_sizes"][0])
        assert (len(features), tokens) == (medium.grid[0], self.audio_tokens(medium.grid[0])), medium
        return {
            "audio_embed_sizes": np.array([tokens], dtype=np.int64),
            "audio_frames": np.array([len(features)], dtype=np.int64),
            "audio_input_features": features,
        }

    # Text

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        if not self.is_remote_code:
            return super().messages(turns)
        tokens = self.placeholders
        return [
            {
                "role": turn.role,
                "content": "".join(part if isinstance(part, str) else tokens[part.kind] for part in turn.parts),
            }
            for turn in turns
        ]

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        tokens, start = int(media["audio_embed_sizes"].sum()), 0
        for rows, columns in media["image_crops"].tolist():
            crops = media["image_attention_mask"][start : start + rows * columns, ::2, ::2]
            down, across = int(crops[::columns, :, 0].sum()), int(crops[:columns, 0, :].sum())
            tokens += down * (across + 1) + GLOBAL_TOKENS
            start += rows * columns
        return tokens


def closest_crops(height: int, width: int, most: int, side: int) -> tuple[int, int]:
    """Rows and columns, `most` crops at the most, whose aspect ratio is closest to the picture's.

    Where several are (1 x 1, 2 x 2, 3 x 3 …) the largest that the picture fills by half.
    """
    best, smallest = (1, 1), math.inf
    grids = [(rows, columns) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    for rows, columns in sorted(grids, key=math.prod):
        distance = abs(width / height - columns / rows)
        if distance < smallest or (distance == smallest and height * width > 0.5 * side**2 * rows * columns):
            best, smallest = (rows, columns), distance
    return best


def crops_of(planes: np.ndarray, side: int) -> np.ndarray:
    """[channels, rows * side, columns * side] -> [crops, channels, side, side], row by row."""
    channels, height, width = planes.shape
    blocks = planes.reshape(channels, height // side, side, width // side, side)
    return np.ascontiguousarray(blocks.transpose(1, 3, 0, 2, 4)).reshape(-1, channels, side, side)
