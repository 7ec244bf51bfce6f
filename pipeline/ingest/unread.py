"""What the first rows of a data set have and nothing reads, where that is surely not meant: media, columns that the
meta JSON names, and a loss or weight.

Columns that no format knows are no error, for most of them mean nothing. A picture under one of them is another matter:
its row is packed as text, with success.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..records import MediaKind, Skip
from .dialect import MEDIA_COLUMNS, Columns
from .formats import FORMATS
from .formats.messages import TRAINED
from .formats.parts import kind_of
from .formats.said import ALSO, Row, Said, column_of
from .media import AS_BASE64, AS_PLACE, is_base64, shown
from .tars import KIND_OF

_FIELDS: dict[str, str] = {kind: field for field, kind in MEDIA_COLUMNS.items()}
_WORDS = {"image": "pictures", "video": "videos", "audio": "sounds"}
_LONGEST = 4096  # characters of a path, or of the beginning of what may be base64
# Columns that may be missing without a row being skipped for it.
_OPTIONAL = ("system", "tools", "query", "history")


def unread(rows: Sequence[Row], said: Sequence[Said | Skip], format_: str, columns: Columns) -> Iterator[str]:
    """What to warn of, in words. `said`: what the format makes of each of the rows."""
    yield from _absent(rows, format_, columns)
    yield from _losses(rows, FORMATS[format_].uses(columns))
    found: Counter[tuple[str, str]] = Counter()
    read: dict[str, str] = {}  # column that is not read -> the one that is
    used = FORMATS[format_].uses(columns)
    media_columns = {other for field in MEDIA_COLUMNS for other in _names(getattr(columns, field))}
    for row, what in zip(rows, said, strict=True):
        if isinstance(what, Skip):
            continue  # it is in the ledger, and says why
        has = _kinds_of(what)
        here = {named.column for all_named in what.media.values() for named in all_named}
        for key, value in row.items():
            if key in here or (key in used and key not in media_columns):
                continue
            if (kind := _looks_like(value)) is None:
                continue
            if key in media_columns:  # the other of `image` and `images`, with something else in it
                others = [row[name] for name in _names(key) if name in here]
                if not others or any(_listed(value) == _listed(other) for other in others):
                    continue
                read[key] = next(name for name in _names(key) if name in here)
            elif kind in has or (not kind and has):
                continue  # where else the picture is, or was: its source, its URL
            found[key, kind or "image"] += 1
    for (key, kind), number in found.items():
        where = f"column {key!r} has {_WORDS[kind]} in {number} of the first {len(rows)} rows"
        if key in read:
            yield f"{where}, and is not read, for {read[key]!r} is; remove one of the two"
        else:
            named = f'"format": "{format_}", "columns": {{"{_FIELDS[kind]}": "{key}"}}'
            yield f"{where}, and is not read: they are packed without; if they should have them, give {named}"


def _absent(rows: Sequence[Row], format_: str, columns: Columns) -> Iterator[str]:
    """Columns that the meta JSON names, and no row has."""
    known = FORMATS[format_]
    for field in _OPTIONAL if rows else ():
        name = getattr(columns, field)
        if field not in known.fields or name == getattr(known.columns, field):
            continue
        if not any(column_of(row, name) in row for row in rows):
            keys = ", ".join(dict.fromkeys(key for row in rows for key in row))
            yield f"columns.{field} is {name!r}, which none of the first {len(rows)} rows has; they have {keys}"


def _losses(rows: Sequence[Row], used: set[str]) -> Iterator[str]:
    """Rows that say of themselves what turns may say: whether they are trained on."""
    for key in (key for key in TRAINED if key not in used):
        values = [row[key] for row in rows if row.get(key) not in (None, 1)]  # 1 is True, and what is done anyway
        if values:
            yield (
                f"column {key!r} is set in {len(values)} of the first {len(rows)} rows ({shown(values[0])}, for one), "
                "and is not read; it may be said of turns, and the share of a data set in the meta JSON"
            )


def _names(column: str) -> tuple[str, ...]:
    return (column, *ALSO.get(column, ()))


def _kinds_of(said: Said) -> set[MediaKind]:
    """The kinds of media that are read of a row."""
    parts = [part for turn in said.turns if isinstance(turn.content, list) for part in turn.content]
    return {kind for kind, named in said.media.items() if named} | {kind for kind in map(kind_of, parts) if kind}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _looks_like(value: Any) -> MediaKind | str | None:
    """The kind of medium that a value is or names; "": bytes, of whatever kind; None: it is none."""
    if isinstance(value, list):
        return next((kind for kind in map(_looks_like, value[:8]) if kind is not None), None)
    if isinstance(value, Mapping):
        if value.get("offset") is not None or value.get("cell") is not None:
            return ""  # copied out of a table
        return next(
            (kind for key in (*AS_PLACE, *AS_BASE64) if (kind := _looks_like(value.get(key))) is not None), None
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
