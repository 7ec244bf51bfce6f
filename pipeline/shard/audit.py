"""The ledger of a finished output, audited by tasks: each reads row groups of a file, or some rows of a data set, and
gives back figures. Nobody holds more of a ledger than that.

Whether the ledger says of a shard what the shard says of itself is told by two numbers: the sum of a hash of 128 bits
over the documents, which does not depend on their order. The ledger's lines are read by row, a shard's by pack; sums of
both are compared, and only where they differ are a shard's lines looked up, to name what is wrong.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from neatpack.storage.location import Location
from neatpack.storage.tables import column_sum, read_groups, schema_of

from ..records import REASONS
from .ledger import BEFORE_GROUPS, SCHEMA, fitted_counts, reason_counts, skipped_tokens
from .problems import Problem
from .tables import Block, ledger_rows

OF_DOCUMENT = ("row", "repeat", "pack", "position", "tokens", "visual_tokens")
_NONE = np.iinfo(np.int64).min  # a row that none has

Sums = NDArray[np.uint64]  # by shard: two sums, each modulo 2 ** 64


@dataclass(kw_only=True, slots=True)
class Figures:
    """What lines of the ledger add up to, and what is wrong with them: each thing once, in words."""

    samples: int = 0
    packed: int = 0
    tokens: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_tokens: Counter[str] = field(default_factory=Counter)
    fitted: Counter[str] = field(default_factory=Counter)
    sums: Sums
    problems: dict[Problem, None] = field(default_factory=dict)  # a set that keeps its order

    def add(self, other: "Figures") -> None:
        self.samples += other.samples
        self.packed += other.packed
        self.tokens += other.tokens
        self.skipped.update(other.skipped)
        self.skipped_tokens.update(other.skipped_tokens)
        self.fitted.update(other.fitted)
        self.sums += other.sums
        self.problems |= other.problems


def audit_file(path: Location, name: str, dataset: str, number: int, firsts: NDArray[np.int64]) -> Figures:
    """The task: a file of the ledger of data set `number`. `firsts`: the first pack of each shard, and how many packs
    there are."""
    figures = Figures(sums=np.zeros((len(firsts) - 1, 2), np.uint64))
    try:
        if schema_of(path) not in (SCHEMA, BEFORE_GROUPS):
            figures.problems[Problem(f"{name}: other columns", "ledger-invalid", file=name)] = None
            return figures
        for lines in read_groups(path):
            figures.add(_of_lines(lines, name, dataset, number, firsts))
    except (pa.ArrowException, OSError) as error:
        words = f"{name}: not parquet: {str(error)[:200]}"
        figures.problems[Problem(words, "file-unreadable", file=name)] = None
    return figures


def _of_lines(lines: pa.Table, name: str, dataset: str, number: int, firsts: NDArray[np.int64]) -> Figures:
    figures = Figures(sums=np.zeros((len(firsts) - 1, 2), np.uint64))
    if any(column.null_count for column in lines.columns):
        figures.problems[Problem(f"{name}: cells are empty", "ledger-invalid", file=name)] = None
        return figures
    is_packed = pc.equal(lines["status"], "packed")
    skipped = pc.and_(pc.equal(lines["status"], "skipped"), pc.is_in(lines["reason"], pa.array(list(REASONS))))
    checks = {
        "a line that is neither packed nor skipped for a known reason": pc.or_(
            pc.and_(is_packed, pc.equal(lines["reason"], "")), skipped
        ),
        "a packed row without a pack, or a skipped one with": pc.equal(is_packed, pc.greater_equal(lines["pack"], 0)),
        f"a line in {name} that is not of {dataset}": pc.equal(lines["dataset"], dataset),
    }
    for words, holds in checks.items():
        if not pc.all(holds, min_count=0).as_py():
            figures.problems[Problem(f"ledger: {words}", "ledger-invalid")] = None
    packed = lines.filter(is_packed)
    figures.samples, figures.packed, figures.tokens = len(lines), len(packed), column_sum(packed["tokens"])
    figures.skipped.update(reason_counts(lines))
    figures.skipped_tokens.update(skipped_tokens(lines))
    figures.fitted.update(fitted_counts(lines))
    columns = [packed[column].to_numpy() for column in OF_DOCUMENT]
    shards = np.searchsorted(firsts, columns[OF_DOCUMENT.index("pack")], side="right") - 1
    is_of_one = (shards >= 0) & (shards < len(firsts) - 1)
    hashes = document_hashes(np.full(len(packed), number), *columns)
    for half in (0, 1):
        np.add.at(figures.sums[:, half], shards[is_of_one], hashes[is_of_one, half])
    return figures


def document_hashes(*columns: NDArray[Any]) -> NDArray[np.uint64]:
    """Of each document two numbers of 64 bits: of the number of its data set, and the columns `OF_DOCUMENT`."""
    hashes = np.empty((len(columns[0]), 2), np.uint64)
    for half, seed in enumerate((0x243F6A8885A308D3, 0x13198A2E03707344)):  # digits of pi
        mixed = np.full(len(columns[0]), seed, np.uint64)
        for column in columns:
            mixed = _mixed(mixed ^ column.astype(np.int64).view(np.uint64))
        hashes[:, half] = mixed
    return hashes


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64: every bit of a number reaches every bit of the result, and no two have the same."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sums_of(documents: Iterable[Sequence[int]]) -> tuple[int, int]:
    """Of documents by number of data set and `OF_DOCUMENT`."""
    columns = np.array(list(documents), np.int64).reshape(-1, 1 + len(OF_DOCUMENT)).T
    first, second = document_hashes(*columns).sum(axis=0, dtype=np.uint64).tolist()
    return first, second


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What lines of some rows of a data set are."""

    lines: int
    different: int  # lines, by row and repetition
    rows: int
    are_all: bool  # exactly those that were asked for


def audit_rows(files: Sequence[Location], block: Block) -> Rows:
    """The task: whether each of these rows of a data set is in the ledger, and no repetition of one twice."""
    lines = ledger_rows(files, block, ("row", "repeat"))
    rows, repeats = (lines[name].to_numpy() for name in ("row", "repeat"))
    is_new_row = np.diff(rows, prepend=_NONE) != 0
    is_new = is_new_row | (np.diff(repeats, prepend=-1) != 0)
    own = rows[is_new_row]
    return Rows(
        lines=len(rows),
        different=int(np.count_nonzero(is_new)),
        rows=len(own),
        are_all=bool(np.array_equal(own, np.arange(block.first, block.end))),
    )
