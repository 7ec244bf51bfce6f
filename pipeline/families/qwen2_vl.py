"""Qwen2-VL and Qwen2.5-VL: ChatML turns, patches of 14 merged 2 x 2, three-axis positions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.families.base import Family, FamilySpec
from pipeline.families.geometry import Grid, VideoGeometry
from pipeline.mrope import mrope_positions
from pipeline.records import MeasuredMedia
from pipeline.resize import smart_resize_image

IMAGE_DEFAULTS = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
VIDEO_DEFAULTS = {
    **IMAGE_DEFAULTS,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "min_frames": 4,
    "max_frames": 768,
    "do_sample_frames": False,
    "max_video_tokens": 128_000,
}


def sample_frames(geometry: VideoGeometry, total: int, fps: float) -> np.ndarray:
    """All frames, unless the processor's config has a rate or a number; then evenly, and whole temporal patches.

    transformers steps by a float, which for 14 of 34 frames gives a 15th index beyond the end; here it is always 14.
    """
    if not geometry.samples_frames:
        return np.arange(total)
    patch = geometry.temporal_patch_size
    if geometry.num_frames is not None:
        wanted = round(geometry.num_frames / patch) * patch
    elif geometry.fps is not None:
        most = math.floor(min(geometry.max_frames, total) / patch) * patch
        frames = min(max(total / fps * geometry.fps, geometry.min_frames), most, total)
        wanted = math.floor(frames / patch) * patch
    else:
        return np.arange(total)
    wanted = max(1, min(wanted, total))  # a video of one frame has no whole temporal patch; the frame is repeated
    return (np.arange(wanted) * (total / wanted)).astype(np.float32).astype(np.int64)  # torch.arange's own arithmetic


def resize_video(geometry: VideoGeometry, num_frames: int, height: int, width: int) -> tuple[int, int]:
    """Each frame as an image; with cap_pixels_per_frame within an even share of the whole video's budget."""
    max_pixels = geometry.max_pixels
    if geometry.cap_pixels_per_frame:
        budget = int(geometry.max_video_tokens * geometry.factor**2 * 0.9)
        share = budget * geometry.temporal_patch_size // num_frames
        max_pixels = max(min(max_pixels, share), int(geometry.min_pixels * 1.05))
    return smart_resize_image(height, width, geometry.factor, geometry.min_pixels, max_pixels)


def expand_video(family: Family, video: MeasuredMedia) -> np.ndarray:
    return np.full(family.video.tokens(video.grid), family.video_token_id, dtype=np.int32)


def tokens_per_second(processor_class: str, model_config: dict[str, Any]) -> float | None:
    """Qwen2.5-VL places frames by the second: 2 positions each in every published model. Qwen2-VL does not."""
    if processor_class != "Qwen2_5_VLProcessor":
        return None
    return model_config.get("vision_config", {}).get("tokens_per_second", 2)


def positions(
    token_types: np.ndarray,
    image_grids: Sequence[Grid],
    video_grids: Sequence[Grid],
    seconds_per_grid: Sequence[float],
    *,
    merge_size: int,
    tokens_per_second: float | None,
) -> np.ndarray:
    """Temporal patches are 1 apart in Qwen2-VL, and in Qwen2.5-VL as far as their seconds say."""
    intervals = None
    if tokens_per_second is not None:
        intervals = [float(np.float32(tokens_per_second) * np.float32(seconds)) for seconds in seconds_per_grid]
    return mrope_positions(token_types, image_grids, video_grids, merge_size=merge_size, video_intervals=intervals)


SPEC = FamilySpec(
    name="qwen2_vl",
    processor_classes=("Qwen2VLProcessor", "Qwen2_5_VLProcessor"),
    takes=("image", "video"),
    image_token="<|image_pad|>",
    video_token="<|video_pad|>",
    structural_tokens=(
        "<|im_start|>", "<|im_end|>", "<|endoftext|>",
        "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
    ),
    assistant_header="<|im_start|>assistant\n",
    end_of_turn="<|im_end|>",
    vision_markers=("<|vision_start|>", "<|vision_end|>"),
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
    sample_frames=sample_frames,
    resize_video=resize_video,
    expand_video=expand_video,
    video_bounds_cover_clip=False,
    tokens_per_second=tokens_per_second,
    positions=positions,
    media_axes={
        "pixel_values": "patches",
        "image_grid_thw": "images",
        "pixel_values_videos": "patches",
        "video_grid_thw": "videos",
        "second_per_grid_ts": "videos",
    },
)  # fmt: skip
