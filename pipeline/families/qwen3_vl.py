"""Qwen3-VL, dense and MoE: as Qwen2-VL for text and images; a video is frames with their times written between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..media.resize import smart_resize_video
from ..mrope import mrope_positions
from ..records import MeasuredMedia
from .base import Size
from .chat import Chat
from .qwen2_vl import VIDEO_DEFAULTS, Qwen2Videos, Qwen2VL

QWEN3_VIDEO_DEFAULTS = {
    **VIDEO_DEFAULTS,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    "patch_size": 16,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_sample_frames": True,
    "fps": 2,
    "max_video_tokens": 768,
}


@dataclass(frozen=True, kw_only=True)
class Qwen3Videos(Qwen2Videos):
    bounds_cover_clip = True

    total_pixels = None  # what frames share are the bounds themselves

    def sampled(self, total: int, fps: float) -> np.ndarray:
        """At the configured rate, within min_frames and max_frames, from the first frame to the last."""
        wanted = self.num_frames
        if wanted is None and self.fps is not None:
            wanted = min(max(int(total / fps * self.fps), self.min_frames), self.max_frames, total)
        elif wanted is None:
            wanted = min(max(total, self.min_frames), self.max_frames)
        return np.linspace(0, total - 1, min(wanted, total)).round().astype(np.int64)

    def resized(self, num_frames: int, height: int, width: int) -> Size:
        """The pixel bounds cover the whole clip."""
        patch = self.temporal_patch_size
        num_frames = max(num_frames, patch)  # one frame is repeated to a whole temporal patch
        max_pixels = self.max_pixels
        if self.cap_pixels_per_frame:
            _, share = self.frame_bounds(num_frames)
            max_pixels = max(share, int(self.min_pixels * 1.05)) * num_frames
        return smart_resize_video(num_frames, height, width, patch, self.factor, self.min_pixels, max_pixels)

    def frame_bounds(self, num_frames: int) -> tuple[int, int]:
        num_frames = max(num_frames, self.temporal_patch_size)
        most = self.max_pixels // num_frames
        if self.cap_pixels_per_frame:
            most = min(most, self.max_video_tokens * self.factor**2)
        return -(-self.min_pixels // num_frames), most

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Per temporal patch its time as text, and its tokens between markers: "<0.2 seconds>", start, pad x n, end."""
        per_patch = self.tokens(medium) // medium.grid[0]
        before, after = chat.marker_ids("video")
        block = [*before, *[chat.placeholder_ids["video"]] * per_patch, *after]
        times = [chat.ids(f"<{seconds:.1f} seconds>") for seconds in self.times(medium)]
        return np.concatenate([[*time, *block] for time in times]).astype(np.int32)

    def times(self, video: MeasuredMedia) -> list[float]:
        """The middle of each temporal patch: frames [0, 12, 25] at 25 fps, patches of 2 -> 0.24 s and 1.0 s."""
        patch, frames = self.temporal_patch_size, list(video.frames)
        frames += [frames[-1]] * (-len(frames) % patch)
        times = [frame / video.fps for frame in frames]
        return [(times[i] + times[i + patch - 1]) / 2 for i in range(0, len(times), patch)]


class Qwen3VL(Qwen2VL):
    name = "qwen3_vl"
    processor_classes = ("Qwen3VLProcessor", "Qwen3VLMoeProcessor")
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp")
    video_rule = Qwen3Videos
    video_defaults = QWEN3_VIDEO_DEFAULTS

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Time is in the text, so each temporal patch is a block of its own."""
        frames = [(1, rows, columns) for count, rows, columns in media["video_grid_thw"].tolist() for _ in range(count)]
        return mrope_positions(types, media["image_grid_thw"].tolist(), frames, merge_size=facts["merge_size"])
