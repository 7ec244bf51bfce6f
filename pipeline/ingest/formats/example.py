"""What a row says -> an Example: media looked up, each in its place, or a Skip with the reason."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neatpack.format.layout import MediaKind

from ...records import Example, MediaRef, Skip, Turn
from ..dialect import Dialect
from ..media import shown
from ..tars import KIND_OF
from .parts import KINDS, is_bare, kind_of, media_part, plain, reference, text_part, unknown_in, unknown_key
from .said import Named, Said, bad_row

# ASCII: without it "<v\u0131deo>" is one, too, for a dotless i is an I in upper case.
_PLACEHOLDER = re.compile(r"(<image>|<video>|<audio>)", re.IGNORECASE | re.ASCII)
_TAGS = {f"<{kind}>": kind for kind in KINDS}
# How others write a tag: <image 1>, <image_1>, <|image_1|>, <|image|>, <|image_pad|>, <image_placeholder>, <ImageHere>,
# <img>a.jpg</img>. HTML has <img src=…>, which is none.
_OTHERS = r"<\|?(?:{0})[ _-]?\d+\|?>|<\|(?:{0})(?:_pad)?\|>|<(?:{0})(?:[_-]placeholder|here)>"
_OTHER_TAGS: dict[MediaKind, re.Pattern[str]] = {
    "image": re.compile(_OTHERS.format("image|img|picture") + "|<img>[^<>]*</img>", re.IGNORECASE | re.ASCII),
    "video": re.compile(_OTHERS.format("video"), re.IGNORECASE | re.ASCII),
    "audio": re.compile(_OTHERS.format("audio"), re.IGNORECASE | re.ASCII),
}
# How Qwen-VL's own rows name their media: in the text. "Picture 1: <img>a.png</img>\nWho?" What is between the tags is
# looked at by `_kind_of_name`: a pattern with spaces on both sides of a name takes a time that grows with their square.
_NAMED = re.compile(r"<(img|image|video|audio)>([^<>]*+)</\1>", re.IGNORECASE | re.ASCII)
_EXTENSION = re.compile(r"\w{2,5}", re.ASCII)
_SPACES = " \t\n\r\f\v"
_NONE: Iterator[MediaRef] = iter(())
TAGGED = ("user", "document")  # roles in whose text tags stand for media; elsewhere they are text


def example_of(said: Said, dialect: Dialect) -> Example | Skip:
    """User text is cut at its placeholders, which take the media in order.

    Where a tag is cut out of user text, the one newline before and after it goes, and empty pieces vanish. All other
    text stays as it is, and tags in it are text, but for a document's. Strict: per kind, tags and media must be equally
    many. Lenient: surplus tags stay as text, surplus media go before the first user turn. Text: all tags are text.

    Where the content of a turn is a list of parts, all text is taken as it is, and the parts, not tags, say where media
    go.
    """
    if any([isinstance(turn.content, list) for turn in said.turns]):
        return in_parts(said, dialect)
    return _unknown_in_turns(said) or _tagged(said, dialect)


def _unknown_in_turns(said: Said) -> Skip | None:
    for turn in said.turns:
        if turn.unknown:
            return unknown_key(turn.label, turn.unknown[0])
    return None


def _tagged(said: Said, dialect: Dialect) -> Example | Skip:
    is_cut = dialect.placeholders != "text"
    if is_cut and any(["</" in str(turn.content) for turn in said.turns if turn.role == "user"]):
        said = _with_named(said)
    media: dict[MediaKind, list[MediaRef]] = {}
    for kind in KINDS if said.media else ():
        for one in said.media.get(kind, ()):
            ref = reference(one.entry, {}, kind, one.column, dialect.folders, one.at)
            if isinstance(ref, Skip):
                return ref
            media.setdefault(kind, []).append(ref)
    pieces = [_cut(str(turn.content)) if is_cut and turn.role in TAGGED else [str(turn.content)] for turn in said.turns]
    tags = [_TAGS[tag.lower()] for own in pieces if len(own) > 1 for tag in own[1::2]]
    if said.image_is_video and tags.count("image") == len(media.get("video", ())) and not media.get("image"):
        for own in pieces:
            own[1::2] = ["<video>" if tag.lower() == "<image>" else tag for tag in own[1::2]]
        tags = [_TAGS[tag.lower()] for own in pieces for tag in own[1::2]]
    surplus: list[MediaRef] = []
    for kind in KINDS if tags or media else ():
        if kind not in media and kind not in tags:
            continue
        count, refs = tags.count(kind), media.get(kind, [])
        if count != len(refs) and dialect.placeholders != "lenient":
            # Media that come first would leave such a tag behind as text.
            texts = " ".join([str(turn.content) for turn in said.turns if is_cut and turn.role in TAGGED])
            other = _OTHER_TAGS[kind].search(texts) if len(refs) > count else None
            if other or not (said.media_first and not count):
                told = f" ({shown(other[0])} is none)" if other else ""
                detail = f"{count} <{kind}> tags but {len(refs)} {kind}s{told}"
                return Skip(
                    reason="bad_placeholders",
                    detail=detail + _remedy(refs, is_cut=is_cut),
                    fields={"kind": kind, "tags": count, "media": len(refs)},
                )
        surplus += refs[count:]
    waiting = {kind: iter(refs) for kind, refs in media.items()}
    contents = [
        _filled(own, waiting, joins=turn.role == "user") if turn.role in TAGGED else (own[0],)
        for turn, own in zip(said.turns, pieces, strict=True)
    ]
    return _finished(said, contents, surplus, dialect)


def _remedy(media: Sequence[Any], *, is_cut: bool) -> str:
    """What to do about a row that has these media. Of a row without any, the data set decides: see troubles.py."""
    if not is_cut:
        return ': "placeholders": "text" takes tags as text, and no tag says where media go'
    return "; fix the row or set placeholders: lenient" if media else ""


def _with_named(said: Said) -> Said:
    """Media that a question names between tags, as media of the row, and plain tags in their place; of kinds that the
    row has in no column."""
    media: dict[MediaKind, list[Named]] = {}

    def tag(found: re.Match[str]) -> str:
        name = found[2].strip(_SPACES)
        kind = _kind_of_name(name)
        if kind is None or said.media.get(kind):
            return found[0]
        media.setdefault(kind, []).append(Named(name, "text", ()))
        return f"<{kind}>"

    turns = [
        turn._replace(content=_NAMED.sub(tag, str(turn.content))) if turn.role == "user" else turn
        for turn in said.turns
    ]
    return said._replace(
        turns=tuple(turns), media={**said.media, **{kind: tuple(named) for kind, named in media.items()}}
    )


def _kind_of_name(name: str) -> MediaKind | None:
    """Return the kind of medium that a file of this name holds, or None if the text names no such file."""
    stem, _, extension = name.rpartition(".")
    if not stem or "\n" in name or not _EXTENSION.fullmatch(extension):
        return None
    return KIND_OF.get(extension.lower())


def in_parts(said: Said, dialect: Dialect, *, of_file: bool = True) -> Example | Skip:
    """A part without its medium, {"type": "image"}, takes the next of the row's column; with an index, that one.

    Rows that are not of a file (`of_file`) come from a program, which may have more in them for its own use: keys, and
    media that no part takes. There is no data set to list such keys under.
    """
    contents = [
        [plain(item, dialect) for item in (turn.content if isinstance(turn.content, list) else [turn.content])]
        for turn in said.turns
    ]
    unknown = _unknown_in_turns(said) or _unknown_in_parts(said, contents)
    if of_file and unknown is not None:
        return unknown
    shared = _shared(said, [item for items in contents for item in items], dialect, surplus_matters=of_file)
    if isinstance(shared, Skip):
        return shared
    result: list[tuple[str | MediaRef, ...]] = []
    for turn, items in zip(said.turns, contents, strict=True):
        parts: list[str | MediaRef] = []
        for number, item in enumerate(items):
            kind = kind_of(item)
            if kind is None:
                part: str | MediaRef | Skip = text_part(item)
            else:
                at = (*turn.at, number)
                part = media_part(item, kind, at, shared.waiting[kind], said.media.get(kind, ()), dialect.folders)
            if isinstance(part, Skip):
                return Skip(
                    reason=part.reason,
                    detail=f"{turn.label}: {part.detail}",
                    fields={**part.fields, "turn": turn.label},
                )
            parts.append(part)
        result.append(tuple(parts) or ("",))
    surplus = []
    for kind, named in shared.surplus:
        ref = reference(named.entry, {}, kind, named.column, dialect.folders, named.at)
        if isinstance(ref, Skip):
            return ref
        surplus.append(ref)
    return _finished(said, result, surplus, dialect)


def _unknown_in_parts(said: Said, contents: list[list[Any]]) -> Skip | None:
    for turn, items in zip(said.turns, contents, strict=True):
        for skip in filter(None, map(unknown_in, items)):
            return Skip(
                reason=skip.reason, detail=f"{turn.label}: {skip.detail}", fields={**skip.fields, "turn": turn.label}
            )
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shared:
    """The media of a row's columns among the parts that have none of their own."""

    waiting: dict[MediaKind, Iterator[Named]]
    surplus: list[tuple[MediaKind, Named]]


def _shared(said: Said, items: list[Any], dialect: Dialect, *, surplus_matters: bool) -> _Shared | Skip:
    shared = _Shared(waiting={}, surplus=[])
    for kind in KINDS:
        named = said.media.get(kind, ())
        bare = [item for item in items if is_bare(item, kind)]
        indices = [item["index"] for item in bare if "index" in item]
        taken = set[int]()
        for index in indices:
            if type(index) is not int:
                return bad_row(f"index of a part of type {kind!r} must be a whole number")
            if not 0 <= index < len(named):
                return Skip(
                    reason="bad_placeholders",
                    detail=f"a part with the index {index} but {len(named)} {kind}s; fix the row",
                    fields={"kind": kind, "index": index, "media": len(named)},
                )
            taken.add(index)
        rest = [one for number, one in enumerate(named) if number not in taken]
        num_bare = len(bare) - len(indices)
        if num_bare != len(rest) and surplus_matters and dialect.placeholders != "lenient":
            unnamed = " that no index names" if indices else ""
            return Skip(
                reason="bad_placeholders",
                detail=f"{num_bare} parts of type {kind!r} without their own {kind} but {len(rest)} {kind}s{unnamed}"
                + _remedy(named, is_cut=True),
                fields={"kind": kind, "parts": num_bare, "media": len(rest)},
            )
        shared.waiting[kind] = iter(rest[:num_bare])
        if surplus_matters:
            shared.surplus.extend((kind, one) for one in rest[num_bare:])
    return shared


def _finished(
    said: Said, contents: list[tuple[str | MediaRef, ...]], surplus: list[MediaRef], dialect: Dialect
) -> Example | Skip:
    first = next((number for number, turn in enumerate(said.turns) if turn.role in TAGGED), None) if surplus else None
    if first is not None:
        contents[first] = (*surplus, *contents[first])
    turns = tuple(
        [
            Turn(role=turn.role, parts=parts, loss=turn.loss, reasoning=turn.reasoning, tool_calls=turn.tool_calls,
                 name=turn.name, call_id=turn.call_id)
            for turn, parts in zip(said.turns, contents, strict=True)
        ]
    )  # fmt: skip
    if dialect.needs_target and (problem := _no_target(turns)):
        return Skip(reason="no_target", detail=problem)
    if surplus and first is None:
        return Skip(
            reason="bad_placeholders",
            detail=f"{len(surplus)} media but no user turn to put them in",
            fields={"media": len(surplus)},
        )
    return Example(turns=turns, tools=said.tools)


def _no_target(turns: tuple[Turn, ...]) -> str:
    """Why there is nothing to learn from; "" if there is."""
    if turns[0].role == "document":
        return "" if turns[0].says_something else "a document without text"
    for turn in turns:
        if (turn.loss or (turn.loss is None and turn.role == "assistant")) and turn.says_something:
            return ""
    if not any(turn.role == "assistant" for turn in turns):
        return "no assistant turn"
    return "no assistant turn that is trained on has text, reasoning or tool calls"


def _cut(text: str) -> list[str]:
    """Text and tags in turn: "<image>\\nWho?" -> ["", "<image>", "\\nWho?"]."""
    return _PLACEHOLDER.split(text) if "<" in text else [text]


def _filled(
    pieces: Sequence[str], waiting: Mapping[MediaKind, Iterator[MediaRef]], *, joins: bool
) -> tuple[str | MediaRef, ...]:
    """The same with media in the place of their tags: (image, "Who?"). `joins`: without the newline next to a tag, on
    either side, which rows have so that people see the tag on a line of its own."""
    literal, *rest = pieces  # so far, with placeholders that no medium is left for
    if not rest:  # as nearly all turns but the first
        return (literal,)
    parts: list[str | MediaRef] = []
    for tag, piece in zip(rest[::2], rest[1::2], strict=True):
        medium = next(waiting.get(_TAGS[tag.lower()], _NONE), None)
        if medium is None:
            literal += tag + piece
            continue
        parts += [literal.removesuffix("\n").removesuffix("\r") if joins and literal[-1:] == "\n" else literal, medium]
        literal = piece.removeprefix("\r\n" if piece[:1] == "\r" else "\n") if joins else piece
    parts.append(literal)
    return tuple(filter(None, parts)) or ("",)
