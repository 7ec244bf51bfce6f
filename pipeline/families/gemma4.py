"""Gemma 4: pictures blown up or down to a budget of tokens, videos as timed frames, sound, and an empty thought.

The instruction-tuned models open every answer with a thinking channel. Where training text lacks it, the loss starts
high for nothing; so each model turn gets an empty one, `<|channel>thought\\n<channel|>`, which is never trained on.
Thoughts that a row brings along are taken out, as Gemma's own chat template does.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.media.pixels import Resize, pixel_table, rescale_table, resize_torch
from neatpack.pipeline.media.resize import budget_resize
from neatpack.pipeline.records import Example, MeasuredMedia, MediaKind, MediaRef, Turn

BUDGETS = (70, 140, 280, 560, 1120)  # tokens of a picture: what the processor allows
MAX_SAMPLES = 480_000  # 30 s at 16 kHz: the feature extractor cuts a sound there
MIN_FRAMES = 4  # a shrunken video keeps so many
# Values of the processor's classes where its config is silent
IMAGE_DEFAULTS = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "max_soft_tokens": 280,
    "rescale_factor": 1 / 255,
    "do_normalize": False,
    "image_mean": [0.0, 0.0, 0.0],
    "image_std": [1.0, 1.0, 1.0],
}
VIDEO_DEFAULTS = {
    **IMAGE_DEFAULTS,
    "max_soft_tokens": 70,
    "do_normalize": True,
    "do_sample_frames": True,
    "num_frames": 32,
    "fps": None,
    "min_frames": 1,
    "max_frames": None,
}
MODEL_TURN = "<|turn>model\n"
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
_THOUGHT = re.compile(r"<\|channel>.*?<channel\|>", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How a picture or a frame is cut up: patches, pooled to tokens, of which there are at most `budget`."""

    patch: int
    pooling: int
    budget: int

    @property
    def max_patches(self) -> int:
        return self.budget * self.pooling**2

    @property
    def patch_bytes(self) -> int:
        return 3 * self.patch**2

    def shape(self, height: int, width: int, budget: int = 0) -> tuple[tuple[int, int], Grid]:
        """Size and patches of a picture, within a smaller budget if one is given."""
        size = budget_resize(height, width, self.patch * self.pooling, budget or self.budget)
        return size, (1, size[0] // self.patch, size[1] // self.patch)

    def tokens(self, grid: Grid) -> int:
        """Of one frame."""
        return grid[1] * grid[2] // self.pooling**2

    def arrays(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A resized picture as patches and their places (x, y), row by row, filled up with 0 and -1.

        Channels are the innermost axis of a patch.
        """
        rows, columns = pixels.shape[0] // self.patch, pixels.shape[1] // self.patch
        blocks = pixels.reshape(rows, self.patch, columns, self.patch, 3).transpose(0, 2, 1, 3, 4)
        patches = np.zeros((self.max_patches, self.patch_bytes), dtype=np.uint8)
        patches[: rows * columns] = blocks.reshape(rows * columns, -1)
        places = np.full((self.max_patches, 2), -1, dtype=np.int16)
        places[: rows * columns, 0] = np.tile(np.arange(columns), rows)
        places[: rows * columns, 1] = np.repeat(np.arange(rows), columns)
        return patches, places


def audio_tokens(feature_frames: int) -> int:
    """Two convolutions of stride 2: 5 frames -> 3 -> 2."""
    return -(-feature_frames // 4)


class Gemma4(Family):
    name = "gemma4"
    processor_classes = ("Gemma4Processor",)
    takes: tuple[MediaKind, ...] = ("image", "video", "audio")
    placeholders = {"image": "<|image|>", "video": "<|video|>", "audio": "<|audio|>"}
    structural_tokens = (
        "<bos>", "<eos>", "<pad>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>",
        "<|image>", "<|image|>", "<image|>", "<|video|>", "<|audio>", "<|audio|>", "<audio|>",
    )  # fmt: skip
    assistant_header = MODEL_TURN + EMPTY_THOUGHT
    header_tail = 0  # it ends in a special token, which merges with nothing
    end_of_turn = "<turn|>"
    position_axes = 1

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        super().__init__(files, key)
        # As the processor does: some published tokenizers lack it.
        self.tokenizer.add_special_tokens(
            {"additional_special_tokens": [self.placeholders["video"]]}, replace_extra_special_tokens=False
        )
        if key.min_pixels or key.video_min_pixels:
            raise UserError(f"min_pixels: {self.name} blows small pictures up to its budget; set max_pixels only")
        images = self._configured(IMAGE_DEFAULTS, files.image, key.max_pixels)
        videos = self._configured(VIDEO_DEFAULTS, files.video, key.video_max_pixels)
        if key.video_fps:
            videos |= {"fps": key.video_fps, "num_frames": None, "do_sample_frames": True}
        videos["min_frames"] = key.video_min_frames or videos["min_frames"]
        videos["max_frames"] = key.video_max_frames or videos["max_frames"]
        self._images, self._videos = images, videos
        self.image, self.video = _cut(images), _cut(videos)
        self.extractor = Gemma4AudioFeatureExtractor.from_dict(files.audio)
        if self.extractor.dither:
            raise UserError(f"--processor {self.source}: dither adds noise to sounds at random; set it to 0.0")
        if files.model and not files.model.get("audio_config"):  # the larger models are deaf
            self.takes = ("image", "video")
        text = files.model.get("text_config") or {}
        audio = json.loads(self.extractor.to_json_string())
        self.config = {"image": images, "video": videos, "audio": audio, "takes": self.takes}
        self.facts = {
            "patches_per_token": self.image.pooling**2,
            "patches_per_video_token": self.video.pooling**2,
            # For `neat_packed_vlm_collater`; None where the processor came without the model's config.
            "sliding_window": text.get("sliding_window"),
            "bidirectional_vision": text.get("use_bidirectional_attention") == "vision",
        }

    def _configured(self, defaults: dict[str, Any], config: dict[str, Any], max_pixels: int) -> dict[str, Any]:
        full = {name: config.get(name, default) for name, default in defaults.items()}
        for switch in ("do_resize", "do_rescale"):
            if not config.get(switch, True):
                raise UserError(f"--processor {self.source}: {switch} is false, which {self.name} does not support")
        if full["max_soft_tokens"] not in BUDGETS:
            raise UserError(
                f"--processor {self.source}: max_soft_tokens is {full['max_soft_tokens']}, expected one of {BUDGETS}"
            )
        if max_pixels:
            token_pixels = (full["patch_size"] * full["pooling_kernel_size"]) ** 2
            within = [budget for budget in BUDGETS if budget * token_pixels <= max_pixels]
            if not within:
                raise UserError(f"max_pixels {max_pixels}: the smallest budget has {BUDGETS[0] * token_pixels} pixels")
            full["max_soft_tokens"] = within[-1]
        table = _table(full, "torch")
        if (table[:, 0] != 0).any() or (table != table[0]).any():
            raise UserError(
                f"--processor {self.source}: image_mean {full['image_mean']}, image_std {full['image_std']}: "
                f"{self.name} needs black to stay 0, as its padding is, and all channels alike"
            )
        return full

    # Media

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        image, video = self.image, self.video
        pixels: dict[str, MediaArray] = {
            "pixel_values": MediaArray(
                kind="image", dtype="uint8", row=(image.max_patches, image.patch_bytes), table="image"
            ),
            "image_position_ids": MediaArray(kind="image", dtype="int16", row=(image.max_patches, 2)),
            "num_frames_per_video": MediaArray(kind="video", dtype="int64", row=()),
            "pixel_values_videos": MediaArray(
                kind="video", dtype="uint8", row=(video.max_patches, video.patch_bytes), table="video",
                counts="num_frames_per_video",
            ),
            "video_position_ids": MediaArray(
                kind="video", dtype="int16", row=(video.max_patches, 2), counts="num_frames_per_video"
            ),
        }  # fmt: skip
        if "audio" not in self.takes:
            return pixels
        return pixels | {
            "audio_feature_lengths": MediaArray(kind="audio", dtype="int64", row=()),
            "input_features": MediaArray(
                kind="audio", dtype="float32", row=(self.extractor.feature_size,), counts="audio_feature_lengths",
                mask="input_features_mask", mask_dtype="bool",
            ),
        }  # fmt: skip

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """One line each: all channels are alike. Videos always as torchvision does: there is no other way."""
        return {"image": _table(self._images, resize)[:1], "video": _table(self._videos, "torch")[:1]}

    def image_shape(self, height: int, width: int, num_images: int) -> tuple[tuple[int, int], Grid]:
        return self.image.shape(height, width)

    def sample_frames(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """Evenly, `num_frames` of them or at a rate; all of a video that has fewer (transformers refuses it)."""
        config = self._videos
        rate = asked_fps or config["fps"]
        if not (config["do_sample_frames"] or asked_fps):
            wanted = total
        elif asked_fps or config["num_frames"] is None and rate:
            wanted = int(total / fps * rate)
        else:
            wanted = config["num_frames"] or total
        wanted = min(max(wanted, config["min_frames"], 1), config["max_frames"] or total, total)
        return np.arange(wanted) * total // wanted

    def video_shape(self, num_frames: int, height: int, width: int) -> tuple[tuple[int, int], Grid]:
        size, (_, rows, columns) = self.video.shape(height, width)
        return size, (num_frames, rows, columns)

    @property
    def sampling_rate(self) -> int:
        return int(self.extractor.sampling_rate)

    def audio_frames(self, num_samples: int) -> int:
        """Frames whose window lies in the sound: the others are masked, so how far a sound is padded does not matter.

        Half a window of silence comes before the sound. Windows of 320, hops of 160, 1 s at 16 kHz -> 99.
        """
        length, hop = self.extractor.frame_length, self.extractor.hop_length
        frames = (min(num_samples, MAX_SAMPLES) - 1 - (length - length // 2)) // hop + 1
        if frames < 1:
            seconds = num_samples / self.sampling_rate
            raise ValueError(f"a sound of {seconds:.4f} s is shorter than one window of its features")
        return int(frames)

    def shrunk(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level takes a picture to the next smaller budget, and halves the frames of a video (not below 4)."""
        if medium.ref.kind == "image":
            budget = BUDGETS[max(0, BUDGETS.index(self.image.budget) - level)]
            size, grid = self.image.shape(medium.height, medium.width, budget)
            return replace(medium, size=size, grid=grid)
        if medium.ref.kind == "video":
            kept = max(min(MIN_FRAMES, len(medium.frames)), len(medium.frames) >> level)
            chosen = np.linspace(0, len(medium.frames) - 1, kept).round().astype(int)
            frames = tuple(medium.frames[index] for index in chosen.tolist())
            return replace(medium, frames=frames, grid=(kept, *medium.grid[1:]))
        return medium

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        """Between their markers, which the template does not write; a video frame by frame, with its minute and second.

        "00:00 ", begin, video x n, end, " 00:02 ", begin, …
        """
        kind = medium.ref.kind
        if kind == "audio":
            return self._between("<|audio>", audio_tokens(medium.grid[0]), kind, "<audio|>")
        if kind == "image":
            return self._between("<|image>", self.image.tokens(medium.grid), kind, "<image|>")
        block = self._between("<|image>", self.video.tokens(medium.grid), kind, "<image|>")
        pieces = []
        for number, frame in enumerate(medium.frames):
            seconds = int(frame / medium.fps)
            time = f"{' ' if number else ''}{seconds // 60:02d}:{seconds % 60:02d} "
            pieces += [np.array(self.tokenizer.encode(time, add_special_tokens=False), dtype=np.int32), block]
        return np.concatenate(pieces)

    def _between(self, begin: str, count: int, kind: MediaKind, end: str) -> np.ndarray:
        inside = [self.placeholder_ids[kind]] * count
        return np.array([self.token_id(begin), *inside, self.token_id(end)], dtype=np.int32)

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        if medium.ref.kind == "image":
            return {"pixel_values": 1, "image_position_ids": 1}
        count = medium.grid[0]
        if medium.ref.kind == "audio":
            return {"audio_feature_lengths": 1, "input_features": count}
        return {"num_frames_per_video": 1, "pixel_values_videos": count, "video_position_ids": count}

    @property
    def smallest_image(self) -> MeasuredMedia:
        """One token, 3 with its markers."""
        side, pooling = self.image.patch * self.image.pooling, self.image.pooling
        ref = MediaRef(kind="image", path="")
        return MeasuredMedia(ref=ref, height=side, width=side, size=(side, side), grid=(1, pooling, pooling))

    def image_arrays(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        patches, places = self.image.arrays(resize(pixels, medium.size))
        return {"pixel_values": patches[None], "image_position_ids": places[None]}

    def video_arrays(self, frames: Iterable[np.ndarray], medium: MeasuredMedia) -> Arrays:
        """Always resized as torchvision does: transformers has no other backend for videos."""
        cut = [self.video.arrays(resize_torch(frame, medium.size)) for frame in frames]
        return {
            "num_frames_per_video": np.array([len(cut)], dtype=np.int64),
            "pixel_values_videos": np.stack([patches for patches, _ in cut]),
            "video_position_ids": np.stack([places for _, places in cut]),
        }

    def audio_arrays(self, samples: np.ndarray, medium: MeasuredMedia) -> Arrays:
        heard = self.extractor([samples])  # in a list: a bare array it would pad along the wrong axis
        features, mask = heard["input_features"][0], heard["input_features_mask"][0]
        frames = self.audio_frames(len(samples))
        assert mask.sum() == mask[:frames].sum() == frames, (mask.sum(), frames)
        return {
            "audio_feature_lengths": np.array([frames], dtype=np.int64),
            "input_features": features[:frames].astype(np.float32, copy=False),
        }

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        images = np.count_nonzero(media["image_position_ids"][..., 0] >= 0) // facts["patches_per_token"]
        videos = np.count_nonzero(media["video_position_ids"][..., 0] >= 0) // facts["patches_per_video_token"]
        return int(images + videos + sum(map(audio_tokens, media.get("audio_feature_lengths", np.zeros(0)).tolist())))

    # Ids

    def encode(self, examples: Sequence[Example], media: Sequence[Sequence[MeasuredMedia]]) -> list[np.ndarray]:
        return super().encode([_without_thoughts(example) for example in examples], media)

    def template(self, turns: Sequence[Turn]) -> str:
        """Each model turn opens with an empty thought, one even where the template writes it, too.

        The template writes <bos> itself; where the tokenizer adds another, it is left to the tokenizer.
        """
        text = super().template(turns).replace(self.assistant_header, MODEL_TURN)
        text = text.replace(MODEL_TURN, self.assistant_header)
        return text.removeprefix(self.tokenizer.bos_token) if self._adds_bos else text

    @cached_property
    def _adds_bos(self) -> bool:
        bos = self.tokenizer.bos_token_id
        return bos is not None and self.tokenizer("")["input_ids"][:1] == [bos]


def _cut(config: dict[str, Any]) -> Cut:
    return Cut(patch=config["patch_size"], pooling=config["pooling_kernel_size"], budget=config["max_soft_tokens"])


def _table(config: dict[str, Any], resize: str) -> np.ndarray:
    """transformers multiplies where it only rescales and divides where it also normalises: not the same floats."""
    if config["do_normalize"]:
        return pixel_table(config["rescale_factor"], config["image_mean"], config["image_std"], resize)
    return rescale_table(config["rescale_factor"], resize)


def _without_thoughts(example: Example) -> Example:
    """Of the assistant's words, <|channel>thought\\nHm.<channel|>Yes. -> Yes."""

    def said(turn: Turn) -> Turn:
        if turn.role != "assistant":
            return turn
        parts = (
            _THOUGHT.sub("", part).strip() if isinstance(part, str) and _THOUGHT.search(part) else part
            for part in turn.parts
        )
        return replace(turn, parts=tuple(parts))

    return replace(example, turns=tuple(map(said, example.turns)))
