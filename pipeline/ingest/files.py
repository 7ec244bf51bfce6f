"""`file_name` of a meta JSON -> data files: a path, a list, a glob, a folder, or a folder that save_to_disk wrote."""

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from neatpack.storage.files import inside, read_json
from neatpack.storage.location import Location
from neatpack.storage.uris import SCHEME

from ..config import UserError, place_of
from .data_warnings import warn_of_data
from .kinds import KNOWN, is_packed_otherwise, kind_of
from .media_paths import is_inside

logger = logging.getLogger(__name__)

# JSON that `datasets` writes beside data.
_ABOUT_DATA = ("state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
# What folders are called that we rewrite data into and keep tokens in: by digests.
_OF_WORK = ("imported", "measured")
_LEFT_OUT = "%s: an output of neatpack or its work folder, and no data: it is left out"
_DIGEST = re.compile("[0-9a-f]{20}(?:[0-9a-f]{44})?")
# A split that nobody trains on, as a word of a path: data/test-00000-of-00001.parquet, val/a.jsonl; not latest.jsonl.
_NOT_TRAINED_ON = re.compile(
    r"(?<![A-Za-z])(?:test|testing|eval|evaluation|validation|valid|val|dev)(?![A-Za-z])", re.I
)


def data_files(
    meta_path: Location, where: str, file_name: Any, split: str | None, media_prefixes: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Absolute paths, or URIs. Lists keep their order, folders and globs are sorted. `split`: of folders that hold
    several."""
    names = file_name if isinstance(file_name, list) else [file_name]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(
            f"{where}: file_name must be the path of a data file, a glob, a folder or a list of these, got "
            f"{file_name!r}",
            code="meta-invalid",
            key="file_name",
            got=file_name,
        )
    files: list[str] = []
    for name in names:
        found = _expanded(meta_path, where, name, split)
        _refuse_outside(where, _start(_place(meta_path, where, name)), found, media_prefixes)
        files += map(_real, found)
    if split is not None and not any(_is_saved(_place(meta_path, where, name)) for name in names):
        raise UserError(
            f"{where}: split belongs to a source or a folder that save_to_disk wrote; remove it",
            code="meta-invalid",
            key="split",
        )
    for file, count in Counter(files).items():
        if count > 1:
            raise UserError(
                f"{where}: file_name gives {file} {count} times, so that its rows would come as often; name it once "
                "(and set sample_ratio for copies)",
                code="meta-duplicate",
                key="file_name",
                file=str(file),
                count=count,
            )
    return tuple(files)


def _start(path: Location) -> Location:
    """Of a pattern, the folder in which all that is like it lies; else the path itself."""
    if not path.is_local or path.exists():
        return path
    return Location.parse(Path(*takewhile(lambda part: not glob.has_magic(part), path.path.parts)))


def _refuse_outside(where: str, start: Location, files: Sequence[Location], allowed: tuple[str, ...]) -> None:
    """Data come from strangers, and a link in a folder of theirs, or a name in its state.json, may lead anywhere."""
    for file in files:
        is_named = file == start  # by the user, who may link as he likes
        if file.is_local and not is_named and not is_inside(str(file), (str(start), *allowed)):
            raise UserError(
                f"{where}: {file} leads out of {start}, to {os.path.realpath(file)}. Name that file in file_name, or "
                "allow its folder with media_prefixes",
                code="source-outside",
                file=str(file),
                folder=str(start),
            )


def _real(file: Location) -> str:
    return file.resolve().uri


def _place(meta_path: Location, where: str, name: str) -> Location:
    """Where a name leads: a URI by itself, all else from the folder of the meta JSON."""
    return place_of(f"{where}: file_name", name) if SCHEME.match(name) else meta_path.parent / name


def _expanded(meta_path: Location, where: str, name: str, split: str | None) -> Sequence[Location]:
    path = _place(meta_path, where, name)
    if path.is_file():
        return [path]
    if _is_saved(path):
        return _saved_files(path, split, where)
    if path.is_dir():
        files = _without_meta(_walked(path, where), meta_path)
        if not files:
            raise UserError(
                f"{where}: no data file in the folder {path}; known: {KNOWN}", code="data-missing", folder=str(path)
            )
        _warn_of_splits(where, files)
        return files
    if glob.has_magic(name):
        files = _without_meta(_like(path, where), meta_path)
        if not files:
            raise UserError(
                f"{where}: no file is like {path}; {_hint(path, 'the pattern')}", code="data-missing", pattern=str(path)
            )
        _warn_of_splits(where, files)
        return files
    raise UserError(
        f"{where}: file_name {path} does not exist; {_hint(path, 'it')}", code="data-missing", file=str(path)
    )


def _without_meta(files: Sequence[Location], meta_path: Location) -> list[Location]:
    """It is no data, though "*.json" is like its name."""
    return [file for file in files if file.resolve() != meta_path.resolve()]


def _warn_of_splits(where: str, files: Sequence[Location]) -> None:
    """Of files that came by a folder or a pattern, if some of them are called by a split that is not trained on."""
    names = [file.uri for file in files]
    start = os.path.commonprefix(names).rpartition("/")[0]  # the folder that all are in, whose name says nothing
    held = [name for name in names if _NOT_TRAINED_ON.search(name, len(start))]
    if 0 < len(held) < len(names):
        warn_of_data(
            logger,
            f"{where}: {len(held)} of {len(names)} files are called by a split that is mostly not trained on "
            f"({held[0]}, for one), and are packed with the others; if they should not be, name the files: "
            '"file_name": "train*.jsonl", or a list',
        )


def _hint(path: Location, it: str) -> str:
    """Why nothing is there."""
    if not path.is_local:
        return "look at what the bucket has under that name" if path.has_bucket else path.no_bucket
    return f"{it} is taken relative to the meta file"


def _like(path: Location, where: str) -> Sequence[Location]:
    """The files whose names are like a pattern: * and ? stand for what has no slash, ** for folders."""
    if not path.is_local:
        return _like_in_store(path)
    known: dict[Location, bool] = {}  # folders above what is found, and whether they are ours

    def is_ours(folder: Location) -> bool:
        if folder not in known:
            above = folder != folder.parent and is_ours(folder.parent)
            known[folder] = above or _is_ours(folder)
        return known[folder]

    names = sorted(map(Location.parse, map(Path, glob.glob(str(path), recursive=True))))
    for name in names:
        _refuse_dangling(name, where)
    found = [name for name in names if name.is_file()]
    # Only below where the pattern begins: an output's folder may be named.
    start = _start(path)
    known |= dict.fromkeys(map(Location.parse, (start.path, *start.path.parents)), False)
    return [file for file in found if not is_ours(file.parent)]


def _refuse_dangling(path: Location, where: str) -> None:
    """A link that leads nowhere: the other files would be packed, and nobody would miss what it stood for."""
    if path.is_symlink() and not path.exists():
        raise UserError(
            f"{where}: {path} is a link to {os.readlink(path)}, which is not there; mend or remove it",
            code="data-missing",
            file=str(path),
            target=os.readlink(path),
        )


def _walked(folder: Location, where: str, above: tuple[Location, ...] = ()) -> list[Location]:
    """All data files in a folder and its subfolders, by name; hidden ones and what is no data file stay out, and so
    does a link to a folder that it lies in (`above`): all that is in there is found already."""
    files: list[Location] = []
    above = (*above, folder.resolve())
    for path in sorted(folder.iterdir(), key=str):
        if path.name.startswith("."):
            continue
        if _is_saved(path):
            files += _saved_files(path, None, str(folder))
        elif path.is_dir():
            files += [] if path.resolve() in above or _is_ours(path) else _walked(path, where, above)
        elif kind_of(path) and path.name not in _ABOUT_DATA:
            _refuse_dangling(path, where)
            files.append(path)
        elif is_packed_otherwise(path):
            problem = f"{path}: not read, for its compression is not known; unpack it, or pack it as .zst"
            warn_of_data(logger, problem)
    return files


def _like_in_store(path: Location) -> list[Location]:
    """By the names of all objects that may be like it, a thousand by a request: to ask for each folder whether it is
    ours would be several requests for each."""
    start = replace(path, key=re.split(r"[*?[]", path.key, maxsplit=1)[0].rpartition("/")[0])
    names = [file for file, *_ in start.files()]
    inside: dict[str, set[str]] = {}  # folder -> what is in it
    for name in names:
        below = name.key
        while below != start.key:
            above, _, last = below.rpartition("/")
            inside.setdefault(above, set()).add(last)
            below = above

    def is_work(folder: str) -> bool:
        return _has_digests([inner for name in _OF_WORK for inner in inside.get(f"{folder}/{name}", ())])

    def is_ours(folder: str) -> bool:
        is_output = "manifest.json" in inside[folder] and f"{folder}/shards" in inside
        return is_output or is_work(folder) or is_work(f"{folder}/work")

    ours = [replace(start, key=folder) for folder in sorted(inside) if folder != start.key and is_ours(folder)]
    kept, warned = [], set[Location]()
    pattern = re.compile(glob_to_regex(path.key))
    for file in filter(lambda name: pattern.fullmatch(name.key), names):
        output = next((folder for folder in ours if file.is_under(folder)), None)  # the outermost: it sorts first
        if output is None:
            kept.append(file)
        elif output not in warned:
            warned.add(output)
            logger.warning(_LEFT_OUT, output)
    return kept


def glob_to_regex(pattern: str) -> str:
    """Return a pattern of names as a regular expression: "a/**/*.jsonl" -> a/(?:.*/)?[^/]*[.]jsonl"""
    pieces = re.split(r"(\*\*/|\*|\?|\[[^]]*\])", pattern)
    known = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(piece) or (piece if piece[:1] == "[" else re.escape(piece)) for piece in pieces)


def _has_digests(names: Sequence[str]) -> bool:
    return bool(names) and all(map(_DIGEST.fullmatch, names))


def _is_ours(folder: Location) -> bool:
    """Whether it is an output of neatpack, begun or finished, or its work folder. What is in it is made from data and
    would be taken for more of it: by the second run, where OUT lies among the data."""

    def is_work(place: Location) -> bool:
        return _has_digests(
            [inner.name for name in _OF_WORK if (place / name).is_dir() for inner in (place / name).iterdir()]
        )

    is_output = (folder / "manifest.json").is_file() and (folder / "shards").is_dir()
    if not is_output and not is_work(folder) and not is_work(folder / "work"):
        return False
    logger.warning(_LEFT_OUT, folder)
    return True


def _is_saved(folder: Location) -> bool:
    """By Dataset.save_to_disk or DatasetDict.save_to_disk."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def _saved_files(folder: Location, split: str | None, where: str) -> list[Location]:
    """The Arrow files of one split, in their order; without its name, those of "train"."""
    if (folder / "dataset_dict.json").is_file():
        splits, chosen = read_json(folder / "dataset_dict.json")["splits"], split or "train"
        if chosen not in splits:
            raise UserError(
                f"{where}: {folder} has no split {chosen!r}; it has {', '.join(splits)}: set split to one",
                code="dataset-unknown",
                folder=str(folder),
                split=chosen,
                known=list(splits),
            )
        others = [other for other in splits if other != chosen]
        if split is None and others:
            is_expected = all(map(_NOT_TRAINED_ON.search, others))
            told = f"{where}: split 'train' of {folder} is taken, and not {', '.join(others)}"
            if is_expected:
                logger.info("%s", told)
            else:
                warn_of_data(logger, told)
        folder = folder / chosen
    state = read_json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise UserError(
            f"{where}: {folder} has its rows in an order of its own; load it and save_to_disk it again",
            code="data-format",
            folder=str(folder),
        )
    try:
        files = [inside(folder, entry["filename"]) for entry in state["_data_files"]]
    except ValueError as error:
        raise UserError(
            f"{where}: {folder / 'state.json'}: {error}", code="source-outside", file=str(folder / "state.json")
        ) from None
    for file in files:
        if not file.is_file():
            raise UserError(
                f"{where}: {file} is not there, which {folder / 'state.json'} names; copy the folder again",
                code="data-missing",
                file=str(file),
            )
    return files
