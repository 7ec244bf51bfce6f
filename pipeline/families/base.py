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
from pipeline.records import Example, MeasuredMedia, MediaKind, Turn
from pipeline.resize import smart_resize_image

Grid = tuple[int, int, int]
PositionFunction = Callable[..., np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """How pixels become patches, read from the processor's own config."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    rescale_factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_config(cls, config: dict[str, Any], **more: Any) -> Any:
        size = config["size"]
        return cls(
            patch_size=config["patch_size"],
            merge_size=config["merge_size"],
            temporal_patch_size=config["temporal_patch_size"],
            min_pixels=config.get("min_pixels") or size["shortest_edge"],
            max_pixels=config.get("max_pixels") or size["longest_edge"],
            rescale_factor=config["rescale_factor"],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
            **more,
        )

    @property
    def factor(self) -> int:
        """Pixels on a side of a merged patch."""
        return self.patch_size * self.merge_size

    @property
    def patch_bytes(self) -> int:
        """Bytes of one frame's patch: uint8. A still image is stored without its duplicate in time."""
        return len(self.mean) * self.patch_size**2

    def tokens(self, grid: Grid) -> int:
        return grid[0] * grid[1] * grid[2] // self.merge_size**2


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageGeometry(Geometry):
    def resized(self, height: int, width: int) -> tuple[int, int]:
        return smart_resize_image(height, width, self.factor, self.min_pixels, self.max_pixels)

    def grid(self, height: int, width: int) -> Grid:
        new_height, new_width = self.resized(height, width)
        return 1, new_height // self.patch_size, new_width // self.patch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoGeometry(Geometry):
    fps: float | None
    num_frames: int | None
    min_frames: int
    max_frames: int
    samples_frames: bool
    cap_pixels_per_frame: bool
    max_video_tokens: int


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
    tokens_per_second: float | None  # Qwen2.5-VL: temporal positions per second of video
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
    def video_bounds_cover_clip(self) -> bool:
        return self.spec.video_bounds_cover_clip

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


def load_family(key: ProcessorKey, families: dict[str, FamilySpec]) -> Family:
    """The family that serves a processor (by its class name, or as told), with its tokenizer and geometry loaded."""
    processor = key.processor
    saved = _read_config(processor, "processor_config.json")
    image_config = saved.get("image_processor") or _read_config(processor, "preprocessor_config.json")
    # As transformers looks for it: its own file, or the images'.
    video_config = saved.get("video_processor") or _read_config(processor, "video_preprocessor_config.json")
    class_name = saved.get("processor_class") or image_config.get("processor_class") or ""
    spec = _spec_for(key, class_name, families)
    if not image_config:
        raise UserError(f"--processor {processor}: has neither preprocessor_config.json nor processor_config.json")
    images = copy.deepcopy(spec.image_defaults | image_config)
    videos = copy.deepcopy(spec.video_defaults | (video_config or image_config))
    for config in (images, videos):
        for switch in ("do_resize", "do_rescale", "do_normalize"):
            if not config.get(switch, True):
                raise UserError(f"--processor {processor}: {switch} is false, which {spec.name} does not support")
    _override(images, {"min_pixels": key.min_pixels, "max_pixels": key.max_pixels})
    _override(videos, {"min_pixels": key.video_min_pixels, "max_pixels": key.video_max_pixels, "fps": key.video_fps,
                       "min_frames": key.video_min_frames, "max_frames": key.video_max_frames})  # fmt: skip
    tokens_per_second = None
    if class_name == "Qwen2_5_VLProcessor":
        vision = _read_config(processor, "config.json").get("vision_config", {})
        tokens_per_second = vision.get("tokens_per_second", 2)  # 2 in every published model
    tokenizer = _load_tokenizer(processor)
    return Family(
        spec=spec,
        tokenizer=tokenizer,
        image=ImageGeometry.from_config(images),
        video=VideoGeometry.from_config(
            videos,
            fps=videos.get("fps"),
            num_frames=videos.get("num_frames"),
            min_frames=videos["min_frames"],
            max_frames=videos["max_frames"],
            # A rate or a number in the config is there to be used, whatever the class's default.
            samples_frames=bool(videos["do_sample_frames"] or videos.get("fps") or videos.get("num_frames")),
            cap_pixels_per_frame=bool(videos.get("cap_pixels_per_frame")),
            max_video_tokens=videos["max_video_tokens"],
        ),
        tokens_per_second=tokens_per_second,
        source=processor,
        config={"image": images, "video": videos, "tokens_per_second": tokens_per_second},
    )


def _spec_for(key: ProcessorKey, class_name: str, families: dict[str, FamilySpec]) -> FamilySpec:
    if key.family:
        if key.family not in families:
            raise UserError(f"--family {key.family}: unknown; known: {', '.join(families)}")
        return families[key.family]
    for spec in families.values():
        if class_name in spec.processor_classes:
            return spec
    raise UserError(
        f"--processor {key.processor}: no family serves processor class {class_name or '(none found)'}; "
        f"name one by --family: {', '.join(families)}"
    )


def _override(config: dict[str, Any], values: dict[str, Any]) -> None:
    config |= {name: value for name, value in values.items() if value}


def _load_tokenizer(processor: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(processor)
    except (OSError, ValueError) as error:
        raise UserError(f"--processor {processor}: no tokenizer could be loaded: {error}") from error
    if not tokenizer.chat_template:
        tokenizer.chat_template = _read_config(processor, "chat_template.json").get("chat_template")
    if not tokenizer.chat_template:
        raise UserError(f"--processor {processor}: has no chat template")
    return tokenizer


def _read_config(processor: str, name: str) -> dict[str, Any]:
    """A config file of a processor directory or hub repository; {} where it has none."""
    try:
        path = cached_file(processor, name, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        raise UserError(f"--processor {processor}: neither a directory nor a reachable hub id: {error}") from error
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
