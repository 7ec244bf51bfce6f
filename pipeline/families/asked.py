"""What family default asks of a Hugging Face processor, and its answers: ids and arrays of whole conversations.

What can be known of a medium before it is decoded is a `Look`: the processor is shown a blank one of that look.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from PIL import Image

from neatpack.format.layout import MediaKind

from ..records import MeasuredMedia
from .base import Arrays

LOOKS_KEPT = 10_000  # of which it is remembered what the processor makes of them
REFUSALS = (TemplateError, ValueError)  # what a processor says of a conversation that it does not take
MISFITS = (
    *REFUSALS,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,
    OSError,
)  # … of one that it was not made for
TOKENS: dict[MediaKind, str] = {"image": "image_token", "video": "video_token"}  # attributes of processors


@dataclass(frozen=True, slots=True)
class Look:
    """A medium without its pixels: all that its tokens, and the shapes of its arrays, may depend on."""

    kind: MediaKind
    height: int
    width: int
    frames: tuple[int, ...] = ()  # of a video, the numbers of those that are taken
    total: int = 0  # of how many
    fps: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its pixels."""
        return (*((len(self.frames),) if self.kind == "video" else ()), self.height, self.width, 3)

    @property
    def untimed(self) -> "Look":
        """The same for all that have its shape."""
        return replace(
            self, frames=tuple(range(len(self.frames))), total=len(self.frames), fps=float(bool(self.frames))
        )

    @property
    def metadata(self) -> Any:
        """As video processors of transformers take it."""
        from transformers.video_utils import VideoMetadata  # takes seconds to import, and no other family needs it

        return VideoMetadata(
            total_num_frames=self.total, fps=self.fps, width=self.width, height=self.height,
            duration=self.total / self.fps, video_backend="pyav", frames_indices=list(self.frames) or None,
        )  # fmt: skip


def look_of(medium: MeasuredMedia) -> Look:
    if medium.ref.kind == "video":
        return Look("video", medium.height, medium.width, medium.frames, medium.total_frames, medium.fps)
    return Look("image", medium.height, medium.width)


PROBES: dict[MediaKind, tuple[Look, ...]] = {  # that differ in area, shape and number of frames
    "image": (Look("image", 300, 400), Look("image", 1000, 600), Look("image", 480, 1300)),
    "video": (
        Look("video", 120, 160, tuple(range(0, 16, 4)), 16, 8.0),
        Look("video", 224, 112, tuple(range(0, 48, 4)), 48, 8.0),
        Look("video", 96, 256, tuple(range(0, 32, 4)), 32, 8.0),
    ),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A medium as it is shown to the processor."""

    look: Look
    pixels: np.ndarray  # uint8, of the look's shape

    @property
    def part(self) -> dict[str, Any]:
        """Of a message."""
        if self.look.kind == "video":
            return {"type": "video", "video": self.pixels}
        return {"type": "image", "image": Image.fromarray(self.pixels)}


def blank(look: Look) -> Shown:
    return Shown(look, np.full(look.shape, 128, dtype=np.uint8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """What the processor makes of one medium of some look."""

    shapes: dict[str, tuple[int, ...]]  # of its arrays
    unstorable: str  # why they cannot be stored as others are; "": they can
    tokens: np.ndarray | None  # that take the place of its placeholder; None: more than its place changes


class NoBytes(ValueError):
    """Floats that no byte stands for, in an array that is stored as bytes."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} has values that no byte stands for, though those of the media that it was tried with were bytes; "
            "--float-pixels stores its floats as they are"
        )


class Asked:
    """A processor, and what is known of it."""

    def __init__(self, processor: Any, source: str, kinds: Sequence[MediaKind]) -> None:
        self.processor, self.source, self.kinds = processor, source, tuple(kinds)
        self.in_batch_axis: set[str] = set()  # arrays that it gives a batch axis of 1, which is dropped here
        self.as_stored: Callable[[Arrays], Arrays] = lambda arrays: arrays
        self._known: dict[Look, Alone] = {}
        self._placed: dict[frozenset[MediaKind], bool] = {}

    # Conversations

    def run(
        self, messages: list[dict[str, Any]], media: Sequence[Shown] = (), tools: Sequence[Any] = ()
    ) -> tuple[np.ndarray, Arrays]:
        """Ids of a conversation and its media arrays; those of its text (attention_mask …) are left out.

        Messages have a part for each of `media`, in the same order; what is in it is filled in here.
        """
        wanted = iter(media)
        messages = [turn | {"content": [_filled(part, wanted) for part in turn["content"]]}
                    if isinstance(turn["content"], list) else turn for turn in messages]  # fmt: skip
        clips = [shown.look.metadata for shown in media if shown.look.kind == "video"]
        # What is shown are the frames that were chosen: it must not choose among them again.
        settings = {"do_sample_frames": False, "video_metadata": clips} if clips else {}
        out = self.processor.apply_chat_template(
            messages, tools=list(tools) or None, tokenize=True, return_dict=True, return_tensors="pt",
            **({"processor_kwargs": settings} if settings else {}),
        )  # fmt: skip
        arrays = {name: as_numbers(name, value) for name, value in out.items()}
        ids = arrays.pop("input_ids")
        found = {name: array for name, array in arrays.items() if array.shape[:2] != ids.shape}
        return ids[0].astype(np.int32), {
            name: array[0] if name in self.in_batch_axis else array for name, array in found.items()
        }

    def about(self, media: Sequence[Shown]) -> tuple[np.ndarray, Arrays]:
        """Of a question of these media and one word."""
        return self.run(asking([shown.look.kind for shown in media]), media)

    def text_ids(self, messages: list[dict[str, Any]], tools: Sequence[Any] = ()) -> np.ndarray:
        """Of a conversation with a placeholder for each medium: nothing is done with those."""
        text = self.processor.apply_chat_template(messages, tools=list(tools) or None, tokenize=False)
        bos = self.processor.tokenizer.bos_token
        has_bos = bos is not None and text.startswith(bos)
        return np.array(self.processor.tokenizer(text, add_special_tokens=not has_bos)["input_ids"], dtype=np.int32)

    @cached_property
    def placeholders(self) -> dict[MediaKind, tuple[str, int]]:
        """What stands for a medium in the text of the template, and its id; a kind of which that is not known, or no
        single token, is left out.
        """
        found: dict[MediaKind, tuple[str, int]] = {}
        for kind in self.kinds:
            token = getattr(self.processor, TOKENS[kind], None)
            ids = self.processor.tokenizer.encode(str(token), add_special_tokens=False) if token else []
            if len(ids) == 1:
                found[kind] = str(token), ids[0]
        return found

    # One medium

    def alone(self, look: Look) -> Alone:
        """Learnt from a blank medium, and remembered."""
        if look.kind == "video" and not self.tells_time:
            look = look.untimed
        if look not in self._known:
            if len(self._known) == LOOKS_KEPT:
                self._known.clear()
            ids, arrays = self.about([blank(look)])
            _, token = self.placeholders.get(look.kind, ("", -1))
            text = self.text_ids(asking([look.kind]))
            self._known[look] = Alone(
                shapes={name: array.shape for name, array in arrays.items()},
                unstorable=self._unstorable(arrays),
                tokens=replaced(text, token, ids),
            )
        return self._known[look]

    def _unstorable(self, arrays: Arrays) -> str:
        try:
            self.as_stored(arrays)
        except NoBytes as error:
            return str(error)
        return ""

    def shapes(self, look: Look) -> dict[str, tuple[int, ...]]:
        """Of the arrays of a medium: they do not depend on when its frames were."""
        return self.alone(look.untimed).shapes

    @cached_property
    def tells_time(self) -> bool:
        """Whether the ids of a video depend on which frames were taken of how many, and at which rate."""
        first = PROBES["video"][0]
        later = replace(first, frames=tuple(7 * frame + 3 for frame in first.frames), total=4000, fps=1.7)
        ids, others = (self.about([blank(look)])[0] for look in (first, later))
        return not np.array_equal(ids, others)

    # Several

    def placed_ids(
        self, messages: list[dict[str, Any]], looks: Sequence[Look], tools: Sequence[Any] = ()
    ) -> np.ndarray | None:
        """Ids of a conversation by what is known of each medium alone; None where that is not enough."""
        ids = self.text_ids(messages, tools)
        waiting = {kind: iter([look for look in looks if look.kind == kind]) for kind in self.kinds}
        kind_of = {token: kind for kind, (_, token) in self.placeholders.items()}
        places = np.flatnonzero(np.isin(ids, list(kind_of)))
        between = np.split(ids, places)  # each but the first begins with a placeholder
        pieces = [between[0]]
        for rest in between[1:]:
            look = next(waiting[kind_of[int(rest[0])]], None)
            found = None if look is None else self.alone(look).tokens
            if found is None:
                return None
            pieces += [found, rest[1:]]
        is_short = any(next(rest, None) is not None for rest in waiting.values())
        return None if is_short else np.concatenate(pieces).astype(np.int32)

    def tokens_keep_their_place(self, kinds: frozenset[MediaKind]) -> bool:
        """Whether that gives what the processor gives, for media beside text, line breaks and each other."""
        if kinds not in self._placed:
            self._placed[kinds] = self._keep_their_place(kinds)
        return self._placed[kinds]

    def _keep_their_place(self, kinds: frozenset[MediaKind]) -> bool:
        probes = [look for trio in zip(*(PROBES[kind] for kind in sorted(kinds)), strict=True) for look in trio]
        text = {"type": "text", "text": "Why\n"}
        first, *others = ({"type": look.kind} for look in probes)
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [text, first, {"type": "text", "text": "\n\nor "}, *others, text]},
            {"role": "assistant", "content": [text]},
        ]
        try:
            ids, _ = self.run(messages, list(map(blank, probes)))
        except MISFITS:
            return False
        placed = self.placed_ids(messages, probes)
        return placed is not None and np.array_equal(placed, ids)


def _filled(part: Any, media: Any) -> Any:
    is_medium = isinstance(part, Mapping) and part["type"] in TOKENS
    return next(media).part if is_medium else part


def as_numbers(name: str, value: Any) -> np.ndarray:
    """Llama 4's processor gives bf16, which numpy does not have."""
    array = np.asarray(value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} are no numbers, or not as many for each medium")
    return array


def replaced(with_placeholder: np.ndarray, token: int, ids: np.ndarray) -> np.ndarray | None:
    """What takes the place of the one placeholder: 7 in [1, 7, 3], of [1, 8, 8, 9, 3] -> [8, 8, 9]; None if anything
    else differs.
    """
    places = np.flatnonzero(with_placeholder == token)
    if len(places) != 1:
        return None
    before, after = with_placeholder[: places[0]], with_placeholder[places[0] + 1 :]
    end = len(ids) - len(after)
    if end <= len(before) or not np.array_equal(ids[: len(before)], before) or not np.array_equal(ids[end:], after):
        return None
    return ids[len(before) : end]


def asking(kinds: Sequence[MediaKind]) -> list[dict[str, Any]]:
    """A conversation of media of these kinds and one word."""
    return [{"role": "user", "content": [*({"type": kind} for kind in kinds), {"type": "text", "text": "Why"}]}]
