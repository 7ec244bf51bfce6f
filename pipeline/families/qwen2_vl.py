"""Qwen2-VL and Qwen2.5-VL: ChatML turns, patches of 14 merged 2 x 2, three-axis positions. Qwen3's build on it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch

from neatpack.format.layout import MediaArray

from ..config import UserError
from ..media.pixels import Resize
from ..media.resize import smart_resize_image
from ..mrope import mrope_positions
from ..records import MeasuredMedia
from .base import Arrays, Family, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import CLIP, PatchImages, PatchVideos, asked_rate, configured, set_over

CHAT = ChatFormat(
    assistant_header="<|im_start|>assistant\n",
    end_of_turn="<|im_end|>",
    placeholders={"image": "<|image_pad|>", "video": "<|video_pad|>"},
    opening={"image": ("<|vision_start|>",), "video": ("<|vision_start|>",)},
    closing={"image": ("<|vision_end|>",), "video": ("<|vision_end|>",)},
    structural_tokens=(
        "<|im_start|>", "<|im_end|>", "<|endoftext|>",
        "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
    ),
)  # fmt: skip
# Defaults of the processor's classes
IMAGE_DEFAULTS = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    **CLIP,
}
VIDEO_DEFAULTS: dict[str, Any] = {
    **IMAGE_DEFAULTS,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "min_frames": 4,
    "max_frames": 768,
    "do_sample_frames": False,
    "max_video_tokens": 128_000,
}


def image_config(files: ProcessorFiles, key: ProcessorKey, name: str) -> dict[str, Any]:
    if not files.image:
        raise UserError(
            f"--processor {files.source}: has neither preprocessor_config.json nor processor_config.json",
            code="processor-missing",
        )
    config = configured(files.source, name, IMAGE_DEFAULTS, files.image)
    set_over(config, min_pixels=key.min_pixels, max_pixels=key.max_pixels)
    return _with_bounds(config)


def video_config(
    files: ProcessorFiles, key: ProcessorKey, name: str, defaults: dict[str, Any], **fixed: Any
) -> dict[str, Any]:
    """`fixed`: what the family's processor sets whatever its config says."""
    config = _with_bounds(configured(files.source, name, defaults, files.video or files.image) | fixed)
    if config.get("fps") is None and config.get("num_frames") is None and key.video_fps != math.inf:
        config |= with_qwen_vl_utils(config) | {"spans_clip": not key.video_fps}
    config |= asked_rate(key)
    set_over(config, min_pixels=key.video_min_pixels, max_pixels=key.video_max_pixels,
             min_frames=key.video_min_frames, max_frames=key.video_max_frames)  # fmt: skip
    return config


# qwen-vl-utils 0.0.14: FPS, VIDEO_MIN_TOKEN_NUM, VIDEO_MAX_TOKEN_NUM. Its FPS_MIN_FRAMES and FPS_MAX_FRAMES, 4 and 768,
# and its MODEL_SEQ_LEN, 128,000 tokens, are defaults of the processor's class, too.
UTILS_FPS = 2.0
UTILS_TOKENS = (128, 768)


def with_qwen_vl_utils(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rate and the bounds of qwen-vl-utils, which these processors leave both to, within the config's.

    qwen-vl-utils resizes a frame to 128 to 768 tokens for each pair of frames, less where all frames would exceed
    its total, and the processor resizes it again where its own bounds are narrower.
    """
    least, most = (tokens * (config["patch_size"] * config["merge_size"]) ** 2 for tokens in UTILS_TOKENS)
    low, high = config["min_pixels"], config["max_pixels"]
    return {
        "fps": UTILS_FPS,
        "min_pixels": max(low, least) if least <= high else low,
        "max_pixels": min(high, most) if most >= low else high,
        "cap_pixels_per_frame": True,
    }


def _with_bounds(config: dict[str, Any]) -> dict[str, Any]:
    """Bounds of the area, by the names that the rules have for them; Qwen's configs keep them as edges, too."""
    size = config["size"]
    bounds = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    return config | {name: config.get(name) or bound for name, bound in bounds.items()}


@dataclass(frozen=True, kw_only=True)
class Qwen2Videos(PatchVideos):
    seconds_name: ClassVar[str] = "second_per_grid_ts"
    spans_clip: bool = False  # frames go from the first to the last, as in qwen-vl-utils; else as in transformers

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "video_grid_thw": self.integers(3),
            self.seconds_name: MediaArray(kinds=("video",), dtype="float32", row=()),
            "pixel_values_videos": self.pixel_array,
        }

    def sampled(self, total: int, fps: float) -> np.ndarray:
        """Evenly, in whole temporal patches, by the rate or the number that is set; else all frames, but not more than
        max_frames (transformers knows that bound beside a rate only).

        transformers steps by a float, which for 14 of 34 frames gives a 15th index beyond the end; here it is 14.
        """
        patch = self.temporal_patch_size
        if self.samples_frames and self.num_frames is not None:
            wanted = round(self.num_frames / patch) * patch
        elif self.samples_frames and self.fps is not None:
            most = math.floor(min(self.max_frames, total) / patch) * patch
            frames = min(max(total / fps * self.fps, self.min_frames), most, total)
            wanted = math.floor(frames / patch) * patch
        elif total > self.max_frames:
            wanted = math.floor(self.max_frames / patch) * patch
        else:
            return np.arange(total)
        wanted = max(1, min(wanted, total))  # a video of one frame has no whole temporal patch; the frame is repeated
        if self.spans_clip:
            spread: np.ndarray = torch.linspace(0, total - 1, wanted).round().long().numpy()
            return spread
        steps = np.arange(wanted) * (total / wanted)
        return steps.astype(np.float32).astype(np.int64)  # torch.arange's own arithmetic

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """A rate of its row is followed as transformers follows one."""
        asked = self if asked_fps is None else replace(self, spans_clip=False)
        return super(Qwen2Videos, asked).choose(total, fps, asked_fps)

    def resized(self, num_frames: int, height: int, width: int) -> Size:
        """Each frame as an image; with cap_pixels_per_frame within an even share of the whole video's budget."""
        max_pixels = self.max_pixels
        if self.total_pixels is not None:
            share = self.total_pixels * self.temporal_patch_size // num_frames
            max_pixels = max(min(max_pixels, share), int(self.min_pixels * 1.05))
        return smart_resize_image(height, width, self.factor, self.min_pixels, max_pixels)

    def render(self, content: Iterable[np.ndarray], medium: MeasuredMedia, resize: Resize) -> Arrays:
        return {
            "pixel_values_videos": self.patches(content, medium),
            "video_grid_thw": np.array([medium.grid], dtype=np.int64),
            self.seconds_name: np.array([self.seconds_per_patch(medium)], dtype=np.float32),
        }

    def seconds_per_patch(self, medium: MeasuredMedia) -> float:
        """From one temporal patch of a video to the next, at the rate at which its frames were taken."""
        sampled_fps = len(medium.frames) / medium.total_frames * medium.fps
        return self.temporal_patch_size / sampled_fps


def patch_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int:
    """Tokens of images and videos by their grids, merged."""
    patches = sum(int(media[name].prod(axis=1).sum()) for name in ("image_grid_thw", "video_grid_thw"))
    return patches // int(facts["merge_size"]) ** 2


class Qwen2VL(Family):
    name = "qwen2_vl"
    revision = 3
    processor_classes: ClassVar[tuple[str, ...]] = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor")
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_vl", "qwen2_5_vl")
    position_axes = 3
    media_tokens = staticmethod(patch_tokens)
    video_rule: ClassVar[type[PatchVideos]] = Qwen2Videos
    video_defaults: ClassVar[dict[str, Any]] = VIDEO_DEFAULTS

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        image = PatchImages.of(image_config(files, key, cls.name))
        # Only Qwen2.5-VL places frames by the second: 2 positions each in every published model.
        tokens_per_second = None
        if files.class_name == "Qwen2_5_VLProcessor":
            tokens_per_second = files.model.get("vision_config", {}).get("tokens_per_second", 2)
        return cls(
            Chat(CHAT, files.tokenizer, source=files.source, takes=("image", "video")),
            image=image,
            video=cls.video_rule.of(video_config(files, key, cls.name, cls.video_defaults)),
            facts={"merge_size": image.merge_size, "tokens_per_second": tokens_per_second},
        )

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Temporal patches are 1 apart in Qwen2-VL, and in Qwen2.5-VL as far as their seconds say."""
        intervals = None
        if facts["tokens_per_second"] is not None:
            intervals = (np.float32(facts["tokens_per_second"]) * media["second_per_grid_ts"]).tolist()
        images, videos = media["image_grid_thw"].tolist(), media["video_grid_thw"].tolist()
        return mrope_positions(types, images, videos, merge_size=facts["merge_size"], video_intervals=intervals)
