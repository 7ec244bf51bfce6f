"""Any Hugging Face processor with a chat template, as it is: `--family default`, for models that no other family knows.

Lengths are exact here too: the processor is run on a blank picture of every size that comes up when measuring, and on
the real ones when rendering, once per sample. What that generality costs:
- time, runs of the whole processor; and bytes, as its floats are stored as they are (float32);
- where the tokens of a picture depend on the text beside it (Gemma 3: line breaks merge), another run per sample, on
  blank pictures, when measuring;
- pictures only. Their arrays must be rows of pictures, or of tiles of pictures, as the first axis, or the second after
  a batch axis of 1, which is dropped;
- sizes come from the processor's own config, and `--resize` has no effect; `--overlong truncate` and `shrink` drop;
- positions are 0, 1, 2 …: models with other ones (mRoPE) would train, and wrongly;
- a text with a special token of the tokenizer in it is skipped (bad_row): the processor would take it for its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from jinja2 import TemplateError
from PIL import Image

from ..config import UserError
from ..labels import TurnMarkers
from ..layout import Delivery, MediaArray
from ..media.pixels import Resize
from ..records import Example, MeasuredMedia, MediaError, MediaKind, Skip, Turn
from .base import Arrays, Decoded, Family, Grid, ImageRule, ProcessorFiles, ProcessorKey, Size
from .chat import Chat, ChatFormat
from .rules import refuse_settings
from .sentinel import derived_markers

PROBES = ((300, 400), (1000, 600), (480, 1300))  # heights and widths that differ in area and shape
SMALLEST = (28, 112, 224, 336, 448)  # sides of a fake image: the first of those with the fewest tokens
SIZES_KEPT = 10_000  # of pictures, of which it is remembered what the processor makes of them
SIZES_ARE_FIXED = "takes sizes from the processor's own config only; change them there"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """What the processor makes of one picture of some size."""

    shapes: dict[str, tuple[int, ...]]  # of its arrays
    tokens: np.ndarray | None  # that take the place of its placeholder; None: more than its place changes


@dataclass(frozen=True, kw_only=True)
class ProcessorImages(ImageRule):
    """Pictures by the processor itself: their arrays are learnt from runs on blank pictures."""

    resized_by = "processor"
    processor: Any = field(compare=False)
    config: Mapping[str, Any]  # what the processor was made from
    source: str = field(compare=False)

    @cached_property
    def arrays(self) -> dict[str, MediaArray]:
        """Sides that differ between pictures are free."""
        alone = [self.alone(height, width).shapes for height, width in PROBES]
        dtypes = {name: array.dtype for name, array in self.run(asking([blank(PROBES[0])]))[1].items()}
        result: dict[str, MediaArray] = {}
        for name, dtype in dtypes.items():
            shapes = [shapes[name] for shapes in alone]
            if len({len(shape) for shape in shapes}) > 1:
                raise UserError(f"--processor {self.source}: {name} has as many axes as a picture wants: {shapes}")
            row = tuple(sides[0] if len(set(sides)) == 1 else -1 for sides in zip(*shapes, strict=True))[1:]
            counts = ""
            if {shape[0] for shape in shapes} != {1}:  # tiles
                counts = f"num_{name}"
                result[counts] = MediaArray(kinds=("image",), dtype="int64", row=())
            kind = {"f": "float32", "b": "uint8"}.get(dtype.kind, "int64")
            deliver = Delivery(batch_axis=name in self.in_batch_axis)
            result[name] = MediaArray(kinds=("image",), dtype=kind, row=row, counts=counts, deliver=deliver)
        return result

    @cached_property
    def in_batch_axis(self) -> set[str]:
        """Arrays that the processor gives a batch axis: with two pictures, it is the second axis that doubles."""
        one, two = (self.run(asking([blank(PROBES[0])] * count), as_is=True)[1] for count in (1, 2))
        found = set()
        for name in one:
            shape, doubled = one[name].shape, two[name].shape
            if doubled[:1] == (2 * shape[0],):
                continue
            if shape[0] != 1 or len(shape) < 2 or doubled[:2] != (1, 2 * shape[1]):
                raise UserError(
                    f"--processor {self.source}: {name} is {list(shape)} for a picture and {list(doubled)} for two; "
                    "family default needs rows that belong to pictures"
                )
            found.add(name)
        return found

    @cached_property
    def _known(self) -> dict[Size, Alone]:
        return {}

    def alone(self, height: int, width: int) -> Alone:
        """Learnt from a blank picture, and remembered."""
        known = self._known
        if (height, width) not in known:
            if len(known) == SIZES_KEPT:
                known.clear()
            messages = asking([blank((height, width))])
            ids, arrays = self.run(messages)
            shapes = {name: array.shape for name, array in arrays.items()}
            known[height, width] = Alone(shapes=shapes, tokens=replaced(self.text_ids(messages), self.token, ids))
        return known[height, width]

    @cached_property
    def token(self) -> int:
        """What stands for a picture in the text of the template; -1: nothing that is known."""
        token = getattr(self.processor, "image_token", None)
        ids = self.processor.tokenizer.encode(str(token), add_special_tokens=False) if token else []
        return ids[0] if len(ids) == 1 else -1

    def text_ids(self, messages: list[dict[str, Any]], tools: Sequence[Any] = ()) -> np.ndarray:
        """Of a conversation with a placeholder for each picture: nothing is done with those."""
        text = self.processor.apply_chat_template(messages, tools=list(tools) or None, tokenize=False)
        bos = self.processor.tokenizer.bos_token
        has_bos = bos is not None and text.startswith(bos)
        return np.array(self.processor.tokenizer(text, add_special_tokens=not has_bos)["input_ids"], dtype=np.int32)

    def placed_ids(
        self, messages: list[dict[str, Any]], sizes: Sequence[Size], tools: Sequence[Any] = ()
    ) -> np.ndarray | None:
        """Ids of a conversation by what is known of each picture alone; None where that is not enough."""
        ids = self.text_ids(messages, tools)
        places, tokens = np.flatnonzero(ids == self.token), [self.alone(*size).tokens for size in sizes]
        if len(places) != len(tokens) or any(found is None for found in tokens):
            return None
        between = np.split(ids, places)  # each but the first begins with a placeholder
        pieces = [between[0]]
        for found, rest in zip(tokens, between[1:], strict=True):
            assert found is not None
            pieces += [found, rest[1:]]
        return np.concatenate(pieces).astype(np.int32)

    @cached_property
    def tokens_keep_their_place(self) -> bool:
        """Whether that gives what the processor gives, for pictures beside text, line breaks and each other."""
        first, *others = map(blank, PROBES)
        text = {"type": "text", "text": "Why\n"}
        parts = [{"type": "image", "image": image} for image in (first, *others)]
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [text, parts[0], {"type": "text", "text": "\n\nor "}, *parts[1:], text]},
            {"role": "assistant", "content": [text]},
        ]
        try:
            ids, _ = self.run(messages, as_is=True)
        except (TemplateError, ValueError):
            return False
        placed = self.placed_ids(messages, PROBES)
        return placed is not None and np.array_equal(placed, ids)

    def shape(self, height: int, width: int, num_images: int) -> tuple[Size, Grid]:
        """As it is: the processor resizes. What it refuses, it refuses here."""
        self.alone(height, width)
        return (height, width), (1, 1, 1)

    def tokens(self, medium: MeasuredMedia) -> int:
        raise AssertionError("ids of family default are expanded when they are encoded")

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        shapes = self.alone(medium.height, medium.width).shapes
        counted = {array.counts: 1 for array in self.arrays.values() if array.counts}
        return counted | {name: shape[0] for name, shape in shapes.items()}

    def stored_bytes(self, medium: MeasuredMedia) -> int:
        shapes = self.alone(medium.height, medium.width).shapes
        return sum(int(np.prod(shape)) * np.dtype(self.arrays[name].dtype).itemsize for name, shape in shapes.items())

    @cached_property
    def smallest(self) -> MeasuredMedia:
        tokens: dict[int, int] = {}
        for side in SMALLEST:
            try:
                tokens[side] = len(self.run(asking([blank((side, side))]))[0])
            except ValueError:  # smaller than this processor takes
                continue
        side = min(tokens, key=lambda side: tokens[side])
        return self.blank((side, side), (1, 1, 1))

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """What a picture adds to a question: [1, 7, 7, 2, 3] without [1, 3] -> [7, 7, 2]."""
        ids, without = self.run(asking([blank(medium.size)]))[0].tolist(), self.run(asking([]))[0].tolist()
        start, end = 0, 0
        while start < len(without) and ids[start] == without[start]:
            start += 1
        while end < len(without) - start and ids[-1 - end] == without[-1 - end]:
            end += 1
        return np.array(ids[start : len(ids) - end], dtype=np.int32)

    def render(self, content: np.ndarray, medium: MeasuredMedia, resize: Resize) -> Arrays:
        return self.run(asking([Image.fromarray(content)]))[1]

    def run(
        self, messages: list[dict[str, Any]], as_is: bool = False, tools: Sequence[Any] = ()
    ) -> tuple[np.ndarray, Arrays]:
        """Ids of a conversation and its media arrays; those of its text (attention_mask …) are left out."""
        out = self.processor.apply_chat_template(
            messages, tools=list(tools) or None, tokenize=True, return_dict=True, return_tensors="pt"
        )
        arrays = {name: as_numbers(value) for name, value in out.items()}
        ids = arrays.pop("input_ids")
        media = {name: array for name, array in arrays.items() if array.shape[:2] != ids.shape}
        if not as_is:
            media = {name: array[0] if name in self.in_batch_axis else array for name, array in media.items()}
        return ids[0].astype(np.int32), media


class ProcessorChat(Chat):
    """Conversations through the processor itself, on blank pictures: their ids are expanded already."""

    expands_media = True

    def __init__(self, images: ProcessorImages, placeholders: Mapping[MediaKind, str]) -> None:
        format_ = ChatFormat(assistant_header="", end_of_turn="", placeholders=placeholders)
        super().__init__(format_, images.processor.tokenizer, source=images.source, takes=("image",))
        self.images = images

    @cached_property
    def markers(self) -> TurnMarkers:
        return derived_markers(self.images.processor)

    def template(self, turns: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        text = self.images.processor.apply_chat_template(self.messages(turns), tools=list(tools) or None)
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
        blanks = iter([blank((medium.height, medium.width)) for medium in media])
        messages = self.messages(example.turns)
        for message in messages:
            for part in message["content"]:
                if isinstance(part, dict) and part["type"] == "image":
                    part["image"] = next(blanks)
        try:
            if self.images.tokens_keep_their_place:
                sizes = [(medium.height, medium.width) for medium in media]
                if (placed := self.images.placed_ids(messages, sizes, example.tools)) is not None:
                    return placed
            ids, _ = self.images.run(messages, as_is=True, tools=example.tools)
        except (TemplateError, ValueError) as error:
            return Skip(reason="bad_row", detail=f"the processor refuses it: {error}")
        return ids

    @cached_property
    def _special(self) -> re.Pattern[str]:
        tokens = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        literal = sorted(tokens | set(self.format.placeholders.values()))
        return re.compile("|".join(map(re.escape, literal)) or r"(?!)")


class Default(Family):
    name = "default"
    image: ProcessorImages

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        refuse_settings(key, cls.name, min_pixels=SIZES_ARE_FIXED, max_pixels=SIZES_ARE_FIXED)
        loaded = files.loaded if files.loaded is not None else _loaded(files.source, key.trust_remote_code)
        processor = _checked(loaded, files.source)
        if not processor.chat_template:  # some leave it to their tokenizer
            processor.chat_template = files.tokenizer.chat_template
        images = ProcessorImages(
            processor=processor,
            config={
                "classes": [type(part).__name__ for part in (processor, processor.image_processor)],
                "processor": files.processor,
                "image": files.image,
                "chat_template": processor.chat_template,
            },
            source=files.source,
        )
        try:
            assert images.arrays  # learnt now: a processor that does not fit is refused before anything is measured
        except UserError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, TemplateError) as error:
            raise UserError(
                f"--processor {files.source}: does not take a question with a picture, and family default tried: "
                f"{type(error).__name__}: {error}"
            ) from error
        token = getattr(processor, "image_token", None)
        return cls(ProcessorChat(images, {"image": str(token)} if token else {}), image=images)

    def document_arrays(
        self, measured_ids: np.ndarray, media: Sequence[MeasuredMedia], decoded: Decoded, resize: Resize
    ) -> Arrays:
        """One run of the processor for all pictures of a conversation; its text does not touch them."""
        if not media:
            return self.joined([])
        images = [Image.fromarray(decoded(medium, self.image)) for medium in media]
        ids, arrays = self.image.run(asking(images))
        where = media[0].ref.path
        for token in self.chat.placeholder_ids.values():
            has, expected = np.count_nonzero(ids == token), np.count_nonzero(measured_ids == token)
            if has != expected:
                raise MediaError("bad_media", f"{where}: {has} image tokens now, {expected} when measured")
        for name, array in self.media.items():
            if array.counts:
                rows = [self.image.rows(medium)[name] for medium in media]
                if sum(rows) != len(arrays[name]):
                    raise MediaError(
                        "bad_media", f"{where}: {name} has {len(arrays[name])} rows for the row's pictures together "
                        f"and {rows} for each alone",
                    )  # fmt: skip
                arrays[array.counts] = np.array(rows, dtype=np.int64)
        for name, array in self.media.items():
            shape = arrays[name].shape[1:]
            fits = [side in (has, -1) for has, side in zip(shape, array.row, strict=False)]
            if len(shape) != len(array.row) or not all(fits):
                raise MediaError("bad_media", f"{where}: {name} has rows {shape}, of other pictures {array.row}")
        return self.joined([arrays])


def _loaded(source: str, trust_remote_code: bool) -> Any:
    from transformers import AutoProcessor  # takes seconds to import, and no other family needs it

    try:
        processor = AutoProcessor.from_pretrained(source, trust_remote_code=trust_remote_code)  # type: ignore[no-untyped-call]
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"--processor {source}: transformers cannot load it here, and family default needs that: {error}"
        ) from error
    return processor


def _checked(processor: Any, source: str) -> Any:
    for part in ("tokenizer", "image_processor"):
        if getattr(processor, part, None) is None:
            raise UserError(
                f"--processor {source}: loads as a {type(processor).__name__}, which has no {part}; family default "
                "needs a processor of text and pictures"
            )
    return processor


def as_numbers(value: Any) -> np.ndarray:
    """Llama 4's processor gives bf16, which numpy does not have."""
    return np.asarray(value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value)


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


def blank(size: tuple[int, int]) -> Image.Image:
    height, width = size
    return Image.new("RGB", (width, height), (128, 128, 128))


def asking(images: Sequence[Image.Image]) -> list[dict[str, Any]]:
    """A conversation of these pictures and one word."""
    parts = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": "Why"}]
    return [{"role": "user", "content": parts}]
