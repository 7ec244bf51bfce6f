"""The conversation format of the online datasets, to and from an Example.

    {"conversation": [{"role": "user", "content": [{"type": "image", "image": "cat.jpg"},
                                                   {"type": "text", "text": "Who is it?"}]},
                      {"role": "assistant", "content": [{"type": "text", "text": "Tom."}]}]}

A medium is a path, an object with `path` (and offset, length, frames, fps …: as in a ShareGPT column), or held in
memory: a PIL image, bytes, {"bytes": …}, or a sound as (samples, sampling rate) or {"array": …, "sampling_rate": …}.
"""

from collections.abc import Mapping
from typing import Any

from PIL import Image

from ..records import Example, MediaRef, Skip, Turn
from .media import is_unicode, json_name, media_reference

ROLES = ("system", "user", "assistant")
KINDS = ("image", "video", "audio")


def to_conversation(example: Example) -> dict[str, Any]:
    turns = []
    for turn in example.turns:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind, part.kind: _given(part)}
            for part in turn.parts
        ]
        turns.append({"role": turn.role, "content": content})
    return {"conversation": turns}


def from_conversation(example: Mapping[str, Any], media_dir: str = "") -> Example | Skip:
    """Content may be a text or a list of parts. A medium without its data takes the next of the example's own column
    of that name: {"type": "audio"} and example["audio"]."""
    messages = example.get("conversation")
    if not isinstance(messages, list) or not messages:
        return Skip(reason="bad_row", detail="no conversation; expected a list of turns in 'conversation'")
    columns = {kind: iter(entries_of(example, kind)) for kind in KINDS}
    turns = []
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            return Skip(reason="bad_row", detail=f"turn {number}: unknown role {role!r}; known: {', '.join(ROLES)}")
        content = message.get("content")
        parts: list[str | MediaRef] = []
        for item in content if isinstance(content, list) else [content]:
            part = _part(item, columns, media_dir)
            if isinstance(part, Skip):
                return Skip(reason=part.reason, detail=f"turn {number}: {part.detail}")
            if isinstance(part, MediaRef) and role != "user":  # templates leave it out, or it would be trained on
                return Skip(
                    reason="bad_row",
                    detail=f"turn {number}: {part.kind} in a turn of role {role!r}; expected text only",
                )
            parts.append(part)
        turns.append(Turn(role=role, parts=tuple(parts) or ("",)))
    if not any(turn.role == "assistant" for turn in turns):
        return Skip(reason="no_target", detail="no assistant turn")
    return Example(turns=tuple(turns))


def is_bare(item: Any, kind: str) -> bool:
    """A part that takes its medium from the row's column: {"type": "image"}."""
    return isinstance(item, Mapping) and item.get("type") == kind and _own(item, kind) is None


def _own(item: Mapping[str, Any], kind: str) -> Any:
    """The medium of a part; Arrow fills the keys that only other parts have with null."""
    return item.get("path") if item.get(kind) is None else item[kind]


def entries_of(row: Mapping[str, Any], column: str) -> list[Any]:
    """The media of a column: a list, one entry, null or absent. A sound as (samples, rate) is one entry."""
    value = row.get(column)
    return [] if value is None else value if isinstance(value, list) else [value]


def _part(item: Any, columns: dict[str, Any], media_dir: str) -> str | MediaRef | Skip:
    if isinstance(item, Mapping) and item.get("type") in KINDS:
        kind = item["type"]
        given = _own(item, kind)
        if given is None:
            given = next(columns[kind], None)
        if given is None:
            return Skip(reason="bad_placeholders", detail=f"a part of type {kind!r} without its {kind}")
        rest = {key: item[key] for key in ("fps", "frame_indices", "video_start", "video_end") if key in item}
        return _reference(given, rest, kind, media_dir)
    if isinstance(item, Mapping) and item.get("type", "text") != "text":
        known = ", ".join(("text", *KINDS))
        return Skip(reason="bad_row", detail=f"unknown part of type {item['type']!r}; known: {known}")
    text = item.get("text") if isinstance(item, Mapping) else item
    if not isinstance(text, str):
        got = json_name(text)
        return Skip(reason="bad_row", detail=f"a JSON {got} where a text, or a part with type and text, was expected")
    if not is_unicode(text):
        return Skip(reason="bad_row", detail="not Unicode text: half of a surrogate pair")
    return text


def _reference(given: Any, rest: dict[str, Any], kind: Any, media_dir: str) -> MediaRef | Skip:
    if isinstance(given, Mapping) and isinstance(given.get("bytes"), bytes | bytearray | memoryview):
        given = bytes(given["bytes"])
    elif isinstance(given, Mapping) and kind == "audio" and "array" in given:
        if given.get("sampling_rate") is None:
            return Skip(reason="bad_row", detail="a sound with array but without sampling_rate")
        given = (given["array"], given["sampling_rate"])
    if isinstance(given, bytes | Image.Image | tuple):
        return MediaRef(kind=kind, path=f"({kind} in memory)", held=given)
    entry = {**given, **rest} if isinstance(given, Mapping) else {"path": given, **rest}
    if isinstance(given, list):
        entry = {"frames": given, **rest}
    return media_reference(entry, kind, kind, media_dir)


def _given(ref: MediaRef) -> Any:
    """A path where that says all; otherwise an object."""
    if ref.held is not None:
        return ref.held
    where = {} if not ref.offset and ref.length < 0 else {"offset": ref.offset, "length": ref.length}
    asked = {
        "fps": ref.sampling.fps,
        "frame_indices": list(ref.sampling.frame_indices) if ref.sampling.frame_indices is not None else None,
        "video_start": ref.sampling.start,
        "video_end": ref.sampling.end,
    }
    wishes = {key: value for key, value in asked.items() if value is not None}
    if ref.frames:
        return {"frames": list(ref.frames), **wishes} if wishes else list(ref.frames)
    return {"path": ref.path, **where, **wishes} if where or wishes else ref.path
