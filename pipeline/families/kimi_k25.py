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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from neatpack.format.layout import MediaArray, MediaKind

from ..media.pixels import Resize, resize_torch
from ..records import Example, MeasuredMedia, MediaRef
from .base import Arrays, Family, Grid, ProcessorFiles, ProcessorKey, Size, VideoRule
from .chat import Chat
from .kimi_vl import CHAT, MoonViT, MoonViTImages, patches_within
from .rules import HALF, asked_rate, configured, refuse_settings, thinned, uniform_frames

IMAGE_DEFAULTS = {
    "patch_size": 14,
    "merge_size": 2,
    "max_patches": 16384,
    "size": {"max_height": 512, "max_width": 512},  # in patches
    **HALF,
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
K25_CHAT = replace(
    CHAT,
    placeholders={"image": "<|media_pad|>", "video": VIDEO_TOKEN},
    opening={"image": ("<|media_begin|>", "image", "<|media_content|>")},
    structural_tokens=(*CHAT.structural_tokens, VIDEO_TOKEN),
)


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


@dataclass(frozen=True, kw_only=True)
class K25Images(MoonViTImages):
    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "image_grid_thw": self.integers(3),
            "grid_thws": self.integers(3),
            "image_grid_hws": self.integers(2),
            "pixel_values": self.pixel_array("image_grid_thw"),
        }

    def table(self, resize: str) -> np.ndarray:
        """By transformers' torchvision backend, its only one; "pil" is the arithmetic of the published processor."""
        if resize != "pil":
            return super().table(resize)
        table = np.tile((np.arange(256) / 255).astype(np.float32), (len(self.image_mean), 1))
        table -= np.array(self.image_mean)[:, None]
        table *= 1 / np.array(self.image_std)[:, None]
        return table

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        grid = np.array([medium.grid], dtype=np.int64)
        patches = self.patches(content, medium, resize)
        return {"pixel_values": patches, "image_grid_thw": grid, "grid_thws": grid, "image_grid_hws": grid[:, 1:]}


@dataclass(frozen=True, kw_only=True)
class K25Videos(MoonViT, VideoRule):
    """The temporal side of a grid is the frames. Always resized as torchvision does, transformers' only backend."""

    temporal_patch_size: int  # frames in a chunk
    fps: float | None
    num_frames: int | None
    max_frames: int
    do_sample_frames: bool
    wishes = ("max_pixels", "nframes", "max_frames")

    def wished(self, asked: Mapping[str, int]) -> Self:
        rule = super().wished(asked)
        if "nframes" in asked:  # whatever the config has; all frames where there are fewer
            return replace(rule, num_frames=None, fps=None, max_frames=asked["nframes"])
        return replace(rule, max_frames=asked.get("max_frames", self.max_frames))

    @property
    def max_pixels(self) -> int:
        """Of a frame."""
        return self.max_patches * self.patch_size**2

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "num_chunks_per_video": self.integers(),
            "video_grid_thw": self.integers(3, counts="num_chunks_per_video"),
            "pixel_values_videos": self.pixel_array("video_grid_thw"),
        }

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        number, rate = self.num_frames, self.fps
        if asked_fps is not None:
            number, rate = None, asked_fps
        elif not self.do_sample_frames:
            number, rate = None, None
        return uniform_frames(total, fps, num_frames=number, asked_fps=rate, max_frames=self.max_frames)

    def shape(self, num_frames: int, height: int, width: int) -> tuple[Size, Grid]:
        """What does not fill a last chunk is not filled up."""
        size, grid = self.cut(height, width)
        return size, (num_frames, *grid[1:])

    def chunks(self, medium: MeasuredMedia) -> list[int]:
        """Frames in each chunk of a video: 10 frames -> [4, 4, 2]."""
        count = medium.grid[0]
        return [min(self.temporal_patch_size, count - start) for start in range(0, count, self.temporal_patch_size)]

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the frames, evenly thinned and not below one chunk; then the patches are halved."""
        halvings = max(0, min(level, (len(medium.frames) // self.temporal_patch_size).bit_length() - 1))
        frames = thinned(medium.frames, len(medium.frames) >> halvings)
        fewer = replace(medium, frames=frames, grid=(len(frames), *medium.grid[1:]))
        return self.halved(fewer, level - halvings) if level > halvings else fewer

    def tokens(self, medium: MeasuredMedia) -> int:
        return len(self.chunks(medium)) * self.merged(medium.grid)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Start, "video", content, pad x n, end; and from the second chunk on the time before it."""
        before = chat.ids("<|media_begin|>", "video", "<|media_content|>")
        pads = [chat.placeholder_ids["video"]] * self.merged(medium.grid)
        block = [*before, *pads, chat.token_id("<|media_end|>")]
        ids = list(block)
        for chunk in range(1, len(self.chunks(medium))):
            ids += chat.ids(clock(medium, chunk * self.temporal_patch_size)) + block
        return np.array(ids, dtype=np.int32)

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        return super().rows(medium) | {"video_grid_thw": len(self.chunks(medium))}

    def render(self, content: Iterable[np.ndarray], medium: MeasuredMedia, resize: Resize) -> Arrays:
        grids = [(count, *medium.grid[1:]) for count in self.chunks(medium)]
        patches = [self.patches(frame, medium, resize_torch) for frame in content]
        return {
            "pixel_values_videos": np.concatenate(patches),
            "video_grid_thw": np.array(grids, dtype=np.int64),
            "num_chunks_per_video": np.array([len(grids)], dtype=np.int64),
        }


class K25Chat(Chat):
    def prepared(self, example: Example, media: Sequence[MeasuredMedia]) -> Example:
        """Each chunk of a video is its time and its tokens between markers. The time of the first may merge with the
        words before it when it is encoded, so it goes into the conversation; the others stand between special tokens.
        """
        waiting = iter(media)

        def parts_of(part: str | MediaRef) -> tuple[str | MediaRef, ...]:
            if isinstance(part, str):
                return (part,)
            medium = next(waiting)
            return (clock(medium, 0), part) if part.kind == "video" else (part,)

        turns = (
            replace(turn, parts=tuple(piece for part in turn.parts for piece in parts_of(part)))
            for turn in example.turns
        )
        return replace(example, turns=tuple(turns))


class KimiK25(Family):
    name = "kimi_k25"
    processor_classes = ("Kimi_K25Processor", "KimiK25Processor")

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(
            key, cls.name, min_pixels="never enlarges a picture", video_min_pixels="never enlarges a frame",
            video_min_frames="takes frames by rate alone",
        )  # fmt: skip
        published = files.image.get("media_proc_cfg")
        given = named_as_in_transformers(published) if published else (files.image, files.video)
        images = configured(files.source, cls.name, IMAGE_DEFAULTS, given[0])
        videos = configured(files.source, cls.name, VIDEO_DEFAULTS, given[1])
        for config, max_pixels in ((images, key.max_pixels), (videos, key.video_max_pixels)):
            if max_pixels:
                config["max_patches"] = patches_within(max_pixels, config["patch_size"])
            config["max_side"] = config["size"]["max_height"]
        if key.video_fps:
            videos |= {"do_sample_frames": True} | asked_rate(key)
        image = K25Images.of(images)
        video = None
        takes: tuple[MediaKind, ...] = ("image",)
        if VIDEO_TOKEN in files.tokenizer.get_vocab():
            takes = ("image", "video")
            video = K25Videos.of(videos, max_frames=key.video_max_frames)
        return cls(
            K25Chat(K25_CHAT, files.tokenizer, source=files.source, takes=takes),
            image=image,
            video=video,
            facts={"merge_size": image.merge_size},
        )

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        """The frames of a chunk are pooled into one."""
        grids = [media[name] for name in ("image_grid_thw", "video_grid_thw") if name in media]
        patches = sum(int(grid[:, 1:].prod(axis=1).sum()) for grid in grids)
        return patches // int(facts["merge_size"]) ** 2


def clock(video: MeasuredMedia, frame: int) -> str:
    """When a frame is shown: frame 45 at 30 a second is 00:00:01.500."""
    seconds = video.frames[frame] / video.fps
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"
