"""A data set's lines: its file, or the import of a named source as JSONL with one media.bin."""

import logging
from pathlib import Path

from ..config import fingerprint
from ..runtime.storage import Hashed, Sink, write_whole
from .lines import Lines, MediaFile, as_lines, dumped, media_beside, with_bytes_moved
from .meta import Dataset
from .sources import Examples

logger = logging.getLogger(__name__)


def lines_of(dataset: Dataset, imported: Path) -> Lines:
    return _imported(dataset, imported) if dataset.source else as_lines(Path(dataset.file), imported)


def _imported(dataset: Dataset, imported: Path) -> Lines:
    """Rows in the conversation format, media by their own bytes, in a folder named by the digest of both.

    A hub data set is no file with a digest, and what `datasets` calls its fingerprint is not one of the content. So the
    rows are gone through once to hash them, as a file would be, and once more to write those that are not there yet.
    """
    examples = dataset.examples()
    rows, media = Hashed(), Hashed()
    _write(examples, rows, media, "media.bin")
    digest = fingerprint([rows.digest(), media.digest()])
    target = imported / digest / "rows.jsonl"
    if not target.exists():
        logger.info("%s: imported, once, into %s", dataset.name, target.parent)
        media_path = media_beside(str(target))
        with write_whole(target) as out, write_whole(media_path) as beside:  # media first there, rows last
            _write(examples, out, beside, str(media_path))
    return Lines(file=str(target), rewritten_from=digest)


def _write(examples: Examples, out: Sink, media: MediaFile, media_path: str) -> None:
    for example in examples.stored():
        out.write(dumped(with_bytes_moved(example, media, media_path)))
