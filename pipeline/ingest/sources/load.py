"""Rows of a data set, wherever it is: the hub, a folder, a file, or already in memory. Media stay encoded."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neatpack.storage.files import inside, read_json

from ...config import UserError

# What `datasets` calls the reader of a file; a folder it looks into by itself.
_READERS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".csv": "csv",
}


def load(path_or_dataset: Any, split: str = "train") -> Any:
    """Rows by number: a `datasets.Dataset`, or the list of dicts that was given.

    `path_or_dataset` is a hub id; a folder made by `save_to_disk`; a folder or file that `load_dataset` reads; or the
    data themselves, and then `split` only chooses from a DatasetDict. Pictures and sounds are not decoded: what is
    packed must be the bytes that the data set holds, and what is trained on is decoded row by row.
    """
    given = path_or_dataset
    rows = _opened(os.fspath(given), split) if isinstance(given, str | os.PathLike) else given
    if isinstance(rows, Mapping):
        rows = _chosen(rows, split, given if isinstance(given, str) else type(given).__name__)
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        raise UserError(
            f"path_or_dataset is a {type(rows).__name__}, whose rows have no numbers; expected a hub id, a local path, "
            "a datasets.Dataset or a list of dicts (load it without streaming)",
            code="data-format",
            kind=type(rows).__name__,
        )
    return _undecoded(rows)


def media_folders(path_or_dataset: Any) -> tuple[str, ...] | None:
    """The folders in which rows of a data set may name media: its own, or where `datasets` downloads it to.

    None: anywhere, for it is in memory, and a program has made it.
    """
    if not isinstance(path_or_dataset, str | os.PathLike):
        return None
    path = Path(os.fspath(path_or_dataset))
    if path.exists():
        return (str(path if path.is_dir() else path.absolute().parent),)
    try:
        import datasets
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:  # `load` says what is missing
        return ()
    of_hub = os.path.join(HF_HUB_CACHE, f"datasets--{str(path).replace('/', '--')}")
    return str(datasets.config.DOWNLOADED_DATASETS_PATH), of_hub


def _opened(name: str, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{name}: reading it needs the `datasets` package, which is not installed; pip install 'neatpack[sources]'",
            code="package-missing",
            package="datasets",
        ) from None
    path = Path(name)
    if not path.exists() and (path.is_absolute() or name.startswith(".")):
        raise UserError(
            f"{name}: no such file or folder; give a local path or a hub id (owner/name)",
            code="data-missing",
            file=name,
        )
    try:
        if (path / "dataset_dict.json").is_file():
            splits = {each: path / each for each in read_json(path / "dataset_dict.json")["splits"]}
            return _saved(_chosen(splits, split, name))
        if (path / "state.json").is_file():
            return _of_split(_saved(path), split, name)
        if path.is_file():
            if path.suffix.lower() not in _READERS:
                raise UserError(
                    f"{name}: unknown kind of file; known: {' '.join(_READERS)}", code="data-format", file=name
                )
            return datasets.load_dataset(_READERS[path.suffix.lower()], data_files=[name], split=split)
        return datasets.load_dataset(name, split=split)
    except UserError:
        raise
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        # A wrong id, no network, an unknown split, a broken file: `datasets` says which, at times in the cause only.
        reason = f"{error} ({error.__cause__})" if error.__cause__ else str(error)
        raise UserError(
            f"{name}, split {split!r}: cannot be loaded: {reason}", code="data-unreadable", file=name, split=split
        ) from None


def _saved(path: Path) -> Any:
    """What save_to_disk wrote; without rows that is no file, which `datasets` 5.2 cannot read back (IndexError)."""
    import datasets

    files = read_json(path / "state.json")["_data_files"]
    for file in files:
        try:
            inside(path, file["filename"])  # `datasets` follows any name
        except ValueError as error:
            raise UserError(
                f"{path / 'state.json'}: {error}", code="source-outside", file=str(path / "state.json")
            ) from None
    return datasets.load_from_disk(str(path)) if files else []


def _of_split(rows: Any, split: str, name: str) -> Any:
    """A saved data set holds one split and may know which."""
    held = getattr(rows, "split", None)
    if held is not None and str(held) != split:
        raise UserError(
            f"{name}: holds the split {str(held)!r} and not {split!r}; give split that name",
            code="dataset-unknown",
            file=name,
            split=split,
            known=[str(held)],
        )
    return rows


def _chosen(splits: Mapping[str, Any], split: str, name: str) -> Any:
    if split not in splits:
        raise UserError(
            f"{name}: no split {split!r}; it has {', '.join(map(str, splits))}",
            code="dataset-unknown",
            file=name,
            split=split,
            known=list(map(str, splits)),
        )
    return splits[split]


def _undecoded(rows: Any) -> Any:
    features = getattr(rows, "features", None)
    if not features:
        return rows
    rows = rows.with_format(None)  # plain rows, whatever form the caller had set
    for column, feature in features.items():
        if getattr(feature, "decode", False):  # Image, Audio; sampling rate and mode are kept
            rows = rows.cast_column(column, dataclasses.replace(feature, decode=False))
    return rows
