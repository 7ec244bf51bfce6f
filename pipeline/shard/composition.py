"""Which rows share packs, against chance: read from the ledger of a finished output.

A pair of rows meets by chance as often as two random rows of its dataset that are as long, to the double, and have
visual tokens or none: short rows share packs with more others than long ones. Copies of a row should never meet where
there are enough packs, neighbours of the file no more often than others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from neatpack.format.manifest import Manifest
from neatpack.storage.location import Location
from neatpack.storage.tables import read_groups, schema_of

from .problems import Problem
from .tables import ledger_names, ledger_rows, row_blocks, table_file

COPIES, NEIGHBORS, GROUPS, DATASETS = "copies of a row", "neighbours in a file", "rows of one group", "one dataset"
MOST_TOGETHER = 2.0  # times chance, for copies and neighbours
MOST_GROUPED = 1 << 24  # rows in groups that are looked at; of more, those of some groups
_COLUMNS = ("row", "repeat", "pack", "group", "tokens", "visual_tokens")  # blocks are sorted by the first two
NUM_KINDS = 32  # of rows: 16 lengths, with visual tokens or without

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """How many pairs of a kind there are, how many of them share a pack, and how many would by chance."""

    kind: str
    pairs: int
    together: int
    by_chance: float

    @property
    def times_chance(self) -> float | None:
        return self.together / self.by_chance if self.by_chance else None

    @property
    def is_too_often(self) -> bool:
        noise = 4 * self.by_chance**0.5 + 4
        return self.kind in (COPIES, NEIGHBORS) and self.together > MOST_TOGETHER * self.by_chance + noise


def read_composition(out: Location, manifest: Manifest) -> list[Together]:
    """Return how often rows share packs: copies, neighbours, rows of one group, rows of one dataset.

    Nothing for outputs of versions that did not record groups.
    """
    names = ledger_names(manifest)
    if any("group" not in schema_of(out / file).names for files in names.values() for file in files):
        return []
    sums = {kind: np.zeros(3) for kind in (COPIES, NEIGHBORS, GROUPS, DATASETS)}
    num_packs = manifest.counts.packs
    per_pack = np.zeros(num_packs, dtype=np.int64)
    groups: list[tuple[Ints, Ints]] = []
    for name, files in names.items():
        by_kind = np.zeros((num_packs, NUM_KINDS), dtype=np.int32)
        together = np.zeros(2, dtype=np.int64)
        pairs = np.zeros((2, NUM_KINDS, NUM_KINDS), dtype=np.int64)  # of copies and of neighbours, by their kinds
        for row, pack, group, kind in _blocks(out, manifest, name, files):
            np.add.at(by_kind, (pack, kind), 1)
            together += _count_pairs(row, pack, kind, pairs)
            groups.append((group[group > 0], pack[group > 0]))
        own = by_kind.sum(axis=1, dtype=np.int64)
        total = int(own.sum())
        expected = (pairs * _chances(by_kind)).sum(axis=(1, 2))
        for at, name_of in enumerate((COPIES, NEIGHBORS)):
            sums[name_of] += (pairs[at].sum(), together[at], expected[at])
        sums[DATASETS] += (total * (total - 1) // 2, _pairs_of(own), 0)
        per_pack += own
    total = int(per_pack.sum())
    chance = _pairs_of(per_pack) / max(1, total * (total - 1) // 2)
    sums[DATASETS][2] = sums[DATASETS][0] * chance
    num_pairs, met = _group_pairs(groups)
    sums[GROUPS] += (num_pairs, met, num_pairs * chance)
    return [
        Together(kind=name, pairs=int(num_pairs), together=int(met), by_chance=float(by_chance))
        for name, (num_pairs, met, by_chance) in sums.items()
    ]


def composition_problems(found: Sequence[Together]) -> Iterator[Problem]:
    for each in found:
        if each.is_too_often:
            yield Problem(
                f"ledger: {each.together:,} of {each.pairs:,} pairs of {each.kind} share a pack (expected "
                f"{each.by_chance:,.1f} by chance, {MOST_TOGETHER:g} times that at most). Pack again.",
                "rows-together",
                kind=each.kind,
                got=each.together,
                pairs=each.pairs,
            )


def _blocks(
    out: Location, manifest: Manifest, name: str, files: Sequence[str]
) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Yield the packed lines of a dataset by row and repetition; a row is in one block."""
    places = [table_file(out, manifest, file) for file in files]
    num_lines = sum(len(lines) for place in places for lines in read_groups(place, ("row",)))
    for block in row_blocks(int(manifest.identity.inputs[name]["rows"]), num_lines):
        lines = ledger_rows(places, block, _COLUMNS)
        is_packed = pc.and_(pc.greater_equal(lines["pack"], 0), pc.less(lines["pack"], manifest.counts.packs))
        lines = lines.filter(is_packed)
        row, _, pack, group, tokens, visual = (lines[column].to_numpy().astype(np.int64) for column in _COLUMNS)
        length = np.minimum(np.frexp(tokens)[1], NUM_KINDS // 2 - 1)
        yield row, pack, group, 2 * length + (visual > 0)


def _chances(by_kind: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return how probable it is that two rows share a pack, by their kinds. `by_kind`: rows of each pack."""
    met = np.zeros((NUM_KINDS, NUM_KINDS))
    for first in range(0, len(by_kind), 1 << 16):
        some = by_kind[first : first + (1 << 16)].astype(np.float64)
        met += some.T @ some
    counts = by_kind.sum(axis=0, dtype=np.float64)
    pairs = np.outer(counts, counts) - np.diag(counts)
    return np.where(pairs > 0, (met - np.diag(counts)) / np.maximum(pairs, 1), 0.0)


def _count_pairs(row: Ints, pack: Ints, kind: Ints, pairs: Ints) -> Ints:
    """Add pairs of copies of a row and of copies of neighbours by their kinds. Return how many of them share a pack."""
    rows, first, counts = np.unique(row, return_index=True, return_counts=True)
    kinds, is_next = kind[first], np.diff(rows) == 1
    np.add.at(pairs[0], (kinds, kinds), counts * (counts - 1) // 2)
    np.add.at(pairs[1], (kinds[:-1][is_next], kinds[1:][is_next]), (counts[:-1] * counts[1:])[is_next])
    met = _pairs_in_packs(row, pack) if (counts > 1).any() else 0
    order = np.lexsort((row, pack))
    row, pack = row[order], pack[order]
    starts = np.flatnonzero(np.append(True, (np.diff(row) != 0) | (np.diff(pack) != 0))) if len(row) else row
    counts = np.diff(np.append(starts, len(row)))
    is_next = (np.diff(row[starts]) == 1) & (np.diff(pack[starts]) == 0)
    together = int((counts[:-1] * counts[1:])[is_next].sum())
    return np.array([met, together], dtype=np.int64)


def _pairs_of(counts: Ints) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _pairs_in_packs(labels: Ints, pack: Ints) -> int:
    """Return how many pairs of one label share a pack."""
    numbers = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return _pairs_of(np.unique(numbers * (int(pack.max()) + 1) + pack, return_counts=True)[1])


def _group_pairs(found: Sequence[tuple[Ints, Ints]]) -> tuple[int, int]:
    groups, packs = (np.concatenate([np.zeros(0, np.int64), *(pair[half] for pair in found)]) for half in (0, 1))
    if len(groups) > MOST_GROUPED:
        some = groups % (len(groups) // MOST_GROUPED + 1) == 0
        groups, packs = groups[some], packs[some]
    if not len(groups):
        return 0, 0
    pairs = _pairs_of(np.unique(groups, return_counts=True)[1])
    return pairs, _pairs_in_packs(groups, packs)
