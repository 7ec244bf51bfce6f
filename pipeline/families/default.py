"""Any Hugging Face processor with a chat template, as it is: `--family default`, for models that no other family knows.

Lengths are exact here too: the processor is run on a blank medium of every look that comes up when measuring, and on
the real ones when rendering, once per sample (`asked.py`). What that generality costs:
- time, runs of the whole processor; of videos, measuring takes as long as rendering, but for the decoding;
- bytes, where its floats stand for no bytes (`learnt.py`): they are stored as they are (float32);
- where the tokens of a medium depend on the text beside it (Gemma 3: line breaks merge), another run per sample, on
  blank media, when measuring;
- pictures and videos only. Their arrays must be rows of media, or of tiles, patches or frames of media, as the first
  axis, or the second after a batch axis of 1, which is dropped;
- sizes come from the processor's own config, and `--resize` has no effect; `--overlong truncate` and `shrink` drop;
- positions are 0, 1, 2 …: models with other ones (mRoPE) would train, and wrongly;
- a text with a special token of the tokenizer in it is skipped (bad_row): the processor would take it for its own.

Frames of videos are those that the processor's video processor takes by its config; it is handed them, and when they
were, and does not choose again.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from neatpack.format.layout import MediaArray, MediaKind

from ..config import UserError
from ..labels import TurnMarkers
from ..media.pixels import Resize
from ..records import Example, MeasuredMedia, MediaError, Skip, Turn
from .asked import MISFITS, REFUSALS, Asked, Look, NoBytes, Shown, blank, look_of
from .base import Arrays, Decoded, Family, Grid, ImageRule, MediaRule, ProcessorFiles, ProcessorKey, Size, VideoRule
from .chat import Chat, ChatFormat
from .learnt import Learnt, bytes_of, learnt, with_counts
from .rules import refuse_settings
from .sentinel import derived_markers
from .tokens import Encoder, Own

SMALLEST = (28, 112, 224, 336, 448)  # sides of a fake image: the first of those with the fewest tokens
SIZES_ARE_FIXED = "takes sizes from the processor's own config only; change them there"
FRAMES_ARE_FIXED = "takes numbers of frames from the processor's own config only; change them there"


@dataclass(frozen=True, kw_only=True)
class ByProcessor(MediaRule):
    """Media by the processor itself."""

    asked: Asked = field(compare=False)
    learnt: Learnt = field(compare=False)
    config: Mapping[str, Any]  # what the processor was made from

    @property
    def arrays(self) -> dict[str, MediaArray]:
        return self.learnt.arrays[self.kind]

    def tokens(self, medium: MeasuredMedia) -> int:
        raise AssertionError("ids of family default are expanded when they are encoded")

    def least_tokens(self, medium: MeasuredMedia) -> int:
        return max(1, len(medium.frames))

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        shapes = self.asked.shapes(look_of(medium))
        counted = {array.counts: 1 for array in self.arrays.values() if array.counts}
        return counted | {name: shape[0] for name, shape in shapes.items()}

    def stored_bytes(self, medium: MeasuredMedia) -> int:
        shapes = self.asked.shapes(look_of(medium))
        return sum(int(np.prod(shape)) * np.dtype(self.arrays[name].dtype).itemsize for name, shape in shapes.items())

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """What a medium adds to a question: [1, 7, 7, 2, 3] without [1, 3] -> [7, 7, 2]."""
        ids, without = (self.asked.about(media)[0].tolist() for media in ([blank(look_of(medium))], []))
        start, end = 0, 0
        while start < len(without) and ids[start] == without[start]:
            start += 1
        while end < len(without) - start and ids[-1 - end] == without[-1 - end]:
            end += 1
        return np.array(ids[start : len(ids) - end], dtype=np.int32)

    def table(self, resize: str) -> np.ndarray | None:
        return self.learnt.tables.get(self.kind)

    def render(self, content: Any, medium: MeasuredMedia, resize: Resize) -> Arrays:
        raise AssertionError("media of family default are rendered together, a document at a time")


@dataclass(frozen=True, kw_only=True)
class ProcessorImages(ByProcessor, ImageRule):
    resized_by = "processor"

    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        """As it is: the processor resizes. What it refuses, it refuses here."""
        if why := self.asked.alone(Look("image", height, width)).unstorable:
            raise ValueError(why)
        return (height, width), (1, 1, 1)

    @cached_property
    def smallest(self) -> MeasuredMedia:
        tokens: dict[int, int] = {}
        said = ""
        for side in SMALLEST:
            try:
                self.shape(side, side, 1)
                tokens[side] = len(self.asked.about([blank(Look("image", side, side))])[0])
            except ValueError as error:  # smaller than this processor takes
                said = str(error)
        if not tokens:
            raise UserError(
                f"--processor {self.asked.source}: takes no blank picture for text alone: {said}",
                code="processor-unsupported",
                missing="blank picture",
            )
        side = min(tokens, key=lambda side: tokens[side])
        return self.blank((side, side), (1, 1, 1))


@dataclass(frozen=True, kw_only=True)
class ProcessorVideos(ByProcessor, VideoRule):
    fps: float  # as the user sets it over the config; 0: not at all; math.inf: every frame

    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """As its video processor would; all where neither its config nor anyone asks for less."""
        if asked_fps is None and self.fps == math.inf:
            return np.arange(total)
        return chosen_frames(self.asked.processor.video_processor, total, fps, asked_fps or self.fps or None)

    def shape(self, num_frames: int, height: int, width: int) -> tuple[Size, Grid]:
        """As it is. What the processor refuses is known when the conversation is encoded: it may depend on when the
        frames were.
        """
        return (height, width), (num_frames, 1, 1)


def chosen_frames(video_processor: Any, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
    """A rate or a number in the config is there to be used, whatever the class's do_sample_frames."""
    names = video_processor.valid_kwargs.__annotations__
    settings = {name: getattr(video_processor, name, None) for name in names}
    if asked_fps is not None:
        settings |= {"fps": min(asked_fps, fps)}  # a rate above the video's own takes every frame
    is_asked = settings.get("fps") is not None or settings.get("num_frames") is not None
    if not (is_asked or getattr(video_processor, "do_sample_frames", False)):
        return np.arange(total)
    own = {"input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata"}
    chosen = video_processor.sample_frames(
        metadata=Look("video", 0, 0, (), total, fps).metadata,
        **{name: value for name, value in settings.items() if name not in own},
    )
    # Some samplers point behind the last frame (Qwen2-VL, 14 of 34).
    frames = np.minimum(np.asarray(chosen, dtype=np.int64), total - 1)
    if not len(frames) or (np.diff(frames) < 0).any() or frames[0] < 0:
        raise ValueError(f"its processor takes frames {frames.tolist()[:20]} of {total}")
    return frames


class ProcessorChat(Chat):
    """Conversations through the processor itself, on blank media: their ids are expanded already."""

    expands_media = True

    def __init__(self, asked: Asked, found: Learnt) -> None:
        placeholders = {kind: token for kind, (token, _) in asked.placeholders.items()}
        format_ = ChatFormat(assistant_header="", end_of_turn="", placeholders=placeholders)
        super().__init__(format_, asked.processor.tokenizer, source=asked.source, takes=asked.kinds)
        self.asked, self.learnt = asked, found

    @cached_property
    def encoder(self) -> Encoder:
        """The processor's own tokenizer, for it encodes by itself."""
        return Own(self.tokenizer)

    @cached_property
    def markers(self) -> TurnMarkers:
        return derived_markers(self.asked.processor)

    def template(self, turns: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        text = self.asked.processor.apply_chat_template(self.messages(turns), tools=list(tools) or None)
        assert isinstance(text, str)
        return text

    def places(self, ids: np.ndarray) -> list[tuple[int, MediaKind]]:
        """None: no placeholder is left to expand."""
        return []

    def encode(
        self, examples: Sequence[Example], media: Sequence[Sequence[MeasuredMedia]]
    ) -> Sequence[np.ndarray | Skip]:
        return [self._encode(example, found) for example, found in zip(examples, media, strict=True)]

    def _encode(self, example: Example, media: Sequence[MeasuredMedia]) -> np.ndarray | Skip:
        if example.is_document:
            return Skip(reason="bad_row", detail="a document, and family default takes conversations only")
        if untold := self.untold(example):
            return Skip(reason="bad_row", detail=untold)
        texts = (part for turn in example.turns for part in turn.parts if isinstance(part, str))
        if literal := next(filter(None, map(self._special.search, texts)), None):
            return Skip(reason="bad_row", detail=f"its text has the special token {literal[0]} in it")
        looks, kinds = [look_of(medium) for medium in media], frozenset(medium.ref.kind for medium in media)
        if len(kinds) > 1 and not self.learnt.mixes:
            return Skip(reason="bad_row", detail="pictures and videos in one conversation: the processor does not "
                        "take them together")  # fmt: skip
        messages = self.messages(example.turns)
        try:
            for look, medium in zip(looks, media, strict=True):  # of pictures this was asked with their shapes
                if look.kind == "video" and (why := self.asked.alone(look.untimed).unstorable):
                    return Skip(reason="bad_media", detail=f"{medium.ref.shown}: {why}")
            keep_their_place = self.asked.tokens_keep_their_place(kinds or frozenset(("image",)))
            if keep_their_place and (placed := self.asked.placed_ids(messages, looks, example.tools)) is not None:
                return placed
            ids, _ = self.asked.run(messages, list(map(blank, looks)), example.tools)
        except UserError:  # what no row is to blame for
            raise
        except REFUSALS as error:
            return Skip(reason="bad_row", detail=f"the processor refuses it: {error}")
        return ids

    @cached_property
    def _special(self) -> re.Pattern[str]:
        tokens = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        literal = sorted(tokens | set(self.format.placeholders.values()))
        return re.compile("|".join(map(re.escape, literal)) or r"(?!)")


class Default(Family):
    name = "default"
    revision = 2
    image: ProcessorImages
    learnt: Learnt

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(
            key, cls.name, min_pixels=SIZES_ARE_FIXED, max_pixels=SIZES_ARE_FIXED, video_min_pixels=SIZES_ARE_FIXED,
            video_max_pixels=SIZES_ARE_FIXED, video_min_frames=FRAMES_ARE_FIXED, video_max_frames=FRAMES_ARE_FIXED,
        )  # fmt: skip
        loaded = files.loaded if files.loaded is not None else _loaded(files.source, key.trust_remote_code)
        processor = _checked(loaded, files.source)
        if not processor.chat_template:  # some leave it to their tokenizer
            processor.chat_template = files.tokenizer.chat_template
        video = getattr(processor, "video_processor", None)
        asked = Asked(processor, files.source, ("image",) if video is None else ("image", "video"))
        # Learnt now: a processor that does not fit is refused before anything is measured.
        found, why_no_videos = learnt(asked, as_floats=key.float_pixels)
        config = {
            "classes": [type(part).__name__ for part in (processor, processor.image_processor)],
            "processor": files.processor,
            "image": files.image,
            "chat_template": processor.chat_template,
        }
        images = ProcessorImages(asked=asked, learnt=found, config=config)
        videos = None
        if "video" in found.arrays:
            config = {"class": type(video).__name__, "video": files.video}
            videos = ProcessorVideos(asked=asked, learnt=found, config=config, fps=key.video_fps)
            try:
                videos.choose(40, 8.0, None)
            except MISFITS as error:
                videos, why_no_videos = None, f"its choice of frames fails: {error}"
        family = cls(ProcessorChat(asked, found), image=images, video=videos)
        family.learnt, asked.as_stored = found, family.as_stored
        if videos is None:
            family.untaken["video"] = why_no_videos or f"{type(processor).__name__} has no video processor"
        return family

    def as_stored(self, arrays: Arrays) -> Arrays:
        """Floats as the bytes that stand for them, where that was learnt of their array. Raises NoBytes."""
        result = dict(arrays)
        for name, floats in arrays.items():
            kind = self.learnt.media[name].deliver.table if name in self.learnt.media else ""
            if kind:
                found = bytes_of(floats, self.learnt.tables[kind])
                if found is None:
                    raise NoBytes(name)
                result[name] = found
        return result

    def document_pieces(
        self, measured_ids: np.ndarray, media: Sequence[MeasuredMedia], decoded: Decoded, resize: Resize
    ) -> list[Arrays]:
        """One run of the processor for all media of a conversation; its text does not touch them."""
        if not media:
            return []
        where, looks = media[0].ref.shown, [look_of(medium) for medium in media]
        shown = [Shown(look, _pixels(decoded(medium, self.rules[medium.ref.kind])))
                 for look, medium in zip(looks, media, strict=True)]  # fmt: skip
        ids, arrays = self.image.asked.about(shown)
        for kind, token in self.chat.placeholder_ids.items():
            has, expected = np.count_nonzero(ids == token), np.count_nonzero(measured_ids == token)
            if has != expected:
                raise MediaError(
                    "bad_media", f"{where}: {has} {kind} tokens now, {expected} when measured", medium=where
                )
        try:
            arrays = with_counts(arrays, looks, self.image.asked, self.media)
        except ValueError as error:
            raise MediaError("bad_media", f"{where}: {error}", medium=where) from None
        for name, array in self.media.items():
            if name not in arrays:  # of the other kind
                continue
            shape = arrays[name].shape[1:]
            fits = [side in (has, -1) for has, side in zip(shape, array.row, strict=False)]
            if len(shape) != len(array.row) or not all(fits):
                raise MediaError(
                    "bad_media", f"{where}: {name} has rows {shape}, of other media {array.row}", medium=where
                )
        try:
            return [self.as_stored(arrays)]
        except NoBytes as error:
            raise MediaError("bad_media", f"{where}: {error}", medium=where) from None


def _pixels(content: Any) -> np.ndarray:
    """Of a picture; frames of a video come one after the other."""
    return content if isinstance(content, np.ndarray) else np.stack(list(content))


def _loaded(source: str, trust_remote_code: bool) -> Any:
    from transformers import AutoProcessor  # takes seconds to import, and no other family needs it

    try:
        processor = AutoProcessor.from_pretrained(source, trust_remote_code=trust_remote_code)  # type: ignore[no-untyped-call]
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())  # in one line: it may name torchvision, and how to install it
        raise UserError(
            f"--processor {source}: transformers cannot load it here, and family default needs that: {said}",
            code="processor-missing",
        ) from error
    return processor


def _checked(processor: Any, source: str) -> Any:
    for part in ("tokenizer", "image_processor"):
        if getattr(processor, part, None) is None:
            raise UserError(
                f"--processor {source}: loads as a {type(processor).__name__}, which has no {part}; family default "
                "needs a processor of text and pictures",
                code="processor-unsupported",
                missing=part,
            )
    return processor
