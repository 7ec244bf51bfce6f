"""What rows of a data set have and nothing reads: media, text, columns that the meta JSON names, and a loss or weight.

Columns that no format knows are no error, for most of them mean nothing. A picture under one of them is another matter:
its row would be packed as text, with success. So a column that holds little else than media ends the run.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from neatpack.format.layout import MediaKind

from ..records import Skip
from .dialect import MEDIA_COLUMNS, Columns
from .formats import FORMATS
from .formats.messages import ROW_REASONING, TRAINED
from .formats.parts import asked_of, kind_of, known_of
from .formats.said import ALSO, Row, Said, column_of, is_empty
from .media import AS_BASE64, AS_PLACE, WISHES, is_base64, shown
from .tars import KIND_OF

_FIELDS: dict[str, str] = {kind: field for field, kind in MEDIA_COLUMNS.items()}
_WORDS = {"image": "pictures", "video": "videos", "audio": "sounds"}
_LOOKS = 8  # values of a column that are looked at in each part, of a thousand rows of text
_EVERY = 32  # and of which rows all are: a column may have texts first and pictures later
_LONGEST = 4096  # characters of a path, or of the beginning of what may be base64
_NAMES_MEDIA = re.compile(r"(?:^|_)(image|img|picture|photo|video|audio|sound)s?(?:_|$)", re.IGNORECASE | re.ASCII)
_KIND_OF_NAME = {"img": "image", "picture": "image", "photo": "image", "sound": "audio"}
_OF_TEXT = frozenset(("prompt", "response", "text"))  # fields of formats that know which columns are text
_MOST_COLUMNS = 100  # of a row; each is looked for in all that is read of it
_NOTABLE = 0.01  # of the characters of rows: a column with less text is a title or a category, mostly
# What else a system prompt is called, and text that belongs to a question.
_OTHER_NAMES = {"system": ("system_prompt", "system_message"), "query": ("input", "context")}
_OTHER_WORDS = {"system": "system prompts", "query": "to follow the questions"}
_SAID_AS = {"start": "video_start", "end": "video_end", "start_time": "video_start", "end_time": "video_end"}
_OF_VIDEOS = ("fps", "frame_indices", "video_start", "video_end", *WISHES["video"], *_SAID_AS)
_OF_TABLES = ("sampling_rate", "array", "width", "height")  # keys of media that say what the bytes say themselves


def unread(
    rows: Sequence[Row],
    said: Sequence[Said | Skip],
    format_: str,
    columns: Columns,
    ignore_keys: Sequence[str] = (),
    id_column: str = "id",
) -> Iterator[str]:
    """What to warn of, in words. `said`: what the format makes of each of the rows."""
    uses = FORMATS[format_].uses(columns)
    yield from _losses(rows, uses)
    yield from _other_names(rows, said, format_, columns)
    yield from _unused_texts(rows, said, format_, columns, id_column)
    yield from _asked(rows, said, uses)
    yield from _keys_of_media(said, ignore_keys)
    for column, looks in unread_columns(rows, said, format_, columns).items():
        if not looks.are_most:
            yield f"{_where(column, looks, len(rows))}{_remedy(column, format_)}"


class Problem(NamedTuple):
    """What is wrong with a column. It ends the run if it has a code of errors.CODES."""

    text: str
    column: str
    code: str = ""


def unread_media(rows: Sequence[Row], said: Sequence[Said | Skip], format_: str, columns: Columns) -> Iterator[Problem]:
    """What ends the run: columns that hold media, and that nothing reads."""
    for column, looks in unread_columns(rows, said, format_, columns).items():
        if looks.are_most:
            text = f"{_where(column, looks, len(rows))}{_remedy(column, format_)}"
            yield Problem(text, column.key, "column-unread")


def _where(column: "UnreadColumn", looks: "Looks", num_first: int) -> str:
    where = f"column {column.key!r} has {_WORDS[column.kind]} in {looks.found} of the first {num_first} rows"
    return f"{where}, and is not read"


class UnreadColumn(NamedTuple):
    """A column with media that nothing reads."""

    key: str
    kind: str  # of its media
    instead: str = ""  # the column that is read in its place: the other of `image` and `images`


class Looks(NamedTuple):
    """What was seen of a column that nothing reads."""

    row: int  # the first that has media there, by its number
    found: int  # values that are media
    looked: int  # values that are something

    @property
    def are_most(self) -> bool:
        """Whether it is a column of media. In others, of URLs or names of files, some end like those of a picture."""
        return 2 * self.found >= self.looked


def unread_columns(
    rows: Sequence[Row], said: Sequence[Said | Skip], format_: str, columns: Columns
) -> dict[UnreadColumn, Looks]:
    """Columns of the first rows with media that nothing reads."""
    found: dict[UnreadColumn, list[int]] = {}
    reading = _Reading(format_, columns)
    for number, (row, what) in enumerate(zip(rows, said, strict=True)):
        if not isinstance(what, Skip):  # that is in the ledger, and says why
            for column in filter(None, [reading.unread(row, what, key) for key in row]):
                found.setdefault(column, []).append(number)
    return {
        column: Looks(numbers[0], len(numbers), sum(not is_empty(row.get(column.key)) for row in rows))
        for column, numbers in found.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFacts:
    """What the rows of a part, or of a whole data set, hold beside what is packed."""

    unread: Mapping[UnreadColumn, Looks] = dataclasses.field(default_factory=dict)
    absent: frozenset[str] = frozenset()  # columns that the meta JSON names and none of its rows has

    def __bool__(self) -> bool:
        return bool(self.unread or self.absent)

    def to_json(self) -> dict[str, Any]:
        unread = [[*column, *looks] for column, looks in self.unread.items()]
        return {"unread": unread, "absent": sorted(self.absent)}

    @classmethod
    def from_json(cls, found: Any) -> "RowFacts":
        unread = {UnreadColumn(*line[:3]): Looks(*line[3:]) for line in found["unread"]}
        return cls(unread=unread, absent=frozenset(found["absent"]))

    @classmethod
    def of_all(cls, parts: Iterable["RowFacts"]) -> "RowFacts":
        """Of the parts of a data set, in their order."""
        unread: dict[UnreadColumn, Looks] = {}
        absent: frozenset[str] | None = None
        for part in parts:
            absent = part.absent if absent is None else absent & part.absent
            for column, (row, found, looked) in part.unread.items():
                first, *counts = unread.get(column, (row, 0, 0))
                unread[column] = Looks(first, counts[0] + found, counts[1] + looked)
        return cls(unread=unread, absent=absent or frozenset())


class _Reading:
    """Which columns of its rows a data set reads."""

    def __init__(self, format_: str, columns: Columns) -> None:
        self.used = FORMATS[format_].uses(columns)
        self.media = {other for field in MEDIA_COLUMNS for other in _names(getattr(columns, field))}

    def unread(self, row: Row, said: Said, key: str) -> UnreadColumn | None:
        """The column of this key, if it has media in this row that are not read."""
        here = {named.column for all_named in said.media.values() for named in all_named}
        if key in here or (key in self.used and key not in self.media):
            return None
        if (kind := _kind_in(key, row[key])) is None:
            return None
        if key in self.media:  # the other of `image` and `images`, with something else in it
            others = [name for name in _names(key) if name in here]
            if not others or any(_listed(row[key]) == _listed(row[name]) for name in others):
                return None
            return UnreadColumn(key, kind or "image", others[0])
        has = kinds_of(said)
        if kind in has or (not kind and has):
            return None  # where else the picture is, or was: its source, its URL
        return UnreadColumn(key, kind or "image")


class LaterRows:
    """Looks for media that nothing reads in the rows of a part: not in every row, for that would take a twentieth of
    measuring it, but in the first ones that have something in a column, and in every 32nd. And for columns that the
    meta JSON names, until a row has them.

    Told by the row's keys whether there is anything to look at, it takes under a hundredth. A column that is null in
    the first rows, as tables fill it up, is looked at where it has something.
    """

    def __init__(self, format_: str, columns: Columns, ignore_columns: Sequence[str] = ()) -> None:
        self._found: dict[UnreadColumn, Looks] = {}
        self._absent = set(named_columns(format_, columns).values())
        self._reading = _Reading(format_, columns)
        self._reading.used |= set(ignore_columns)
        self._left: dict[tuple[str, ...], list[str]] = {}  # keys of a row -> those of them that are still looked at
        self._all: dict[tuple[str, ...], tuple[str, ...]] = {}  # those that were at first
        self._looks: Counter[str] = Counter()  # of the first rows with something in a column
        self._looked: Counter[str] = Counter()  # with those in every 32nd

    @property
    def facts(self) -> RowFacts:
        unread = {
            column: Looks(row, found, self._looked[column.key]) for column, (row, found, _) in self._found.items()
        }
        return RowFacts(unread=unread, absent=frozenset(self._absent))

    def look_at_names(self, row: Row) -> None:
        """Of every row, also of one that is skipped."""
        if self._absent:
            self._absent -= {name for name in self._absent if column_of(row, name) in row}

    def look(self, number: int, row: Row, said: Callable[[], Said | Skip]) -> None:
        """`said`: what the format makes of the row, for those few of which it is asked."""
        keys = tuple(row)
        left = self._left.get(keys)
        if left is None:
            left = self._left[keys] = [key for key in keys if self._may_be_unread(key, keys)]
            self._all[keys] = tuple(left)
        if left:
            self._look(number, row, said, left)
        if number % _EVERY == 0:
            for key in self._all[keys]:
                if key not in left:
                    self._look_at(number, row, said, key)

    def _may_be_unread(self, key: str, keys: Sequence[str]) -> bool:
        if key in self._reading.used and key not in self._reading.media:
            return False
        if key in self._reading.media:
            return any(name in keys for name in _names(key) if name != key)
        return True

    def _look(self, number: int, row: Row, said: Callable[[], Said | Skip], left: list[str]) -> None:
        for key in tuple(left):
            if row[key] in (None, "", []):
                continue
            self._looks[key] += 1
            if self._looks[key] > _LOOKS:
                left.remove(key)
            else:
                self._look_at(number, row, said, key)

    def _look_at(self, number: int, row: Row, said: Callable[[], Said | Skip], key: str) -> None:
        if is_empty(row[key]):
            return
        self._looked[key] += 1
        if _kind_in(key, row[key]) is not None and not isinstance(what := said(), Skip):
            column = self._reading.unread(row, what, key)
            if column is not None:
                first, found, _ = self._found.get(column, (number, 0, 0))
                self._found[column] = Looks(first, found + 1, 0)


def later_problems(
    later: RowFacts, first: Sequence[Row], said: Sequence[Said | Skip], format_: str, columns: Columns
) -> Iterator[Problem]:
    """What there is to say once all rows are read; `unread` has said what the first rows show."""
    told = {column.key for column in unread_columns(first, said, format_, columns)}
    for column, looks in later.unread.items():
        if looks.are_most or column.key not in told:
            where = f"column {column.key!r} has {_WORDS[column.kind]} (row {looks.row}, for one)"
            text = f"{where}, and is not read{_remedy(column, format_)}"
            yield Problem(text, column.key, "column-unread" if looks.are_most else "")
    for field, name in named_columns(format_, columns).items():
        if first and name in later.absent and not any(column_of(row, name) in row for row in first):
            keys = ", ".join(dict.fromkeys(key for row in first for key in row))
            problem = f"columns.{field} is {name!r}, which none of the rows that are read has; they have {keys}"
            yield Problem(f"{problem}. Correct or remove it", name, "column-missing")


def named_columns(format_: str, columns: Columns) -> dict[str, str]:
    """Return the columns that the meta JSON names otherwise than the format, by field."""
    known = FORMATS[format_]
    names = {field: getattr(columns, field) for field in known.fields}
    return {field: name for field, name in names.items() if name and name != getattr(known.columns, field)}


def _remedy(column: UnreadColumn, format_: str) -> str:
    ignored = f'"ignore_columns": ["{column.key}"]'
    if column.instead:
        return f", for {column.instead!r} is; remove one of the two, or give {ignored}"
    named = f'"format": "{format_}", "columns": {{"{_FIELDS[column.kind]}": "{column.key}"}}'
    return f": give {named}, or {ignored} to pack the rows without"


def _losses(rows: Sequence[Row], used: set[str]) -> Iterator[str]:
    """Rows that say of themselves what turns may say: whether they are trained on."""
    for key in (key for key in TRAINED if key not in used):
        values = [row[key] for row in rows if row.get(key) not in (None, 1)]  # 1 is True, and what is done anyway
        if values:
            yield (
                f"column {key!r} is set in {len(values)} of the first {len(rows)} rows ({shown(values[0])}, for one), "
                "and is not read; it may be said of turns, and the share of a data set in the meta JSON"
            )


def _other_names(rows: Sequence[Row], said: Sequence[Said | Skip], format_: str, columns: Columns) -> Iterator[str]:
    """Texts that belong to what is packed, under a name that nothing reads."""
    known, used = FORMATS[format_], FORMATS[format_].uses(columns)
    for field, names in _OTHER_NAMES.items():
        if field not in known.fields or getattr(columns, field) != getattr(known.columns, field):
            continue  # who names a column has looked at the others
        for key in (key for key in names if key not in used):
            number = sum(
                isinstance(row.get(key), str)
                and not is_empty(row[key])
                and not (field == "system" and _has_system(what))
                for row, what in zip(rows, said, strict=True)
            )
            if number:
                yield (
                    f"column {key!r} has texts in {number} of the first {len(rows)} rows, and is not read; if they are "
                    f'{_OTHER_WORDS[field]}, give "format": "{format_}", "columns": {{"{field}": "{key}"}}'
                )


def _unused_texts(
    rows: Sequence[Row], said: Sequence[Said | Skip], format_: str, columns: Columns, id_column: str
) -> Iterator[str]:
    """Columns with text that is in no turn, where the format knows which columns are text; of other formats, only
    reasoning that belongs to none of several turns."""
    known, num_used = FORMATS[format_], 0
    lists = known.uses(columns)  # columns that are read in pieces
    elsewhere = {name for field, names in _OTHER_NAMES.items() if field in known.fields for name in names}
    sizes: Counter[str] = Counter()
    for row, what in zip(rows, said, strict=True):
        if isinstance(what, Skip):
            continue
        texts = list(_texts_of(what))
        used = "\0".join(texts)
        num_used += sum(map(len, texts))
        for key, value in islice(row.items(), _MOST_COLUMNS):
            if key == id_column or (_OF_TEXT.isdisjoint(known.fields) and key not in ROW_REASONING):
                continue
            text = _text_in(value)
            if text and text not in used and key not in elsewhere and not (key in lists and isinstance(value, list)):
                sizes[key] += len(text)
    total = num_used + sizes.total()
    if shown := [f"{key!r} ({size / total:.1%})" for key, size in sizes.most_common() if size >= _NOTABLE * total]:
        yield (
            f"text that is not read, by column and share of the characters of the first {len(rows)} rows: "
            f'{", ".join(shown)}. Name it under "columns", or list it under "ignore_columns"'
        )


def _texts_of(said: Said) -> Iterator[str]:
    for turn in said.turns:
        items = turn.content if isinstance(turn.content, list) else [turn.content]
        yield from (item for item in items if isinstance(item, str))
        yield from (str(item.get("text")) for item in items if isinstance(item, Mapping))
        yield turn.reasoning


def _text_in(value: Any) -> str:
    """Text of several words; "" where there is none, or a medium."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = " ".join(value)
    if not isinstance(value, str) or len(value.split(None, 1)) < 2 or _looks_like(value) is not None:
        return ""
    return value


def _has_system(said: Said | Skip) -> bool:
    return isinstance(said, Skip) or any(turn.role == "system" for turn in said.turns)


def _asked(rows: Sequence[Row], said: Sequence[Said | Skip], used: set[str]) -> Iterator[str]:
    """Rows that say of themselves what a video may say: which part of it is taken, and how."""
    for key in (key for key in _OF_VIDEOS if key not in used):
        values = [
            row[key]
            for row, what in zip(rows, said, strict=True)
            if row.get(key) is not None and isinstance(what, Said) and what.media.get("video")
        ]
        if values:
            yield (
                f"column {key!r} is set in {len(values)} of the first {len(rows)} rows with videos "
                f"({shown(values[0])}, for one), and is not read; say it of the video: "
                f'{{"path": …, "{_SAID_AS.get(key, key)}": …}}'
            )


def _keys_of_media(said: Sequence[Said | Skip], ignore_keys: Sequence[str]) -> Iterator[str]:
    """Keys of objects in columns of media that nothing is known about: {"path": "a.mp4", "start": 3}."""
    found: dict[tuple[str, MediaKind], Counter[str]] = {}
    for what in said:
        for kind, media in what.media.items() if isinstance(what, Said) else ():
            for one in media:
                if isinstance(one.entry, Mapping):
                    own = found.setdefault((one.column, kind), Counter())
                    known = (*known_of(kind), *_OF_TABLES, *ignore_keys)
                    own.update(key for key, value in one.entry.items() if value is not None and key not in known)
    for (column, kind), keys in found.items():
        if keys:
            asked = ", ".join(asked_of(kind)) or "nothing"
            yield (
                f"objects of column {column!r} have {', '.join(map(repr, keys))}, which nothing reads; what may be "
                f'said of them is {asked}. What means nothing may be listed under "ignore_keys"'
            )


def _names(column: str) -> tuple[str, ...]:
    return (column, *ALSO.get(column, ()))


def _kind_in(key: str, value: Any) -> MediaKind | str | None:
    """As `_looks_like`, with the column's name: a URL need not end like a file."""
    kind = _looks_like(value)
    is_url = kind is None and isinstance(value, str) and "://" in value[:16] and len(value.split(None, 1)) == 1
    if is_url and (found := _NAMES_MEDIA.search(key)):
        return _KIND_OF_NAME.get(found[1].lower(), found[1].lower())
    return kind


def kinds_of(said: Said) -> set[MediaKind]:
    """The kinds of media that are read of a row."""
    parts = [part for turn in said.turns if isinstance(turn.content, list) for part in turn.content]
    return {kind for kind, named in said.media.items() if named} | {kind for kind in map(kind_of, parts) if kind}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _looks_like(value: Any, depth: int = 4) -> MediaKind | str | None:
    """The kind of medium that a value is or names; "": bytes, of whatever kind; None: it is none. `depth`: no medium is
    deeper in a row, and Python ends where a row does not."""
    if depth == 0:
        return None
    if isinstance(value, list):
        return next((kind for item in value[:8] if (kind := _looks_like(item, depth - 1)) is not None), None)
    if isinstance(value, Mapping):
        if value.get("offset") is not None or value.get("cell") is not None:
            return ""  # copied out of a table
        return next(
            (kind for key in (*AS_PLACE, *AS_BASE64) if (kind := _looks_like(value.get(key), depth - 1)) is not None),
            None,
        )
    if isinstance(value, bytes):
        return ""
    if not isinstance(value, str) or not value:
        return None
    if value[:5].lower() == "data:":
        return next((kind for kind in _WORDS if value[5:16].lower().startswith(f"{kind}/")), None)
    if len(value) > _LONGEST or "\n" in value:
        return "" if is_base64(value) else None
    name = _path_of(value).rpartition("/")[2]
    stem, dot, extension = name.rpartition(".")
    return KIND_OF.get(extension.lower()) if stem and dot else None


def _path_of(text: str) -> str:
    """A path, or that of a URI without its query."""
    if "://" not in text:
        return text
    try:
        return urlsplit(text).path
    except ValueError:
        return ""
