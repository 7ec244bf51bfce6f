"""Data sets written to disk again: their rows as JSONL, and a meta JSON for `--meta`."""

import dataclasses
import json
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from neatpack.storage.files import write_json, write_whole
from neatpack.storage.location import Location

from .formats import FORMATS
from .lines import Source, rows
from .meta import Dataset

SplitRows = tuple[Dataset, Source, NDArray[np.bool_]]  # a data set, its rows, and which of them are held out


def write_data(folder: Location, data: Iterable[tuple[Dataset, Source, Iterable[bytes]]]) -> None:
    """`data`: each data set with its rows, which have no line breaks. Their media stay where they are."""
    meta = {}
    for number, (dataset, source, texts) in enumerate(data):
        name = f"{number:03d}.jsonl"  # names of data sets may hold anything, slashes too
        keys = set[str]()  # of rows of named sources, which may lack columns: a column that no row has is an error
        with write_whole(folder / name) as file:
            for text in texts:
                file.write(text + b"\n")
                keys.update(json.loads(text) if dataset.source else ())
        columns = _given_columns(dataset)
        if dataset.source:
            columns = {field: column for field, column in columns.items() if column in keys}
        meta[dataset.name] = {
            "file_name": name,
            "format": dataset.format,
            "columns": columns,
            "tags": dataclasses.asdict(dataset.tags),
            "id_column": dataset.id_column,
            "ignore_keys": list(dataset.ignore_keys),
            "media_dir": dataset.media_dir,
            "media_prefixes": _allowed(dataset, source),
            **({"sample_ratio": dataset.sample_ratio} if dataset.weight is None else {"weight": dataset.weight}),
        }
    write_json(folder / "meta.json", meta)


def _allowed(dataset: Dataset, source: Source) -> list[str]:
    """Where media may be, also those that our import has found or put somewhere else: in a tar, in media.bin …"""
    imported = [file for part in source.parts for file in part.media_files]
    return list(dict.fromkeys([*(dataset.bounds or ()), *dataset.media_prefixes, *imported]))


def _given_columns(dataset: Dataset) -> dict[str, str]:
    """Those that the format has, as far as they have one name."""
    names = ((field, getattr(dataset.row_columns, field)) for field in FORMATS[dataset.format].fields)
    return {field: name for field, name in names if name}


def write_split(out: Location, data: Sequence[SplitRows]) -> dict[str, int]:
    """OUT/train and OUT/holdout: each row, as it is, in one of them; the number of rows in each.

    What is held out comes once, as in an output (see `Corpus.of`), so that its sample_ratio is 1 and it has no weight.
    """

    def chosen(source: Source, wanted: NDArray[np.bool_]) -> Iterable[bytes]:
        return (text.strip() for part in source.parts for row, *_, text in rows(part) if wanted[row])

    write_data(out / "train", ((dataset, source, chosen(source, ~is_held)) for dataset, source, is_held in data))
    write_data(
        out / "holdout",
        (
            (
                dataclasses.replace(dataset, sample_ratio=float(dataset.sample_ratio > 0), weight=None),
                source,
                chosen(source, is_held),
            )
            for dataset, source, is_held in data
        ),
    )
    num_held = sum(int(np.count_nonzero(is_held)) for *_, is_held in data)
    return {"train": sum(len(is_held) for *_, is_held in data) - num_held, "holdout": num_held}
