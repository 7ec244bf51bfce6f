"""The contract of a model family: a chat format, one rule per kind of medium, and positions.

A family is pure: sizes, decoded pixels and samples in, token ids and arrays out. Files are opened elsewhere. Rules are
frozen dataclasses, and every field of theirs is part of the family's fingerprint: what shapes a result cannot be left
out of it by mistake.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from neatpack.format.layout import Delivery, MediaArray, MediaKind
from neatpack.format.manifest import fingerprint
from neatpack.pipeline.families.media_rows import Joined

from ..media.pixels import Resize, resize_torch
from ..records import MeasuredMedia, MediaRef
from .identity import identity_of

if TYPE_CHECKING:  # a loader that renders pictures imports rules, and no tokenizer
    from transformers import PreTrainedTokenizerBase

    from .chat import Chat

Grid = tuple[int, int, int]  # temporal, vertical and horizontal patches
Size = tuple[int, int]  # height and width
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class ProcessorFiles:
    """What a processor is made of, read from its directory or taken from an HF processor object."""

    source: str
    class_name: str
    tokenizer: "PreTrainedTokenizerBase"
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
    video_fps: float = 0.0  # math.inf: every frame
    video_min_frames: int = 0
    video_max_frames: int = 0
    video_min_pixels: int = 0
    video_max_pixels: int = 0
    use_audio_in_video: bool = False
    empty_thought: bool = False
    float_pixels: bool = False
    trust_remote_code: bool = False


# What a family makes of a medium


@dataclass(frozen=True, kw_only=True)
class MediaRule(ABC):
    """What becomes of a medium of one kind: tokens, rows of arrays, and the arrays themselves.

    A ValueError from any of its methods says that the medium cannot be taken, and why.
    """

    kind: ClassVar[MediaKind]
    wishes: ClassVar[tuple[str, ...]] = ()  # what a row may ask of one medium: fields of `records.Wishes`

    def wished(self, asked: Mapping[str, int]) -> Self:
        """The rule for a medium of which its row asks for `asked`: some of `wishes`."""
        raise NotImplementedError

    @classmethod
    def of(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """Fields are the settings of the same names in a processor's config, and `more`."""
        values = {f.name: config[f.name] for f in dataclasses.fields(cls) if f.name in config} | more
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    @property
    @abstractmethod
    def arrays(self) -> dict[str, MediaArray]:
        """The media arrays that this rule fills, in the order they have on disk."""

    @abstractmethod
    def tokens(self, medium: MeasuredMedia) -> int:
        """Placeholder tokens of a medium."""

    def least_tokens(self, medium: MeasuredMedia) -> int:
        """Tokens that a medium has at least, counted without writing them down: it may have billions."""
        return self.tokens(medium)

    @abstractmethod
    def render(self, content: Any, medium: MeasuredMedia, resize: Resize) -> Arrays:
        """The arrays of a medium from what it decodes to (see the three kinds below)."""

    def integers(self, *row: int, counts: str = "") -> MediaArray:
        """An array of whole numbers."""
        return MediaArray(kinds=(self.kind,), dtype="int64", row=row, counts=counts)

    def pixels(self, *row: int, counts: str = "", **delivery: Any) -> MediaArray:
        """An array of bytes that stand for the floats of `table`."""
        deliver = Delivery(table=self.kind, **delivery)
        return MediaArray(kinds=(self.kind,), dtype="uint8", row=row, counts=counts, deliver=deliver)

    def num_rows(self, medium: MeasuredMedia) -> int:
        """Rows of a medium in an array that has several of each: its patches, tiles or frames."""
        return math.prod(medium.grid)

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        """Rows of a medium in each of the arrays."""
        return {name: self.num_rows(medium) if array.counts else 1 for name, array in self._arrays.items()}

    @cached_property
    def _arrays(self) -> dict[str, MediaArray]:
        """Made once, for rows of every medium are counted."""
        return self.arrays

    @cached_property
    def _row_bytes(self) -> dict[str, int]:
        return {name: array.row_bytes for name, array in self._arrays.items()}

    def expansion(self, medium: MeasuredMedia, chat: "Chat") -> np.ndarray:
        """The ids that the placeholder of a medium gives way to."""
        return np.full(self.tokens(medium), chat.placeholder_ids[self.kind], dtype=np.int32)

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """The medium made smaller by `level` steps; as it is, where it cannot be."""
        return medium

    def stored_bytes(self, medium: MeasuredMedia) -> int:
        return sum([count * self._row_bytes[name] for name, count in self.rows(medium).items()])

    def table(self, resize: str) -> np.ndarray | None:
        """What each stored byte stands for, float32 [channels, 256]; None where this rule stores no bytes."""
        return None

    def of_document(self, media: Sequence[MeasuredMedia]) -> Arrays:
        """Arrays that a document has once, for all its media of the kind."""
        return {}

    def can_be_all(self, media: Sequence[MeasuredMedia]) -> bool:
        """Whether a document may have just these: truncation asks, which leaves out the last ones."""
        return True


@dataclass(frozen=True, kw_only=True)
class ImageRule(MediaRule):
    """`render` gets RGB pixels [height, width, 3] as displayed."""

    kind = "image"
    resized_by: ClassVar[str] = ""  # what resizes whatever --resize says: "pil", "torch", "processor"; "": as it says

    @abstractmethod
    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        """The size a picture is given, and what it is cut into; `num_images` are in the conversation."""

    @property
    @abstractmethod
    def smallest(self) -> MeasuredMedia:
        """A picture of as few tokens as there can be: the fake image."""

    def blank(self, size: Size, grid: Grid, source: Size | None = None) -> MeasuredMedia:
        """A picture that is in no file."""
        height, width = source or size
        ref = MediaRef(kind="image", path="")
        return MeasuredMedia(ref=ref, height=height, width=width, size=size, grid=grid)


@dataclass(frozen=True, kw_only=True)
class SoundRule(MediaRule):
    """`render` gets float32 samples, one channel, at `sampling_rate`."""

    kind = "audio"

    @property
    @abstractmethod
    def sampling_rate(self) -> int: ...

    @abstractmethod
    def frames(self, num_samples: int) -> int:
        """Feature frames of a sound."""


@dataclass(frozen=True, kw_only=True)
class VideoRule(MediaRule):
    """`render` gets the chosen frames one after the other, each as pixels of a picture."""

    kind = "video"
    sound: SoundRule | None = None  # makes arrays of a video's sound track, where that is used

    @abstractmethod
    def choose(self, total: int, fps: float, asked_fps: float | None) -> np.ndarray:
        """Which of `total` frames to take; `asked_fps` is what a row asks for."""

    @abstractmethod
    def shape(self, num_frames: int, height: int, width: int) -> tuple[Size, Grid]: ...

    @property
    def sampling(self) -> dict[str, int | float | None]:
        """The settings that choose frames and bound their sizes, as far as this rule has them; None: not set."""
        found = {name: getattr(self, name) for name in SAMPLING if hasattr(self, name)}
        return {name: None if value == math.inf else value or None for name, value in found.items()}


# Settings of video rules, by the names that they share with processors.
SAMPLING = (
    "fps", "num_frames", "min_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels",
)  # fmt: skip
Decoded = Callable[[MeasuredMedia, MediaRule], Any]  # opens a medium as what the rule renders


# The family


class Family(ABC):
    """A model family together with one processor of it. Class attributes and rules are what its file declares."""

    name: ClassVar[str]
    processor_classes: ClassVar[tuple[str, ...]] = ()
    # Where positions have three axes: the models (model_type of config.json) that take them. Others may come with the
    # same processor and count 0, 1, 2 …: LLaVA-OneVision-1.5 with Qwen2.5-VL's.
    model_types: ClassVar[tuple[str, ...]] = ()
    # Raised whenever this family's code gives other ids, lengths, positions or arrays for the same input: tokens that
    # older code measured are then measured anew.
    revision: ClassVar[int] = 1
    position_axes: ClassVar[int] = 1
    position_dtype: ClassVar[str] = "int32"
    fake_image_beside_sound: ClassVar[bool] = True  # whether a pack with sounds and no picture gets a fake image

    def __init__(
        self,
        chat: "Chat",
        *,
        image: ImageRule | None = None,
        video: VideoRule | None = None,
        sound: SoundRule | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.chat, self.image, self.video, self.sound = chat, image, video, sound
        self.rules: dict[MediaKind, MediaRule] = {rule.kind: rule for rule in (image, video, sound) if rule}
        # Numbers that `positions` and `media_tokens` need, and that loaders may; they go into the manifest.
        self.facts = dict(facts or {})
        # Why kinds of media are not taken that another processor of the family takes.
        self.untaken: dict[MediaKind, str] = {}
        # Kinds of layers in the model's text that no attention mask reaches; None: its config is not there to tell.
        self.recurrent_layers: list[str] | None = None

    @classmethod
    @abstractmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        """The family with a processor's files, and what the user sets over them; a UserError where they do not fit."""

    # Positions and counts, from a pack alone: `verify` has no processor

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Position ids of a document from its token types and its media arrays."""
        return np.arange(len(types), dtype=np.int32)

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        """Placeholder tokens that media arrays stand for; None where they cannot tell."""
        return None

    # Media

    @property
    def source(self) -> str:
        return self.chat.source

    @property
    def takes(self) -> tuple[MediaKind, ...]:
        return tuple(self.rules)

    def refusal(self, kind: MediaKind) -> str:
        """Of a kind that it does not take, in words."""
        why = self.untaken.get(kind, "")
        return f"{self.name} does not take {kind}s" + (f": {why}" if why else "")

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        """The media arrays of a pack, in the order they have on disk."""
        result: dict[str, MediaArray] = {}
        for rule in self.rules.values():
            for name, array in rule.arrays.items():
                assert result.setdefault(name, array) == array, (
                    f"{name}: two kinds of media fill it, as different things"
                )
        return result

    def tables(self, resize: str) -> dict[str, np.ndarray]:
        """What stored bytes stand for: {"image": float32 [channels, 256], "video": …}."""
        found = {kind: rule.table(resize) for kind, rule in self.rules.items()}
        return {kind: table for kind, table in found.items() if table is not None}

    def resized_by(self, asked: str) -> str:
        """What resizes the pictures: not always what was asked for."""
        return (self.image.resized_by if self.image else "") or asked

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        """The ids that the placeholder of a medium gives way to."""
        return self.rules[medium.ref.kind].expansion(medium, self.chat)

    def rules_of(self, medium: MeasuredMedia) -> tuple[MediaRule, ...]:
        """The rules that make arrays of a medium: one, and for a video whose sound is used, another."""
        rule = self.rules[medium.ref.kind]
        if medium.num_samples and isinstance(rule, VideoRule) and rule.sound:
            return rule, rule.sound
        return (rule,)

    def in_text_order(self, ids: np.ndarray, media: Sequence[MeasuredMedia]) -> list[MeasuredMedia]:
        """The media by their placeholders in `ids`; as they come where ids are expanded already.

        Media of a kind come in their order; a template may put all images before all videos.
        """
        places = self.chat.places(ids)
        if len(places) != len(media):
            return list(media)
        waiting = {kind: iter([medium for medium in media if medium.ref.kind == kind]) for kind in self.takes}
        return [next(waiting[kind]) for _, kind in places]

    def stored_bytes(self, media: Iterable[MeasuredMedia]) -> tuple[int, int]:
        """Of all of them, and of the pictures among them."""
        total = pictures = 0
        for medium in media:
            size = sum([rule.stored_bytes(medium) for rule in self.rules_of(medium)])
            total += size
            pictures += size if medium.ref.kind == "image" else 0
        return total, pictures

    def document_pieces(
        self, measured_ids: np.ndarray, media: Sequence[MeasuredMedia], decoded: Decoded, resize: Resize
    ) -> list[Arrays]:
        """All media arrays of one document, in pieces that `joined` lays end to end."""
        pieces = [
            rule.render(decoded(medium, rule), medium, resize)
            for medium in self.in_text_order(measured_ids, media)
            for rule in self.rules_of(medium)
        ]
        for kind, rule in self.rules.items():
            pieces.append(rule.of_document([medium for medium in media if medium.ref.kind == kind]))
        return pieces

    def document_arrays(
        self, measured_ids: np.ndarray, media: Sequence[MeasuredMedia], decoded: Decoded, resize: Resize
    ) -> Arrays:
        return self.joined(self.document_pieces(measured_ids, media, decoded, resize))

    def joined(self, pieces: Iterable[Mapping[str, np.ndarray]]) -> Arrays:
        """Rows end to end; an array that no piece has is empty."""
        return dict(Joined(self.media, pieces))

    # The fake image

    def wants_fake_image(self, num_seen: int, num_heard: int) -> bool:
        """Whether a pack (or a sample, online) of so many images and videos, and so many sounds, needs it."""
        if num_seen or self.image is None:
            return False
        return self.fake_image_beside_sound or not num_heard

    @cached_property
    def fake_image_ids(self) -> np.ndarray:
        """The smallest image between its markers, a document of its own; none where the family takes no images."""
        if self.image is None:
            return np.zeros(0, dtype=np.int32)
        before, after = self.chat.marker_ids("image")
        return np.concatenate([before, self.expansion(self.image.smallest), after]).astype(np.int32)

    @cached_property
    def fake_image_arrays(self) -> Arrays:
        assert self.image is not None
        image = self.image.smallest
        grey = np.full((*image.size, 3), 128, dtype=np.uint8)  # about zero once normalised
        return self.document_arrays(self.fake_image_ids, [image], lambda medium, rule: grey, resize_torch)

    # Identity

    @cached_property
    def fingerprint(self) -> str:
        """Of everything in the processor and in this family that shapes ids, lengths or arrays."""
        return fingerprint(
            self.name, self.revision, *map(identity_of, (self.chat.identity(), self.rules, self.facts, self.media))
        )

    def described(self) -> dict[str, Any]:
        """What a reader of the shards needs to know, for the manifest."""
        markers = self.chat.markers
        return {
            "name": self.name,
            "placeholder_ids": dict(self.chat.placeholder_ids),
            "assistant_header_ids": list(markers.header),
            "assistant_header_tail": markers.tail,
            "end_of_turn_id": markers.end,
            "other_end_ids": list(markers.other_ends),
            "video_span_ids": self.chat.video_span_ids,
            "fake_image_ids": self.fake_image_ids.tolist(),
            "padding_id": self.chat.padding_id,
            "tokenizer": self.chat.encoder.engine,
            "position_axes": self.position_axes,
            "position_dtype": self.position_dtype,
            "recurrent_layers": self.recurrent_layers,
            "video_sampling": self.video.sampling if self.video else None,
            "facts": self.facts,
            "media": {name: asdict(array) for name, array in self.media.items()},
        }
