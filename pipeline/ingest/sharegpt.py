"""One row of a ShareGPT-style data set, in any dialect of columns and tags, as an Example."""

import json
import os
import re
from typing import Any

from pipeline.ingest.meta import MEDIA_COLUMNS, Dataset
from pipeline.records import Example, MediaKind, MediaRef, Role, Sampling, Skip, Turn

_PLACEHOLDER = re.compile(r"(<image>|<video>|<audio>)", re.IGNORECASE)


def parse_row(line: bytes, line_number: int) -> dict[str, Any] | Skip:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, not UTF-8, a number of thousands of digits
        return Skip(reason="bad_row", detail=f"line {line_number}: broken JSON: {error}")
    if not isinstance(row, dict):
        return Skip(
            reason="bad_row", detail=f"line {line_number}: a JSON {json_name(row)} where an object was expected"
        )
    return row


def convert(row: dict[str, Any], dataset: Dataset, *, lenient: bool = False) -> Example | Skip:
    """Roles by the data set's tags; user text cut at its placeholders, which take the media in order.

    Each piece of user text is stripped and empty ones vanish; assistant and system text stay as they are, and tags in
    them are text. Strict: per kind, tags and media must be equally many. Lenient: surplus tags stay as text, surplus
    media go before the first user turn.
    """
    turns = _turns(row, dataset)
    if isinstance(turns, Skip):
        return turns
    media: dict[MediaKind, list[MediaRef]] = {}
    for column, kind in MEDIA_COLUMNS.items():
        refs = _media(
            row.get(getattr(dataset.columns, column)), kind, getattr(dataset.columns, column), dataset.media_dir
        )
        if isinstance(refs, Skip):
            return refs
        media[kind] = refs  # type: ignore[index]
    user_text = " ".join(text for role, text in turns if role == "user")
    tags = [tag.lower().strip("<>") for tag in _PLACEHOLDER.findall(user_text)]
    surplus: list[MediaRef] = []
    for kind, refs in media.items():
        if tags.count(kind) != len(refs) and not lenient:
            return Skip(
                reason="bad_placeholders",
                detail=f"{tags.count(kind)} <{kind}> tags but {len(refs)} {kind}s; fix the row or set "
                "placeholders: lenient",
            )
        surplus += refs[tags.count(kind) :]
    if not any(role == "assistant" for role, _ in turns):
        return Skip(reason="no_target", detail="no assistant turn")

    waiting = {kind: iter(refs) for kind, refs in media.items()}
    converted: list[Turn] = []
    for role, text in turns:
        if role == "user":
            first = [] if any(turn.role == "user" for turn in converted) else surplus
            converted.append(Turn(role=role, parts=(*first, *_user_parts(text, waiting))))
        else:
            converted.append(Turn(role=role, parts=(text,)))
    if surplus and not any(turn.role == "user" for turn in converted):
        return Skip(reason="bad_placeholders", detail=f"{len(surplus)} media but no user turn to put them in")
    return Example(turns=tuple(converted))


def _turns(row: dict[str, Any], dataset: Dataset) -> list[tuple[Role, str]] | Skip:
    tags, column = dataset.tags, dataset.columns.messages
    messages = row.get(column)
    if not isinstance(messages, list):
        problem = f"is a JSON {json_name(messages)}" if column in row else "is absent"
        return Skip(reason="bad_row", detail=f"column {column!r} {problem}; expected a list of turns")
    if not messages:
        return Skip(reason="bad_row", detail="empty conversation")
    roles: dict[str, Role] = {tags.user_tag: "user", tags.assistant_tag: "assistant", tags.system_tag: "system"}
    turns = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            return Skip(reason="bad_row", detail=f"turn {number} is a JSON {json_name(message)}; expected an object")
        role, content = message.get(tags.role_tag), message.get(tags.content_tag)
        if not isinstance(role, str) or role not in roles:
            return Skip(reason="bad_row", detail=f"turn {number}: unknown role {role!r}; known: {', '.join(roles)}")
        if not isinstance(content, str):
            problem = f"is a JSON {json_name(content)}" if tags.content_tag in message else "is absent"
            return Skip(reason="bad_row", detail=f"turn {number}: {tags.content_tag!r} {problem}; expected a text")
        if not is_unicode(content):
            return Skip(reason="bad_row", detail=f"turn {number}: not Unicode text: half of a surrogate pair")
        turns.append((roles[role], content))
    return turns


def _media(value: Any, kind: str, column: str, media_dir: str) -> list[MediaRef] | Skip:
    """A media column: a list, one entry, null or absent.

    An entry is a path, or an object with `path`; a video may also be a list of pictures, or an object with `frames`.
    """
    entries = [] if value is None else value if isinstance(value, list) else [value]
    refs = []
    for entry in entries:
        ref = media_reference(entry, kind, column, media_dir)
        if isinstance(ref, Skip):
            return ref
        refs.append(ref)
    return refs


def media_reference(entry: Any, kind: str, column: str, media_dir: str) -> MediaRef | Skip:
    def bad(problem: str) -> Skip:
        return Skip(reason="bad_row", detail=f"column {column!r}: {problem}")

    given = entry if isinstance(entry, dict) else {"frames": entry} if isinstance(entry, list) else {"path": entry}
    paths = given.get("frames") if kind == "video" and "frames" in given else [given.get("path")]
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) and p and is_unicode(p) for p in paths):
        return bad(f"{str(entry)[:80]!r} is not a path")
    where = {key: given[key] for key in ("offset", "length") if key in given}
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in where.values()):
        return bad(f"offset and length must be whole numbers, got {where}")
    joined = [os.path.join(media_dir, path) for path in paths]
    if kind != "video":
        return MediaRef(kind=kind, path=joined[0], **where)  # type: ignore[arg-type]
    sampling = _sampling(given)
    if isinstance(sampling, str):
        return bad(sampling)
    frames = tuple(joined) if "frames" in given else ()
    return MediaRef(kind=kind, path=joined[0], frames=frames, sampling=sampling, **where)  # type: ignore[arg-type]


def _sampling(given: dict[str, Any]) -> Sampling | str:
    """What a row asks of a video, or what is wrong with it."""
    numbers = {name: given.get(name) for name in ("fps", "video_start", "video_end")}
    for name, number in numbers.items():
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9
        ):
            return f"{name} must be a number of at least 0, got {number!r}"
    if numbers["fps"] == 0:
        return "fps must be above 0"
    indices = given.get("frame_indices")
    if indices is not None:
        whole = isinstance(indices, list) and indices and all(type(i) is int and 0 <= i < 1 << 31 for i in indices)
        if not whole or sorted(indices) != indices:
            return "frame_indices must be whole numbers in ascending order"
        indices = tuple(indices)
    return Sampling(fps=numbers["fps"], frame_indices=indices, start=numbers["video_start"], end=numbers["video_end"])


def _user_parts(text: str, waiting: dict[MediaKind, Any]) -> tuple[str | MediaRef, ...]:
    """Pieces of text and media in order: "<image>\\nWho?" -> (image, "Who?")."""
    parts: list[str | MediaRef] = []
    literal = ""  # text so far, with placeholders that no medium is left for
    for piece in _PLACEHOLDER.split(text):
        medium = next(waiting[piece.lower().strip("<>")], None) if _PLACEHOLDER.fullmatch(piece) else None  # type: ignore[index]
        if medium is None:
            literal += piece
            continue
        parts += [literal.strip(), medium]
        literal = ""
    parts.append(literal.strip())
    kept = tuple(part for part in parts if part != "")
    return kept or ("",)


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_name(value: Any) -> str:
    names = {
        dict: "object",
        list: "list",
        str: "text",
        bool: "boolean",
        int: "number",
        float: "number",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)
