"""A plan as a table: a line per row and repetition, with its pack or the reason why it is in none. Light."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, TypedDict, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack.storage.tables import column_sum, value_counts

from ..codecs import AS_THEY_ARE, Shares

# What a pack is made of, by columns of the plan; names of rows and counts follow from them.
SHAPING = ("pack", "dataset", "row", "repeat", "part", "line", "tokens", "limit", "shrink")
Key = tuple[int, int, int]  # of a line: index of the corpus, row, repetition
TEXT = pa.large_string()  # Arrow's other one ends at 2 GiB a column: 24M details, say; `take` and `concat` would fail


class PlanLine(TypedDict):
    """A line of the plan, and the columns of its table."""

    pack: Annotated[int, pa.int32()]  # -1: in no pack
    position: Annotated[int, pa.int32()]
    dataset: Annotated[int, pa.int32()]  # index into the run's corpora
    row: Annotated[int, pa.int64()]
    repeat: Annotated[int, pa.int32()]
    id: Annotated[str, TEXT]  # what the row calls itself
    group: Annotated[int, pa.int64()]  # 0: no other row is in its group; else the same number for those that are
    part: Annotated[int, pa.int32()]  # index into the run's measured parts, and the line in it
    line: Annotated[int, pa.int32()]
    at: Annotated[int, pa.int64()]  # where its measured row is, and how long: see pipeline/measure/store.py
    size: Annotated[int, pa.int32()]
    tokens: Annotated[int, pa.int32()]
    visual_tokens: Annotated[int, pa.int32()]
    audio_tokens: Annotated[int, pa.int32()]
    media_bytes: Annotated[int, pa.int64()]
    picture_bytes: Annotated[int, pa.int64()]  # of which those of pictures
    limit: Annotated[int, pa.int32()]  # tokens to truncate to; 0: whole
    shrink: Annotated[int, pa.int32()]  # steps by which its media are made smaller
    reason: Annotated[str, TEXT]
    detail: Annotated[str, TEXT]


SCHEMA = pa.schema(
    [(name, kind.__metadata__[0]) for name, kind in get_type_hints(PlanLine, include_extras=True).items()]
)


@dataclass(frozen=True)
class Plan:
    """Lines of packed rows in pack order, then lines of skipped rows in source order (see SCHEMA); or a run of packs.

    Packs are numbered without gaps.
    """

    table: pa.Table

    @cached_property
    def packed(self) -> pa.Table:
        return self.table.slice(0, column_sum(pc.greater_equal(self.table["pack"], 0)))

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each pack's lines start in the table; one more at the end."""
        packs = self.packed["pack"].to_numpy()
        return np.append(np.flatnonzero(np.diff(packs, prepend=-1)), len(packs))

    @cached_property
    def first(self) -> int:
        """The number of the first pack."""
        return int(self.packed["pack"][0].as_py()) if len(self.packed) else 0

    @property
    def num_packs(self) -> int:
        return len(self.starts) - 1

    def shifted(self, by: int) -> "Plan":
        """The same packs under other numbers."""
        pack = self.table["pack"].to_numpy()
        return Plan(with_columns(self.table, {"pack": np.where(pack < 0, pack, pack + by)}))

    def skip_counts(self) -> dict[str, int]:
        """Lines in no pack, by reason."""
        return value_counts(self.table.slice(len(self.packed))["reason"])

    def lines_in_pack(self, number: int) -> list[PlanLine]:
        """One line per document of a pack, by position."""
        start, end = self.starts[[number - self.first, number - self.first + 1]].tolist()
        lines: list[PlanLine] = self.packed.slice(start, end - start).to_pylist()
        return lines

    def columns_of_pack(self, number: int) -> dict[str, list[Any]]:
        """The same by column, without an object for each line: packs may have hundreds."""
        start, end = self.starts[[number - self.first, number - self.first + 1]].tolist()
        return {name: values[start:end] for name, values in self._values.items()}

    @cached_property
    def _values(self) -> dict[str, list[Any]]:
        """Of packed lines, by column."""
        columns = {name: self.packed[name] for name in SCHEMA.names}
        return {
            name: column.to_pylist() if column.type == TEXT else column.to_numpy().tolist()
            for name, column in columns.items()
        }

    def places(self, rows: Collection[Key]) -> np.ndarray:
        """Where in the table the lines of these rows are."""
        dataset, row, repeat = (self.table[name].to_numpy() for name in ("dataset", "row", "repeat"))
        near = np.flatnonzero(np.isin(row, [number for _, number, _ in rows])).tolist()
        found = [at for at in near if (int(dataset[at]), int(row[at]), int(repeat[at])) in rows]
        assert len(found) == len(rows), "a row that was not planned"
        return np.array(found, dtype=np.int64)

    def digests(self, firsts: Sequence[int]) -> list[str]:
        """Of what runs of packs are made of: each from one of these, counted from the first pack, to the next."""
        columns = [np.ascontiguousarray(self.packed[name].to_numpy()).data for name in SHAPING]
        edges = self.starts[[*firsts, self.num_packs]].tolist()
        return [_sha256(column[start:end] for column in columns) for start, end in pairwise(edges)]

    def per_pack(self, column: str) -> np.ndarray:
        """Sum of a column over the documents of each pack."""
        if not self.num_packs:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.packed[column].to_numpy().astype(np.int64), self.starts[:-1])


def _sha256(parts: Iterable[memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def with_columns(lines: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Lines of a plan with other values in these columns."""
    for name, values in columns.items():
        column = SCHEMA.get_field_index(name)
        field = SCHEMA.field(column)
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        lines = lines.set_column(column, field, array.cast(field.type))
    return lines


def replaced(column: pa.ChunkedArray, where: np.ndarray, values: Any) -> pa.Array:
    """A column of texts with other values at these places, ascending; no other text becomes a Python object."""
    mask = np.zeros(len(column), dtype=np.bool_)
    mask[where] = True
    texts = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, TEXT)
    one = _one_array(column)
    return pc.replace_with_mask(one, pa.array(mask), _one_array(texts).cast(TEXT)) if len(where) else one


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def in_pack_order(lines: pa.Table, pack: np.ndarray) -> Plan:
    """The plan of lines in source order, by the pack of each; -1: none."""
    num_packed = int((pack >= 0).sum())
    order = np.argsort(np.where(pack < 0, np.int64(1) << 62, pack), kind="stable")  # what is in none comes last
    position = np.full(len(lines), -1, dtype=np.int64)
    packed = pack[order[:num_packed]]
    position[order[:num_packed]] = np.arange(num_packed) - np.searchsorted(packed, packed)
    return Plan(with_columns(lines, {"pack": pack, "position": position}).take(pa.array(order)))


def in_order(lines: pa.Table, pack: np.ndarray) -> Plan:
    """As `Plan` says, whatever the order of the lines: by pack and in source order, then what is skipped likewise."""
    part, line, repeat = (lines[name].to_numpy().astype(np.int64) for name in ("part", "line", "repeat"))
    order = np.lexsort([repeat, line, part])
    return in_pack_order(lines.take(pa.array(order)), pack[order])


def cut_off(plan: Plan, num_packs: int) -> Plan:
    """The plan with its first packs only; rows of the others are skipped, for --max-packs."""
    if plan.num_packs <= num_packs:
        return plan
    table = plan.table
    pack, reason = table["pack"].to_numpy().copy(), table["reason"]
    beyond = np.flatnonzero(pack >= num_packs)
    pack[beyond] = -1
    lines = with_columns(table, {"pack": pack, "reason": replaced(reason, beyond, ["max_packs"] * len(beyond))})
    return in_order(lines, pack)


def pack_bytes(plan: Plan, stored: Shares = AS_THEY_ARE) -> np.ndarray:
    """About what each pack takes: 21 bytes a token (ids, labels, 3 positions, type), media, headers.

    `stored`: what is left of media on disk; as they are: in memory.
    """
    pictures = plan.per_pack("picture_bytes")
    media = stored.pictures * pictures + stored.others * (plan.per_pack("media_bytes") - pictures)
    size: np.ndarray = 21 * plan.per_pack("tokens") + media.astype(np.int64) + 16_384
    return size


def shard_starts(plan: Plan, shard_bytes: int, stored: Shares = AS_THEY_ARE) -> list[int]:
    """First pack of each shard, and the number of packs at the end: cut where a shard would exceed `shard_bytes`."""
    ends = np.cumsum(pack_bytes(plan, stored))
    starts, before = [0], 0
    while starts[-1] < len(ends):
        fitting = int(np.searchsorted(ends, before + shard_bytes, side="right"))
        starts.append(max(fitting, starts[-1] + 1))
        before = int(ends[starts[-1] - 1])
    return starts
