"""Kimi-K2.5 and 2.6: as Kimi-VL for text and pictures; a video is chunks of four frames, each with its time before it.

    name               rows    for
    image_grid_thw     images  transformers' own model
    grid_thws          images  models that take the published processor's names: the same numbers
    image_grid_hws     images  pipeline-parallel code that asks for heights and widths
    video_grid_thw     chunks  transformers' own model; how many a video has is in num_chunks_per_video

All of them are stored, 16 to 24 bytes each per picture: a model takes the one that it knows and passes over the others.

Videos are written as transformers' processor does, with a token of their own, and need a tokenizer that has it; the
published one has not, and then this family takes no videos. transformers' model (5.22.2) fails on chunks of more than
one frame, its own processor's included: it cuts the pooled features by grids that count frames.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from neatpack.pipeline.families.base import Arrays, Grid, ProcessorFiles, ProcessorKey
from neatpack.pipeline.families.kimi_vl import KimiVL, PatchBudget
from neatpack.pipeline.families.uniform import configured, refuse_settings, uniform_frames
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.media.pixels import Resize, pixel_table, resize_torch
from neatpack.pipeline.records import Example, MeasuredMedia, MediaKind, MediaRef, Turn

IMAGE_DEFAULTS = {
    "patch_size": 14,
    "merge_size": 2,
    "max_patches": 16384,
    "size": {"max_height": 512, "max_width": 512},  # in patches
    "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
VIDEO_DEFAULTS = {
    **IMAGE_DEFAULTS,
    "max_patches": 4096,
    "temporal_patch_size": 4,
    "fps": 2,
    "num_frames": None,
    "do_sample_frames": True,
}
VIDEO_TOKEN = "<|kimi_k25_video_placeholder|>"


def named_as_in_transformers(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Image and video settings of the published `media_proc_cfg`: other names for the same."""
    common = {
        "patch_size": config.get("patch_size"),
        "merge_size": config.get("merge_kernel_size"),
        "image_mean": config.get("image_mean"),
        "image_std": config.get("image_std"),
    }
    if side := config.get("patch_limit_on_one_side"):
        common["size"] = {"max_height": side, "max_width": side}
    video = {
        "max_patches": config.get("in_patch_limit_each_frame") or config.get("in_patch_limit"),
        "temporal_patch_size": config.get("temporal_merge_kernel_size"),
        "fps": config.get("sample_fps"),
    }
    return common | {"max_patches": config.get("in_patch_limit")}, common | video


class KimiK25(KimiVL):
    name = "kimi_k25"
    processor_classes = ("Kimi_K25Processor", "KimiK25Processor")
    takes: tuple[MediaKind, ...] = ("image", "video")
    resized_by = ""
    placeholders = {"image": "<|media_pad|>", "video": VIDEO_TOKEN}
    opening = {"image": ("<|media_begin|>", "image", "<|media_content|>")}
    closing = {"image": ("<|media_end|>",)}
    structural_tokens = (*KimiVL.structural_tokens, VIDEO_TOKEN)

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        super().__init__(files, key)
        refuse_settings(
            key, self.name, video_min_pixels="never enlarges a frame", video_min_frames="takes frames by rate alone"
        )
        videos = self.video_config(files, key)
        self.video: PatchBudget = self.budget(videos)
        self.chunk: int = videos["temporal_patch_size"]
        self.config["video"] = videos
        if VIDEO_TOKEN not in self.tokenizer.get_vocab():
            self.takes = ("image",)

    def image_config(self, files: ProcessorFiles, key: ProcessorKey) -> dict[str, Any]:
        published = files.image.get("media_proc_cfg")
        given = named_as_in_transformers(published)[0] if published else files.image
        images = configured(self.source, self.name, IMAGE_DEFAULTS, given)
        if key.max_pixels:
            images["max_patches"] = max(1, key.max_pixels // images["patch_size"] ** 2)
        return images

    def video_config(self, files: ProcessorFiles, key: ProcessorKey) -> dict[str, Any]:
        published = files.image.get("media_proc_cfg")
        given = named_as_in_transformers(published)[1] if published else files.video
        videos = configured(self.source, self.name, VIDEO_DEFAULTS, given)
        if key.video_max_pixels:
            videos["max_patches"] = max(1, key.video_max_pixels // videos["patch_size"] ** 2)
        if key.video_fps:
            videos |= {"fps": key.video_fps, "num_frames": None, "do_sample_frames": True}
        return videos | {"max_frames": key.video_max_frames}

    def budget(self, config: dict[str, Any]) -> PatchBudget:
        return PatchBudget(
            patch_size=config["patch_size"],
            merge_size=config["merge_size"],
            max_patches=config["max_patches"],
            max_side=config["size"]["max_height"],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
        )

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        pixels = self.patch_array("image_grid_thw")
        return {
            "image_grid_thw": MediaArray(kind="image", dtype="int64", row=(3,)),
            "grid_thws": MediaArray(kind="image", dtype="int64", row=(3,)),
            "image_grid_hws": MediaArray(kind="image", dtype="int64", row=(2,)),
            "pixel_values": pixels,
            "num_chunks_per_video": MediaArray(kind="video", dtype="int64", row=()),
            "video_grid_thw": MediaArray(kind="video", dtype="int64", row=(3,), counts="num_chunks_per_video"),
            "pixel_values_videos": replace(pixels, kind="video", counts="video_grid_thw", table="video"),
        }

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """By transformers' torchvision backend, its only one; "pil" is the arithmetic of the published processor."""
        videos = self.config["video"]
        video = pixel_table(videos["rescale_factor"], self.video.mean, self.video.std, "torch")
        if resize != "pil":
            images = self.config["image"]
            return {"image": pixel_table(images["rescale_factor"], self.image.mean, self.image.std, resize),
                    "video": video}  # fmt: skip
        image = np.tile((np.arange(256) / 255).astype(np.float32), (len(self.image.mean), 1))
        image -= np.array(self.image.mean)[:, None]
        image *= 1 / np.array(self.image.std)[:, None]
        return {"image": image, "video": video}

    def image_shape(self, height: int, width: int, num_images: int) -> tuple[tuple[int, int], Grid]:
        return self.image.shape(height, width)

    def image_arrays(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        grid = np.array([medium.grid], dtype=np.int64)
        return {
            "pixel_values": self.image.patches(pixels, medium, resize),
            "image_grid_thw": grid,
            "grid_thws": grid,
            "image_grid_hws": grid[:, 1:],
        }

    # Videos

    def sample_frames(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        videos = self.config["video"]
        number, rate = videos["num_frames"], videos["fps"]
        if asked_fps is not None:
            number, rate = None, asked_fps
        elif not videos["do_sample_frames"]:
            number, rate = None, None
        return uniform_frames(total, fps, num_frames=number, asked_fps=rate, max_frames=videos["max_frames"])

    def video_shape(self, num_frames: int, height: int, width: int) -> tuple[tuple[int, int], Grid]:
        """The temporal side of the grid is the frames; what does not fill a last chunk is not filled up."""
        size, grid = self.video.shape(height, width)
        return size, (num_frames, *grid[1:])

    def video_arrays(self, frames: Iterable[np.ndarray], medium: MeasuredMedia) -> Arrays:
        """Always resized as torchvision does: transformers has no other backend for videos."""
        grids = [(count, *medium.grid[1:]) for count in self.chunks(medium)]
        patches = [self.video.patches(frame, medium, resize_torch) for frame in frames]
        return {
            "pixel_values_videos": np.concatenate(patches),
            "video_grid_thw": np.array(grids, dtype=np.int64),
            "num_chunks_per_video": np.array([len(grids)], dtype=np.int64),
        }

    def chunks(self, medium: MeasuredMedia) -> list[int]:
        """Frames in each chunk of a video: 10 frames -> [4, 4, 2]."""
        count = medium.grid[0]
        return [min(self.chunk, count - start) for start in range(0, count, self.chunk)]

    def shrunk(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the patches of a picture, or the frames of a video (evenly thinned, not below one chunk);
        once a video is one chunk, its patches are halved instead."""
        if medium.ref.kind != "video":
            return super().shrunk(medium, level)
        halvings = max(0, min(level, (len(medium.frames) // self.chunk).bit_length() - 1))
        kept = np.linspace(0, len(medium.frames) - 1, len(medium.frames) >> halvings).round().astype(int).tolist()
        fewer = replace(
            medium, frames=tuple(medium.frames[index] for index in kept), grid=(len(kept), *medium.grid[1:])
        )
        return self.video.halved(fewer, level - halvings) if level > halvings else fewer

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        patches = int(np.prod(medium.grid))
        if medium.ref.kind == "video":
            chunks = len(self.chunks(medium))
            return {"num_chunks_per_video": 1, "video_grid_thw": chunks, "pixel_values_videos": patches}
        return {"image_grid_thw": 1, "grid_thws": 1, "image_grid_hws": 1, "pixel_values": patches}

    # Text: each chunk of a video is its time and its tokens between markers. The time of the first may merge with the
    # words before it when it is encoded, so it goes into the conversation; the others stand between special tokens.

    def encode(self, examples: Sequence[Example], media: Sequence[Sequence[MeasuredMedia]]) -> list[Any]:
        timed = [self._timed(example, iter(found)) for example, found in zip(examples, media, strict=True)]
        return super().encode(timed, media)

    def _timed(self, example: Example, media: Iterator[MeasuredMedia]) -> Example:
        """The conversation with the time of its first frame before each video."""

        def parts_of(part: str | MediaRef) -> tuple[str | MediaRef, ...]:
            if isinstance(part, str):
                return (part,)
            medium = next(media)
            return (clock(medium, 0), part) if part.kind == "video" else (part,)

        return Example(
            turns=tuple(
                Turn(role=turn.role, parts=tuple(piece for part in turn.parts for piece in parts_of(part)))
                for turn in example.turns
            )
        )

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        """Of a video: start, "video", content, pad x n, end; and from the second chunk on the time before it."""
        if medium.ref.kind != "video":
            return super().expansion(medium)
        before = self._all_ids(("<|media_begin|>", "video", "<|media_content|>"))
        pads = [self.placeholder_ids["video"]] * self.video.tokens(medium.grid)
        block = [*before, *pads, self.token_id("<|media_end|>")]
        ids = list(block)
        for chunk in range(1, len(self.chunks(medium))):
            ids += self._all_ids((clock(medium, chunk * self.chunk),)) + block
        return np.array(ids, dtype=np.int32)

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        """The frames of a chunk are pooled into one."""
        patches = sum(int(media[name][:, 1:].prod(axis=1).sum()) for name in ("image_grid_thw", "video_grid_thw"))
        return patches // facts["merge_size"] ** 2


def clock(video: MeasuredMedia, frame: int) -> str:
    """When a frame is shown: frame 45 at 30 a second is 00:00:01.500."""
    seconds = video.frames[frame] / video.fps
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"
