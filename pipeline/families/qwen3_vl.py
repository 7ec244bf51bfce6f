"""Qwen3-VL, dense and MoE: as Qwen2-VL for text and images; a video is frames with their times written between them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from neatpack.pipeline.families import qwen2_vl
from neatpack.pipeline.families.base import ProcessorFiles
from neatpack.pipeline.families.geometry import VideoGeometry
from neatpack.pipeline.media.resize import smart_resize_video
from neatpack.pipeline.mrope import mrope_positions
from neatpack.pipeline.records import MeasuredMedia

VIDEO_DEFAULTS = {
    **qwen2_vl.VIDEO_DEFAULTS,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    "patch_size": 16,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_sample_frames": True,
    "fps": 2,
    "max_video_tokens": 768,
}


def choose_frames(geometry: VideoGeometry, total: int, fps: float) -> np.ndarray:
    """At the configured rate, within min_frames and max_frames, from the first frame to the last."""
    if not geometry.samples_frames:
        return np.arange(total)
    wanted = geometry.num_frames
    if wanted is None and geometry.fps is not None:
        wanted = min(max(int(total / fps * geometry.fps), geometry.min_frames), geometry.max_frames, total)
    elif wanted is None:
        wanted = min(max(total, geometry.min_frames), geometry.max_frames)
    return np.linspace(0, total - 1, min(wanted, total)).round().astype(np.int64)


def resize_video(geometry: VideoGeometry, num_frames: int, height: int, width: int) -> tuple[int, int]:
    """The pixel bounds cover the whole clip."""
    patch = geometry.temporal_patch_size
    num_frames = max(num_frames, patch)  # one frame is repeated to a whole temporal patch
    max_pixels = geometry.max_pixels
    if geometry.cap_pixels_per_frame:
        share = min(geometry.max_video_tokens * geometry.factor**2, geometry.max_pixels // num_frames)
        max_pixels = max(share, int(geometry.min_pixels * 1.05)) * num_frames
    return smart_resize_video(num_frames, height, width, patch, geometry.factor, geometry.min_pixels, max_pixels)


def _times(video: MeasuredMedia, patch: int) -> list[float]:
    """The middle of each temporal patch: frames [0, 12, 25] at 25 fps, patches of 2 -> 0.24 s and 1.0 s."""
    frames = list(video.frames)
    frames += [frames[-1]] * (-len(frames) % patch)
    times = [frame / video.fps for frame in frames]
    return [(times[i] + times[i + patch - 1]) / 2 for i in range(0, len(times), patch)]


class Qwen3VL(qwen2_vl.Qwen2VL):
    name = "qwen3_vl"
    processor_classes = ("Qwen3VLProcessor", "Qwen3VLMoeProcessor")
    video_defaults = VIDEO_DEFAULTS
    video_bounds_cover_clip = True
    choose_frames = staticmethod(choose_frames)
    resize_video = staticmethod(resize_video)

    @staticmethod
    def tokens_per_second(files: ProcessorFiles) -> float | None:
        return None  # time is in the text

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        """Of a video, per temporal patch: its time as text, and its tokens between markers.

        "<0.2 seconds>", start, pad x n, end.
        """
        if medium.ref.kind != "video":
            return super().expansion(medium)
        per_frame = self.video.tokens((1, *medium.grid[1:]))
        before, after = self.marker_ids("video")
        block = np.array([*before, *[self.placeholder_ids["video"]] * per_frame, *after], dtype=np.int32)
        pieces = []
        for seconds in _times(medium, self.video.temporal_patch_size):
            time = self.tokenizer.encode(f"<{seconds:.1f} seconds>", add_special_tokens=False)
            pieces += [np.array(time, dtype=np.int32), block]
        return np.concatenate(pieces)

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Time is in the text, so each temporal patch is a block of its own."""
        frames = [(1, rows, columns) for count, rows, columns in media["video_grid_thw"].tolist() for _ in range(count)]
        return mrope_positions(types, media["image_grid_thw"].tolist(), frames, merge_size=facts["merge_size"])
