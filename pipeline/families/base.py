"""The contract of a model family: what its file declares, and what a loaded processor can do with it."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from pipeline.config import UserError, fingerprint
from pipeline.labels import TurnMarkers
from pipeline.records import Example, MediaKind, Turn
from pipeline.resize import smart_resize_image

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
    fake_image: tuple[str, str]  # the tokens around the placeholder of an image
    positions: PositionFunction
    # Which axis of a media array counts what, so that a splitter reads the layout instead of guessing.
    media_axes: dict[str, str]
    image_defaults: dict[str, Any]  # values of the image processor's class where its config is silent


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageGeometry:
    """How an image becomes patches, read from the processor's own config."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    rescale_factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_config(cls, config: dict[str, Any], *, min_pixels: int = 0, max_pixels: int = 0) -> "ImageGeometry":
        size = config["size"]
        return cls(
            patch_size=config["patch_size"],
            merge_size=config["merge_size"],
            temporal_patch_size=config["temporal_patch_size"],
            min_pixels=min_pixels or config.get("min_pixels") or size["shortest_edge"],
            max_pixels=max_pixels or config.get("max_pixels") or size["longest_edge"],
            rescale_factor=config["rescale_factor"],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
        )

    def resized(self, height: int, width: int) -> tuple[int, int]:
        factor = self.patch_size * self.merge_size
        return smart_resize_image(height, width, factor, self.min_pixels, self.max_pixels)

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        new_height, new_width = self.resized(height, width)
        return 1, new_height // self.patch_size, new_width // self.patch_size

    def tokens(self, grid: tuple[int, int, int]) -> int:
        return grid[0] * grid[1] * grid[2] // self.merge_size**2

    @property
    def patch_bytes(self) -> int:
        """Bytes of a stored patch: uint8, and a still image is not duplicated in time."""
        return len(self.mean) * self.patch_size**2


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family together with one processor of it: the runtime half of the contract."""

    spec: FamilySpec
    tokenizer: PreTrainedTokenizerBase
    image: ImageGeometry
    source: str
    config: dict[str, Any] = field(repr=False)

    @cached_property
    def image_token_id(self) -> int:
        return self._token_id(self.spec.image_token)

    @cached_property
    def video_token_id(self) -> int:
        return self._token_id(self.spec.video_token)

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
        before, after = self.spec.fake_image
        return np.array([self._token_id(before), self.image_token_id, self._token_id(after)], dtype=np.int32)

    @cached_property
    def fingerprint(self) -> str:
        """Of everything in the processor that shapes ids, lengths or pixels."""
        backend = json.loads(self.tokenizer.backend_tokenizer.to_str())
        for setting in ("truncation", "padding"):  # left there by whoever called the tokenizer last
            backend.pop(setting)
        return fingerprint(self.spec.name, backend, self.tokenizer.chat_template, self.config)

    def encode(self, examples: Sequence[Example]) -> list[np.ndarray]:
        """Token ids of each conversation by the processor's own chat template, one placeholder per medium."""
        ids: list[Any] = [None] * len(examples)
        plain: list[int] = []
        texts: list[str] = []
        for index, example in enumerate(examples):
            if any(
                self._structural.search(part) for turn in example.turns for part in turn.parts if isinstance(part, str)
            ):
                ids[index] = self._encode_guarded(example)
            else:
                plain.append(index)
                texts.append(self._template(example.turns))
        if texts:
            for index, encoded in zip(plain, self.tokenizer(texts)["input_ids"], strict=True):
                ids[index] = np.array(encoded, dtype=np.int32)
        return ids

    def positions(self, token_types: np.ndarray, image_grids: Sequence[tuple[int, int, int]]) -> np.ndarray:
        return self.spec.positions(token_types, image_grids, merge_size=self.image.merge_size)

    def _template(self, turns: Sequence[Turn]) -> str:
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
        everything = "".join(part for turn in example.turns for part in turn.parts if isinstance(part, str))
        mark = "\ue000"
        while mark in everything:
            mark += "\ue000"
        literals: list[str] = []

        def guard(part: Any) -> Any:
            if not isinstance(part, str):
                return part
            literals.extend(self._structural.findall(part))
            return self._structural.sub(mark, part)

        turns = [Turn(role=turn.role, parts=tuple(map(guard, turn.parts))) for turn in example.turns]
        pieces = self._template(turns).split(mark)
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


def load_family(
    processor: str, families: dict[str, FamilySpec], *, name: str = "", min_pixels: int = 0, max_pixels: int = 0
) -> Family:
    """The family that serves a processor (by its class name, or `name`), with its tokenizer and geometry loaded."""
    saved = _read_config(processor, "processor_config.json")
    image_config = saved.get("image_processor") or _read_config(processor, "preprocessor_config.json")
    class_name = saved.get("processor_class") or image_config.get("processor_class") or ""
    if name:
        if name not in families:
            raise UserError(f"--family {name}: unknown; known: {', '.join(families)}")
        spec = families[name]
    else:
        matches = [spec for spec in families.values() if class_name in spec.processor_classes]
        if not matches:
            raise UserError(
                f"--processor {processor}: no family serves processor class {class_name or '(none found)'}; "
                f"name one by --family: {', '.join(families)}"
            )
        spec = matches[0]
    if not image_config:
        raise UserError(f"--processor {processor}: has neither preprocessor_config.json nor processor_config.json")
    config = copy.deepcopy(spec.image_defaults | image_config)
    for switch in ("do_resize", "do_rescale", "do_normalize"):
        if not config.get(switch, True):
            raise UserError(f"--processor {processor}: {switch} is false, which {spec.name} does not support")
    try:
        tokenizer = AutoTokenizer.from_pretrained(processor)
    except (OSError, ValueError) as error:
        raise UserError(f"--processor {processor}: no tokenizer could be loaded: {error}") from error
    if not tokenizer.chat_template:
        tokenizer.chat_template = _read_config(processor, "chat_template.json").get("chat_template")
    if not tokenizer.chat_template:
        raise UserError(f"--processor {processor}: has no chat template")
    geometry = ImageGeometry.from_config(config, min_pixels=min_pixels, max_pixels=max_pixels)
    return Family(spec=spec, tokenizer=tokenizer, image=geometry, source=processor, config=config)


def _read_config(processor: str, name: str) -> dict[str, Any]:
    """A config file of a processor directory or hub repository; {} where it has none."""
    try:
        path = cached_file(processor, name, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        raise UserError(f"--processor {processor}: neither a directory nor a reachable hub id: {error}") from error
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
