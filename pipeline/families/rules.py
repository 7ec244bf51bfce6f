"""Rules that several families share: pictures and videos as patches, frames by number or rate, sounds."""

import copy
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from neatpack.format.layout import Delivery, MediaArray

from ..config import UserError
from ..media.pixels import Resize, in_patches, patchify_video, pixel_table, resize_torch
from ..media.resize import smart_resize_image
from ..records import MeasuredMedia
from .base import Arrays, Grid, ImageRule, MediaRule, ProcessorKey, Size, SoundRule, VideoRule

# Of a size that a row gives by itself (resized_height, resized_width), in tokens: as qwen-vl-utils has them.
RESIZED_TOKENS = (4, 16384)

# What bytes become, by defaults of the processors' classes.
CLIP = {
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"rescale_factor": 1 / 255, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # as torch names them, by their numbers in configs

# A processor's settings


def configured(source: str, family: str, defaults: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A processor's config over the defaults of its class."""
    full = copy.deepcopy(defaults | {key: value for key, value in config.items() if value is not None})
    for switch in ("do_resize", "do_rescale", "do_normalize"):
        if not full.get(switch, True):
            raise UserError(
                f"--processor {source}: {switch} is false, which {family} does not support",
                code="processor-unsupported",
                key=switch,
                family=family,
            )
    return full


def set_over(config: dict[str, Any], **values: Any) -> None:
    """What the user sets over a processor's config; 0 is nothing."""
    config |= {name: value for name, value in values.items() if value}


def asked_rate(key: ProcessorKey) -> dict[str, Any]:
    """Return what `--video-fps` sets over a config's rate and number; `all` takes every frame."""
    if not key.video_fps:
        return {}
    rate = {"fps": None, "do_sample_frames": False} if key.video_fps == math.inf else {"fps": key.video_fps}
    return rate | {"num_frames": None}


def refuse_settings(key: ProcessorKey, family: str, **reasons: str) -> None:
    """A setting that a family cannot follow is an error, and not ignored."""
    for setting, reason in reasons.items():
        if getattr(key, setting):
            raise UserError(
                f"--{setting.replace('_', '-')} {getattr(key, setting)}: {family} {reason}; leave it out",
                code="option-conflict",
                option=setting,
                family=family,
            )


def resampling(source: str, config: Mapping[str, Any]) -> str:
    """How the config has pictures resized, for families whose processors do not take bicubic."""
    if config["resample"] not in RESAMPLING:
        raise UserError(
            f"--processor {source}: resample {config['resample']}, expected one of {RESAMPLING}",
            code="processor-unsupported",
            key="resample",
            got=config["resample"],
        )
    return RESAMPLING[config["resample"]]


def asked_bounds(asked: Mapping[str, int], of: str, least: int, most: int) -> tuple[int, int]:
    """min_ and max_ of what a row asks for; one that it does not give is the config's, and yields where they cross."""
    low, high = asked.get(f"min_{of}"), asked.get(f"max_{of}")
    if low is None:
        low = least if high is None else min(least, high)
    return low, max(most, low) if high is None else high


# Pixels


@dataclass(frozen=True, kw_only=True)
class PixelRule(MediaRule):
    """Pictures or frames that are stored as bytes. Fields have the names that processors give them in their configs."""

    rescale_factor: float = 1 / 255
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]

    def table(self, resize: str) -> np.ndarray:
        """transformers has no backend but torchvision for videos."""
        backend = "torch" if self.kind == "video" else resize
        return pixel_table(self.rescale_factor, self.image_mean, self.image_std, backend)


@dataclass(frozen=True, kw_only=True)
class Patches(PixelRule):
    """How pixels become patches in processors of the Qwen kind."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int

    @property
    def factor(self) -> int:
        """Pixels on a side of a merged patch."""
        return self.patch_size * self.merge_size

    @property
    def patch_bytes(self) -> int:
        """Of one frame's patch."""
        return len(self.image_mean) * self.patch_size**2

    def tokens(self, medium: MeasuredMedia) -> int:
        return math.prod(medium.grid) // self.merge_size**2

    def as_asked(self, asked: Mapping[str, int]) -> Size:
        """The size that a row gives by resized_height and resized_width, in whole merged patches."""
        low, high = (tokens * self.factor**2 for tokens in RESIZED_TOKENS)
        return smart_resize_image(asked["resized_height"], asked["resized_width"], self.factor, low, high)


@dataclass(frozen=True, kw_only=True)
class PatchImages(Patches, ImageRule):
    """Each picture in its own size, by smart_resize; merged patches are neighbours.

    A processor repeats a still image in time to fill a temporal patch; stored it is once.
    """

    wishes = ("min_pixels", "max_pixels", "resized_height", "resized_width")
    asked: Mapping[str, int] = field(default_factory=dict, compare=False)  # by its row, of one picture

    def wished(self, asked: Mapping[str, int]) -> Self:
        """A size goes before bounds."""
        return replace(self, asked=asked)

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "image_grid_thw": self.integers(3),
            "pixel_values": self.pixels(self.patch_bytes, counts="image_grid_thw", repeat=self.temporal_patch_size),
        }

    def shape(self, height: int, width: int, num_images: int = 1) -> tuple[Size, Grid]:
        if "resized_height" in self.asked:
            size = self.as_asked(self.asked)
        else:
            least, most = self.min_pixels, self.max_pixels
            if self.asked:
                least, most = asked_bounds(self.asked, "pixels", least, most)
            size = self.fitted(height, width, least, most)
        return size, (1, size[0] // self.patch_size, size[1] // self.patch_size)

    def fitted(self, height: int, width: int, least: int, most: int) -> Size:
        """The size of a picture, within these bounds of its pixels."""
        return smart_resize_image(height, width, self.factor, least, most)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the area, not below the processor's min_pixels, and of what is below by its row not at all.

        Where the row asked for another size than the processor's, that size has the shape that is kept.
        """
        pixels = medium.size[0] * medium.size[1]
        is_asked = self.shape(medium.height, medium.width)[0] != medium.size
        source = medium.size if is_asked else (medium.height, medium.width)
        least = min(self.min_pixels, pixels) if is_asked else self.min_pixels
        fewer = replace(self, min_pixels=least, max_pixels=max(least, pixels >> level))
        size, grid = fewer.shape(*source)
        return replace(medium, size=size, grid=grid)

    @property
    def smallest(self) -> MeasuredMedia:
        """One merged patch."""
        return self.blank((self.factor, self.factor), (1, self.merge_size, self.merge_size))

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        patches = in_patches(resize(content, medium.size)[None], self.patch_size, self.merge_size, 1)
        return {"pixel_values": patches, "image_grid_thw": np.array([medium.grid], dtype=np.int64)}


@dataclass(frozen=True, kw_only=True)
class PatchVideos(Patches, VideoRule):
    """Frames of one size, cut into patches of several frames each; families choose and resize them in their own ways.

    Always resized and normalised as torchvision does: transformers has no other backend for videos.
    """

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int
    max_frames: int
    do_sample_frames: bool
    cap_pixels_per_frame: bool = False
    max_video_tokens: int
    bounds_cover_clip: ClassVar[bool] = False  # min_pixels and max_pixels are of a whole clip, and not of a frame
    wishes = (
        "min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width",
        "nframes", "min_frames", "max_frames",
    )  # fmt: skip
    asked: Mapping[str, int] = field(default_factory=dict, compare=False)  # pixels, by its row, of one video

    def wished(self, asked: Mapping[str, int]) -> Self:
        """Numbers of frames are of whole temporal patches: 5 asked for are 4, at least 5 are 6."""
        patch = self.temporal_patch_size
        pixels = {name: number for name, number in asked.items() if not name.endswith("frames")}
        if "nframes" in asked:
            wanted = max(1, round(asked["nframes"] / patch)) * patch
            return replace(self, asked=pixels, num_frames=wanted, fps=None, do_sample_frames=True)
        least, most = asked_bounds(asked, "frames", self.min_frames, self.max_frames)
        least = -(-least // patch) * patch if "min_frames" in asked else least
        number = None if self.num_frames is None else min(max(self.num_frames, least), most)
        return replace(self, asked=pixels, min_frames=least, max_frames=most, num_frames=number)

    @property
    def samples_frames(self) -> bool:
        """A rate or a number in the config is there to be used, whatever the class's do_sample_frames."""
        return bool(self.do_sample_frames or self.fps or self.num_frames)

    @abstractmethod
    def sampled(self, total: int, fps: float) -> np.ndarray:
        """Which of `total` frames the config takes."""

    @abstractmethod
    def resized(self, num_frames: int, height: int, width: int) -> Size: ...

    @property
    def pixel_array(self) -> MediaArray:
        """Nothing is repeated in a video: its patches have several frames."""
        return self.pixels(self.patch_bytes * self.temporal_patch_size, counts="video_grid_thw")

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        asked = self if asked_fps is None else replace(self, fps=asked_fps, num_frames=None)
        return asked.sampled(total, fps)

    def shape(self, num_frames: int, height: int, width: int) -> tuple[Size, Grid]:
        """What does not fill a last temporal patch is filled with the last frame."""
        size = (self.as_wished if self.asked else self.resized)(num_frames, height, width)
        temporal = -(-num_frames // self.temporal_patch_size)
        return size, (temporal, size[0] // self.patch_size, size[1] // self.patch_size)

    def as_wished(self, num_frames: int, height: int, width: int) -> Size:
        """Of each frame, as qwen-vl-utils has it."""
        asked = self.asked
        if "resized_height" in asked:
            return self.as_asked(asked)
        least, most = asked_bounds(asked, "pixels", *self.frame_bounds(num_frames))
        if (total := asked.get("total_pixels", self.total_pixels)) is not None:
            share = max(min(most, total * self.temporal_patch_size // num_frames), int(least * 1.05))
            most = min(asked.get("max_pixels", share), share)
        return smart_resize_image(height, width, self.factor, least, most)

    def frame_bounds(self, num_frames: int) -> tuple[int, int]:
        """The config's least and most pixels of a frame."""
        return self.min_pixels, self.max_pixels

    @property
    def total_pixels(self) -> int | None:
        """What all frames share, where the config has them share anything."""
        return int(self.max_video_tokens * self.factor**2 * 0.9) if self.cap_pixels_per_frame else None

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the frames, evenly thinned and not below 4; once there are 4, the area is halved."""
        halvings = max(0, min(level, (max(len(medium.frames), 4) // 4).bit_length() - 1))
        frames = thinned(medium.frames, max(min(4, len(medium.frames)), len(medium.frames) >> halvings))
        # Fewer pixels per frame than now, whether the bounds are of a frame or of the clip.
        pixels = medium.size[0] * medium.size[1] >> (level - halvings)
        frames_in_bound = len(frames) if self.bounds_cover_clip else 1
        bounded = replace(
            self,
            min_pixels=min(self.min_pixels, pixels * frames_in_bound),
            max_pixels=max(self.factor**2, pixels) * frames_in_bound,
        )
        # As in pictures: a shape that the row gave is kept.
        is_asked = self.shape(len(medium.frames), medium.height, medium.width)[0] != medium.size
        source = medium.size if is_asked else (medium.height, medium.width)
        size, grid = bounded.shape(len(frames), *source)
        return replace(medium, frames=frames, size=size, grid=grid)

    def patches(self, frames: Iterable[np.ndarray], medium: MeasuredMedia) -> np.ndarray:
        resized = [resize_torch(frame, medium.size) for frame in frames]
        resized += [resized[-1]] * (-len(resized) % self.temporal_patch_size)
        return patchify_video(np.stack(resized), self.patch_size, self.merge_size, self.temporal_patch_size)


# Frames


def uniform_frames(
    total: int, fps: float, *, num_frames: int | None, asked_fps: float | None, max_frames: int = 0
) -> np.ndarray:
    """Evenly from the first frame on, by a number or else by a rate: 4 of 10 -> [0, 2, 5, 7]. Neither: all of them.

    As transformers' BaseVideoProcessor takes them, which refuses a video that is too short. Here a rate above the
    video's own takes every frame, and a number above it repeats some, so that all videos have that number.
    """
    if num_frames is None and asked_fps is not None:
        num_frames = min(max(1, int(total / fps * asked_fps)), total)
    elif num_frames is None:
        num_frames = total
    if max_frames:
        num_frames = min(num_frames, max_frames)
    return np.arange(num_frames) * total // num_frames


def thinned(frames: Sequence[int], kept: int) -> tuple[int, ...]:
    """Evenly, the first and the last among them: frames [0, 5, 10, 15], 2 kept -> (0, 15)."""
    chosen = np.linspace(0, len(frames) - 1, kept).round().astype(int)
    return tuple(frames[index] for index in chosen.tolist())


# Sound


@dataclass(frozen=True, kw_only=True)
class SoundFeatures(SoundRule):
    """Features of each sound alone, by transformers' own extractor: rows end to end, padded and masked in a batch."""

    extractor: Any
    lengths_name: ClassVar[str] = "audio_feature_lengths"
    features_name: ClassVar[str] = "input_features"
    delivery: ClassVar[Delivery]

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            self.lengths_name: self.integers(),
            self.features_name: MediaArray(
                kinds=("audio",), dtype="float32", row=(self.extractor.feature_size,), counts=self.lengths_name,
                deliver=self.delivery,
            ),
        }  # fmt: skip

    @property
    def sampling_rate(self) -> int:
        return int(self.extractor.sampling_rate)

    @abstractmethod
    def tokens_of(self, frames: int) -> int: ...

    @abstractmethod
    def features(self, samples: np.ndarray) -> np.ndarray:
        """float32 [frames, features]."""

    def tokens(self, medium: MeasuredMedia) -> int:
        return self.tokens_of(self.frames(medium.num_samples))

    def num_rows(self, medium: MeasuredMedia) -> int:
        return self.frames(medium.num_samples)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        features = self.features(content)
        assert len(features) == self.frames(len(content)), (features.shape, len(content))
        return {self.lengths_name: np.array([len(features)], dtype=np.int64), self.features_name: features}

    def too_short(self, num_samples: int) -> ValueError:
        seconds = num_samples / self.sampling_rate
        return ValueError(f"a sound of {seconds:.4f} s is shorter than one window of its features")
