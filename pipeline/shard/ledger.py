"""The ledger: one line per input row and repetition, packed (where) or skipped (why). It must add up."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from neatpack.storage.location import Location
from neatpack.storage.tables import ROW_GROUP, column_sum, parquet_groups, value_counts
from neatpack.storage.uris import is_stored, redact_uri

from ..ingest.corpus import Corpus, TakenRows
from ..plan.assign import TEXT, Plan
from ..plan.files import read_plan

SCHEMA = pa.schema(
    [
        ("dataset", pa.string()),
        ("row", pa.int64()),
        ("repeat", pa.int32()),
        ("id", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("pack", pa.int32()),
        ("position", pa.int32()),
        ("tokens", pa.int32()),
        ("visual_tokens", pa.int32()),
        ("group", pa.int64()),  # the same number for rows that are about the same thing; 0: no other row is
    ]
)
BEFORE_GROUPS = SCHEMA.remove(SCHEMA.get_field_index("group"))  # ledgers of neatpack 0.10


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LedgerJob:
    """A plan file whose lines are to be in the ledger, with the rows of its parts that the plan never saw."""

    plan: Location
    shift: int  # what its numbers of packs lack to those of the output
    number: int | None  # of the partition; None: there is one only
    corpora: Sequence[str]  # names
    folders: Sequence[Sequence[str]]  # of each corpus: see `folders_of`
    rows: Sequence[Sequence[TakenRows]]  # likewise, by part
    out: Location


def ledger_name(corpus: int, partition: int | None) -> str:
    return f"ledger/{corpus:05d}.parquet" if partition is None else f"ledger/{corpus:05d}-{partition:05d}.parquet"


def write_ledger(job: LedgerJob) -> dict[str, str]:
    """The task that makes the ledger of a plan file: a file per corpus. Their digests by name.

    Of several partitions, those that have nothing of a corpus have no file of it.
    """
    plan = read_plan(job.plan).shifted(job.shift)
    left_out = [_joined(parts) for parts in job.rows]
    written = {}
    for index, pieces in enumerate(make_ledger(plan, job.corpora, job.folders, left_out)):
        name = ledger_name(index, job.number)
        if job.number is not None and not sum(map(len, pieces)):
            continue
        with parquet_groups(job.out / name, SCHEMA) as ledger:
            for piece in pieces:
                ledger.add(piece)
        written[name] = ledger.digest()
    return written


def make_ledger(
    plan: Plan,
    names: Sequence[str],
    folders: Sequence[Sequence[str]],
    left_out: Sequence[Mapping[str, NDArray[np.int64]]],
) -> Iterator[list[pa.Table]]:
    """Of each corpus its lines by row and repetition, in pieces of ROW_GROUP. `left_out`: rows that the plan never saw,
    by reason; one line each, whatever the repetitions."""
    table = plan.table
    dataset, order = table["dataset"].to_numpy(), np.argsort(table["dataset"].to_numpy(), kind="stable")
    edges = np.searchsorted(dataset[order], np.arange(len(names) + 1)).tolist()
    for index, (name, own_folders, others) in enumerate(zip(names, folders, left_out, strict=True)):
        mine = _Lines.of(table, order[edges[index] : edges[index + 1]], others)
        pieces = [mine.piece(name, own_folders, first) for first in range(0, len(mine.order), ROW_GROUP)]
        yield pieces or [SCHEMA.empty_table()]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Lines:
    """Lines of a corpus: of the plan, then those that it never saw; and the order in which the ledger has them."""

    planned: pa.Table
    rows: NDArray[np.int64]
    reasons: Sequence[str]  # why rows were left out
    reason: NDArray[np.int64]  # of each line that was, by index
    order: NDArray[np.int64]

    @classmethod
    def of(cls, table: pa.Table, where: NDArray[np.int64], left_out: Mapping[str, NDArray[np.int64]]) -> "_Lines":
        planned = table.take(pa.array(where))
        others = [np.zeros(0, np.int64), *left_out.values()]
        rows = np.concatenate([planned["row"].to_numpy(), *others])
        repeat = np.concatenate([planned["repeat"].to_numpy(), np.zeros(len(rows) - len(planned), np.int32)])
        return cls(
            planned=planned,
            rows=rows,
            reasons=list(left_out),
            reason=np.repeat(np.arange(len(left_out)), [len(found) for found in left_out.values()]),
            order=np.lexsort([repeat, rows]),
        )

    def piece(self, name: str, folders: Sequence[str], first: int) -> pa.Table:
        """Up to ROW_GROUP lines from `first` on: few enough for a column of Arrow's usual text, which ends at 2 GiB."""
        where = self.order[first : first + ROW_GROUP]
        num_planned = len(self.planned)
        is_planned = where < num_planned
        # What the plan has, at the places of its own lines; a line that it never saw gets what stands for nothing.
        at = pa.array(np.where(is_planned, where, 0), mask=~is_planned)
        pack, position, repeat, tokens, visual, group = (
            self.planned[column].take(at).fill_null(nothing).to_numpy()
            for column, nothing in (
                ("pack", -1), ("position", -1), ("repeat", 0), ("tokens", 0), ("visual_tokens", 0), ("group", 0),
            )
        )  # fmt: skip
        texts = {column: self.planned[column].take(at).fill_null("") for column in ("id", "reason", "detail")}
        if not is_planned.all():
            codes = pa.array(self.reason[np.where(is_planned, 0, where - num_planned)], mask=is_planned)
            texts["reason"] = pc.coalesce(pa.array(self.reasons, TEXT).take(codes), texts["reason"].combine_chunks())
        for folder in folders:
            texts["detail"] = pc.replace_substring(texts["detail"], f"{folder.rstrip('/')}/", "")
        is_packed = pack >= 0
        columns = {
            "dataset": pa.repeat(pa.scalar(name), len(where)),
            "row": self.rows[where],
            "repeat": repeat,
            "status": pc.if_else(pa.array(is_packed), "packed", "skipped"),
            "pack": pack,
            "position": position,
            "tokens": tokens,
            "visual_tokens": visual,
            "group": np.where(is_packed, group, 0),
            **texts,
        }
        return pa.table([_array(columns[field.name]).cast(field.type) for field in SCHEMA], schema=SCHEMA)


def _array(values: NDArray[np.int64] | pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values)


def _joined(parts: Sequence[TakenRows]) -> dict[str, NDArray[np.int64]]:
    """Rows that are left out of all of these parts, by reason."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for part in parts:
        for reason, rows in part.left_out().items():
            found.setdefault(reason, []).append(rows)
    return {reason: np.concatenate(rows) for reason, rows in found.items()}


def folders_of(corpus: Corpus) -> list[str]:
    """Where a corpus lies on this machine, the innermost folders first."""
    names = {name for part in corpus.source.parts for name in (part.file, part.origin)}
    files = [Location.parse(name) for name in names if os.path.isabs(name) or is_stored(name)]
    folders = {*map(redact_uri, corpus.dataset.media_dirs), *(str(file.parent) for file in files)}
    return sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True)


def without_folders(detail: str, folders: Sequence[str]) -> str:
    """What happened, without where on this machine: the same rows give the same ledger wherever they lie.

    "/data/coco/a/7.jpg: No such file" in media_dir /data/coco -> "a/7.jpg: No such file".
    """
    for folder in folders:
        detail = detail.replace(f"{folder.rstrip('/')}/", "")
    return detail


def reason_counts(ledger: pa.Table) -> dict[str, int]:
    skipped = ledger.filter(pc.equal(ledger["status"], "skipped"))
    return value_counts(skipped["reason"])


def skipped_tokens(ledger: pa.Table) -> dict[str, int]:
    """Return the tokens of skipped rows by reason, of those reasons that have some."""
    skipped = ledger.filter(pc.equal(ledger["status"], "skipped")).select(["reason", "tokens"])
    return token_sums(skipped)


def token_sums(lines: pa.Table) -> dict[str, int]:
    """Return the tokens of lines by reason, of those reasons that have some."""
    sums = lines.group_by("reason", use_threads=False).aggregate([("tokens", "sum")]).to_pylist()
    return {line["reason"]: line["tokens_sum"] for line in sums if line["tokens_sum"]}


def fitted_counts(ledger: pa.Table) -> dict[str, int]:
    """How many samples were truncated or shrunk to fit; their details begin with that word."""
    packed = ledger.filter(pc.equal(ledger["status"], "packed"))
    counts = {word: column_sum(pc.starts_with(packed["detail"], word)) for word in ("truncated", "shrunk")}
    return {word: count for word, count in counts.items() if count}
