"""Gemma 4: pictures scaled to a token budget, videos as frames with timestamps, audio, and a thinking channel.

A conversation is what the processor's chat template writes. Of thoughts in the assistant's words,
`<|channel>thought\\nHm.<channel|>Yes.`, that means: a template that takes them out (the published one does) takes them
out, and one that writes them has them, as tokens and not as text.

The larger models (31B, 26B-A4B) open every answer with a thinking channel, an empty one where they do not think. Where
training text lacks it their loss starts high; so with `empty_thought` each model turn gets
`<|channel>thought\\n<channel|>`, which is never trained on. The smaller ones (E2B, E4B) are prompted without.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from neatpack.format.layout import Delivery, MediaArray, MediaKind

from ..config import UserError
from ..media.pixels import Resize, rescale_table, resize_torch
from ..media.resize import budget_resize
from ..records import Example, MeasuredMedia, Turn
from .base import Arrays, Family, Grid, ImageRule, ProcessorFiles, ProcessorKey, Size, VideoRule
from .chat import Chat, ChatFormat
from .rules import PixelRule, SoundFeatures, asked_bounds, asked_rate, set_over, thinned

BUDGETS = (70, 140, 280, 560, 1120)  # tokens of a picture: what the processor allows
MAX_SAMPLES = 480_000  # 30 s at 16 kHz: the feature extractor cuts a sound there
MIN_FRAMES = 4  # a shrunken video keeps so many
# Defaults of the processor's classes
IMAGE_DEFAULTS = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "max_soft_tokens": 280,
    "rescale_factor": 1 / 255,
    "do_normalize": False,
    "image_mean": [0.0, 0.0, 0.0],
    "image_std": [1.0, 1.0, 1.0],
}
VIDEO_DEFAULTS = {
    **IMAGE_DEFAULTS,
    "max_soft_tokens": 70,
    "do_normalize": True,
    "do_sample_frames": True,
    "num_frames": 32,
    "fps": None,
    "min_frames": 1,
    "max_frames": None,
}
MODEL_TURN = "<|turn>model\n"
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
CHAT = ChatFormat(
    assistant_header=MODEL_TURN,
    end_of_turn="<turn|>",
    reasoning=("<|channel>", "<channel|>"),
    placeholders={"image": "<|image|>", "video": "<|video|>", "audio": "<|audio|>"},
    structural_tokens=(
        "<bos>", "<eos>", "<pad>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>",
        "<|image>", "<|image|>", "<image|>", "<|video|>", "<|audio>", "<|audio|>", "<audio|>",
    ),
)  # fmt: skip
# It ends in a special token, which merges with nothing.
CHAT_WITH_EMPTY_THOUGHT = replace(CHAT, assistant_header=MODEL_TURN + EMPTY_THOUGHT, header_tail=0)
_BEGIN_THOUGHT, _END_THOUGHT = CHAT.reasoning
# Stand for the two tokens of a thought until the template is through: what a text has literally becomes plain text.
_OPENS, _CLOSES = "\ue100\ue101\ue100", "\ue101\ue100\ue101"


@dataclass(frozen=True, kw_only=True)
class Budget(PixelRule):
    """A picture or a frame as patches, pooled to tokens: at most `max_soft_tokens` of them."""

    patch_size: int
    pooling_kernel_size: int
    max_soft_tokens: int
    do_normalize: bool

    def all_channels(self, resize: str) -> np.ndarray:
        """transformers multiplies where it only rescales and divides where it also normalises: not the same floats."""
        return super().table(resize) if self.do_normalize else rescale_table(self.rescale_factor, resize)

    def table(self, resize: str) -> np.ndarray:
        """One line: all channels are alike."""
        return self.all_channels("torch" if self.kind == "video" else resize)[:1]

    @property
    def max_patches(self) -> int:
        return self.max_soft_tokens * self.pooling_kernel_size**2

    @property
    def patch_bytes(self) -> int:
        return 3 * self.patch_size**2

    def cut(self, height: int, width: int, budget: int = 0) -> tuple[Size, Grid]:
        """Size and patches of a picture, within a smaller budget if one is given."""
        size = budget_resize(height, width, self.patch_size * self.pooling_kernel_size, budget or self.max_soft_tokens)
        return size, (1, size[0] // self.patch_size, size[1] // self.patch_size)

    def tokens(self, medium: MeasuredMedia) -> int:
        """Of one frame."""
        return medium.grid[1] * medium.grid[2] // self.pooling_kernel_size**2

    def patches(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A resized picture as patches and their places (x, y), row by row, filled up with 0 and -1.

        Channels are the innermost axis of a patch.
        """
        rows, columns = pixels.shape[0] // self.patch_size, pixels.shape[1] // self.patch_size
        blocks = pixels.reshape(rows, self.patch_size, columns, self.patch_size, 3).transpose(0, 2, 1, 3, 4)
        patches = np.zeros((self.max_patches, self.patch_bytes), dtype=np.uint8)
        patches[: rows * columns] = blocks.reshape(rows * columns, -1)
        places = np.full((self.max_patches, 2), -1, dtype=np.int16)
        places[: rows * columns, 0] = np.tile(np.arange(columns), rows)
        places[: rows * columns, 1] = np.repeat(np.arange(rows), columns)
        return patches, places


def _between(chat: Chat, begin: str, count: int, kind: MediaKind, end: str) -> np.ndarray:
    """Markers that the template does not write, and a medium's tokens."""
    inside = [chat.placeholder_ids[kind]] * count
    return np.array([chat.token_id(begin), *inside, chat.token_id(end)], dtype=np.int32)


@dataclass(frozen=True, kw_only=True)
class GemmaImages(Budget, ImageRule):
    @property
    def arrays(self) -> dict[str, MediaArray]:
        return {
            "pixel_values": self.pixels(self.max_patches, self.patch_bytes),
            "image_position_ids": MediaArray(kinds=("image",), dtype="int16", row=(self.max_patches, 2)),
        }

    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        return self.cut(height, width)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level takes a picture to the next smaller budget."""
        budget = BUDGETS[max(0, BUDGETS.index(self.max_soft_tokens) - level)]
        size, grid = self.cut(medium.height, medium.width, budget)
        return replace(medium, size=size, grid=grid)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        return _between(chat, "<|image>", self.tokens(medium), "image", "<image|>")

    @property
    def smallest(self) -> MeasuredMedia:
        """One token, 3 with its markers."""
        side = self.patch_size * self.pooling_kernel_size
        return self.blank((side, side), (1, self.pooling_kernel_size, self.pooling_kernel_size))

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        patches, places = self.patches(resize(content, medium.size))
        return {"pixel_values": patches[None], "image_position_ids": places[None]}


@dataclass(frozen=True, kw_only=True)
class GemmaVideos(Budget, VideoRule):
    """Always resized as torchvision does: transformers has no other backend for videos."""

    do_sample_frames: bool
    num_frames: int | None
    fps: float | None
    min_frames: int
    max_frames: int | None
    wishes = ("nframes", "min_frames", "max_frames")

    def wished(self, asked: Mapping[str, int]) -> Self:
        if "nframes" in asked:  # whatever bounds the config has
            return replace(
                self, num_frames=asked["nframes"], fps=None, do_sample_frames=True, min_frames=1, max_frames=None
            )
        least, most = asked_bounds(asked, "frames", self.min_frames, self.max_frames or 0)
        return replace(self, min_frames=least, max_frames=most if self.max_frames or "max_frames" in asked else None)

    @property
    def arrays(self) -> dict[str, MediaArray]:
        counts, places = "num_frames_per_video", (self.max_patches, 2)
        return {
            counts: self.integers(),
            "pixel_values_videos": self.pixels(self.max_patches, self.patch_bytes, counts=counts),
            "video_position_ids": MediaArray(kinds=("video",), dtype="int16", row=places, counts=counts),
        }

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """Evenly, `num_frames` of them or at a rate; all of a video that has fewer (transformers refuses it)."""
        rate = asked_fps or self.fps
        if not (self.do_sample_frames or asked_fps):
            wanted = total
        elif rate and (asked_fps or self.num_frames is None):
            wanted = int(total / fps * rate)
        else:
            wanted = self.num_frames or total
        wanted = min(max(wanted, self.min_frames, 1), self.max_frames or total, total)
        return np.arange(wanted) * total // wanted

    def shape(self, num_frames: int, height: int, width: int) -> tuple[Size, Grid]:
        size, (_, rows, columns) = self.cut(height, width)
        return size, (num_frames, rows, columns)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the frames, not below 4."""
        kept = max(min(MIN_FRAMES, len(medium.frames)), len(medium.frames) >> level)
        return replace(medium, frames=thinned(medium.frames, kept), grid=(kept, *medium.grid[1:]))

    def least_tokens(self, medium: MeasuredMedia) -> int:
        return self.tokens(medium) * len(medium.frames)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Frame by frame, with its minute and second: "00:00 ", begin, video x n, end, " 00:02 ", begin, …"""
        block = _between(chat, "<|image>", self.tokens(medium), "video", "<image|>")
        pieces = []
        for number, frame in enumerate(medium.frames):
            seconds = int(frame / medium.fps)
            time = f"{' ' if number else ''}{seconds // 60:02d}:{seconds % 60:02d} "
            pieces += [np.array(chat.ids(time), dtype=np.int32), block]
        return np.concatenate(pieces)

    def num_rows(self, medium: MeasuredMedia) -> int:
        return medium.grid[0]

    def render(self, content: Iterable[np.ndarray], medium: MeasuredMedia, resize: Resize) -> Arrays:
        cut = [self.patches(resize_torch(frame, medium.size)) for frame in content]
        return {
            "num_frames_per_video": np.array([len(cut)], dtype=np.int64),
            "pixel_values_videos": np.stack([patches for patches, _ in cut]),
            "video_position_ids": np.stack([places for _, places in cut]),
        }


def audio_tokens(feature_frames: int) -> int:
    """Two convolutions of stride 2: 5 frames -> 3 -> 2."""
    return -(-feature_frames // 4)


@dataclass(frozen=True, kw_only=True)
class GemmaSound(SoundFeatures):
    delivery = Delivery(mask="input_features_mask", mask_dtype="bool")

    def frames(self, num_samples: int) -> int:
        """Frames whose window lies in the sound: the others are masked, so how far a sound is padded does not matter.

        Half a window of silence comes before the sound. Windows of 320, hops of 160, 1 s at 16 kHz -> 99.
        """
        length, hop = self.extractor.frame_length, self.extractor.hop_length
        frames = (min(num_samples, MAX_SAMPLES) - 1 - (length - length // 2)) // hop + 1
        if frames < 1:
            raise self.too_short(num_samples)
        return int(frames)

    def tokens_of(self, frames: int) -> int:
        return audio_tokens(frames)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        return _between(chat, "<|audio>", self.tokens(medium), "audio", "<audio|>")

    def features(self, samples: np.ndarray) -> np.ndarray:
        heard = self.extractor([samples])  # in a list: a bare array it would pad along the wrong axis
        frames, mask = self.frames(len(samples)), heard["input_features_mask"][0]
        assert mask.sum() == mask[:frames].sum() == frames, (mask.sum(), frames)
        return np.asarray(heard["input_features"][0][:frames], dtype=np.float32)


class GemmaChat(Chat):
    def prepared(self, example: Example, media: Sequence[MeasuredMedia]) -> Example:
        """Thoughts as the template treats them."""

        def treated(words: str) -> str:
            if self._takes_thoughts_out:
                return _exchange_thoughts(words, None).strip()
            return _exchange_thoughts(words, (_OPENS, _CLOSES))

        return replace(example, turns=tuple(_with_thoughts(turn, treated) for turn in example.turns))

    def template(self, turns: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        """With an empty thought at the beginning of each model turn, if the format says so; one even where the
        template writes it, too.
        """
        header = self.format.assistant_header
        text = super().template(turns, tools).replace(_OPENS, "<|channel>").replace(_CLOSES, "<channel|>")
        return text.replace(header, MODEL_TURN).replace(MODEL_TURN, header)

    @cached_property
    def _takes_thoughts_out(self) -> bool:
        said = Turn(role="assistant", parts=("<|channel>thought\nHmthought<channel|>Yes",))
        return "Hmthought" not in super().template([Turn(role="user", parts=("Why",)), said])


class Gemma4(Family):
    name = "gemma4"
    processor_classes = ("Gemma4Processor",)
    revision = 2

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        # As the processor does: some published tokenizers lack it.
        files.tokenizer.add_special_tokens(
            {"additional_special_tokens": [CHAT.placeholders["video"]]}, replace_extra_special_tokens=False
        )
        if key.min_pixels or key.video_min_pixels:
            raise UserError(
                f"min_pixels: {cls.name} blows small pictures up to its budget; set max_pixels only",
                code="option-conflict",
                option="min_pixels",
                family=cls.name,
            )
        images = _configured(files.source, IMAGE_DEFAULTS, files.image, key.max_pixels)
        videos = _configured(files.source, VIDEO_DEFAULTS, files.video, key.video_max_pixels)
        if key.video_fps:
            videos |= {"do_sample_frames": True} | asked_rate(key)
        image = GemmaImages.of(images)
        set_over(videos, min_frames=key.video_min_frames, max_frames=key.video_max_frames)
        video = GemmaVideos.of(videos)
        for rule in (image, video):
            table = rule.all_channels("torch")
            if (table[:, 0] != 0).any() or (table != table[0]).any():
                raise UserError(
                    f"--processor {files.source}: image_mean {list(rule.image_mean)}, image_std "
                    f"{list(rule.image_std)}: {cls.name} needs black to stay 0, as its padding is, and channels alike",
                    code="processor-unsupported",
                    key="image_mean",
                )
        sound = None
        if not files.model or files.model.get("audio_config"):  # the larger models have no audio tower
            from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor

            sound = GemmaSound(extractor=Gemma4AudioFeatureExtractor.from_dict(files.audio))
            if sound.extractor.dither:
                raise UserError(
                    f"--processor {files.source}: dither adds noise to sounds at random; set it to 0.0",
                    code="processor-unsupported",
                    key="dither",
                )
        takes: tuple[MediaKind, ...] = ("image", "video", "audio") if sound else ("image", "video")
        text = files.model.get("text_config") or {}
        chat = CHAT_WITH_EMPTY_THOUGHT if key.empty_thought else CHAT
        return cls(
            GemmaChat(chat, files.tokenizer, source=files.source, takes=takes),
            image=image,
            video=video,
            sound=sound,
            facts={
                "patches_per_token": image.pooling_kernel_size**2,
                "patches_per_video_token": video.pooling_kernel_size**2,
                # For `neat_packed_vlm_collater`; None where the processor came without the model's config.
                "sliding_window": text.get("sliding_window"),
                "bidirectional_vision": text.get("use_bidirectional_attention") == "vision",
            },
        )

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        images = np.count_nonzero(media["image_position_ids"][..., 0] >= 0) // facts["patches_per_token"]
        videos = np.count_nonzero(media["video_position_ids"][..., 0] >= 0) // facts["patches_per_video_token"]
        return int(images + videos + sum(map(audio_tokens, media.get("audio_feature_lengths", np.zeros(0)).tolist())))


def _configured(source: str, defaults: dict[str, Any], config: dict[str, Any], max_pixels: int) -> dict[str, Any]:
    full = {name: config.get(name, default) for name, default in defaults.items()}
    for switch in ("do_resize", "do_rescale"):
        if not config.get(switch, True):
            raise UserError(
                f"--processor {source}: {switch} is false, which gemma4 does not support",
                code="processor-unsupported",
                key=switch,
            )
    if full["max_soft_tokens"] not in BUDGETS:
        raise UserError(
            f"--processor {source}: max_soft_tokens is {full['max_soft_tokens']}, expected one of {BUDGETS}",
            code="processor-unsupported",
            key="max_soft_tokens",
            got=full["max_soft_tokens"],
        )
    if max_pixels:
        token_pixels = (full["patch_size"] * full["pooling_kernel_size"]) ** 2
        within = [budget for budget in BUDGETS if budget * token_pixels <= max_pixels]
        if not within:
            raise UserError(
                f"max_pixels {max_pixels}: the smallest budget has {BUDGETS[0] * token_pixels} pixels",
                code="option-invalid",
                option="max_pixels",
                got=max_pixels,
                least=BUDGETS[0] * token_pixels,
            )
        full["max_soft_tokens"] = within[-1]
    return full


def _with_thoughts(turn: Turn, change: Callable[[str], str]) -> Turn:
    """With what an assistant says changed, where it has a thought in it."""
    if turn.role != "assistant":
        return turn
    parts = (change(part) if isinstance(part, str) and _has_thought(part) else part for part in turn.parts)
    return replace(turn, parts=tuple(parts))


def _has_thought(text: str) -> bool:
    start = text.find(_BEGIN_THOUGHT)
    return start >= 0 and text.find(_END_THOUGHT, start) >= 0


def _exchange_thoughts(text: str, tags: tuple[str, str] | None) -> str:
    """Give the thoughts of a text other tags, or remove them (None). Linear, also where thoughts are never closed."""
    pieces, at = [], 0
    while (start := text.find(_BEGIN_THOUGHT, at)) >= 0:
        inside = start + len(_BEGIN_THOUGHT)
        end = text.find(_END_THOUGHT, inside)
        if end < 0:
            break
        pieces.append(text[at:start])
        if tags is not None:
            pieces += [tags[0], text[inside:end], tags[1]]
        at = end + len(_END_THOUGHT)
    return "".join([*pieces, text[at:]])
