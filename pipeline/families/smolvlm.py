"""SmolVLM: pictures as Idefics3 has them, and videos: a tile for each frame, written as a picture behind its time."""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..config import UserError
from ..media.pixels import Resize, resize_torch
from ..records import Example, MeasuredMedia, Turn
from .base import Arrays, ProcessorFiles, ProcessorKey
from .chat import Chat
from .idefics3 import CHAT, DEFAULTS, FIXED, MOST_PIXELS_ON_A_SIDE, Idefics3, PlacedTiles, one_tile, rescaled
from .rules import asked_rate, configured, refuse_settings, resampling
from .template import Template, template_of
from .tiles import ONE_TILE, FrameTiles, TilesOfBoth, check_alike

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VIDEO = "<video>"
OPENS, CLOSES = "You are provided the following series of", "\n\n"
# Conversations with videos are written by a template of transformers' own, whatever the processor's says: published
# ones are from before there were videos. This one writes the same.
TEMPLATE = """\
{%- set placeholders = {'image': '<image>', 'video': '<video>'} -%}
{{- '<|im_start|>' -}}
{%- for message in messages -%}
    {{- message['role'] | capitalize -}}{{- ':' if message['content'][0]['type'] == 'image' else ': ' -}}
    {%- for part in message['content'] -%}
        {{- part['text'] if part['type'] == 'text' else placeholders[part['type']] -}}
    {%- endfor -%}
    {{- '<end_of_utterance>\n' -}}
{%- endfor -%}
"""
FRAMES = {**DEFAULTS, "fps": None, "num_frames": None}
SHARED = ("max_image_size", "rescale_factor", "image_mean", "image_std")
SKIPPED = 1.0  # seconds at each end of a long video

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """As the package num2words writes it: 21 -> twenty-one, 1203 -> one thousand, two hundred and three."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
    if number >= 1_000_000:
        raise ValueError(f"{number} frames; take fewer, by --video-fps or --video-max-frames")
    thousands, rest = divmod(number, 1000)
    between = ", " if rest >= 100 else " and "
    return f"{in_words(thousands)} thousand" + (f"{between}{in_words(rest)}" if rest else "")


def seconds_of(total: int, fps: float) -> float:
    """Of a video, by its rate as a fraction: 30000 frames at 30000/1001 are 1001 seconds, and not a bit less."""
    return float(total / Fraction(fps).limit_denominator(1_000_000))


def has_video(turns: Sequence[Turn]) -> bool:
    return any(not isinstance(part, str) and part.kind == "video" for turn in turns for part in turn.parts)


class SmolChat(Chat):
    """The processor writes words before and behind a video. They merge with a text beside them, so they are there
    before it is encoded; what tells of the video comes with its frames.
    """

    def template(self, turns: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        if not has_video(turns):
            return super().template(turns, tools)
        return self.with_videos(self.messages(turns), tools).replace(VIDEO, self.medium_text("video"))

    @cached_property
    def with_videos(self) -> Template:
        tokenizer = copy.copy(self.tokenizer)
        tokenizer.chat_template = TEMPLATE
        return template_of(tokenizer)

    def untold(self, example: Example) -> str:
        said = {
            "tools": example.tools,
            "tool_calls": any(turn.tool_calls for turn in example.turns),
            "reasoning_content": any(turn.reasoning for turn in example.turns),
        }
        if has_video(example.turns) and (names := [name for name, value in said.items() if value]):
            return f"{', '.join(names)} beside a video: transformers' template for videos does not write it; remove it"
        return super().untold(example)

    def splits_the_sentence(self) -> bool:
        """Whether what `OPENS` opens is the same tokens in two halves as in one, whatever number comes next."""
        return all(self.ids(f"{OPENS} {word}") == self.ids(OPENS, f" {word}") for word in (*_ONES[1:], *_TENS))

    def identity(self) -> list[Any]:
        return [*super().identity(), TEMPLATE]


def with_video_token(tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedTokenizerBase":
    """One that knows <video>, which stands for a video until its frames take its place: published ones do not."""
    if len(tokenizer.encode(VIDEO, add_special_tokens=False)) == 1:
        return tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens([VIDEO], special_tokens=True)
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class SmolTiles(TilesOfBoth):
    counted = "num_tiles"
    delivery = {"batch_axis": True}


@dataclass(frozen=True, kw_only=True)
class SmolImages(SmolTiles, PlacedTiles):
    pass


@dataclass(frozen=True, kw_only=True)
class SmolVideos(SmolTiles, FrameTiles):
    longest_edge: int
    mode: str  # of resizing

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """By a rate, but not more than a number; of a long video without its first and last second. Evenly.

        10 frames at 5 a second, by a rate of 2: [0, 3, 6, 9].
        """
        rate, duration = self.fps if asked_fps is None else asked_fps, seconds_of(total, fps)
        # Four times as many as there are give every frame, as any larger number does.
        wanted = total if rate is None else min(round(rate * duration), 4 * total)
        most = min(filter(None, (self.num_frames, self.max_frames)), default=None)
        first, last = 0, total - 1
        if rate is not None and most is not None and duration - 2 * SKIPPED > most * rate:
            skipped = int(SKIPPED * fps), min(int(total - SKIPPED * fps), last)
            first, last = skipped if skipped[0] < skipped[1] else (first, last)
        return np.unique(np.linspace(first, last, max(1, min(wanted, most or wanted)), dtype=np.int64))

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """The rest of the sentence that `OPENS` opens, and each frame behind its time."""
        times = [frame / medium.fps for frame in medium.frames]
        # As long as its last frame at least: of a part of a video, only the part's length is known.
        seconds = timedelta(seconds=int(max(seconds_of(medium.total_frames, medium.fps), times[-1])))
        told = f" {in_words(len(times))} frames from a {seconds} [H:MM:SS] video.\n"
        ids: list[int] = []
        for time in times:
            ids += [*chat.ids(f"{told}\nFrame from {int(time // 60):02d}:{int(time % 60):02d}:"),
                    *one_tile(self.tile_tokens, chat)]  # fmt: skip
            told = ""
        return np.array(ids, dtype=np.int32)

    def resized(self, frame: np.ndarray) -> np.ndarray:
        """Twice, as a picture that is not cut."""
        height, width, _ = frame.shape
        first = rescaled(height, width, min(self.longest_edge, MOST_PIXELS_ON_A_SIDE))
        return resize_torch(resize_torch(frame, first, self.mode), (self.side, self.side), self.mode)

    def render(self, content: Iterable[np.ndarray], medium: MeasuredMedia, resize: Resize) -> Arrays:
        return self.as_arrays(self.tiles(content))


class SmolVLM(Idefics3):
    name = "smolvlm"
    revision = 1
    processor_classes = ("SmolVLMProcessor",)
    image_rule = SmolImages

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=FIXED, max_pixels=FIXED, video_min_pixels=ONE_TILE,
                        video_max_pixels=ONE_TILE, video_min_frames="takes frames by rate, up to a number")  # fmt: skip
        image, video = cls.images(files), cls.videos(files, key)
        format_ = replace(
            CHAT,
            placeholders={"image": "<image>", "video": VIDEO},
            opening={"video": (OPENS,)},
            closing={"video": (CLOSES,)},
        )
        chat = SmolChat(format_, with_video_token(files.tokenizer), source=files.source, takes=("image", "video"))
        if not chat.splits_the_sentence():
            raise UserError(
                f"--processor {files.source}: its tokenizer merges words, and {cls.name} needs them apart",
                code="processor-unsupported",
                family=cls.name,
            )
        return cls(chat, image=image, video=video, facts={"tile_tokens": image.tile_tokens})

    @classmethod
    def videos(cls, files: ProcessorFiles, key: ProcessorKey) -> SmolVideos:
        images = configured(files.source, cls.name, DEFAULTS, files.image)
        config = configured(files.source, cls.name, FRAMES, files.video or files.image)
        check_alike(files.source, cls.name, images, config, SHARED)
        if sampling := config.get("video_sampling"):  # where published configs have it
            config |= {"fps": sampling["fps"], "num_frames": sampling["max_frames"]}
            if "size" not in (files.video or files.image):
                config["size"] = sampling["video_size"]
        config["fps"] = key.video_fps or config["fps"]
        if key.video_fps == math.inf:
            config |= asked_rate(key)
        return SmolVideos.of(
            config, side=config["max_image_size"]["longest_edge"], longest_edge=config["size"]["longest_edge"],
            tile_tokens=files.processor.get("image_seq_len", 169), mode=resampling(files.source, config),
            max_frames=key.video_max_frames,
        )  # fmt: skip
