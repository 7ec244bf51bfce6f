"""Steps of collating, before anything is tokenized: pictures in RGB, media counted, conversations that are too long."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from PIL import Image

from neatpack.errors import UserError

from ...pipeline.families.base import Family
from ...pipeline.ingest.conversation import from_conversation
from ...pipeline.ingest.formats.parts import kind_of
from ...pipeline.measure.media import measure_medium
from ...pipeline.media.image import rgb_image
from ...pipeline.records import MediaError, MediaRef, Skip, Turn
from .processor import family_of
from .tokenized import SampleError, measured_example

logger = logging.getLogger(__name__)

Conversation = Sequence[Mapping[str, Any]]


def _ensure_rgb(conversations: Sequence[Conversation]) -> Sequence[Conversation]:
    """The conversations themselves; PIL images in them that are not RGB are exchanged, in place."""
    for part in (part for conversation in conversations for part in _parts(conversation)):
        image = part.get("image")
        if isinstance(part, dict) and isinstance(image, Image.Image) and image.mode != "RGB":
            part["image"] = as_rgb(image)
    return conversations


def as_rgb(image: Any) -> Image.Image:
    """A picture or its path, decoded as packing does: turned by its EXIF orientation, alpha on white, 16 bits to 8."""
    held = isinstance(image, Image.Image)
    return rgb_image(MediaRef(kind="image", path="(in memory)" if held else str(image), held=image if held else None))


def _extract_media_from_conversations(
    conversations: Sequence[Conversation],
) -> tuple[list[Any] | None, list[Any] | None]:
    """All images (PIL or paths) and all videos (paths), in order; None where there are none."""
    found: dict[str, list[Any]] = {"image": [], "video": []}
    for part in (part for conversation in conversations for part in _parts(conversation)):
        if part.get("type") in found:
            found[part["type"]].append(part.get(part["type"], part.get("path")))
    return found["image"] or None, found["video"] or None


def _count_media_per_sample(conversations: Sequence[Conversation]) -> tuple[list[int], list[int]]:
    """Images and videos of each conversation."""
    kinds = [[kind_of(part) for part in _parts(conversation)] for conversation in conversations]
    return [row.count("image") for row in kinds], [row.count("video") for row in kinds]


def _drop_overlong_samples(
    conversations: Sequence[Conversation], processor: Any, max_length: int | None
) -> tuple[list[Conversation], list[int]]:
    """Conversations of at most max_length tokens, media included, and where they were; a ValueError if none is.

    max_length None: all of them.
    """
    if max_length is None:
        return list(conversations), list(range(len(conversations)))
    kept, longest = [], 0
    for index, conversation in enumerate(conversations):
        text = _num_text_tokens(conversation, family_of(processor))
        if text is None:
            kept.append(index)  # what is wrong with it is told when it is rendered
            continue
        length = text + _estimate_media_tokens(conversation, processor)
        longest = max(longest, length)
        if length <= max_length:
            kept.append(index)
        else:
            logger.warning("sample %d of the batch is dropped: %d tokens, max_length is %d", index, length, max_length)
    if conversations and not kept:
        raise all_overlong(max_length, longest)
    return [conversations[index] for index in kept], kept


def all_overlong(max_length: int, longest: int) -> UserError:
    return UserError(
        f"every sample of the batch is longer than max_length {max_length} (the longest has {longest} tokens)",
        code="overlong",
        max_length=max_length,
        tokens=longest,
    )


def _estimate_media_tokens(conversation: Conversation, processor: Any) -> int:
    """Tokens that media add to one placeholder each, exactly; a medium that cannot be opened adds none."""
    family = family_of(processor)
    parts = [part for part in _parts(conversation) if kind_of(part)]
    num_images = sum(kind_of(part) == "image" for part in parts)
    extra = 0
    for part in parts:
        asked = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "."}]
        alone = from_conversation({"conversation": asked})
        if isinstance(alone, Skip):
            continue
        try:
            medium = measure_medium(alone.media[0], family, num_images)
        except MediaError:
            continue
        extra += len(family.expansion(medium)) - 1
    return extra


def _num_text_tokens(conversation: Conversation, family: Family) -> int | None:
    """Tokens with one placeholder for each medium; None where the chat template refuses the conversation.

    Exact of a conversation that can be packed. One that cannot (a medium is missing, nobody answers, a role that is not
    known) has the tokens that the template writes.
    """
    try:
        measured = measured_example({"conversation": list(conversation)}, family)
    except SampleError:
        turns = [Turn(role=turn.get("role", ""), parts=_bare_parts(turn)) for turn in conversation]
        try:
            text = family.chat.template(turns)
        except (TemplateError, TypeError, ValueError):  # Jinja's own, and what filters raise of unexpected values
            return None
        return len(family.chat.tokenizer(text)["input_ids"])
    return measured.tokens + 1 - sum(len(family.expansion(medium)) - 1 for medium in measured.media)


def _bare_parts(turn: Mapping[str, Any]) -> tuple[str | MediaRef, ...]:
    """Texts, and media of which only the kind is told."""
    if isinstance(turn.get("content"), str):
        return (turn["content"],)
    parts: list[str | MediaRef] = []
    for part in _parts([turn]):
        kind = kind_of(part)
        parts.append(MediaRef(kind=kind, path="") if kind else str(part.get("text", "")))
    return tuple(parts)


def _parts(conversation: Conversation) -> list[Mapping[str, Any]]:
    contents = [turn.get("content") for turn in conversation]
    return [part for content in contents if isinstance(content, list) for part in content if isinstance(part, Mapping)]
