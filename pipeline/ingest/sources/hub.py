"""The source "hub": any data set that `datasets` loads, its rows as they are."""

from collections.abc import Iterator
from typing import Any

from .examples import embedded
from .load import load, media_folders


def stored_rows(path_or_dataset: str, split: str, folders: tuple[str, ...] | None = ()) -> Iterator[dict[str, Any]]:
    """Rows with their media as bytes, at any depth: of a row as Arrow has it, nothing is decoded. `folders`: in which
    media may be, besides those of the data set; None: anywhere."""
    rows = load(path_or_dataset, split)
    allowed = None if folders is None else (*(media_folders(path_or_dataset) or ()), *folders)
    if not hasattr(rows, "with_format"):
        yield from rows  # a saved data set without rows, see load.py
        return
    for table in rows.with_format("arrow").iter(batch_size=256):
        for row in table.to_pylist():
            yield _with_files(row, allowed)


def _with_files(value: Any, folders: tuple[str, ...] | None) -> Any:
    """Media that `datasets` only names by their path become bytes, as those of named sources do."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return embedded(value, folders)
    if isinstance(value, dict):
        return {key: _with_files(item, folders) for key, item in value.items()}
    return [_with_files(item, folders) for item in value] if isinstance(value, list) else value
