"""OUT/sources.json: where the rows of an output came from, so that one can be looked at and repaired, and which
processor it was packed with, so that its tokens can be read as text.

Paths are not part of the identity, because data may move. The manifest has the digest of this file only. Paths are
relative to the folder of the meta JSON: an output may be given away, and a machine's folders are nobody's business.
Where that folder is, is in the work folder, which stays, or here with --record-paths. The name of the processor is here
for the same reason: what it does is in the identity, and where it lies is not.

An output may come from a stranger, who may name any file, store or hub repository here. So readers open what these
files name only if the user asks for it (--follow-sources); without, they are names to be shown.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neatpack.format.manifest import SOURCES as FILE
from neatpack.storage.files import inside, parse_json, read_inside, sha256_of, write_json
from neatpack.storage.location import Location
from neatpack.storage.uris import is_stored

from ..config import PackConfig
from ..ingest.corpus import Corpus
from ..ingest.lines import Lines, Row, part_ranges, rows, scan, source_of

BASE = "work/base.json"  # the folder of the meta JSON, and the processor
MOST_BYTES = 64 << 20  # of either file: names of a million data files


class SourceError(ValueError):
    """Rows that cannot be looked up; says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """A file of a data set."""

    file: str  # where its rows came from: the data file, or what the meta JSON calls a named source
    lines: (
        Location | None
    )  # the file that has them as lines of JSON: the same, or our rewriting of it; None: not followed
    digest: str  # of its content
    first_row: int
    num_rows: int

    @property
    def is_jsonl(self) -> bool:
        return self.lines is not None and self.lines.uri == self.file

    def rows(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Yield those of these numbers, none of a file that is not followed. One is in memory at a time.

        Raises SourceError if they are not as they were.
        """
        if self.lines is None:
            return
        lines = Lines(file=self.lines.uri, rewritten_from="" if self.is_jsonl else self.digest)
        try:
            ranges = part_ranges(lines)
            source = source_of(lines, ranges, scan(lines, ranges))
        except OSError as error:
            what = self.file if self.is_jsonl else f"{self.lines}, which has the rows of {self.file} as lines"
            raise SourceError(f"{what}: {error.strerror or error}") from None
        if source.digest != self.digest or source.num_rows != self.num_rows:
            raise SourceError(f"{self.file}: has changed since it was packed")
        wanted = {number - self.first_row for number in numbers}
        for part in source.parts:
            if not wanted.isdisjoint(range(part.first_row, part.first_row + part.num_rows)):
                yield from (
                    row._replace(number=row.number + self.first_row) for row in rows(part) if row.number in wanted
                )


def write_sources(where: Location, out: Location, corpora: Sequence[Corpus], config: PackConfig) -> str:
    """Write the file and return its sha256. `where`: where the output is written, `out`: where it will be."""
    base = Location.parse(config.meta).parent
    processor = os.path.abspath(config.processor) if os.path.isdir(config.processor) else config.processor
    write_json(where / BASE, {"base": base.uri, "processor": processor})
    datasets = {corpus.name: {"files": list(_files(out, corpus, base))} for corpus in corpora}
    told = {"base": base.uri, "processor_path": processor} if config.record_paths else {"base": ""}
    write_json(where / FILE, {**told, "processor": processor_name(config.processor), "datasets": datasets})
    return sha256_of(where / FILE)


def processor_name(given: str) -> str:
    """A hub id as it is; of a folder its own name alone, or the hub id that it is the download of.

    ~/.cache/…/models--Qwen--Qwen2.5-VL-7B-Instruct/snapshots/1a2b -> Qwen/Qwen2.5-VL-7B-Instruct
    """
    if is_stored(given):
        return Location.parse(given).name
    if not Path(given).is_dir():
        return given
    folder = Path(given).resolve()
    downloads = [part for part in folder.parts if part.startswith("models--")]
    return downloads[-1].removeprefix("models--").replace("--", "/", 1) if downloads else folder.name


def _files(out: Location, corpus: Corpus, base: Location) -> Iterator[dict[str, Any]]:
    source, dataset = corpus.source, corpus.dataset
    origins = {part.file: part.origin for part in source.parts}
    counts = dict.fromkeys(source.files, 0)
    for part in source.parts:
        counts[part.file] += part.num_rows
    for name, digest in zip(source.files, source.digests, strict=True):
        origin = origins.get(name) or ("" if dataset.source else name)
        given = origin or dataset.path_or_dataset or dataset.source
        is_file = os.path.isabs(given) or is_stored(given)
        told = {"file": _relative(given, base)} if is_file else {"source": given}
        rewritten = Location.parse(name)
        if rewritten.is_under(out):
            told["in_output"] = rewritten.relative_to(out)  # our rewriting moves with OUT
        elif name != given:
            told["lines"] = _relative(name, base)
        yield {**told, "digest": digest, "rows": counts[name]}


def _relative(file: str, base: Location) -> str:
    """A file as seen from a folder; as it is, where the two are not on one machine or in one bucket."""
    found = Location.parse(file)
    if found.is_local and base.is_local:
        return os.path.relpath(found, base)
    return os.path.relpath(f"/{found.key}", f"/{base.key}") if found.is_under(base.root) else str(found)


def _found(base: Location, told: str) -> Location:
    """The file that `_relative` tells of."""
    if is_stored(told):
        return Location.parse(told)
    if base.is_local or told[:1] == "/":
        return Location("", "", os.path.normpath(os.path.join(base.key, told)))
    return replace(base, key=os.path.normpath(f"/{base.key}/{told}").lstrip("/"))


def files_of(out: Location, name: str, *, follow: bool) -> list[DataFile]:
    """Return where the rows of a data set are; unless `follow`, names alone, which nothing opens.

    Raises SourceError where sources.json does not say.
    """
    files: list[DataFile] = []
    first_row = 0
    with _reading(out, name):
        found = _read(out, FILE)
        base = Location.parse(found["base"] or _base(out)) if follow else None
        for entry in found["datasets"][name]["files"]:
            num_rows = int(entry["rows"])
            file, lines = str(entry["file"] if "file" in entry else entry["source"]), None
            if base is not None:
                file = _found(base, file).uri if "file" in entry else file
                rewritten = entry.get("in_output")
                lines = inside(out, rewritten) if rewritten else _found(base, entry.get("lines", file))
            files.append(
                DataFile(file=file, lines=lines, digest=str(entry["digest"]), first_row=first_row, num_rows=num_rows)
            )
            first_row += num_rows
    return files


@contextmanager
def _reading(out: Location, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{out / FILE} does not say where the rows of {name} are ({type(error).__name__}: {error})"
        ) from None


def _read(out: Location, name: str) -> Any:
    return parse_json(read_inside(out, name, MOST_BYTES))


def _base(out: Location) -> str:
    try:
        return str(_read(out, BASE)["base"])
    except FileNotFoundError:
        problem = f"its paths are from the folder of the meta JSON, which {BASE} tells, or --record-paths"
        raise ValueError(problem) from None


def processor_of(out: Location) -> str:
    """The directory or hub id of the processor that an output was packed with; "": nobody has written it down."""
    for name, key in ((BASE, "processor"), (FILE, "processor_path"), (FILE, "processor")):
        try:
            found = _read(out, name)
        except (OSError, ValueError):
            continue
        processor = found.get(key) if isinstance(found, dict) else None
        if isinstance(processor, str) and "/" in processor:  # not the bare name of a folder
            return processor
    return ""
