"""The contract of a model family: what its file declares, and what a loaded processor can do with it."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from pipeline.config import UserError, fingerprint
from pipeline.families.geometry import ImageGeometry, VideoGeometry
from pipeline.labels import TurnMarkers
from pipeline.records import Example, MeasuredMedia, MediaKind, Turn

PositionFunction = Callable[..., np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilySpec:
    """What a family's file declares."""

    name: str
    processor_classes: tuple[str, ...]
    takes: tuple[MediaKind, ...]
    image_token: str
    video_token: str
    # Tokens that give a sequence its structure. Where a text contains one literally, it is encoded as plain text:
    # a user who writes <|image_pad|> must not shift the pictures, nor <|im_start|> open a turn.
    structural_tokens: tuple[str, ...]
    assistant_header: str  # as the template writes it, including the line break at its end
    end_of_turn: str
    vision_markers: tuple[str, str]  # the tokens around the placeholder of an image
    image_defaults: dict[str, Any]  # values of the processor's classes where its config is silent
    video_defaults: dict[str, Any]
    # (geometry, frames there are, their fps) -> which to take; (geometry, frames taken, height, width) -> new size
    sample_frames: Callable[[VideoGeometry, int, float], np.ndarray]
    resize_video: Callable[[VideoGeometry, int, int, int], tuple[int, int]]
    # (family, video) -> the ids that its placeholder gives way to
    expand_video: Callable[["Family", MeasuredMedia], np.ndarray]
    video_bounds_cover_clip: bool  # min_pixels and max_pixels are of the whole clip, not of a frame
    # (processor class, model config) -> temporal positions per second of video; None: one per temporal patch
    tokens_per_second: Callable[[str, dict[str, Any]], float | None]
    # (token types, image grids, video grids, seconds per temporal patch, merge_size, tokens_per_second) -> positions
    positions: PositionFunction
    # Which axis of a media array counts what, so that a splitter reads the layout instead of guessing.
    media_axes: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family together with one processor of it: the runtime half of the contract."""

    spec: FamilySpec
    tokenizer: PreTrainedTokenizerBase
    image: ImageGeometry
    video: VideoGeometry
    tokens_per_second: float | None
    source: str
    config: dict[str, Any] = field(repr=False)

    @cached_property
    def image_token_id(self) -> int:
        return self._token_id(self.spec.image_token)

    @cached_property
    def video_token_id(self) -> int:
        return self._token_id(self.spec.video_token)

    @cached_property
    def vision_marker_ids(self) -> tuple[int, int]:
        before, after = self.spec.vision_markers
        return self._token_id(before), self._token_id(after)

    @property
    def padding_id(self) -> int:
        padding = self.tokenizer.pad_token_id
        return 0 if padding is None else int(padding)

    @cached_property
    def markers(self) -> TurnMarkers:
        *header, line_break = self.tokenizer.encode(self.spec.assistant_header, add_special_tokens=False)
        assert self.tokenizer.decode([line_break]) == "\n", self.spec.assistant_header
        return TurnMarkers(header=tuple(header), end=self._token_id(self.spec.end_of_turn))

    @cached_property
    def fake_image_ids(self) -> np.ndarray:
        """The smallest image there is, one merged patch, between its markers: 3 tokens."""
        before, after = self.vision_marker_ids
        return np.array([before, self.image_token_id, after], dtype=np.int32)

    @cached_property
    def fingerprint(self) -> str:
        """Of everything in the processor that shapes ids, lengths or pixels."""
        backend = json.loads(self.tokenizer.backend_tokenizer.to_str())
        for setting in ("truncation", "padding"):  # left there by whoever called the tokenizer last
            backend.pop(setting)
        return fingerprint(self.spec.name, backend, self.tokenizer.chat_template, self.config)

    def is_media(self, ids: np.ndarray) -> np.ndarray:
        return (ids == self.image_token_id) | (ids == self.video_token_id)

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        """The ids that the placeholder of a medium gives way to."""
        if medium.ref.kind == "video":
            return self.spec.expand_video(self, medium)
        return np.full(self.image.tokens(medium.grid), self.image_token_id, dtype=np.int32)

    def media_bytes(self, medium: MeasuredMedia) -> int:
        t, h, w = medium.grid
        if medium.ref.kind == "video":
            return t * h * w * self.video.patch_bytes * self.video.temporal_patch_size
        return t * h * w * self.image.patch_bytes

    def seconds_per_patch(self, medium: MeasuredMedia) -> float:
        """From one temporal patch of a video to the next, at the rate at which its frames were taken."""
        sampled_fps = len(medium.frames) / medium.total_frames * medium.fps
        return self.video.temporal_patch_size / sampled_fps

    def positions(self, token_types: np.ndarray, media: Sequence[MeasuredMedia]) -> np.ndarray:
        videos = [medium for medium in media if medium.ref.kind == "video"]
        return self.spec.positions(
            token_types,
            [medium.grid for medium in media if medium.ref.kind == "image"],
            [medium.grid for medium in videos],
            [self.seconds_per_patch(medium) for medium in videos],
            merge_size=self.image.merge_size,
            tokens_per_second=self.tokens_per_second,
        )

    def encode(self, examples: Sequence[Example]) -> list[np.ndarray]:
        """Token ids of each conversation by the processor's own chat template, one placeholder per medium."""
        ids: list[Any] = [None] * len(examples)
        plain: list[int] = []
        texts: list[str] = []
        for index, example in enumerate(examples):
            if any(self._structural.search(part) for part in _texts(example)):
                ids[index] = self._encode_guarded(example)
            else:
                plain.append(index)
                texts.append(self.template(example.turns))
        if texts:
            for index, encoded in zip(plain, self.tokenizer(texts)["input_ids"], strict=True):
                ids[index] = np.array(encoded, dtype=np.int32)
        return ids

    def template(self, turns: Sequence[Turn]) -> str:
        """A conversation as text, by the processor's chat template."""
        messages = [
            {
                "role": turn.role,
                "content": [
                    {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind}
                    for part in turn.parts
                ],
            }
            for turn in turns
        ]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        assert isinstance(text, str)
        return text

    @cached_property
    def _structural(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.spec.structural_tokens)))

    def _encode_guarded(self, example: Example) -> np.ndarray:
        """As `encode`, for a conversation whose text contains structural tokens literally.

        Each of them is exchanged for a mark before templating; the text between the marks is encoded as usual, and a
        literal token in two halves, neither of which is special.
        """
        mark = "\ue000"
        while any(mark in part for part in _texts(example)):
            mark += "\ue000"
        literals: list[str] = []

        def guard(part: Any) -> Any:
            if not isinstance(part, str):
                return part
            literals.extend(self._structural.findall(part))
            return self._structural.sub(mark, part)

        turns = [Turn(role=turn.role, parts=tuple(map(guard, turn.parts))) for turn in example.turns]
        pieces = self.template(turns).split(mark)
        ids: list[int] = list(self.tokenizer(pieces[0])["input_ids"])
        for literal, piece in zip(literals, pieces[1:], strict=True):
            for text in (literal[:2], literal[2:], piece):
                ids += self.tokenizer.encode(text, add_special_tokens=False)
        return np.array(ids, dtype=np.int32)

    def _token_id(self, token: str) -> int:
        ids = self.tokenizer.encode(token, add_special_tokens=False)
        if len(ids) != 1:
            raise UserError(
                f"{self.source}: the tokenizer does not know {token} as one token, as {self.spec.name} needs"
            )
        return ids[0]


def _texts(example: Example) -> list[str]:
    return [part for turn in example.turns for part in turn.parts if isinstance(part, str)]
