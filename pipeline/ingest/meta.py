"""The meta JSON: which data sets there are and how to read each."""

import dataclasses
import difflib
import itertools
import json
import logging
import math
import os
import random
import typing
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neatpack.errors import add_fields
from neatpack.format.manifest import fingerprint
from neatpack.storage.location import Location, NoBucket, PathLike
from neatpack.storage.uris import SCHEME, is_http, redact_uri

from ..config import UserError, place_of
from .conversation import COLUMNS
from .data_warnings import warn_of_data
from .dialect import Columns as Columns, Placeholders, Tags as Tags
from .draw import SEED, is_drawn
from .files import data_files
from .formats import ALIASES, AUTO, FORMATS
from .media import is_unicode
from .media_paths import MediaFolders, is_inside
from .sources import SOURCES, Examples

MAX_ID = 1024  # characters of what a row calls itself; the rest is cut off, for the ledger keeps it of every row
MAX_RATIO = 1_000_000  # a plan has a line for each copy of a row: beyond, it is a slip of the pen

logger = logging.getLogger(__name__)

KEYS = ("file_name", "format", "columns", "tags", "id_column", "group_column", "ignore_keys", "ignore_columns",
        "placeholders", "media_dir", "media_prefixes", "sample_ratio", "weight", "source", "path_or_dataset",
        "split")  # fmt: skip
# What --meta is to be. Who gives the data themselves, or a YAML file, is told how to name them.
_EXAMPLE = '{"mine": {"file_name": "rows.jsonl"}}'
_WANTED = f"expected an object of data sets, as {_EXAMPLE}"
HUB = "hub"  # the source of rows as they are, of any data set that `datasets` loads


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    name: str
    files: tuple[str, ...] = ()  # in the order of their rows
    columns: Columns = Columns()
    tags: Tags = Tags()
    media_dir: str = ""  # the first of those where media are looked for
    given_dirs: tuple[str, ...] = ()  # what the meta JSON's media_dir may be: relative to its file, to where we are
    search: tuple[str, ...] = ()  # folders behind media_dir in which relative paths of media may start, too
    media_prefixes: tuple[str, ...] = ()  # folders and URIs that media may be below besides
    # media_dir, or else the folders of the meta JSON and of the data files; None: media may be anywhere
    bounds: tuple[str, ...] | None = None
    own_files: tuple[str, ...] = ()  # that media may be in all the same: what our import has put them into
    sample_ratio: float = 1.0
    weight: float | None = None  # its share of all tokens, in place of a sample_ratio
    format: str = "messages"  # how its rows are written: see pipeline/ingest/formats; or "auto", until `resolved`
    id_column: str = "id"  # what a row calls itself; a row need not have it
    ignore_keys: tuple[str, ...] = ()  # keys of turns and parts that mean nothing for training
    group_column: str = ""  # rows with one value of it avoid each other in packs: an image id, a source document
    ignore_columns: tuple[str, ...] = ()  # columns likewise: its rows are read as if they had none of them
    placeholders: Placeholders | None = None  # instead of the config's
    has_media: bool = False  # whether some of its first rows have media in a column or a part, once `resolved`
    # Instead of files, a named source (see pipeline/ingest/sources), or HUB:
    source: str = ""
    path_or_dataset: str = ""  # "": the source's own
    split: str = "train"

    @property
    def is_converted(self) -> bool:
        """Whether the rows that are read are conversations of our own making: those of a named source."""
        return self.source not in ("", HUB)

    @property
    def media_dirs(self) -> tuple[str, ...]:
        """Where relative paths of media may start, in this order."""
        return (self.media_dir, *self.search)

    @property
    def media_folders(self) -> MediaFolders:
        bounds = None if self.bounds is None else (*self.bounds, *self.media_prefixes, *self.own_files)
        return MediaFolders(search=self.media_dirs, bounds=bounds)

    @property
    def row_columns(self) -> Columns:
        """Under which keys the rows are that are read: of a named source, those of our own import."""
        return COLUMNS if self.is_converted else self.columns

    def id_of(self, row: Mapping[str, Any]) -> str:
        """What a row calls itself, cut; "" where it does not, or by something that is neither a text nor a number."""
        found = row.get(self.id_column)
        if found is None:
            return ""
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            return ""
        text = str(found)
        if len(text) > MAX_ID:
            text = f"{text[: MAX_ID - 1]}…"
        return text if is_unicode(text) else ""

    def examples(self) -> Examples:
        """Of a named source."""
        where = {"path_or_dataset": self.path_or_dataset} if self.path_or_dataset else {}
        return SOURCES[self.source](**where, split=self.split)

    def described(self) -> dict[str, Any]:
        """What shapes the rows, for fingerprints: not where they lie, which may change (the file has its digest)."""
        left_out = {
            "files", "media_dir", "given_dirs", "search", "bounds", "own_files", "path_or_dataset", "has_media"
        } | (set() if self.source else {"source", "split"})  # fmt: skip
        # As JSON has it, and without where folders of this machine are.
        prefixes = fingerprint(*self.media_prefixes) if self.media_prefixes else ""
        fields = dataclasses.asdict(self) | {"media_prefixes": prefixes}
        fields |= {name: list(getattr(self, name)) for name in ("ignore_keys", "ignore_columns")}
        return {key: value for key, value in fields.items() if key not in left_out}


def read_meta(
    path: PathLike, select: tuple[str, ...] = (), *, allow_unknown: bool = False, media_prefixes: tuple[str, ...] = ()
) -> list[Dataset]:
    """The data sets of a meta JSON, in its order; `select` keeps only those named, in their order.

    `media_prefixes`: folders and URIs that media of every data set may be below, as --media-prefix gives them.

    An unknown key is an error; with `allow_unknown`, since other tools have keys of their own, a warning.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object whose keys are all different; Python's own reader keeps the last of two and says nothing."""
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                raise UserError(
                    f"--meta {path}: {key!r} is there twice; rename or remove one",
                    code="meta-duplicate",
                    file=str(path),
                    key=key,
                )
        return dict(pairs)

    path = Location.parse(path)
    try:
        meta = json.loads(path.read_text(encoding="utf-8").removeprefix("\ufeff"), object_pairs_hook=unique)
    except FileNotFoundError as error:
        told = error.strerror if isinstance(error, NoBucket) else "no such file"
        raise UserError(f"--meta {path}: {told}", code="meta-unreadable", file=str(path)) from None
    except OSError as error:
        raise UserError(
            f"--meta {path}: cannot be read: {error.strerror}; {_WANTED}", code="meta-unreadable", file=str(path)
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"--meta {path}: not JSON: {error}; {_WANTED}", code="meta-unreadable", file=str(path)
        ) from None
    except RecursionError:
        raise UserError(f"--meta {path}: nested too deep; {_WANTED}", code="meta-unreadable", file=str(path)) from None
    if not isinstance(meta, dict) or not meta:
        raise UserError(f"--meta {path}: {_WANTED}", code="meta-unreadable", file=str(path))
    for name in select:
        if name not in meta:
            raise UserError(
                f"--datasets {name}: not in {path}, which has {', '.join(meta)}",
                code="dataset-unknown",
                dataset=name,
                known=list(meta),
            )
    names = dict.fromkeys(select or meta)
    also = tuple(_prefix("--media-prefix", prefix) for prefix in media_prefixes)
    return _weighted(path, [_dataset(path, name, meta[name], allow_unknown, also) for name in names])


def _weighted(meta_path: Location, datasets: list[Dataset]) -> list[Dataset]:
    """Weights as shares, whatever they add up to: 3 and 1 -> 0.75 and 0.25. All data sets have one, or none has."""
    given = {dataset.name: dataset.weight for dataset in datasets if dataset.weight is not None}
    if not given:
        return datasets
    if lacking := [dataset.name for dataset in datasets if dataset.name not in given]:
        raise UserError(
            f"{meta_path}: there is a weight for {', '.join(given)} and none for {', '.join(lacking)}; it is a share "
            "of all tokens: give every data set one, or none",
            code="meta-invalid",
            key="weight",
            missing=lacking,
        )
    total = math.fsum(given.values())
    return [dataclasses.replace(dataset, weight=given[dataset.name] / total) for dataset in datasets]


def _dataset(
    meta_path: Location, name: str, entry: Any, allow_unknown: bool, media_prefixes: tuple[str, ...]
) -> Dataset:
    with add_fields(dataset=name):
        return _parsed(meta_path, name, entry, allow_unknown, media_prefixes)


def _parsed(
    meta_path: Location, name: str, entry: Any, allow_unknown: bool, media_prefixes: tuple[str, ...]
) -> Dataset:
    where = f"{meta_path}: data set {name!r}"
    if not is_unicode(name):
        raise UserError(
            f"{where}: its name is not Unicode text: half of a surrogate pair; rename it", code="meta-invalid", key=name
        )
    if not isinstance(entry, dict):
        raise UserError(
            f"{where}: expected an object, got {type(entry).__name__}; write it as {_EXAMPLE}",
            code="meta-invalid",
            got=entry,
        )
    if "allow_outside" in entry:
        raise UserError(
            f"{where}: allow_outside is not supported. Name the folders that media may be in: "
            '"media_prefixes": ["/data/images"]',
            code="meta-unknown-key",
            key="allow_outside",
        )
    entry = _known(where, entry, allow_unknown)
    prefixes = (*_media_prefixes(meta_path, where, entry), *media_prefixes)
    rows_of = _source(meta_path, where, entry) if "source" in entry else _files(meta_path, where, entry, prefixes)
    ratio = entry.get("sample_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not math.isfinite(ratio) or ratio < 0:
        raise UserError(
            f"{where}: sample_ratio must be a number of at least 0, got {ratio!r}",
            code="meta-invalid",
            key="sample_ratio",
            got=ratio,
        )
    if ratio > MAX_RATIO:
        raise UserError(
            f"{where}: sample_ratio is {ratio!r}; it is how often each row is taken: at most {MAX_RATIO:,}",
            code="meta-invalid",
            key="sample_ratio",
            got=ratio,
            limit=MAX_RATIO,
        )
    weight = entry.get("weight")
    if weight is not None:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
            raise UserError(
                f"{where}: weight must be a number above 0, its share of all tokens, got {weight!r}",
                code="meta-invalid",
                key="weight",
                got=weight,
            )
        if "sample_ratio" in entry:
            raise UserError(
                f"{where}: both weight and sample_ratio; a weight says how often rows are taken: remove one",
                code="meta-invalid",
                key="weight",
                other="sample_ratio",
            )
    return Dataset(
        name=name,
        **_media_dirs(meta_path, where, entry, rows_of, prefixes),
        media_prefixes=prefixes,
        sample_ratio=float(ratio),
        weight=None if weight is None else float(weight),
        id_column=_column(where, "id_column", entry.get("id_column")) or "id",
        group_column=_column(where, "group_column", entry.get("group_column")),
        ignore_keys=_names(where, "ignore_keys", entry.get("ignore_keys"), "keys of turns or parts"),
        ignore_columns=_names(where, "ignore_columns", entry.get("ignore_columns"), "columns"),
        placeholders=_placeholders(where, entry.get("placeholders")),
        **_rows(where, entry),
        **rows_of,
    )


def _rows(where: str, entry: dict[str, Any]) -> dict[str, Any]:
    """How rows are written: format, columns and tags; what is given goes before the format's own."""
    given = entry.get("format")
    if given is not None and not isinstance(given, str):
        raise UserError(
            f"{where}: format must be a name, got {given!r}; known: {_format_names()}",
            code="meta-invalid",
            key="format",
            got=given,
        )
    named = entry.get("columns") is not None or entry.get("tags") is not None or entry.get("source", HUB) != HUB
    name = ALIASES.get(given or AUTO, given or AUTO)
    if name == AUTO and named:
        name = "messages"
    if name != AUTO and name not in FORMATS:
        raise UserError(
            f"{where}: unknown format {given!r}; known: {_format_names()}",
            code="format-unknown",
            key="format",
            got=given,
        )
    preset = FORMATS["messages" if name == AUTO else name]
    columns = parsed_names(Columns, where, "columns", entry.get("columns"), preset.columns)
    for name_of_column in entry.get("columns") or {}:
        if name_of_column not in preset.fields:
            others = " or ".join(f'"format": "{other}"' for other in FORMATS if name_of_column in FORMATS[other].fields)
            raise UserError(
                f"{where}: columns.{name_of_column} means nothing to the format {name!r}, which has "
                f"{', '.join(preset.fields)}; give {others}, or remove it",
                code="format-unknown",
                key=f"columns.{name_of_column}",
                format=name,
            )
    tags = parsed_names(Tags, where, "tags", entry.get("tags"), preset.tags)
    for one, other in itertools.combinations(("user_tag", "assistant_tag", "system_tag"), 2):
        if getattr(tags, one) == getattr(tags, other):
            raise UserError(
                f"{where}: tags.{one} and tags.{other} are both {getattr(tags, one)!r}; give each role its own",
                code="meta-invalid",
                key=f"tags.{one}",
                other=f"tags.{other}",
            )
    return {"format": name, "columns": columns, "tags": tags}


def _format_names() -> str:
    return ", ".join((AUTO, *FORMATS, *ALIASES))


def _column(where: str, key: str, given: Any) -> str:
    if given is not None and (not isinstance(given, str) or not given):
        raise UserError(
            f"{where}: {key} must be the name of a column, got {given!r}", code="meta-invalid", key=key, got=given
        )
    return given or ""


def _names(where: str, key: str, given: Any, of: str) -> tuple[str, ...]:
    if given is not None and (not isinstance(given, list) or not all(isinstance(name, str) and name for name in given)):
        raise UserError(
            f"{where}: {key} must be a list of {of}, got {given!r}", code="meta-invalid", key=key, got=given
        )
    return tuple(given or ())


def _placeholders(where: str, given: Any) -> Placeholders | None:
    if given is not None and given not in typing.get_args(Placeholders):
        known = ", ".join(typing.get_args(Placeholders))
        raise UserError(
            f"{where}: placeholders: unknown value (got {given!r}, expected one of {known})",
            code="meta-invalid",
            key="placeholders",
            got=given,
        )
    found: Placeholders | None = given
    return found


def _known(where: str, entry: dict[str, Any], allow_unknown: bool) -> dict[str, Any]:
    """An entry without unknown keys, of its columns and tags too."""
    inside = {"columns": _fields(Columns), "tags": _fields(Tags)}
    unknown: list[tuple[str, str, tuple[str, ...]]] = [(key, "", KEYS) for key in entry if key not in KEYS]
    for name, known in inside.items():
        if isinstance(entry.get(name), dict):
            unknown += [(key, f" in {name}", known) for key in entry[name] if key not in known]
    for key, inner, known in unknown:
        problem = f"{where}: unknown key {key!r}{inner}; known: {', '.join(known)}"
        if not allow_unknown:
            close = difflib.get_close_matches(key, known, 1)
            meant = f"Did you mean {close[0]!r}? " if close else ""
            raise UserError(
                f"{problem}. {meant}Correct or remove it, or give --allow-unknown-keys",
                code="meta-unknown-key",
                key=key,
                known=list(known),
            )
        warn_of_data(logger, f"{problem}. It is not used")
    return {
        key: {name: value for name, value in given.items() if name in inside[key]}
        if key in inside and isinstance(given, dict)
        else given
        for key, given in entry.items()
        if key in KEYS
    }


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def _media_prefixes(meta_path: Location, where: str, entry: dict[str, Any]) -> tuple[str, ...]:
    given = entry.get("media_prefixes", [])
    if not isinstance(given, list) or not all(isinstance(each, str) and each and "\0" not in each for each in given):
        raise UserError(
            f"{where}: media_prefixes must be a list of folders and URIs of stores, got {given!r}",
            code="meta-invalid",
            key="media_prefixes",
            got=given,
        )
    return tuple(_prefix(f"{where}: media_prefixes", prefix, meta_path.parent) for prefix in given)


def _prefix(name: str, given: str, base: Location | None = None) -> str:
    """A folder, or the URI of one. A relative one starts at `base`, or else at the working directory."""
    if is_http(given):
        raise UserError(
            f"{name}: {redact_uri(given)} is no folder or store. Allow downloads with --allow-http",
            code="uri-invalid",
            name=name,
            got=redact_uri(given),
        )
    if SCHEME.match(given) or base is None or given[0] in "/~":
        return place_of(name, given).uri
    return (base / given).uri


def _media_dirs(
    meta_path: Location, where: str, entry: dict[str, Any], data: dict[str, Any], prefixes: tuple[str, ...]
) -> dict[str, Any]:
    """media_dir, where relative paths may start, and the bounds of all media.

    A relative media_dir is taken from the meta file, and from the working directory if it is not there. A path of a
    medium may start in media_dir and in the meta file's folder; in the working directory only if that is inside one of
    them, or of what else is allowed: who runs a command in a home directory does not give its files away.
    """
    given = entry.get("media_dir")
    if given is not None and (not isinstance(given, str) or "\0" in given):
        raise UserError(
            f"{where}: media_dir must be a directory, got {given!r}", code="meta-invalid", key="media_dir", got=given
        )
    if given and given[:7].lower() == "file://":
        given = str(place_of(f"{where}: media_dir", given))  # a path like any other
    folder = meta_path.parent.absolute()
    home = (folder.uri, *_data_folders(data))
    if given and SCHEME.match(given):
        if not is_http(given):
            place_of(f"{where}: media_dir", given)
        return {"media_dir": str(given), "given_dirs": (str(given),), "bounds": (str(given),)}
    if not folder.is_local and not os.path.isabs(given or ""):
        # Nobody can ask whether a folder is there: it is what names begin with.
        media_dir = (folder / given).uri if given else folder.uri
        own: tuple[str, ...] = (media_dir,) if given else ()
        return {"media_dir": media_dir, "given_dirs": own, "bounds": own or home}
    meta_folders = [folder.path] if folder.is_local else []
    starts = list(dict.fromkeys(folder.resolve() for folder in (*meta_folders, Path.cwd())))
    places = dict.fromkeys(start / given for start in (*meta_folders, Path.cwd())) if given else {}
    folders = [folder for folder in places if folder.is_dir()]
    own = tuple(dict.fromkeys(str(folder.resolve()) for folder in folders))
    if places and not own:
        raise UserError(
            f"{where}: media_dir {next(iter(places)).resolve()} is no directory; it is taken relative to the meta "
            "file, or to the working directory: correct it, or leave it out if the rows have whole paths",
            code="meta-invalid",
            key="media_dir",
            got=str(next(iter(places)).resolve()),
        )
    bounds = tuple(dict.fromkeys((*own, *map(str, folders)))) or home
    allowed = (*bounds, *prefixes, *map(str, meta_folders))
    starts = [start for start in starts if is_inside(f"{start}/.", allowed)]
    first, *others = dict.fromkeys((*own, *map(str, starts)))
    return {"media_dir": first, "given_dirs": own, "search": tuple(others), "bounds": bounds}


def _data_folders(data: dict[str, Any]) -> tuple[str, ...]:
    """The folders of data files, and a local one of a source; none that is below another."""
    folders = sorted({(Location.parse(file).parent).uri for file in data.get("files", ())})
    source = data.get("path_or_dataset", "")
    if os.path.isabs(source):
        folders.append(source if os.path.isdir(source) else os.path.dirname(source))
    kept: list[str] = []
    for folder in folders:
        if not any(folder.startswith(f"{each.rstrip('/')}/") for each in kept):
            kept.append(folder)
    return tuple(kept)


def _files(meta_path: Location, where: str, entry: dict[str, Any], media_prefixes: tuple[str, ...]) -> dict[str, Any]:
    known = ", ".join((*SOURCES, HUB))
    if "path_or_dataset" in entry:
        raise UserError(
            f"{where}: path_or_dataset belongs to a source, and none is given; known: {known}",
            code="meta-invalid",
            key="path_or_dataset",
        )
    if "file_name" not in entry:
        raise UserError(
            f"{where}: neither file_name nor source; give one of the two. Sources: {known}",
            code="meta-invalid",
            key="file_name",
        )
    split = _text(where, entry, "split")
    return {"files": data_files(meta_path, where, entry["file_name"], split, media_prefixes)}


def _source(meta_path: Location, where: str, entry: dict[str, Any]) -> dict[str, Any]:
    source = entry["source"]
    if not isinstance(source, str) or source not in (*SOURCES, HUB):
        raise UserError(
            f"{where}: unknown source {source!r}; known: {', '.join((*SOURCES, HUB))}",
            code="meta-invalid",
            key="source",
            got=source,
        )
    own = () if source == HUB else ("columns", "tags", "format", "id_column", "group_column", "ignore_keys",
                                    "ignore_columns", "placeholders")  # fmt: skip
    for key in ("file_name", *own):
        if key in entry:
            raise UserError(
                f"{where}: both source and {key}; a source knows its rows by itself: remove one of the two",
                code="meta-invalid",
                key=key,
                other="source",
            )
    given = {key: text for key in ("path_or_dataset", "split") if (text := _text(where, entry, key)) is not None}
    if source == HUB and "path_or_dataset" not in given:
        raise UserError(
            f"{where}: source {HUB!r} without path_or_dataset; give the data set's id (owner/name)",
            code="meta-invalid",
            key="path_or_dataset",
        )
    local = meta_path.parent / given.get("path_or_dataset", "")
    if "path_or_dataset" in given and local.is_local and local.exists():
        given["path_or_dataset"] = str(local.resolve())
    return {"source": source, **given}


def _text(where: str, entry: dict[str, Any], key: str) -> str | None:
    if key not in entry:
        return None
    if not isinstance(entry[key], str) or not entry[key]:
        raise UserError(
            f"{where}: {key} must be a text, got {entry[key]!r}; leave it out for the default",
            code="meta-invalid",
            key=key,
            got=entry[key],
        )
    return str(entry[key])


def parsed_names(kind: Any, where: str, key: str, entry: Any, default: Any = None) -> Any:
    """`columns` or `tags`: an object of names, which go before those of `default`."""
    if entry is None:
        return default or kind()
    if not isinstance(entry, dict):
        raise UserError(
            f"{where}: {key} must be an object, got {type(entry).__name__}", code="meta-invalid", key=key, got=entry
        )
    known = _fields(kind)
    for name, value in entry.items():
        if name not in known:
            raise UserError(
                f"{where}: unknown key {name!r} in {key}; known: {', '.join(known)}",
                code="meta-unknown-key",
                key=f"{key}.{name}",
                known=list(known),
            )
        if not isinstance(value, str) or not value:
            raise UserError(
                f"{where}: {key}.{name} must be a name, got {value!r}",
                code="meta-invalid",
                key=f"{key}.{name}",
                got=value,
            )
    return dataclasses.replace(default or kind(), **entry)


def rows_in_order(num_rows: int, ratio: float) -> list[int]:
    """The numbers of the rows that are taken, in the order in which they are: every row as often as the ratio is whole,
    then those that are drawn, in the order of the draw: Random(42).sample over the row numbers, as in the online API.

    0.5 of 4 rows -> [0, 3]; 2.5 -> [0, 1, 2, 3, 0, 1, 2, 3, 0, 3]. Any ratio above 0 takes at least one row.
    """
    drawn = random.Random(SEED).sample(range(num_rows), _num_drawn(num_rows, ratio))
    return list(range(num_rows)) * int(ratio) + drawn


def copies_of_rows(num_rows: int, ratio: float) -> NDArray[np.int32]:
    """How often each row is taken, without their order: 2.5 of 4 rows -> [3, 2, 2, 3]."""
    return is_drawn(num_rows, _num_drawn(num_rows, ratio)).astype(np.int32) + np.int32(ratio)


def _num_drawn(num_rows: int, ratio: float) -> int:
    """How many rows come once more than the others. 2.5 of 4 rows -> 2; 2.0 -> 0."""
    whole = int(ratio)
    number = math.floor(num_rows * ratio) - num_rows * whole  # not of the difference: 10 * (2.3 - 2) is 2.999…
    return max(1, number) if whole == 0 and ratio > 0 and num_rows else number
