"""`cauldron`: {"images": […], "texts": [{"user": "…", "assistant": "…", "source": "…"}]}, pictures before the text."""

from collections.abc import Mapping

from ...records import Role, Skip
from ..dialect import Columns, Dialect
from ..media import is_unicode, json_name
from .messages import system_of
from .said import Format, Row, Said, Spoken, bad_row, column_of, keys_of, media_of

KNOWN = ("source",)  # where a pair is from


def read(row: Row, dialect: Dialect) -> Said | Skip:
    column = column_of(row, dialect.columns.messages)
    pairs = row.get(column)
    if not isinstance(pairs, list) or not pairs:
        return bad_row(f"column {column!r} is no list of questions and answers; the row has {keys_of(row)}")
    system = system_of(row, dialect)
    if isinstance(system, Skip):
        return system
    turns = list(system)
    roles: dict[str, Role] = {dialect.tags.user_tag: "user", dialect.tags.assistant_tag: "assistant"}
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Mapping):
            return bad_row(f"pair {number} is a JSON {json_name(pair)}; expected an object")
        unknown = [key for key, value in pair.items() if value is not None and key not in (*roles, *KNOWN)]
        for key, role in roles.items():
            text = pair.get(key)
            if not isinstance(text, str) or not is_unicode(text):
                return bad_row(f"pair {number}: {key!r} is a JSON {json_name(text)}; expected Unicode text")
            kept = tuple(str(each) for each in unknown if each not in dialect.ignore_keys)
            turns.append(Spoken(role=role, content=text, label=f"pair {number}", unknown=kept))
    return Said(turns=tuple(turns), media=media_of(row, dialect.columns), media_first=True)


def fits(row: Row) -> bool:
    pairs = row.get("texts")
    return (
        isinstance(pairs, list)
        and bool(pairs)
        and all(isinstance(pair, Mapping) and "user" in pair and "assistant" in pair for pair in pairs)
    )


FORMAT: Format = Format(
    read=read, fits=fits, columns=Columns(messages="texts"), fields=("messages", "images", "videos", "audios", "system")
)
