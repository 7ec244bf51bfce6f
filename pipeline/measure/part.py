"""The task of the measuring stage: the rows of one part of a data file, into the token store."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neatpack.storage.files import read_json, write_json
from neatpack.storage.location import Location

from ..families.base import Family, ProcessorKey
from ..families.registry import family_for
from ..ingest.convert import converter, parse_rows, said_of
from ..ingest.lines import Part, rows
from ..ingest.meta import Dataset
from ..ingest.unread import LaterRows, RowFacts
from ..labels import TrainOn
from ..media.ahead import ahead
from ..records import Example, Measured, MediaRef, Skip
from ..runtime.journal import Journal, journal
from ..runtime.work import did, timed
from .length import measure
from .store import write_measured

BATCH = 64  # rows tokenized at once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartJob:
    """What to measure, and where the result goes."""

    dataset: Dataset
    part: Part
    is_taken: NDArray[np.bool_]  # by row of the part: rows that no output takes are not even parsed
    max_row_bytes: int
    lenient: bool  # about placeholders
    train_on: TrainOn
    processor: ProcessorKey
    path: Location


def facts_beside(path: Location) -> Location:
    """Where a part has what `measure_part` returns; a part of which there is nothing to tell has no such file."""
    return path.with_suffix(".facts")


def read_facts(path: Location) -> RowFacts:
    return RowFacts.from_json(read_json(path))


def measure_part(job: PartJob) -> RowFacts:
    """Read, convert, tokenize and probe the rows that are taken."""
    with timed("loading the processor"):
        family = family_for(job.processor)
    ahead.forget()
    numbers: list[int] = []
    ids: list[str] = []
    groups: list[int] = []
    results: list[Measured | Skip] = []
    with journal(job.path.parent / f"{job.path.stem}.journal") as watch:
        later = LaterRows(job.dataset.format, job.dataset.columns, job.dataset.ignore_columns)
        rows_read = _read(job, watch, later)
        while batch := _next(rows_read):
            numbers += [read.number for read in batch]
            ids += [read.id for read in batch]
            found = _measured(batch, job, family, watch)
            results += found
            groups += map(_group, batch, found)
            _tell(found)
        with timed("writing"):
            if facts := later.facts:
                write_json(facts_beside(job.path), facts.to_json())
            write_measured(job.path, numbers, ids, results, groups)
    did(bytes=job.part.end - job.part.start)
    num_skipped = sum(isinstance(result, Skip) for result in results)
    logger.debug("%s rows from %d: %d measured, %d skipped", job.dataset.name, job.part.first_row,
                 len(results) - num_skipped, num_skipped)  # fmt: skip
    return facts


def _next(rows_read: Iterator["_Read"]) -> list["_Read"]:
    with timed("reading rows"):
        return list(islice(rows_read, BATCH))


def _tell(results: Sequence[Measured | Skip]) -> None:
    """How far the task is."""
    media = Counter(medium.ref.kind for found in results if isinstance(found, Measured) for medium in found.media)
    skipped = Counter(found.reason for found in results if isinstance(found, Skip))
    did(rows=len(results), images=media["image"], videos=media["video"], sounds=media["audio"], skipped=skipped)


class _Read(NamedTuple):
    """A row, by its number, with what it calls itself, its group and what it holds."""

    number: int
    id: str
    group: int  # by the dataset's group_column; 0: it has none
    found: Example | Skip


def _read(job: PartJob, watch: Journal, later: LaterRows) -> Iterator[_Read]:
    """The rows that are taken."""
    dataset = job.dataset
    dataset = replace(dataset, own_files=job.part.media_files)
    converted = converter(dataset, lenient=job.lenient)
    file = Location.parse(job.part.origin or job.part.file).name if len(job.dataset.files) > 1 else ""
    taken = (row for row in rows(job.part, job.max_row_bytes) if job.is_taken[row.number - job.part.first_row])
    while some := list(islice(taken, BATCH)):
        named = [(row.text, f"{row.line} of {file}" if file else row.line) for row in some]
        for row, parsed in zip(some, parse_rows(named, job.max_row_bytes), strict=True):
            if why := watch.poison(str(row.number)):
                logger.warning("%s row %d: %s; skipped as bad_media", job.dataset.name, row.number, why)
                found: Example | Skip = Skip(reason="bad_media", detail=why)
            else:
                found = parsed if isinstance(parsed, Skip) else converted(parsed)
            if not isinstance(parsed, Skip) and not dataset.is_converted:
                later.look_at_names(parsed)
                if isinstance(found, Example):
                    later.look(row.number, parsed, partial(said_of, parsed, dataset))
            if isinstance(found, Example):
                found = _placed(found, job.part.file, row.offset, len(row.text))
            yield _Read(row.number, _id_of(parsed, job), _value_group(parsed, dataset), found)


def _id_of(parsed: dict[str, Any] | Skip, job: PartJob) -> str:
    return "" if isinstance(parsed, Skip) else job.dataset.id_of(parsed)


def _value_group(parsed: dict[str, Any] | Skip, dataset: Dataset) -> int:
    value = None if isinstance(parsed, Skip) or not dataset.group_column else parsed.get(dataset.group_column)
    return 0 if value is None else _number(dataset.name, json.dumps(value, sort_keys=True))


def _group(read: _Read, result: Measured | Skip) -> int:
    """Return the group of a row: by its column, or else by its first medium, or by its tokens if it has none."""
    if read.group or isinstance(result, Skip):
        return read.group
    if not result.media:
        return _number(result.ids.tobytes().decode("latin-1"))
    ref = result.media[0].ref
    return _number(ref.kind, ref.path, str(ref.offset), ref.inside)


def _number(*texts: str) -> int:
    """Return a number above 0 that other texts hardly have."""
    digest = hashlib.blake2b("\0".join(texts).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def _placed(example: Example, file: str, offset: int, length: int) -> Example:
    """Media that are in the row itself are found again by its line in the file."""
    if not any([ref.inside and not ref.path for ref in example.media]):
        return example

    def placed(part: str | MediaRef) -> str | MediaRef:
        if isinstance(part, str) or not part.inside or part.path:
            return part
        return replace(part, path=file, offset=offset, length=length)

    turns = (replace(turn, parts=tuple(map(placed, turn.parts))) for turn in example.turns)
    return replace(example, turns=tuple(turns))


def _measured(batch: Sequence[_Read], job: PartJob, family: Family, watch: Journal) -> list[Measured | Skip]:
    """One result per row of the batch: a skip stays, an example is measured."""
    examples = [(read.number, read.found) for read in batch if isinstance(read.found, Example)]

    def before(index: int) -> None:
        watch.at(str(examples[index][0]))

    ahead.tell((ref for _, example in examples for ref in example.media), headers=True)
    measured = iter(measure([example for _, example in examples], family, before, job.train_on))
    return [read.found if isinstance(read.found, Skip) else next(measured) for read in batch]
