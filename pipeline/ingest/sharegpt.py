"""One row of a ShareGPT-style data set, in any dialect of columns and tags, as an Example."""

import json
import re
from typing import Any

from ..records import Example, MediaKind, MediaRef, Role, Skip, Turn
from .conversation import entries_of, from_conversation, is_bare
from .lines import PROBLEM
from .media import is_unicode, json_name, media_reference
from .meta import MEDIA_COLUMNS, Dataset

_PLACEHOLDER = re.compile(r"(<image>|<video>|<audio>)", re.IGNORECASE)


def parse_row(line: bytes, line_number: int | str) -> dict[str, Any] | Skip:
    """`line_number`: for whoever looks for the row; also "7 of b.jsonl"."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, not UTF-8, a number of thousands of digits
        return Skip(reason="bad_row", detail=f"line {line_number}: broken JSON: {error}")
    if not isinstance(row, dict):
        return Skip(
            reason="bad_row", detail=f"line {line_number}: a JSON {json_name(row)} where an object was expected"
        )
    if isinstance(row.get(PROBLEM), str):  # a row of our own rewriting that could not be made
        return Skip(reason="bad_row", detail=row[PROBLEM])
    return row


def convert(row: dict[str, Any], dataset: Dataset, *, lenient: bool = False) -> Example | Skip:
    """Roles by the data set's tags; user text cut at its placeholders, which take the media in order.

    Each piece of user text is stripped and empty ones vanish; assistant and system text stay as they are, and tags in
    them are text. Strict: per kind, tags and media must be equally many. Lenient: surplus tags stay as text, surplus
    media go before the first user turn.

    Where the content of a turn is a list of typed parts, the row is in the conversation format: text is taken as it is,
    and the parts, not tags, say where media go.
    """
    if dataset.is_converted:  # a row of our own import, see pipeline/ingest/imported.py
        return from_conversation(row, dataset.media_dir)
    spoken = turns_of(row, dataset)
    if isinstance(spoken, Skip):
        return spoken
    turns = [(role, content) for role, content in spoken if isinstance(content, str)]
    if len(turns) < len(spoken):
        return _in_parts(spoken, row, dataset, lenient=lenient)
    media: dict[MediaKind, list[MediaRef]] = {}
    for column, kind in MEDIA_COLUMNS.items():
        media[kind], name = [], getattr(dataset.columns, column)
        for entry in entries_of(row, name):
            ref = media_reference(entry, kind, name, dataset.media_dir)
            if isinstance(ref, Skip):
                return ref
            media[kind].append(ref)
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


def _in_parts(turns: list[tuple[Role, Any]], row: dict[str, Any], dataset: Dataset, *, lenient: bool) -> Example | Skip:
    """Turns with lists of parts. A part without its medium, {"type": "image"}, takes the next of the row's column."""
    messages = [{"role": role, "content": content} for role, content in turns]
    items = [item for _, content in turns if isinstance(content, list) for item in content]
    media: dict[str, list[Any]] = {}
    surplus: list[dict[str, Any]] = []
    for column, kind in MEDIA_COLUMNS.items():
        entries = entries_of(row, getattr(dataset.columns, column))
        bare = sum(is_bare(item, kind) for item in items)
        if bare != len(entries) and not lenient:
            return Skip(
                reason="bad_placeholders",
                detail=f"{bare} parts of type {kind!r} without their own {kind} but {len(entries)} {kind}s; fix the "
                "row or set placeholders: lenient",
            )
        media[kind] = entries[:bare]
        surplus += [{"type": kind, kind: entry} for entry in entries[bare:]]
    if surplus:
        first = next((message for message in messages if message["role"] == "user"), None)
        if first is None:
            return Skip(reason="bad_placeholders", detail=f"{len(surplus)} media but no user turn to put them in")
        content = first["content"]
        first["content"] = [*surplus, *(content if isinstance(content, list) else [content])]
    example = from_conversation({"conversation": messages, **media}, dataset.media_dir)
    if isinstance(example, Example) and any(ref.held is not None for ref in example.media):
        return Skip(reason="bad_row", detail="a sound as numbers in the row; expected the path of a file")
    return example


def turns_of(row: dict[str, Any], dataset: Dataset) -> list[tuple[Role, Any]] | Skip:
    """Roles in our words, and content: a text, or a list."""
    tags, column = dataset.tags, dataset.columns.messages
    if column == "messages" and column not in row and "conversation" in row:
        column = "conversation"  # as the online datasets call it
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
        if not isinstance(content, str | list):
            problem = f"is a JSON {json_name(content)}" if tags.content_tag in message else "is absent"
            return Skip(
                reason="bad_row",
                detail=f"turn {number}: {tags.content_tag!r} {problem}; expected a text or a list of parts",
            )
        if isinstance(content, str) and not is_unicode(content):
            return Skip(reason="bad_row", detail=f"turn {number}: not Unicode text: half of a surrogate pair")
        turns.append((roles[role], content))
    return turns


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
