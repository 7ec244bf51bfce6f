"""A data set's lines: its files, or the import of a source as JSONL with one media.bin."""

import logging
from collections.abc import Iterator
from typing import Any

from neatpack.format.manifest import fingerprint
from neatpack.storage.files import Hashed, Sink, write_whole
from neatpack.storage.location import Location, PathLike

from ..config import ParquetMedia
from ..runtime.work import did
from .dialect import MEDIA_COLUMNS
from .kinds import MediaFile, as_lines, with_bytes_moved
from .lines import Lines, dumped, media_beside
from .meta import HUB, Dataset
from .sources.hub import stored_rows

logger = logging.getLogger(__name__)


def num_files(dataset: Dataset) -> int:
    """How many times `lines_of` can be asked: a source is one file."""
    return 1 if dataset.source else len(dataset.files)


def lines_of(dataset: Dataset, imported: PathLike, number: int = 0, parquet_media: ParquetMedia = "copy") -> Lines:
    """The task: of a data set's file `number`."""
    if dataset.source:
        return _imported(dataset, Location.parse(imported))
    columns = {kind: getattr(dataset.row_columns, column) for column, kind in MEDIA_COLUMNS.items()}
    lines = as_lines(Location.parse(dataset.files[number]), imported, columns, parquet_media)
    did(files=1)
    return lines


def _imported(dataset: Dataset, imported: Location) -> Lines:
    """Rows with their media by their own bytes, in a folder named by the digest of both.

    A hub data set is no file with a digest, and what `datasets` calls its fingerprint is not one of the content. So the
    rows are gone through once to hash them, as a file would be, and once more to write those that are not there yet.
    """
    rows, media = Hashed(), Hashed()
    _write(dataset, rows, media, "media.bin")
    digest = fingerprint([rows.digest(), media.digest()])
    target = imported / digest / "rows.jsonl"
    if not target.exists():
        logger.info("%s: imported, once, into %s", dataset.name, target.parent)
        media_path = media_beside(target.uri)
        with write_whole(target) as out, write_whole(media_path) as beside:  # media first there, rows last
            _write(dataset, out, beside, media_path.uri)
    return Lines(file=target.uri, rewritten_from=digest, origin=dataset.source)


def _write(dataset: Dataset, out: Sink, media: MediaFile, media_path: str) -> None:
    for row in _stored(dataset):
        out.write(dumped(with_bytes_moved(row, media, media_path)))


def _stored(dataset: Dataset) -> Iterator[Any]:
    """Rows with media as bytes."""
    if dataset.source == HUB:
        return stored_rows(dataset.path_or_dataset, dataset.split, dataset.media_folders.bounds)
    return dataset.examples().stored(dataset.media_folders.bounds)
