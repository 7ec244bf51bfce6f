"""`neatpack skipped`: the rows that are in no pack, with the reason, and where they came from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neatpack.format.manifest import Manifest
from neatpack.storage.location import Location
from neatpack.storage.tables import read_parquet

from ..config import UserError
from ..ingest.lines import MAX_ROW_BYTES, Row
from ..records import REASONS
from .sources import DataFile, SourceError, files_of
from .tables import ledger_names

LEFT_OUT = ("sampled_out", "held_out", "not_held_out")  # as the user asked: listed only if asked for again


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedRow:
    dataset: str
    row: int
    id: str  # what the row calls itself, or ""
    reason: str
    detail: str
    file: str  # "": unknown
    line: int | None  # where the file has its rows as lines, and is as it was
    text: bytes | None  # the row as it was; None: its file is gone or has changed

    def described(self) -> str:
        """As compilers write it, so that editors find the place: "coco.jsonl:3: coco row 2: bad_row: empty …". Always
        one line, though ids, and names of files in details, may have a line break in them."""
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        name = f" (id {self.id})" if self.id else ""
        told = f"{place}{self.dataset} row {self.row}{name}: {self.reason}: {self.detail or REASONS[self.reason]}"
        return "\\n".join(told.splitlines())

    def to_json(self) -> dict[str, Any]:
        """`row` is its number, as in the ledger; the row itself is under `json`, or, if it is broken, `text`."""
        names = ("dataset", "row", "id", "reason", "detail", "file", "line")
        said = {name: getattr(self, name) for name in names}
        if self.text is None:
            return said
        try:
            if len(self.text) > MAX_ROW_BYTES:
                raise ValueError("too long to be parsed")
            return said | {"json": json.loads(self.text)}
        except (ValueError, RecursionError):  # as in `parse_row`
            return said | {"text": self.text.decode("utf-8", "replace").rstrip("\r\n")}


def skipped_rows(
    out: Location,
    manifest: Manifest,
    *,
    reasons: Sequence[str] = (),
    dataset: str = "",
    follow: bool = False,
    problems: list[str],
) -> Iterator[SkippedRow]:
    """Yield the skipped rows of a finished output by data set and row, each row once.

    `follow`: open the data files that the output names, for lines and the rows themselves. What prevents that is added
    to `problems`; the ledger's lines come all the same.
    """
    inputs = manifest.identity.inputs
    for reason in reasons:
        if reason not in REASONS:
            raise UserError(
                f"--reason {reason}: unknown; known: {', '.join(REASONS)}",
                code="option-invalid",
                option="reason",
                got=reason,
            )
    if dataset and dataset not in inputs:
        raise UserError(
            f"--dataset {dataset}: not in {out}, which has {', '.join(inputs)}",
            code="dataset-unknown",
            dataset=dataset,
            known=list(inputs),
        )
    wanted = list(reasons) or [reason for reason in REASONS if reason not in LEFT_OUT]
    for name, ledgers in ledger_names(manifest).items():
        if not dataset or name == dataset:
            lines = _lines([out / ledger for ledger in ledgers], wanted)
            yield from _placed(out, name, lines, follow, problems) if lines else ()


def _lines(ledgers: Sequence[Location], reasons: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Lines of the ledger by row, ascending: the first of each row's repetitions."""
    names = ["row", "repeat", "id", "reason", "detail"]
    wanted = [("status", "=", "skipped"), ("reason", "in", list(reasons))]
    found = [line for ledger in ledgers for line in read_parquet(ledger, columns=names, filters=wanted).to_pylist()]
    lines: dict[int, dict[str, Any]] = {}
    for line in sorted(found, key=lambda line: (line["row"], line["repeat"])):
        lines.setdefault(line["row"], line)
    return lines


def _placed(
    out: Location, name: str, lines: Mapping[int, dict[str, Any]], follow: bool, problems: list[str]
) -> Iterator[SkippedRow]:
    def skipped(number: int, file: DataFile | None, row: Row | None) -> SkippedRow:
        line = lines[number]
        return SkippedRow(
            dataset=name,
            row=number,
            id=line["id"],
            reason=line["reason"],
            detail=line["detail"],
            file=file.file if file else "",
            line=row.line if row and file and file.is_jsonl else None,
            text=row.text if row else None,
        )

    try:
        files = files_of(out, name, follow=follow)
    except SourceError as error:
        problems.append(str(error))
        yield from (skipped(number, None, None) for number in lines)
        return
    for file in files:
        mine = [number for number in lines if 0 <= number - file.first_row < file.num_rows]
        left = iter(mine)
        try:
            for row in file.rows(mine) if mine else ():
                yield skipped(next(left), file, row)
        except SourceError as error:
            problems.append(str(error))
        yield from (skipped(number, file, None) for number in left)
