"""The contract of a model family: what its file declares, and what a loaded processor can do with it.

A family is pure: sizes, decoded pixels and samples in, token ids and arrays out. Files are opened elsewhere.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from neatpack.pipeline.config import UserError, fingerprint
from neatpack.pipeline.labels import TurnMarkers
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.media.pixels import Resize, resize_torch
from neatpack.pipeline.records import TEXT, TOKEN_TYPES, Example, MeasuredMedia, MediaKind, MediaRef, Turn

Grid = tuple[int, int, int]  # temporal, vertical and horizontal patches
Arrays = dict[str, np.ndarray]
Decoded = Callable[[MeasuredMedia, MediaKind], Any]  # opens a medium: pixels, frames or samples, as it is asked


@dataclass(frozen=True, kw_only=True)
class ProcessorFiles:
    """What a processor is made of, read from its directory or taken from an HF processor object."""

    source: str
    class_name: str
    tokenizer: PreTrainedTokenizerBase
    image: dict[str, Any]
    video: dict[str, Any]
    audio: dict[str, Any]
    processor: dict[str, Any]  # of the processor class itself: num_image_tokens …
    model: dict[str, Any]  # config.json, where there is one
    loaded: Any = None  # the HF processor itself, where it is one


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessorKey:
    """Which processor, and what the user sets over its config (0 or empty: nothing). Travels to every task."""

    processor: str
    family: str = ""
    min_pixels: int = 0
    max_pixels: int = 0
    video_fps: float = 0.0
    video_min_frames: int = 0
    video_max_frames: int = 0
    video_min_pixels: int = 0
    video_max_pixels: int = 0
    use_audio_in_video: bool = False
    trust_remote_code: bool = False


class Family:
    """A family together with one processor of it. Class attributes are what its file declares."""

    name: str
    revision: int = 1
    processor_classes: tuple[str, ...] = ()
    takes: tuple[MediaKind, ...] = ()
    not_packable: str = ""  # why not, where it is not
    placeholders: dict[MediaKind, str]  # the token that stands for a medium, as the template writes it
    opening: dict[MediaKind, tuple[str, ...]] = {}  # tokens right before it, which are nothing without it
    closing: dict[MediaKind, tuple[str, ...]] = {}
    # Tokens that give a sequence its structure. Where a text contains one literally, it is encoded as plain text:
    # a user who writes <|image_pad|> must not shift the pictures, nor <|im_start|> open a turn.
    structural_tokens: tuple[str, ...] = ()
    assistant_header: str  # as the template writes it
    header_tail: int = 1  # tokens at its end that may merge with the answer's first: a line break
    end_of_turn: str
    resized_by: str = ""  # what resizes pictures whatever --resize says: "pil", "torch", "processor"; "": as it says
    expands_itself: bool = False  # `encode` gives ids whose media are expanded already
    position_axes: int = 3
    position_dtype: str = "int32"

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        self.tokenizer = files.tokenizer
        self.source = files.source
        # Everything but the tokenizer that shapes ids, lengths or arrays: for the fingerprint.
        self.config: dict[str, Any] = {}
        # Numbers that `positions` and `media_tokens` need; they go into the manifest.
        self.facts: dict[str, Any] = {}

    # What a family says of its media

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        """The media arrays of a pack, in the order they have on disk."""
        return {}

    @property
    def media_axes(self) -> dict[str, str]:
        return {name: array.axis for name, array in self.media.items()}

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """What stored bytes stand for: {"image": float32 [channels, 256], "video": …}."""
        return {}

    def image_shape(self, height: int, width: int, num_images: int) -> tuple[tuple[int, int], Grid]:
        """The size a picture is given, and what it is cut into; `num_images` are in the conversation.

        A ValueError says that the picture cannot be taken.
        """
        raise NotImplementedError

    def sample_frames(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """Which of `total` frames to take."""
        raise NotImplementedError

    def video_shape(self, num_frames: int, height: int, width: int) -> tuple[tuple[int, int], Grid]:
        raise NotImplementedError

    @property
    def sampling_rate(self) -> int:
        raise NotImplementedError

    def audio_frames(self, num_samples: int) -> int:
        """Feature frames of a sound. A ValueError says that it cannot be taken."""
        raise NotImplementedError

    @property
    def uses_audio_in_video(self) -> bool:
        return False

    def shrunk(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """The medium made smaller by `level` steps; as it is, where it cannot be."""
        return medium

    def stands_alone(self, media: Sequence[MeasuredMedia]) -> bool:
        """Whether the media that truncation leaves of a document may be one, as they are."""
        return True

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        """The ids that the placeholder of a medium gives way to."""
        raise NotImplementedError

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        """How many rows a medium has in each media array."""
        raise NotImplementedError

    def media_bytes(self, medium: MeasuredMedia) -> int:
        """On disk."""
        return sum(count * self.media[name].row_bytes for name, count in self.rows(medium).items())

    # Decoded media to arrays

    def image_arrays(self, pixels: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        """From RGB pixels [height, width, 3] as displayed."""
        raise NotImplementedError

    def video_arrays(self, frames: Iterable[np.ndarray], medium: MeasuredMedia) -> Arrays:
        raise NotImplementedError

    def audio_arrays(self, samples: np.ndarray, medium: MeasuredMedia) -> Arrays:
        """From float32 samples, one channel, at `sampling_rate`."""
        raise NotImplementedError

    def document_arrays(
        self, measured_ids: np.ndarray, media: Sequence[MeasuredMedia], decoded: Decoded, resize: Resize
    ) -> Arrays:
        """All media arrays of one document."""
        pieces: list[Arrays] = []
        for medium in media:
            if medium.ref.kind == "image":
                pieces.append(self.image_arrays(decoded(medium, "image"), medium, resize))
            if medium.ref.kind == "video":
                pieces.append(self.video_arrays(decoded(medium, "video"), medium))
            if medium.num_samples:
                pieces.append(self.audio_arrays(decoded(medium, "audio"), medium))
        return self.joined(pieces)

    def joined(self, pieces: Sequence[Arrays]) -> Arrays:
        """Rows end to end; an array that no piece has is empty."""
        return {
            name: join_rows([piece[name] for piece in pieces if name in piece], array)
            for name, array in self.media.items()
        }

    # Ids

    @cached_property
    def placeholder_ids(self) -> dict[MediaKind, int]:
        return {kind: self.token_id(token) for kind, token in self.placeholders.items() if kind in self.takes}

    def places(self, ids: np.ndarray) -> list[tuple[int, MediaKind]]:
        """Where media stand in ids with one placeholder each, in order."""
        found = [(int(at), kind) for kind, token in self.placeholder_ids.items() for at in np.flatnonzero(ids == token)]
        return sorted(found)

    def token_types(self, ids: np.ndarray) -> np.ndarray:
        types = np.full(len(ids), TEXT, dtype=np.uint8)
        for kind, token in self.placeholder_ids.items():
            types[ids == token] = TOKEN_TYPES[kind]
        return types

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Position ids of a document from its token types and its media arrays."""
        return np.arange(len(types), dtype=np.int32)

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        """Placeholder tokens that media arrays stand for; None where they cannot tell."""
        raise NotImplementedError

    @property
    def padding_id(self) -> int:
        padding = self.tokenizer.pad_token_id
        return 0 if padding is None else int(padding)

    @cached_property
    def markers(self) -> TurnMarkers:
        ids = self.tokenizer.encode(self.assistant_header, add_special_tokens=False)
        header, tail = ids[: len(ids) - self.header_tail], ids[len(ids) - self.header_tail :]
        assert self.tokenizer.decode(tail).strip() == "", self.assistant_header
        return TurnMarkers(header=tuple(header), end=self.token_id(self.end_of_turn), tail=self.header_tail)

    def marker_ids(self, kind: MediaKind) -> tuple[list[int], list[int]]:
        """Ids that the template writes before and after the placeholder of a medium."""
        before, after = (self._all_ids(side.get(kind, ())) for side in (self.opening, self.closing))
        return before, after

    @cached_property
    def fingerprint(self) -> str:
        """Of everything in the processor that shapes ids, lengths or arrays."""
        return fingerprint(self.name, _identity(self.tokenizer), self.tokenizer.chat_template, self.config)

    def described(self) -> dict[str, Any]:
        """What a reader of the shards needs to know, for the manifest."""
        return {
            "name": self.name,
            "placeholder_ids": dict(self.placeholder_ids),
            "assistant_header_ids": list(self.markers.header),
            "assistant_header_tail": self.markers.tail,
            "end_of_turn_id": self.markers.end,
            "fake_image_ids": self.fake_image_ids.tolist(),
            "padding_id": self.padding_id,
            "position_axes": self.position_axes,
            "position_dtype": self.position_dtype,
            "facts": self.facts,
            "media": {name: asdict(array) for name, array in self.media.items()},
        }

    # The fake image

    def wants_fake_image(self, num_seen: int, num_heard: int) -> bool:
        """Whether a pack (or a sample, online) of so many images and videos, and so many sounds, needs it."""
        return not num_seen and len(self.fake_image_ids) > 0

    @property
    def smallest_image(self) -> MeasuredMedia:
        """The smallest image there is."""
        raise NotImplementedError

    @cached_property
    def fake_image_ids(self) -> np.ndarray:
        """The smallest image between its markers, a document of its own."""
        before, after = self.marker_ids("image")
        return np.concatenate([before, self.expansion(self.smallest_image), after]).astype(np.int32)

    @cached_property
    def fake_image_arrays(self) -> Arrays:
        image = self.smallest_image
        grey = np.full((*image.size, 3), 128, dtype=np.uint8)  # about zero once normalised
        return self.document_arrays(self.fake_image_ids, [image], lambda medium, kind: grey, resize_torch)

    # Encoding

    def encode(self, examples: Sequence[Example], media: Sequence[Sequence[MeasuredMedia]]) -> list[Any]:
        """Token ids of each conversation by the processor's own chat template, one placeholder per medium.

        int32 arrays. A Skip in the place of one says that the family cannot take the conversation.
        """
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
        text = self.tokenizer.apply_chat_template(self.messages(turns), tokenize=False)
        assert isinstance(text, str)
        return text

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """A conversation in the form that chat templates take."""
        return [
            {
                "role": turn.role,
                "content": [
                    {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind}
                    for part in turn.parts
                ],
            }
            for turn in turns
        ]

    @cached_property
    def _structural(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.structural_tokens)) or r"(?!)")

    def _encode_guarded(self, example: Example) -> np.ndarray:
        """As `encode`, for a conversation whose text contains structural tokens literally.

        Each of them is exchanged for a mark before templating; the text between the marks is encoded as usual, and a
        literal token in two halves, neither of which is special.
        """
        mark = "\ue000"
        while any(mark in part for part in _texts(example)):
            mark += "\ue000"
        literals: list[str] = []

        def guard(part: str | MediaRef) -> str | MediaRef:
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

    def _all_ids(self, tokens: Sequence[str]) -> list[int]:
        return [token for text in tokens for token in self.tokenizer.encode(text, add_special_tokens=False)]

    def token_id(self, token: str) -> int:
        ids = self.tokenizer.encode(token, add_special_tokens=False)
        if len(ids) != 1:
            raise UserError(f"{self.source}: the tokenizer does not know {token} as one token, as {self.name} needs")
        return ids[0]


def _identity(tokenizer: PreTrainedTokenizerBase) -> Any:
    """What makes its ids: the whole of a fast tokenizer; of one in Python its vocabulary and its code."""
    if not hasattr(tokenizer, "backend_tokenizer"):
        return [tokenizer.get_vocab(), inspect.getsource(type(tokenizer))]
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for setting in ("truncation", "padding"):  # left there by whoever called the tokenizer last
        backend.pop(setting)
    return backend


def join_rows(pieces: Sequence[np.ndarray], array: MediaArray) -> np.ndarray:
    """Rows of several media or documents end to end, as the array is declared."""
    if not pieces:
        return np.zeros((0, *(max(side, 0) for side in array.row)), dtype=array.dtype)
    if len(pieces) == 1:  # most documents have one medium, and it is large: no copy
        return pieces[0].astype(array.dtype, copy=False)
    if -1 in array.row:
        sides = np.max([piece.shape[1:] for piece in pieces], axis=0).tolist()
        pieces = [
            np.pad(piece, [(0, 0), *((0, side - has) for side, has in zip(sides, piece.shape[1:], strict=True))])
            for piece in pieces
        ]
    return np.concatenate(pieces).astype(array.dtype, copy=False)


def _texts(example: Example) -> list[str]:
    return [part for turn in example.turns for part in turn.parts if isinstance(part, str)]
