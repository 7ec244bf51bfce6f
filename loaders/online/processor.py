"""A family from whatever an online user calls a processor: a directory, a hub id, an HF processor, or a Family."""

from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from ...pipeline.config import UserError
from ...pipeline.families.base import Family, ProcessorFiles, ProcessorKey
from ...pipeline.families.registry import chosen_family, processor_files

_KNOWN: WeakKeyDictionary[Any, dict[ProcessorKey, Family]] = WeakKeyDictionary()


def family_of(
    processor: Any, *, family: str = "", use_audio_in_video: bool = False, empty_thought: bool = False
) -> Family:
    """The same object again for the same processor. `family` names one where the processor's class does not tell."""
    if isinstance(processor, Family):
        return processor
    asked = ProcessorKey(
        processor="", family=family, use_audio_in_video=use_audio_in_video, empty_thought=empty_thought
    )
    if isinstance(processor, str):
        return _named(replace(asked, processor=processor))
    if not hasattr(processor, "tokenizer"):
        raise UserError(
            f"a {type(processor).__name__} is no processor; give a directory, a hub id or an HF processor",
            code="processor-unsupported",
            processor=type(processor).__name__,
        )
    source = str(getattr(processor.tokenizer, "name_or_path", ""))
    key = replace(asked, processor=source)
    known = _KNOWN.setdefault(processor, {})
    if key not in known:
        known[key] = chosen_family(key, files_of(processor, source), online=True)
    return known[key]


@lru_cache(maxsize=4)
def _named(key: ProcessorKey) -> Family:
    return chosen_family(key, processor_files(key.processor), online=True)


def files_of(processor: Any, source: str) -> ProcessorFiles:
    """What an HF processor object is made of; its own chat template goes before its tokenizer's."""
    tokenizer = processor.tokenizer
    template = getattr(processor, "chat_template", None)
    if template and not tokenizer.chat_template:
        tokenizer.chat_template = template
    hearing = getattr(processor, "feature_extractor", None) or getattr(processor, "audio_processor", None)
    own = {key: value for key, value in vars(processor).items() if isinstance(value, int | float | str | bool)}
    return ProcessorFiles(
        source=source,
        class_name=type(processor).__name__,
        tokenizer=tokenizer,
        image=_config(getattr(processor, "image_processor", None)),
        video=_config(getattr(processor, "video_processor", None)),
        audio=_config(hearing),
        processor=own,
        model={},
        loaded=processor,
    )


def _config(part: Any) -> dict[str, Any]:
    return {key: value for key, value in part.to_dict().items() if value is not None} if part is not None else {}
