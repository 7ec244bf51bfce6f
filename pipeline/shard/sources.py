"""OUT/sources.json: where the rows of an output came from, so that a skipped one can be looked at and repaired.

Paths are no part of the identity, for data may move. So this file is beside the manifest, which does not name it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ingest.corpus import Corpus
from ..ingest.lines import Lines, Row, part_ranges, rows, scan, source_of
from ..runtime.storage import read_json, write_json

FILE = "sources.json"


class SourceError(ValueError):
    """Rows that cannot be looked up; says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """A file of a data set."""

    file: str  # where its rows came from: the data file, or what the meta JSON calls a named source
    lines: Path  # the file that has them as lines of JSON: the same, or our rewriting of it
    digest: str  # of its content
    first_row: int
    num_rows: int

    @property
    def is_jsonl(self) -> bool:
        return str(self.lines) == self.file

    def rows(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Those of these numbers. One is in memory at a time. Raises SourceError if they are not as they were."""
        lines = Lines(file=str(self.lines), rewritten_from="" if self.is_jsonl else self.digest)
        try:
            ranges = part_ranges(lines)
            source = source_of(lines, ranges, scan(lines, ranges))
        except OSError as error:
            what = self.file if self.is_jsonl else f"{self.lines}, which has the rows of {self.file} as lines"
            raise SourceError(f"{what}: {error.strerror}") from None
        if source.digest != self.digest or source.num_rows != self.num_rows:
            raise SourceError(f"{self.file}: has changed since it was packed")
        wanted = {number - self.first_row for number in numbers}
        for part in source.parts:
            if not wanted.isdisjoint(range(part.first_row, part.first_row + part.num_rows)):
                yield from (
                    row._replace(number=row.number + self.first_row) for row in rows(part) if row.number in wanted
                )


def write_sources(out: Path, corpora: Sequence[Corpus]) -> None:
    write_json(out / FILE, {corpus.name: _entry(out, corpus) for corpus in corpora})


def _entry(out: Path, corpus: Corpus) -> dict[str, Any]:
    source, dataset = corpus.source, corpus.dataset
    origins = {part.file: part.origin for part in source.parts}
    counts = dict.fromkeys(source.files, 0)
    for part in source.parts:
        counts[part.file] += part.num_rows
    files = []
    for name, digest in zip(source.files, source.digests, strict=True):
        lines = Path(name)
        told = str(lines.relative_to(out)) if lines.is_relative_to(out) else name  # it moves with OUT
        origin = origins.get(name) or ("" if dataset.source else name)
        files.append({"file": origin or dataset.path_or_dataset or dataset.source, "lines": told, "digest": digest,
                      "rows": counts[name]})  # fmt: skip
    return {"files": files, "media_dir": dataset.media_dir}


def files_of(out: Path, name: str) -> list[DataFile]:
    """Where the rows of a data set are. Raises SourceError where sources.json does not say."""
    files: list[DataFile] = []
    first_row = 0
    try:
        for entry in read_json(out / FILE)[name]["files"]:
            num_rows = int(entry["rows"])
            lines = out / entry["lines"]
            files.append(
                DataFile(file=str(entry["file"]), lines=lines, digest=str(entry["digest"]), first_row=first_row,
                         num_rows=num_rows)
            )  # fmt: skip
            first_row += num_rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{out / FILE} does not say where the rows of {name} are ({type(error).__name__}: {error})"
        ) from None
    return files
