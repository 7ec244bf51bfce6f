"""OUT/sources.json: where the rows of an output came from, so that a skipped one can be looked at and repaired.

Paths are no part of the identity, for data may move. So this file is beside the manifest, which does not name it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ingest.corpus import Corpus
from ..ingest.lines import Lines, Row, Source, part_ranges, rows, scan, source_of
from ..runtime.storage import read_json, write_json

FILE = "sources.json"


def write_sources(out: Path, corpora: Sequence[Corpus]) -> None:
    write_json(out / FILE, {corpus.name: _entry(out, corpus) for corpus in corpora})


def _entry(out: Path, corpus: Corpus) -> dict[str, Any]:
    lines, dataset = Path(corpus.source.file), corpus.dataset
    if lines.is_relative_to(out):
        lines = lines.relative_to(out)  # it moves with OUT
    given = dataset.file_name or dataset.path_or_dataset or dataset.source
    files = [{"file": dataset.file or given, "lines": str(lines)}]
    return {"given": given, "files": files, "media_dir": dataset.media_dir}


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The rows of a data set, as far as they are still there."""

    file: str  # where they came from: the data file, or what the meta JSON calls a named source
    is_jsonl: bool  # whether that file has them as lines
    source: Source | None  # None: `problem` says why
    problem: str = ""

    def rows(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Those of these numbers, which ascend; none, if there is a problem. One is in memory at a time."""
        for part in self.source.parts if self.source else ():
            first, last = (bisect_left(numbers, part.first_row + count) for count in (0, part.num_rows))
            wanted = set(numbers[first:last])
            yield from (row for row in rows(part) if row.number in wanted) if wanted else ()


def origin_of(out: Path, name: str, digest: str) -> Origin:
    """Where the rows of a data set are. `digest`: of their content, as the identity has it."""
    try:
        (place,) = read_json(out / FILE)[name]["files"]
        file, lines = str(place["file"]), out / place["lines"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{out / FILE} does not say where the rows of {name} are ({type(error).__name__}: {error})"
        return Origin(file="", is_jsonl=False, source=None, problem=problem)
    is_jsonl = str(lines) == file
    try:
        source = _scanned(lines, "" if is_jsonl else digest)
    except OSError as error:
        what = lines if is_jsonl else f"{lines}, which has the rows of {file} as lines"
        return Origin(file=file, is_jsonl=is_jsonl, source=None, problem=f"{what}: {error.strerror}")
    if source.digest != digest:
        return Origin(file=file, is_jsonl=is_jsonl, source=None, problem=f"{file}: has changed since it was packed")
    return Origin(file=file, is_jsonl=is_jsonl, source=source)


def _scanned(file: Path, rewritten_from: str) -> Source:
    """One pass over the file, as packing made it: it tells whether the content is the same, and numbers the rows."""
    lines = Lines(file=str(file), rewritten_from=rewritten_from)
    ranges = part_ranges(lines)
    return source_of(lines, ranges, scan(lines, ranges))
