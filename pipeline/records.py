"""The nouns that cross stage boundaries. Imports nothing of neatpack but format and storage."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from neatpack.format.layout import TOKEN_TYPES, Form, MediaKind
from neatpack.storage.uris import cut_text, shown_path, without_secrets

Role = Literal["system", "user", "assistant", "tool", "document"]  # a document has one turn, and no other role

MAX_DETAIL = 300  # characters; a row may hold a picture as text, and a ledger must not
MAX_REDACTED = 4 * MAX_DETAIL  # characters of a detail that are looked at for URIs; the rest is cut off first
NO_MEDIA: Mapping[MediaKind, int] = dict.fromkeys(TOKEN_TYPES, 0)  # of a row
# Kinds of layers (`layer_types` of a text model's config) that mix tokens where a mask, positions or flash attention's
# cu_seq_lens say they may, or do not mix them. Any other (linear_attention, conv, mamba …) carries a state on from
# token to token, across documents, too, unless its kernels are told where documents begin.
MASKED_LAYERS = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "attention", "mlp", "moe", "dense", "sparse"}
)


# Why an input row is not in a pack. A closed list: the ledger holds no other reason.
REASONS = {
    "sampled_out": "left out by the data set's sample_ratio",
    "held_out": "kept for the holdout output (see --holdout)",
    "not_held_out": "belongs to the training output; this is the holdout output (see --holdout)",
    "bad_row": "not a usable row: broken JSON, unknown keys, roles or types, or what the template cannot write",
    "bad_placeholders": "the number of <image>/<video>/<audio> tags differs from the number of media",
    "no_target": "nothing is left to learn from: no assistant turn, or none with words that are trained on",
    "missing_media": "a media file does not exist or may not be read",
    "bad_media": "a media file cannot be decoded, or its shape is outside what the model takes",
    "image_unsupported": "the row has an image and this model family cannot take one",
    "video_unsupported": "the row has a video and this model family cannot take one",
    "audio_unsupported": "the row has audio and this model family cannot take it",
    "overlong": "longer than a pack (see --overlong)",
    "too_many_visual_tokens": "more visual tokens than --max-visual-tokens allows in a pack",
    "max_packs": "its pack lies beyond --max-packs",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Which frames of a video a row asks for; the processor's config decides what is None here."""

    fps: float | None = None  # frames taken per second
    frame_indices: tuple[int, ...] | None = None  # just these, counted from 0
    start: float | None = None  # seconds: only the part between
    end: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What a row asks of one picture or video over the processor's config, by the names that qwen-vl-utils has for it.

    Pixels are those of a picture or of a frame; `total_pixels` are those of all frames together.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None
    nframes: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None

    @property
    def given(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


NO_WISHES = Wishes()


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaRef:
    """Where the bytes of a medium are: a whole file, or `length` bytes of it from `offset`.

    A video may also be a list of pictures, `frames`; then `path` is the first of them. `inside` says where in those
    bytes the medium is, if they are not its own: a JSON pointer ("/images/0") into a line of JSON, which has it as
    base64, or a cell of a parquet file ("0/17/images/bytes", see media/parquet.py).

    A medium may be `held` in memory: its file's bytes, a PIL image, or a sound as (samples, sampling rate). Online that
    is all there is of it, and `path` only names it; what is packed can be read again by the other fields.
    """

    kind: MediaKind
    path: str
    offset: int = 0
    length: int = -1  # -1: to the end of the file
    frames: tuple[str, ...] = ()
    inside: str = ""
    sampling: Sampling = Sampling()
    wishes: Wishes = NO_WISHES
    held: Any = None

    @property
    def shown(self) -> str:
        """The path for messages: a URI without what may be secret."""
        return shown_path(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    role: Role
    parts: tuple[str | MediaRef, ...]
    loss: bool | None = None  # whether its row wants it trained on; None: as --train-on says
    reasoning: str = ""  # of an assistant: what it thought first, for the template to write
    tool_calls: tuple[Any, ...] = ()  # of an assistant: JSON, {"type": "function", "function": {"name", "arguments"}}
    name: str = ""  # of a tool
    call_id: str = ""  # of a tool: which call it answers

    @property
    def says_something(self) -> bool:
        if self.reasoning or self.tool_calls:
            return True
        return any([part.strip() for part in self.parts if isinstance(part, str)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One conversation, in our own dialect: roles normalised, placeholders replaced by references.

    Or a document that is no conversation: then its one turn has the role "document".
    """

    turns: tuple[Turn, ...]
    tools: tuple[Any, ...] = ()  # JSON: the functions that the assistant may call
    media: tuple[MediaRef, ...] = field(init=False, repr=False, compare=False)  # of its turns, in order

    def __post_init__(self) -> None:
        media = [part for turn in self.turns for part in turn.parts if not isinstance(part, str)]
        object.__setattr__(self, "media", tuple(media))

    @property
    def is_document(self) -> bool:
        return self.turns[0].role == "document"


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A row that will not be packed, and why."""

    reason: str
    detail: str
    tokens: int = field(default=0, compare=False)  # as far as the row was measured
    visual_tokens: int = field(default=0, compare=False)  # of which
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)  # facts of the detail, such as the turn

    def __post_init__(self) -> None:
        assert self.reason in REASONS, self.reason
        object.__setattr__(self, "detail", _readable(self.detail))


def _readable(detail: str) -> str:
    """A detail for the ledger: URIs in it redacted, and cut."""
    detail = without_secrets(cut_text(detail, MAX_REDACTED))
    return detail if len(detail) <= MAX_DETAIL else f"{detail[: MAX_DETAIL - 1]}…"


class MediaError(Exception):
    """A medium that cannot be used; carries the Skip for its row."""

    def __init__(self, reason: str, detail: str, **fields: Any) -> None:
        self.skip = Skip(reason=reason, detail=detail, fields=fields)
        super().__init__(self.skip.detail)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredMedia:
    """A medium and the shape it will have: source size as displayed, size after resizing, and what it is cut into."""

    ref: MediaRef
    height: int = 0
    width: int = 0
    size: tuple[int, int] = (0, 0)  # height and width after resizing, before any padding
    # Temporal, vertical and horizontal patches, before merging; or 1 and the rows and columns of tiles; of a sound,
    # its feature frames, 1 and 1.
    grid: tuple[int, int, int]
    # Of videos only:
    frames: tuple[int, ...] = ()  # which frames are taken
    total_frames: int = 0
    fps: float = 0.0  # of the source
    asked_fps: float = 0.0  # the rate that its row asks for; 0: none
    # Of sounds, and of videos whose sound is used: samples at the model's rate
    num_samples: int = 0
    stamp: str = ""  # tells whether it is still the same: see pipeline/media/stamp.py


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A tokenized conversation: ids with one placeholder token per medium, and what each will expand to.

    `tokens` counts what the sample occupies in a pack: expanded and shifted, so one less than the expanded ids.
    """

    ids: np.ndarray  # int32
    targets: np.ndarray  # int32 [n, 2]: the tokens of `ids` that are trained on, as spans [start, stop)
    media: tuple[MeasuredMedia, ...]
    tokens: int
    visual_tokens: int  # of images and videos
    media_bytes: int  # on disk, if they are stored as they are
    picture_bytes: int = 0  # of which those of pictures
    audio_tokens: int = 0
    form: Form = "chat"
    loss: str = ""  # what its row asks of its assistant turns: see `measure.targets.asked_loss`

    @property
    def num_media(self) -> Mapping[MediaKind, int]:
        """Media of each kind; a video whose sound is used has a sound, too."""
        if not self.media:  # most rows have none, and are asked
            return NO_MEDIA
        kinds = [medium.ref.kind for medium in self.media]
        num_sounds = sum(medium.num_samples > 0 for medium in self.media)
        return {"image": kinds.count("image"), "video": kinds.count("video"), "audio": num_sounds}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One rendered document: expanded, labelled and positioned.

    In a pack it is shifted (see labels.py), so that every array has one token less than the conversation; online users
    get it before the shift, too.
    """

    input_ids: np.ndarray  # int32 [L]
    labels: np.ndarray  # int32 [L]
    position_ids: np.ndarray  # [3, L] for mRoPE families, else [L]
    mm_token_type_ids: np.ndarray  # uint8 [L]: 0 text, 1 image, 2 video, 3 audio
    media: dict[str, np.ndarray]  # the arrays that the family declares, of all media of the document end to end

    @property
    def per_token(self) -> dict[str, np.ndarray]:
        """The arrays with a token in each column."""
        names = ("input_ids", "labels", "position_ids", "mm_token_type_ids")
        return {name: getattr(self, name) for name in names}
