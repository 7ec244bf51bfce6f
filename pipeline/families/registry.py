"""FAMILIES, one line per model family, and the loading of a processor as one of them."""

import copy
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from pipeline.config import UserError
from pipeline.families import qwen2_vl, qwen3_vl
from pipeline.families.base import Family, FamilySpec
from pipeline.families.geometry import ImageGeometry, VideoGeometry

FAMILIES: dict[str, FamilySpec] = {spec.name: spec for spec in (qwen2_vl.SPEC, qwen3_vl.SPEC)}


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


@lru_cache(maxsize=2)
def family_for(key: ProcessorKey | str) -> Family:
    """As `load_family`, once in a process: a tokenizer takes half a second."""
    return load_family(ProcessorKey(processor=key) if isinstance(key, str) else key)


def load_family(key: ProcessorKey) -> Family:
    """The family that serves a processor (by its class name, or as told), with its tokenizer and geometry loaded."""
    processor = key.processor
    saved = _read_config(processor, "processor_config.json")
    image_config = saved.get("image_processor") or _read_config(processor, "preprocessor_config.json")
    # As transformers looks for it: its own file, or the images'.
    video_config = saved.get("video_processor") or _read_config(processor, "video_preprocessor_config.json")
    class_name = saved.get("processor_class") or image_config.get("processor_class") or ""
    spec = _spec_for(key, class_name)
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
    tokens_per_second = spec.tokens_per_second(class_name, _read_config(processor, "config.json"))
    return Family(
        spec=spec,
        tokenizer=_load_tokenizer(processor),
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


def _spec_for(key: ProcessorKey, class_name: str) -> FamilySpec:
    if key.family:
        if key.family not in FAMILIES:
            raise UserError(f"--family {key.family}: unknown; known: {', '.join(FAMILIES)}")
        return FAMILIES[key.family]
    for spec in FAMILIES.values():
        if class_name in spec.processor_classes:
            return spec
    raise UserError(
        f"--processor {key.processor}: no family serves processor class {class_name or '(none found)'}; "
        f"name one by --family: {', '.join(FAMILIES)}"
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
