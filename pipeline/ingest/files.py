"""`file_name` of a meta JSON -> data files: a path, a list, a glob, a folder, or a folder that save_to_disk wrote."""

import glob
import os
from collections import Counter
from pathlib import Path
from typing import Any

from ..config import UserError, no_uri
from ..runtime.storage import read_json
from .kinds import KNOWN, kind_of

# JSON that `datasets` writes beside data.
_ABOUT_DATA = ("state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")


def data_files(meta_path: Path, where: str, file_name: Any, split: str | None) -> tuple[str, ...]:
    """Absolute paths. Lists keep their order, folders and globs are sorted. `split`: of folders that hold several."""
    names = file_name if isinstance(file_name, list) else [file_name]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(
            f"{where}: file_name must be the path of a data file, a glob, a folder or a list of these, got "
            f"{file_name!r}"
        )
    files = [os.path.realpath(file) for name in names for file in _expanded(meta_path, where, name, split)]
    if split is not None and not any(_is_saved(meta_path.parent / name) for name in names):
        raise UserError(f"{where}: split belongs to a source or a folder that save_to_disk wrote; remove it")
    for file, count in Counter(files).items():
        if count > 1:
            raise UserError(
                f"{where}: file_name gives {file} {count} times, so that its rows would come as often; name it once "
                "(and set sample_ratio for copies)"
            )
    return tuple(files)


def _expanded(meta_path: Path, where: str, name: str, split: str | None) -> list[Path]:
    no_uri(f"{where}: file_name", name)
    path = meta_path.parent / name
    if path.is_file():
        return [path]
    if _is_saved(path):
        return _saved_files(path, split or "train", where)
    if path.is_dir():
        files = [file for file in _walked(path) if file.resolve() != meta_path.resolve()]
        if not files:
            raise UserError(f"{where}: no data file in the folder {path}; known: {KNOWN}")
        return files
    if glob.has_magic(name):
        files = sorted(Path(found) for found in glob.glob(str(path), recursive=True) if os.path.isfile(found))
        if not files:
            raise UserError(f"{where}: no file is like {path}; the pattern is taken relative to the meta file")
        return files
    raise UserError(f"{where}: file_name {path} does not exist; it is taken relative to the meta file")


def _walked(folder: Path) -> list[Path]:
    """All data files in a folder and its subfolders, by name; hidden ones and what is no data file stay out."""
    files: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if _is_saved(path):
            files += _saved_files(path, "train", str(folder))
        elif path.is_dir():
            files += _walked(path)
        elif kind_of(path) and path.name not in _ABOUT_DATA:
            files.append(path)
    return files


def _is_saved(folder: Path) -> bool:
    """By Dataset.save_to_disk or DatasetDict.save_to_disk."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def _saved_files(folder: Path, split: str, where: str) -> list[Path]:
    """The Arrow files of one split, in their order."""
    if (folder / "dataset_dict.json").is_file():
        splits = read_json(folder / "dataset_dict.json")["splits"]
        if split not in splits:
            raise UserError(f"{where}: {folder} has no split {split!r}; it has {', '.join(splits)}: set split to one")
        folder = folder / split
    state = read_json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise UserError(f"{where}: {folder} has its rows in an order of its own; load it and save_to_disk it again")
    files = [folder / entry["filename"] for entry in state["_data_files"]]
    for file in files:
        if not file.is_file():
            raise UserError(f"{where}: {file} is not there, which {folder / 'state.json'} names; copy the folder again")
    return files
