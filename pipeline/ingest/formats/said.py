"""What a row says, in our words, with its media still as the row names them: what a format makes of a row.

It is also what decides whether a row is held out (pipeline/ingest/holdout.py), so that a copy of a row in another
format goes where the row goes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from neatpack.format.layout import MediaKind

from ...records import Role, Skip
from ..dialect import MEDIA_COLUMNS, Columns, Dialect, Tags
from ..media import Steps, json_name
from .texts import is_list_text, parsed

Row = Mapping[str, Any]

# Other names of a column, where the row has nothing under the first. Only these: names that a user gives are taken at
# their word, unless they are one of those on the left. Media go both ways: a set of LLaVA's has `image`, and rows with
# two of them may have `images`.
ALSO = {
    "messages": ("conversation", "conversations"),
    "conversations": ("conversation", "messages"),
    "images": ("image",),
    "image": ("images",),
    "videos": ("video",),
    "video": ("videos",),
    "audios": ("audio",),
    "audio": ("audios",),
    "tools": ("functions",),
}
_OF_MEDIA = frozenset(("images", "image", "videos", "video", "audios", "audio"))


class Named(NamedTuple):
    """A medium as a row names it, and where in the row. A tuple, like all that is made of every row here: it takes a
    quarter of a frozen dataclass' time."""

    entry: Any
    column: str
    at: Steps


class Spoken(NamedTuple):
    """A turn. Content is a text, in which tags stand for media, or a list of parts."""

    role: Role
    content: str | list[Any]
    at: Steps = ()  # where in the row the content is
    label: str = "turn 0"  # what messages call it
    loss: bool | None = None
    reasoning: str = ""
    tool_calls: tuple[Any, ...] = ()
    name: str = ""
    call_id: str = ""
    unknown: tuple[str, ...] = ()  # its keys that nothing is known about

    @property
    def extras(self) -> dict[str, Any]:
        """What it says beside its content."""
        said = {name: getattr(self, name) for name in ("reasoning", "tool_calls", "name", "call_id")}
        return {name: value for name, value in said.items() if value}


class Said(NamedTuple):
    turns: tuple[Spoken, ...]
    media: Mapping[MediaKind, tuple[Named, ...]] = MappingProxyType({})
    tools: tuple[Any, ...] = ()
    media_first: bool = False  # where no tag of their kind says where media go, they go before the first user text
    image_is_video: bool = False  # an <image> is where a video goes, in a row with as many videos and no picture


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    read: Callable[[Row, Dialect], Said | Skip]
    fits: Callable[[Row], bool]  # whether a row looks like it; see `detect`
    columns: Columns = Columns()
    tags: Tags = Tags()
    fields: tuple[str, ...]  # those of Columns that it reads
    keys: tuple[str, ...] = ()  # and the keys of a row that it knows by itself

    def uses(self, columns: Columns) -> set[str]:
        """The keys of a row that mean something."""
        names = [getattr(columns, name) for name in self.fields]
        return {*names, *self.keys, *(other for name in names for other in ALSO.get(name, ()))}


def bad_row(detail: str) -> Skip:
    return Skip(reason="bad_row", detail=detail)


def column_of(row: Row, name: str) -> str:
    """The name under which the row has a column. What is empty is less than anything that another name has: tables
    fill columns of rows that lack them."""
    found = row.get(name)
    if not found or (name in _OF_MEDIA and is_empty(found)):
        for other in ALSO.get(name, ()):
            if row.get(other) is not None:
                return other
    return name


def is_empty(value: Any, depth: int = 4) -> bool:
    """Whether a column has nothing: null, "", blanks, and lists and objects of nothing but these. A row without a
    picture has it so in tables ({"bytes": null, "path": null}), and in mixtures of LLaVA's ("", [""]). `depth`: nobody
    writes deeper ones, and Python ends where a row does not."""
    if isinstance(value, str):
        return not value or value.isspace()
    if not isinstance(value, (list, dict)):
        return value is None
    for item in value.values() if isinstance(value, dict) else value:  # a generator would take twice as long
        if depth == 0 or not is_empty(item, depth - 1):
            return False
    return True


def media_of(row: Row, columns: Columns) -> dict[MediaKind, tuple[Named, ...]]:
    """By kind, of those that it has; a column is a list, one entry, empty or absent. A sound as (samples, rate) is one
    entry."""
    found: dict[MediaKind, tuple[Named, ...]] = {}
    for field, kind in MEDIA_COLUMNS.items():
        column = column_of(row, getattr(columns, field))
        if column in row:
            found[kind] = named(row, column)
    return found


def named(row: Row, column: str) -> tuple[Named, ...]:
    value = row.get(column)
    if is_list_text(value) and isinstance(listed := parsed(value), list):
        value = listed  # as tables have it that know no lists
    if is_empty(value):
        return ()
    if isinstance(value, list):
        return tuple([Named(entry, column, (column, at)) for at, entry in enumerate(value)])
    return (Named(value, column, (column,)),)


def text_of(row: Row, column: str) -> str | Skip:
    """The text of a column, "" where it is null or absent."""
    value = row.get(column) if column else None
    if value is None or isinstance(value, str):
        return value or ""
    return bad_row(f"column {column!r} is a JSON {json_name(value)}; expected a text")


def keys_of(row: Row) -> str:
    """For messages: what a row has, when what was looked for is not there."""
    return ", ".join(map(repr, list(row)[:12])) or "nothing"
