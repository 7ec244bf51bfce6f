"""`neatpack diff`: what changed between two outputs, row by row, by joins of whole columns.

Rows are told by data set, number and repetition: that is all that two ledgers have in common.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from neatpack.errors import OutputError
from neatpack.format.manifest import FILE, REMEDY, Manifest, changes
from neatpack.storage.location import Location
from neatpack.storage.tables import num_lines

from ..shard.tables import ledger_names, ledger_rows, row_blocks, table_file
from ..shard.words import clipped, counted
from .columns import table
from .inspect import with_total

Bools = NDArray[np.bool_]

# What a line of the ledgers can be. Those of the first are all but "came", those of the second all but "went".
KINDS = {
    "same": "as it was",
    "came": "only in the second",
    "went": "only in the first",
    "packed now": "was skipped, is packed",
    "skipped now": "was packed, is skipped",
    "other length": "packed in both, with another number of tokens or visual tokens",
    "moved": "the same length in another pack",
    "shifted": "at another position of the same pack",
    "other reason": "skipped in both, for another reason or in other words",
}
COLUMNS = ("row", "repeat", "status", "reason", "detail", "pack", "position", "tokens", "visual_tokens")
MAX_VALUE = 60  # characters of a value that changed


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What differs between two outputs."""

    settings: list[tuple[str, Any, Any]]  # key of what they are made from, old and new value
    counts: dict[str, dict[str, int]]  # by data set and kind
    examples: dict[str, list[str]]  # by kind: some rows, in words
    shards: tuple[int, int, int]  # in the first, in the second, and those in both with the same bytes
    is_same: bool

    @property
    def totals(self) -> dict[str, int]:
        return {kind: sum(counts[kind] for counts in self.counts.values()) for kind in KINDS}

    def to_json(self) -> dict[str, Any]:
        first, second, both = self.shards
        return {
            "same": self.is_same,
            "settings": [{"key": key, "old": old, "new": new} for key, old, new in self.settings],
            "rows": self.totals,
            "datasets": self.counts,
            "examples": self.examples,
            "shards": {"first": first, "second": second, "same_bytes": both},
        }


def difference(first: Location, second: Location, *, num_examples: int = 3) -> Difference:
    """Raises OutputError where one of them cannot be read."""
    manifests = Manifest.read(first), Manifest.read(second)
    old, new = manifests
    ledgers = [ledger_names(manifest) for manifest in manifests]
    counts: dict[str, dict[str, int]] = {}
    examples: dict[str, list[str]] = {kind: [] for kind in KINDS if kind != "same"}
    for name in dict.fromkeys([*ledgers[0], *ledgers[1]]):
        counts[name] = dict.fromkeys(KINDS, 0)
        for joined in _joined((first, old, ledgers[0].get(name, [])), (second, new, ledgers[1].get(name, [])), name):
            counts[name] = {kind: count + joined.count(kind) for kind, count in counts[name].items()}
            for kind, found in examples.items():
                found += (f"{name} {words}" for words in joined.examples(kind, num_examples - len(found)))
    settings = changes(old.identity.to_json(), new.identity.to_json())
    digests = [{shard.sha256 for shard in manifest.shards} for manifest in manifests]
    described = [dataclasses.replace(manifest, neatpack="", fingerprint="") for manifest in manifests]
    return Difference(
        settings=settings,
        counts=counts,
        examples={kind: found for kind, found in examples.items() if found},
        shards=(len(old.shards), len(new.shards), sum(shard.sha256 in digests[0] for shard in new.shards)),
        is_same=described[0] == described[1],
    )


Side = tuple[Location, Manifest, list[str]]  # an output, and the files of a data set's ledger in it


def _joined(first: Side, second: Side, dataset: str) -> "Iterator[_Joined]":
    """The ledgers of a data set, side by side, some rows at a time: no more of them are in memory."""
    files = [[table_file(out, manifest, name) for name in names] for out, manifest, names in (first, second)]
    num_rows = max(int(side[1].identity.inputs.get(dataset, {}).get("rows", 0)) for side in (first, second))
    try:
        most = max(sum(map(num_lines, own)) for own in files)
        for block in row_blocks(num_rows, most):
            yield _Joined.of(*(_Ledger.of(ledger_rows(own, block, COLUMNS)) for own in files))
    except (pa.ArrowException, OSError) as error:
        where = f"{first[0]} and {second[0]}: the ledgers of {dataset}"
        raise OutputError(
            f"{where}: not parquet: {str(error)[:200]}; {REMEDY}", code="output-damaged", path=str(where)
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Ledger:
    """The lines of a data set, by key: row and repetition in one number, ascending."""

    keys: NDArray[np.int64]
    columns: dict[str, Any]  # numbers as numpy arrays, texts as Arrow's

    @classmethod
    def of(cls, lines: pa.Table) -> "_Ledger":
        keys = (lines["row"].to_numpy() << 32) | lines["repeat"].to_numpy()
        texts = ("reason", "detail")
        columns: dict[str, Any] = {name: lines[name].to_numpy() for name in COLUMNS[5:]}
        columns |= {name: lines[name].combine_chunks() for name in texts}
        columns["is_packed"] = pc.equal(lines["status"], "packed").to_numpy()
        return cls(keys=keys, columns=columns)

    def take(self, places: NDArray[np.int64]) -> "_Ledger":
        columns = {
            name: values[places] if isinstance(values, np.ndarray) else values.take(places)
            for name, values in self.columns.items()
        }
        return _Ledger(keys=self.keys[places], columns=columns)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Joined:
    """Two ledgers of a data set: the lines that both have, side by side, and those that one has."""

    old: _Ledger
    new: _Ledger
    alone: dict[str, _Ledger]  # "went" and "came"
    kinds: dict[str, Bools]  # of the lines that both have: exactly one is true

    @classmethod
    def of(cls, first: _Ledger, second: _Ledger) -> "_Joined":
        _, left, right = np.intersect1d(first.keys, second.keys, assume_unique=True, return_indices=True)
        alone = {
            "went": first.take(np.setdiff1d(np.arange(len(first.keys)), left, assume_unique=True)),
            "came": second.take(np.setdiff1d(np.arange(len(second.keys)), right, assume_unique=True)),
        }
        old, new = first.take(left), second.take(right)
        return cls(old=old, new=new, alone=alone, kinds=_kinds(old, new) if len(left) else {})

    def count(self, kind: str) -> int:
        if kind in self.alone:
            return len(self.alone[kind].keys)
        return int(np.count_nonzero(self.kinds[kind])) if self.kinds else 0

    def examples(self, kind: str, most: int) -> Iterator[str]:
        """The first of them, in words: "row 7: pack 3 -> 5"."""
        if most <= 0 or not self.count(kind):
            return
        if kind in self.alone:
            for at in range(min(most, len(self.alone[kind].keys))):
                yield f"{_named(self.alone[kind], at)}: {_state(self.alone[kind], at)}"
            return
        for at in np.flatnonzero(self.kinds[kind])[:most].tolist():
            if kind in ("packed now", "skipped now", "other reason"):
                told = f"{_state(self.old, at)} -> {_state(self.new, at)}"
            else:
                names = {"other length": ("tokens", "visual_tokens", "pack"), "moved": ("pack",)}.get(
                    kind, ("position",)
                )
                pairs = ((name, self.old.columns[name][at], self.new.columns[name][at]) for name in names)
                told = ", ".join(
                    f"{name.replace('_', ' ')} {was:,} -> {is_:,}" for name, was, is_ in pairs if was != is_
                )
            yield f"{_named(self.old, at)}: {told}"


def _kinds(old: _Ledger, new: _Ledger) -> dict[str, Bools]:
    def differs(name: str) -> Bools:
        return np.asarray(old.columns[name] != new.columns[name])

    def text_differs(name: str) -> Bools:
        return np.asarray(pc.not_equal(old.columns[name], new.columns[name]).to_numpy(zero_copy_only=False))

    was, is_ = old.columns["is_packed"], new.columns["is_packed"]
    length = was & is_ & (differs("tokens") | differs("visual_tokens"))
    moved = was & is_ & differs("pack") & ~length
    shifted = was & is_ & differs("position") & ~length & ~moved
    kinds = {
        "packed now": ~was & is_,
        "skipped now": was & ~is_,
        "other length": length,
        "moved": moved,
        "shifted": shifted,
        "other reason": ~was & ~is_ & (text_differs("reason") | text_differs("detail")),
    }
    return kinds | {"same": ~np.logical_or.reduce(list(kinds.values()))}


def _named(ledger: _Ledger, at: int) -> str:
    row, repeat = divmod(int(ledger.keys[at]), 1 << 32)
    return f"row {row}" + (f", repeat {repeat}" if repeat else "")


def _state(ledger: _Ledger, at: int) -> str:
    if ledger.columns["is_packed"][at]:
        return f"in pack {ledger.columns['pack'][at]:,}, {counted(int(ledger.columns['tokens'][at]), 'token')}"
    reason, detail = (ledger.columns[name][at].as_py() for name in ("reason", "detail"))
    return clipped(f"{reason}: {detail}" if detail else reason, 2 * MAX_VALUE)


def described(first: Location, second: Location, found: Difference) -> Iterator[str]:
    """In lines of text: settings, rows by data set, examples, shards."""
    if found.is_same:
        yield f"{first} and {second} are the same: {counted(found.totals['same'], 'ledger line')}"
        return
    yield f"{first} -> {second}"
    yield from _paragraph("made from", [f"{key}: {_value(old)} -> {_value(new)}" for key, old, new in found.settings])
    totals = found.totals
    kinds = [kind for kind in KINDS if totals[kind]]
    lines = [{"dataset": name} | {kind: counts[kind] for kind in kinds} for name, counts in found.counts.items()]
    if kinds:
        yield from _paragraph("rows", list(table(with_total(lines))))
    for kind, words in found.examples.items():
        others = totals[kind] - len(words)
        more = [f"and {others:,} more"] if others else []
        yield from _paragraph(f"{kind} ({KINDS[kind]})", [*words, *more])
    old, new, both = found.shards
    told = f"{counted(old, 'shard')} -> {counted(new, 'shard')}, {both:,} with the same bytes"
    yield from _paragraph("shards", [told])
    if not found.settings and totals["same"] == sum(totals.values()) and (old, new) == (both, both):
        yield from _paragraph("and yet", [f"{FILE} of the two differ elsewhere: run `neatpack verify` on both"])


def _paragraph(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _value(value: Any) -> str:
    """A data set is told by its size: what it is has many words."""
    if isinstance(value, dict) and isinstance(value.get("rows"), int):
        return counted(value["rows"], "row")
    return "none" if value is None else clipped(str(value), MAX_VALUE)
