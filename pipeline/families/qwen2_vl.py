"""Qwen2-VL and Qwen2.5-VL: ChatML turns, patches of 14 merged 2 x 2, three-axis positions. Qwen3's build on it."""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey
from neatpack.pipeline.families.geometry import ImageGeometry, VideoGeometry
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.media.pixels import Resize, patchify, patchify_video, pixel_table, resize_torch
from neatpack.pipeline.media.resize import smart_resize_image
from neatpack.pipeline.mrope import mrope_positions
from neatpack.pipeline.records import MeasuredMedia, MediaKind, MediaRef

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


def choose_frames(geometry: VideoGeometry, total: int, fps: float) -> np.ndarray:
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


class Qwen2VL(Family):
    name = "qwen2_vl"
    processor_classes: tuple[str, ...] = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor")
    takes: tuple[MediaKind, ...] = ("image", "video")
    placeholders = {"image": "<|image_pad|>", "video": "<|video_pad|>", "audio": "<|audio_pad|>"}
    opening = {"image": ("<|vision_start|>",), "video": ("<|vision_start|>",)}
    closing = {"image": ("<|vision_end|>",), "video": ("<|vision_end|>",)}
    structural_tokens: tuple[str, ...] = (
        "<|im_start|>", "<|im_end|>", "<|endoftext|>",
        "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
    )  # fmt: skip
    assistant_header = "<|im_start|>assistant\n"
    end_of_turn = "<|im_end|>"
    # Values of the processor's classes where its config is silent
    image_defaults: dict[str, Any] = IMAGE_DEFAULTS
    video_defaults: dict[str, Any] = VIDEO_DEFAULTS
    video_bounds_cover_clip = False  # min_pixels and max_pixels are of a frame
    choose_frames = staticmethod(choose_frames)
    resize_video = staticmethod(resize_video)

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        super().__init__(files, key)
        if not files.image:
            raise UserError(
                f"--processor {self.source}: has neither preprocessor_config.json nor processor_config.json"
            )
        images = self._configured(self.image_defaults, files.image)
        videos = self._configured(self.video_defaults, files.video or files.image)
        override(images, min_pixels=key.min_pixels, max_pixels=key.max_pixels)
        override(videos, min_pixels=key.video_min_pixels, max_pixels=key.video_max_pixels, fps=key.video_fps,
                 min_frames=key.video_min_frames, max_frames=key.video_max_frames)  # fmt: skip
        self.image: ImageGeometry = ImageGeometry.from_config(images)
        self.video: VideoGeometry = VideoGeometry.from_config(
            videos,
            fps=videos.get("fps"),
            num_frames=videos.get("num_frames"),
            min_frames=videos["min_frames"],
            max_frames=videos["max_frames"],
            # A rate or a number in the config is there to be used, whatever the class's default.
            samples_frames=bool(videos["do_sample_frames"] or videos.get("fps") or videos.get("num_frames")),
            cap_pixels_per_frame=bool(videos.get("cap_pixels_per_frame")),
            max_video_tokens=videos["max_video_tokens"],
        )
        tokens_per_second = self.tokens_per_second(files)
        self.config = {"image": images, "video": videos, "tokens_per_second": tokens_per_second}
        self.facts = {"merge_size": self.image.merge_size, "tokens_per_second": tokens_per_second}

    def _configured(self, defaults: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        full = copy.deepcopy(defaults | config)
        for switch in ("do_resize", "do_rescale", "do_normalize"):
            if not full.get(switch, True):
                raise UserError(f"--processor {self.source}: {switch} is false, which {self.name} does not support")
        return full

    @staticmethod
    def tokens_per_second(files: ProcessorFiles) -> float | None:
        """Qwen2.5-VL places frames by the second: 2 positions each in every published model. Qwen2-VL does not."""
        if files.class_name != "Qwen2_5_VLProcessor":
            return None
        return files.model.get("vision_config", {}).get("tokens_per_second", 2)

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        frame_patch = self.video.patch_bytes * self.video.temporal_patch_size
        return {
            "image_grid_thw": MediaArray(kind="image", dtype="int64", row=(3,)),
            "pixel_values": MediaArray(
                kind="image", dtype="uint8", row=(self.image.patch_bytes,), counts="image_grid_thw", table="image",
                repeat=self.image.temporal_patch_size,
            ),
            "video_grid_thw": MediaArray(kind="video", dtype="int64", row=(3,)),
            "second_per_grid_ts": MediaArray(kind="video", dtype="float32", row=()),
            # Nothing is repeated in a video: its patches have several frames.
            "pixel_values_videos": MediaArray(
                kind="video", dtype="uint8", row=(frame_patch,), counts="video_grid_thw", table="video"
            ),
        }  # fmt: skip

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """Videos are always resized and normalised as torchvision does: transformers has no other way."""
        image, video = self.image, self.video
        return {
            "image": pixel_table(image.rescale_factor, image.mean, image.std, resize),
            "video": pixel_table(video.rescale_factor, video.mean, video.std, "torch"),
        }

    def image_shape(self, height: int, width: int, num_images: int) -> tuple[tuple[int, int], Grid]:
        return self.image.resized(height, width), self.image.grid(height, width)

    def sample_frames(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        return self.choose_frames(self._asked(asked_fps), total, fps)

    def _asked(self, fps: float | None) -> VideoGeometry:
        return self.video if fps is None else replace(self.video, fps=fps, num_frames=None, samples_frames=True)

    def video_shape(
        self, num_frames: int, height: int, width: int, geometry: VideoGeometry | None = None
    ) -> tuple[tuple[int, int], Grid]:
        """What does not fill a last temporal patch is filled with the last frame."""
        geometry = geometry or self.video
        size = self.resize_video(geometry, num_frames, height, width)
        temporal = -(-num_frames // geometry.temporal_patch_size)
        return size, (temporal, size[0] // geometry.patch_size, size[1] // geometry.patch_size)

    def shrunk(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the area of a picture (not below the processor's min_pixels) or the frames of a video (not
        below 4, evenly thinned); once a video has 4, its area is halved instead."""
        if medium.ref.kind == "image":
            height, width = self.image.resized(medium.height, medium.width)
            geometry = replace(self.image, max_pixels=max(self.image.min_pixels, height * width >> level))
            size = geometry.resized(medium.height, medium.width)
            return replace(medium, size=size, grid=geometry.grid(medium.height, medium.width))
        if medium.ref.kind != "video":
            return medium
        halvings = max(0, min(level, (max(len(medium.frames), 4) // 4).bit_length() - 1))
        kept = max(min(4, len(medium.frames)), len(medium.frames) >> halvings)
        chosen = np.linspace(0, len(medium.frames) - 1, kept).round().astype(int)
        # The bounds are of a frame in Qwen2-VL and of the clip in Qwen3-VL; in both, fewer pixels per frame than now.
        pixels = medium.size[0] * medium.size[1] >> (level - halvings)
        frames_in_bound = kept if self.video_bounds_cover_clip else 1
        smaller = replace(
            self.video,
            min_pixels=min(self.video.min_pixels, pixels * frames_in_bound),
            max_pixels=max(self.video.factor**2, pixels) * frames_in_bound,
        )
        frames = tuple(medium.frames[index] for index in chosen.tolist())
        size, grid = self.video_shape(len(frames), medium.height, medium.width, smaller)
        return replace(medium, frames=frames, size=size, grid=grid)

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        geometry = self.video if medium.ref.kind == "video" else self.image
        return np.full(geometry.tokens(medium.grid), self.placeholder_ids[medium.ref.kind], dtype=np.int32)

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        patches = int(np.prod(medium.grid))
        if medium.ref.kind == "video":
            return {"video_grid_thw": 1, "second_per_grid_ts": 1, "pixel_values_videos": patches}
        return {"image_grid_thw": 1, "pixel_values": patches}

    @property
    def smallest_image(self) -> MeasuredMedia:
        """One merged patch: 3 tokens with its markers."""
        side, merge = self.image.factor, self.image.merge_size
        ref = MediaRef(kind="image", path="")
        return MeasuredMedia(ref=ref, height=side, width=side, size=(side, side), grid=(1, merge, merge))

    def image_arrays(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        patches = patchify(resize(pixels, medium.size), self.image.patch_size, self.image.merge_size)
        return {"pixel_values": patches, "image_grid_thw": np.array([medium.grid], dtype=np.int64)}

    def video_arrays(self, frames: Iterable[np.ndarray], medium: MeasuredMedia) -> Arrays:
        """Always resized as torchvision does: transformers has no other backend for videos."""
        geometry = self.video
        resized = [resize_torch(frame, medium.size) for frame in frames]
        resized += [resized[-1]] * (-len(resized) % geometry.temporal_patch_size)
        patches = patchify_video(
            np.stack(resized), geometry.patch_size, geometry.merge_size, geometry.temporal_patch_size
        )
        return {
            "pixel_values_videos": patches,
            "video_grid_thw": np.array([medium.grid], dtype=np.int64),
            "second_per_grid_ts": np.array([self.seconds_per_patch(medium)], dtype=np.float32),
        }

    def seconds_per_patch(self, medium: MeasuredMedia) -> float:
        """From one temporal patch of a video to the next, at the rate at which its frames were taken."""
        sampled_fps = len(medium.frames) / medium.total_frames * medium.fps
        return self.video.temporal_patch_size / sampled_fps

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Temporal patches are 1 apart in Qwen2-VL, and in Qwen2.5-VL as far as their seconds say."""
        intervals = None
        if facts["tokens_per_second"] is not None:
            intervals = (np.float32(facts["tokens_per_second"]) * media["second_per_grid_ts"]).tolist()
        images, videos = media["image_grid_thw"].tolist(), media["video_grid_thw"].tolist()
        return mrope_positions(types, images, videos, merge_size=facts["merge_size"], video_intervals=intervals)

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        patches = sum(int(media[name].prod(axis=1).sum()) for name in ("image_grid_thw", "video_grid_thw"))
        return patches // facts["merge_size"] ** 2


def override(config: dict[str, Any], **values: Any) -> None:
    """What the user sets over a processor's config; 0 is nothing."""
    config |= {name: value for name, value in values.items() if value}
