"""GLM-4.1V, 4.5V and 4.6V: patches and positions as in Qwen3-VL; a turn is closed by the token of the next role."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np

from neatpack.format.layout import MediaArray

from ..labels import TurnMarkers
from ..media.pixels import Resize
from ..media.resize import smart_resize_video
from ..records import Example, MeasuredMedia, Turn
from .base import Arrays, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .qwen2_vl import IMAGE_DEFAULTS
from .qwen3_vl import Qwen3Videos, Qwen3VL
from .rules import PatchImages, asked_rate, configured, set_over

CHAT = ChatFormat(
    assistant_header="<|assistant|>",
    header_tail=0,
    end_of_turn="<|user|>",
    other_ends=("<|observation|>",),
    placeholders={"image": "<|image|>", "video": "<|video|>"},
    opening={"image": ("<|begin_of_image|>",), "video": ("<|begin_of_video|>",)},
    closing={"image": ("<|end_of_image|>",), "video": ("<|end_of_video|>",)},
    video_span=("<|begin_of_video|>", "<|end_of_video|>"),
    structural_tokens=(
        "[gMASK]", "<sop>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|image|>",
        "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
    ),
)  # fmt: skip
# Defaults of the processor's classes; the bounds of a picture count it as often as it is repeated in time: twice.
IMAGES = {**IMAGE_DEFAULTS, "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}}
VIDEOS = {
    **IMAGE_DEFAULTS,
    "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30000},
    "do_sample_frames": True,
    "max_duration": 300,
    "fps": 2,
    "min_frames": 1,
    "max_frames": 1 << 20,  # the classes have no bound of their own
    "max_video_tokens": 0,
}


class GlmChat(Chat):
    """The template writes nothing behind an answer: the next role's token closes it. Behind the last one we write it.

    It is what generation stops at, and what published recipes train on; without, the model would not learn to stop.
    """

    def text(self, example: Example) -> str:
        return super().text(example) + ("" if example.is_document else stop_after(example.turns[-1]))

    def untold(self, example: Example) -> str:
        for turn, following in pairwise(example.turns):
            if turn.role == "assistant" and following.role not in ("user", "tool"):
                return f"a turn of role {following.role} behind an answer, which only a user's or a tool's closes"
        return super().untold(example)

    @cached_property
    def markers(self) -> TurnMarkers:
        """A line break behind the header is the header's where the template prompts with it, else the answer's."""
        asked = self.messages([Turn(role="user", parts=("Why",))])
        prompt = self.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        prompted = str(prompt).rpartition(self.format.assistant_header)[2]
        return replace(super().markers, tail=int(prompted.startswith("\n")))


def stop_after(turn: Turn) -> str:
    """Who is to speak after an answer: the user, or the tools that it calls."""
    if turn.role != "assistant":
        return ""
    return "<|observation|>" if turn.tool_calls else "<|user|>"


@dataclass(frozen=True, kw_only=True)
class GlmImages(PatchImages):
    """Bounds are of a picture's pixels, as in other families; the processor's config has twice that."""

    def fitted(self, height: int, width: int, least: int, most: int) -> Size:
        times = self.temporal_patch_size
        return smart_resize_video(times, height, width, times, self.factor, least * times, most * times)


@dataclass(frozen=True, kw_only=True)
class GlmVideos(Qwen3Videos):
    max_duration: int

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {name: array for name, array in super().arrays.items() if name != self.seconds_name}

    def render(self, content: Iterable[np.ndarray], medium: MeasuredMedia, resize: Resize) -> Arrays:
        return {name: array for name, array in super().render(content, medium, resize).items() if name in self.arrays}

    def sampled(self, total: int, fps: float) -> np.ndarray:
        if self.num_frames is not None:
            return spread(total, self.num_frames)
        if self.fps is not None:
            chosen = by_rate(total, fps, self.fps, self.max_duration)
        else:
            chosen = self.by_default(total, fps)
        wanted = min(max(len(chosen), min(self.min_frames, total)), self.max_frames)
        return chosen if wanted == len(chosen) else spread(total, wanted)

    def by_default(self, total: int, fps: float) -> np.ndarray:
        return np.arange(total)

    def resized(self, num_frames: int, height: int, width: int) -> Size:
        """By frames in whole temporal patches: the processor repeats the last one first."""
        return super().resized(num_frames + num_frames % self.temporal_patch_size, height, width)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Per temporal patch its tokens as those of a picture, and behind them its time: "0", or "0.5 seconds"."""
        before, after = chat.marker_ids("image")
        frame = [*before, *[chat.placeholder_ids["image"]] * (self.tokens(medium) // medium.grid[0]), *after]
        return np.array(
            [token for seconds in self.times(medium) for token in (*frame, *chat.ids(self.written(seconds)))],
            dtype=np.int32,
        )

    def written(self, seconds: float) -> str:
        return str(int(seconds))

    def times(self, video: MeasuredMedia) -> list[float]:
        """Of the first frame of each temporal patch."""
        return [frame / video.fps for frame in video.frames[:: self.temporal_patch_size]]


# GLM-4.6V: up to so many seconds, frames per second; two frames are one temporal patch, and these are patches.
RATES = ((30, 3.0), (300, 1.0), (2400, 0.5))
MOST_FRAMES = 640


@dataclass(frozen=True, kw_only=True)
class Glm46Videos(GlmVideos):
    """Its processor chooses frames by a rate that falls with the duration, unless another is asked for."""

    def by_default(self, total: int, fps: float) -> np.ndarray:
        if not self.do_sample_frames:
            return np.arange(total)
        duration = total / fps
        bounded = min(duration, RATES[-1][0])
        rate = next(rate for most, rate in RATES if bounded <= most)
        per_second = self.temporal_patch_size * rate
        wanted = min(int(bounded * rate * self.temporal_patch_size), MOST_FRAMES)
        if total < wanted:
            chosen = list(range(total))
            first, last = 0, total - 1
        else:
            chosen = frames_at(total, fps, 1 / per_second, int(duration))
            first, last = (chosen[0], chosen[-1]) if chosen else (0, total - 1)
        if len(chosen) > wanted:
            first, last = 0, total - 1
        if len(chosen) != wanted:
            chosen = np.linspace(first, last, wanted, dtype=int).tolist()
        return np.array(list(dict.fromkeys(chosen)), dtype=np.int64)

    def written(self, seconds: float) -> str:
        return f"{seconds:.1f} seconds"


def frames_at(total: int, fps: float, step: float, most_seconds: int) -> list[int]:
    """The first frame at or after each step, one step per frame at most, until a step passes the last whole second.

    The times are the processor's own sums and products: another order would round otherwise.
    """
    chosen, due, frame_seconds = [], 0.0, 1 / fps
    for frame in range(total):
        if frame * frame_seconds >= due:
            due += step
            chosen.append(frame)
            if due >= most_seconds:
                break
    return chosen


def by_rate(total: int, fps: float, wanted_fps: float, max_seconds: int) -> np.ndarray:
    """At `wanted_fps`, of a longer video than `max_seconds` as many evenly: 25 frames at 10 fps, 2 wanted -> 0, 5 …"""
    duration, last = total / fps, total - 1
    if duration <= max_seconds:
        number = max(math.floor(duration * wanted_fps), 1)
        if wanted_fps > 2 * fps:  # steps below half a frame pass over none
            chosen = list(range(min(last, math.ceil((number - 1) * fps / wanted_fps)) + 1))
        else:
            chosen = [min(last, math.ceil(index * fps / wanted_fps)) for index in range(number)]
    elif (number := int(max_seconds * wanted_fps)) >= total:
        chosen = list(range(total))
    else:
        seconds = np.linspace(0, duration, number, endpoint=True)
        chosen = [min(last, math.ceil(second * fps)) for second in seconds]
    return np.array(list(dict.fromkeys(chosen)), dtype=np.int64)


def spread(total: int, wanted: int) -> np.ndarray:
    """Evenly, the first and the last among them; no more than there are."""
    return np.linspace(0, total - 1, min(wanted, total)).round().astype(np.int64)


class Glm4V(Qwen3VL):
    name = "glm4v"
    revision = 1
    processor_classes = ("Glm4vProcessor", "Glm46VProcessor")
    model_types = ("glm4v", "glm4v_moe", "glm46v")

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        images = configured(files.source, cls.name, IMAGES, files.image)
        image = GlmImages.of(images, **_bounds(images, images["temporal_patch_size"], key.min_pixels, key.max_pixels))
        videos: dict[str, Any] = configured(files.source, cls.name, VIDEOS, files.video or files.image)
        rule: type[GlmVideos] = GlmVideos
        videos["num_frames"] = None  # the class has it, and its sampler does not look at it
        if files.class_name == "Glm46VProcessor":
            rule, videos["fps"] = Glm46Videos, None  # the same
        elif not videos["do_sample_frames"]:
            videos["fps"] = None
        videos |= asked_rate(key)
        set_over(videos, min_frames=key.video_min_frames, max_frames=key.video_max_frames)
        bounds = _bounds(videos, 1, key.video_min_pixels, key.video_max_pixels)
        return cls(
            GlmChat(CHAT, files.tokenizer, source=files.source, takes=("image", "video")),
            image=image,
            video=rule.of(videos, **bounds),
            facts={"merge_size": image.merge_size},
        )


def _bounds(config: dict[str, Any], counted: int, least: int, most: int) -> dict[str, int]:
    """Of pixels; those of the config count each of them so often."""
    size = config["size"]
    return {
        "min_pixels": least or size["shortest_edge"] // counted,
        "max_pixels": most or size["longest_edge"] // counted,
    }
