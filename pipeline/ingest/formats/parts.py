"""A part of a turn's content: a text, or a medium in one of the spellings that are about."""

from collections.abc import Iterator, Mapping
from typing import Any

from neatpack.format.layout import MediaKind

from ...records import MediaRef, Skip
from ..dialect import Dialect
from ..media import (
    AS_BASE64,
    AS_PLACE,
    WISHES,
    MediaFolders,
    Steps,
    held_medium,
    is_unicode,
    json_name,
    media_reference,
    shown,
    wishes_of,
)
from .said import Named, bad_row

KINDS: tuple[MediaKind, ...] = ("image", "video", "audio")
TEXTS = ("text", "input_text", "output_text")
TYPES: dict[str, MediaKind] = {
    f"{before}{kind}{after}": kind for kind in KINDS for before, after in (("", ""), ("", "_url"), ("input_", ""))
}
ASKED = (
    "fps",
    "frame_indices",
    "video_start",
    "video_end",
    "offset",
    "length",
    "cell",
)  # beside the medium, of the medium
MEANINGLESS = ("detail", "format")  # what OpenAI asks of its own models, and what the bytes tell themselves


def plain(item: Any, dialect: Dialect) -> Any:
    """A part without the keys that say nothing: null, as Arrow fills those that other parts have, or ignored."""
    if not isinstance(item, Mapping):
        return item
    return {key: value for key, value in item.items() if value is not None and key not in dialect.ignore_keys}


def kind_of(item: Any) -> MediaKind | None:
    """Of a part that is a medium; one without a type may have it under its kind alone: {"image": "a.png"}."""
    if not isinstance(item, Mapping):
        return None
    if item.get("type") is None:
        return next((kind for kind in KINDS if item.get(kind) is not None), None) if "text" not in item else None
    return TYPES.get(item["type"]) if isinstance(item["type"], str) else None


def is_bare(item: Any, kind: MediaKind) -> bool:
    """A part that takes its medium from the row's column: {"type": "image"}."""
    return kind_of(item) == kind and not any(key in item for key in _own(kind))


def _own(kind: MediaKind) -> tuple[str, ...]:
    """Keys under which a part has its medium; `value` is LLaMA-Factory's."""
    return (
        kind,
        f"{kind}_url",
        f"input_{kind}",
        "value",
        *AS_PLACE,
        *AS_BASE64,
        *(("frames",) if kind == "video" else ()),
    )


def asked_of(kind: MediaKind) -> tuple[str, ...]:
    """Keys beside a medium that say what is to become of it."""
    return (*ASKED, *WISHES[kind])


def known_of(kind: MediaKind) -> tuple[str, ...]:
    """Keys of a medium that mean something, or surely nothing."""
    return (*_own(kind), *asked_of(kind), *MEANINGLESS)


def unknown_in(item: Any) -> Skip | None:
    """The first key of a part that nothing is known about."""
    if not isinstance(item, Mapping):
        return None
    kind = kind_of(item)
    known = ("type", "text", "value") if kind is None else ("type", "index", *known_of(kind))
    unknown = next((key for key in item if key not in known), None)
    if kind is None and (item.get("type", "text") not in TEXTS or unknown is None):
        return None  # what it is says more than what it has
    return (
        None if unknown is None else unknown_key(f"a part of type {item.get('type', kind or 'text')!r}", str(unknown))
    )


def text_part(item: Any) -> str | Skip:
    if isinstance(item, Mapping):
        kind = item.get("type", "text")
        if not isinstance(kind, str) or kind not in TEXTS:
            return bad_row(f"unknown part of type {shown(kind)}; known: {', '.join(('text', *TYPES))}")
    text = item.get("text", item.get("value")) if isinstance(item, Mapping) else item
    if not isinstance(text, str):
        return bad_row(f"a JSON {json_name(text)} where a text, or a part with type and text, was expected")
    return text if is_unicode(text) else bad_row("not Unicode text: half of a surrogate pair")


def media_part(
    item: Mapping[str, Any],
    kind: MediaKind,
    at: Steps,
    waiting: Iterator[Named],
    named: tuple[Named, ...],
    folders: MediaFolders,
) -> MediaRef | Skip:
    """`waiting`: the media of the row's column that no index names; `named`: all of them."""
    asked = {key: item[key] for key in asked_of(kind) if key in item}
    if is_bare(item, kind):
        found = named[item["index"]] if "index" in item else next(waiting, None)
        if found is None:
            return Skip(
                reason="bad_placeholders", detail=f"a part of type {kind!r} without its {kind}", fields={"kind": kind}
            )
        return reference(found.entry, asked, kind, found.column, folders, found.at)
    if "index" in item:
        return bad_row(
            f"a part of type {item.get('type', kind)!r} with both an index and its own {kind}; remove one of the two"
        )
    key = next(key for key in _own(kind) if key in item)
    if key in (*AS_PLACE, *AS_BASE64, "frames"):
        return reference({key: item[key]}, asked, kind, kind, folders, at)
    return reference(item[key], asked, kind, kind, folders, (*at, key))


def reference(
    given: Any, asked: Mapping[str, Any], kind: MediaKind, column: str, folders: MediaFolders, at: Steps
) -> MediaRef | Skip:
    """A medium of a column or a part, also one that a program holds; `asked` is what a part says beside it."""
    if type(given) is str:  # nearly all
        return media_reference(given, kind, column, folders, at, asked)
    if isinstance(given, Mapping) and kind == "audio" and given.get("array") is not None and "bytes" not in given:
        if given.get("sampling_rate") is None:
            return bad_row("a sound with array but without sampling_rate")
        given = (given["array"], given["sampling_rate"])
    try:
        held = held_medium(given, kind)
    except ValueError as error:
        return bad_row(str(error))
    if held is not None:
        wishes = wishes_of(asked, kind)
        if isinstance(wishes, str):
            return bad_row(wishes)
        return MediaRef(kind=kind, path=f"({kind} in memory)", wishes=wishes, held=held)
    return media_reference(given, kind, column, folders, at, asked)


def unknown_key(where: str, key: str) -> Skip:
    return bad_row(f'{where}: unknown key {key[:60]!r}; fix it, or list it under "ignore_keys" of the data set')
