"""The plan of a run: which row goes into which pack, at which position, and which row goes nowhere, and why."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypedDict, TypeVar, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import PackConfig, UserError
from ..families.base import Family
from ..ingest.corpus import Corpus
from ..measure.length import shrunk, truncated
from ..measure.store import MeasuredPart, read_measured
from ..records import Measured
from ..runtime.tables import column_sum, open_arrow, value_counts
from .mixture import copies, ratios
from .plan import plan_bins

FROM_STORE = ["tokens", "visual_tokens", "media_bytes", "reason", "detail"]  # columns that a part of the store has
FITTED = ("tokens", "visual_tokens", "media_bytes", "limit", "shrink", "reason", "detail")  # fitting changes these
# What a pack is made of, by columns of the plan; names of rows and counts follow from them.
SHAPING = ("pack", "dataset", "row", "repeat", "part", "line", "tokens", "limit", "shrink")
MAX_SHRINK = 16  # halvings: 768 frames are down to 4 after 8, and 100 megapixels to one patch after 16


Tokens = TypeVar("Tokens", int, np.ndarray)
Key = tuple[int, int, int]  # of a line: index of the corpus, row, repetition


class PlanLine(TypedDict):
    """A line of the plan, and the columns of its table."""

    pack: Annotated[int, pa.int32()]  # -1: in no pack
    position: Annotated[int, pa.int32()]
    dataset: Annotated[int, pa.int32()]  # index into the run's corpora
    row: Annotated[int, pa.int64()]
    repeat: Annotated[int, pa.int32()]
    id: Annotated[str, pa.string()]  # what the row calls itself
    part: Annotated[int, pa.int32()]  # index into the run's measured parts, and the line in it
    line: Annotated[int, pa.int32()]
    tokens: Annotated[int, pa.int32()]
    visual_tokens: Annotated[int, pa.int32()]
    media_bytes: Annotated[int, pa.int64()]
    limit: Annotated[int, pa.int32()]  # tokens to truncate to; 0: whole
    shrink: Annotated[int, pa.int32()]  # steps by which its media are made smaller
    times: Annotated[float, pa.float64()]  # how often its pack comes in an epoch
    reason: Annotated[str, pa.string()]
    detail: Annotated[str, pa.string()]


SCHEMA = pa.schema(
    [(name, kind.__metadata__[0]) for name, kind in get_type_hints(PlanLine, include_extras=True).items()]
)


@dataclass(frozen=True)
class Plan:
    """Lines of packed rows in pack order, then lines of skipped rows in source order (see SCHEMA)."""

    table: pa.Table

    @cached_property
    def packed(self) -> pa.Table:
        return self.table.slice(0, column_sum(pc.greater_equal(self.table["pack"], 0)))

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each pack's lines start in the table; one more at the end."""
        packs = self.packed["pack"].to_numpy()
        return np.searchsorted(packs, np.arange(self.num_packs + 1))

    @property
    def num_packs(self) -> int:
        return int(self.packed["pack"][-1].as_py()) + 1 if len(self.packed) else 0

    def skip_counts(self) -> dict[str, int]:
        """Lines in no pack, by reason."""
        return value_counts(self.table.slice(len(self.packed))["reason"])

    def lines_in_pack(self, number: int) -> list[PlanLine]:
        """One line per document of a pack, by position."""
        start, end = self.starts[number : number + 2].tolist()
        lines: list[PlanLine] = self.packed.slice(start, end - start).to_pylist()
        return lines

    def places(self, rows: Collection[Key]) -> np.ndarray:
        """Where in the table the lines of these rows are."""
        dataset, row, repeat = (self.table[name].to_numpy() for name in ("dataset", "row", "repeat"))
        near = np.flatnonzero(np.isin(row, [number for _, number, _ in rows])).tolist()
        found = [at for at in near if (int(dataset[at]), int(row[at]), int(repeat[at])) in rows]
        assert len(found) == len(rows), "a row that was not planned"
        return np.array(found, dtype=np.int64)

    def digest(self, first: int, last: int) -> str:
        """Of what packs [first, last) are made of."""
        start, end = self.starts[[first, last]].tolist()
        lines, digest = self.packed.slice(start, end - start), hashlib.sha256()
        for name in SHAPING:
            digest.update(np.ascontiguousarray(lines[name].to_numpy()).data)
        return digest.hexdigest()

    @property
    def times_per_pack(self) -> np.ndarray:
        times: np.ndarray = self.packed["times"].to_numpy()[self.starts[:-1]]
        return times

    def per_pack(self, column: str) -> np.ndarray:
        """Sum of a column over the documents of each pack."""
        if not self.num_packs:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.packed[column].to_numpy().astype(np.int64), self.starts[:-1])


def make_plan(corpora: Sequence[Corpus], parts: Sequence[MeasuredPart], family: Family, config: PackConfig) -> Plan:
    """Assign every measured row, as often as its corpus takes it."""
    lines = _lines(corpora, parts)
    reserve = reserved(config, len(family.fake_image_ids))
    fitting = _Fitting(corpora=corpora, parts=parts, family=family, config=config, reserve=reserve)
    lines = _mixed(fitting.fitted(lines), corpora, repeat_at_load=config.repeat_at_load)
    tokens, visual = aligned(lines["tokens"].to_numpy(), config.align), lines["visual_tokens"].to_numpy()
    good = np.flatnonzero(pc.equal(lines["reason"], "").to_numpy())
    # Rows that exceed the fill that packing_ratio asks for, but not the pack, get a pack of their own.
    alone = tokens[good] > np.where(visual[good] > 0, config.fill, config.fill - reserve)
    shared = good[~alone]
    times, bins = lines["times"].to_numpy(), []
    for each in np.unique(times[good]):  # rows of one pack come equally often
        mine = shared[times[shared] == each]
        planned = plan_bins(
            tokens[mine],
            visual[mine],
            capacity=config.fill,
            group_size=config.group_size,
            seed=config.seed,
            max_visual_tokens=config.max_visual_tokens or None,
            text_reserve=reserve,
        )
        bins += [mine[bin_] for bin_ in planned]
        bins += list(good[alone & (times[good] == each)][:, None])
    return Plan(_in_pack_order(lines, bins, config.max_packs))


def measured_again(
    plan: Plan,
    where: np.ndarray,
    corpora: Sequence[Corpus],
    parts: Sequence[MeasuredPart],
    family: Family,
    config: PackConfig,
) -> pa.Table:
    """What the lines at these places of the plan's table are by the token store as it is now."""
    lines = plan.table.take(pa.array(where))
    found = [
        open_arrow(parts[line["part"]].path).select(FROM_STORE).slice(line["line"], 1).to_pylist()[0]
        for line in lines.select(["part", "line"]).to_pylist()
    ]
    fresh = pa.Table.from_pylist(
        [line | of_store | {"limit": 0, "shrink": 0} for line, of_store in zip(lines.to_pylist(), found, strict=True)],
        schema=SCHEMA,
    )
    reserve = reserved(config, len(family.fake_image_ids))
    fitting = _Fitting(corpora=corpora, parts=parts, family=family, config=config, reserve=reserve)
    return fitting.fitted(fresh)


def shard_starts(plan: Plan, shard_bytes: int) -> list[int]:
    """First pack of each shard, and the number of packs at the end: cut where a shard would exceed `shard_bytes`."""
    starts, filled = [0], 0
    for number, size in enumerate(pack_bytes(plan).tolist()):
        if filled and filled + size > shard_bytes:
            starts.append(number)
            filled = 0
        filled += size
    return [*starts, plan.num_packs] if plan.num_packs else [0]


def reserved(config: PackConfig, num_fake_ids: int) -> int:
    """Tokens that a pack without visual tokens keeps free, for the fake image."""
    reserve = aligned(num_fake_ids, config.align) if config.fake_image else 0
    if reserve >= config.pack_size:
        raise UserError(
            f"--pack-size {config.pack_size}: a pack without pictures keeps {reserve} tokens free for a fake image, "
            "the smallest picture of this model, and has no room for text beside it; give more, or --no-fake-image"
        )
    return reserve


def aligned(tokens: Tokens, align: int) -> Tokens:
    """What documents occupy in a pack, one or many: [5, 8] tokens with align 4 -> [8, 8]."""
    return -(-tokens // align) * align


def pack_bytes(plan: Plan) -> np.ndarray:
    """About what each pack takes on disk: 21 bytes a token (ids, labels, 3 positions, type), pixels, headers."""
    size: np.ndarray = 21 * plan.per_pack("tokens") + plan.per_pack("media_bytes") + 16_384
    return size


def _lines(corpora: Sequence[Corpus], parts: Sequence[MeasuredPart]) -> pa.Table:
    """One line per row and repetition, in source order."""
    tables = []
    for index, part in enumerate(parts):
        stored = open_arrow(part.path)
        repeats = corpora[part.corpus].copies[stored["row"].to_numpy()]
        line = np.repeat(np.arange(len(stored), dtype=np.int32), repeats)
        columns = {
            "pack": np.full(len(line), -1),
            "position": np.full(len(line), -1),
            "dataset": np.full(len(line), part.corpus),
            "repeat": _repeat_numbers(repeats),
            "part": np.full(len(line), index),
            "line": line,
            "limit": np.zeros(len(line)),
            "shrink": np.zeros(len(line)),
            "times": np.full(len(line), corpora[part.corpus].times_at_load),
        }
        taken = stored.take(pa.array(line))
        tables.append(
            pa.table(
                [
                    pa.array(columns[field.name]).cast(field.type) if field.name in columns else taken[field.name]
                    for field in SCHEMA
                ],
                schema=SCHEMA,
            )
        )
    return pa.concat_tables(tables).combine_chunks() if tables else SCHEMA.empty_table()


def _mixed(lines: pa.Table, corpora: Sequence[Corpus], *, repeat_at_load: bool) -> pa.Table:
    """Where data sets have weights, their lines repeated, or marked for the loader to repeat: only now it is known how
    long each row is, and which fit."""
    weights = [corpus.weight for corpus in corpora if corpus.weight is not None]
    if not weights:
        return lines
    assert len(weights) == len(corpora), "read_meta gives all of them a weight, or none"
    dataset = lines["dataset"].to_numpy()
    tokens = np.where(pc.equal(lines["reason"], "").to_numpy(), lines["tokens"].to_numpy(), 0).astype(np.int64)
    places = [np.flatnonzero(dataset == index) for index in range(len(corpora))]
    repeats, times = np.ones(len(lines), dtype=np.int32), np.ones(len(lines))
    for place, ratio in zip(places, ratios([int(tokens[place].sum()) for place in places], weights), strict=True):
        if repeat_at_load:
            times[place] = ratio
        else:
            repeats[place] = copies(tokens[place], ratio)
    if repeat_at_load:
        column = SCHEMA.get_field_index("times")
        return lines.set_column(column, SCHEMA.field(column), pa.array(times))
    column = SCHEMA.get_field_index("repeat")
    taken = lines.take(pa.array(np.repeat(np.arange(len(lines)), repeats)))
    return taken.set_column(column, SCHEMA.field(column), pa.array(_repeat_numbers(repeats), pa.int32()))


def _repeat_numbers(repeats: np.ndarray) -> np.ndarray:
    """[1, 3] -> [0, 0, 1, 2]."""
    numbers: np.ndarray = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """How an overlong sample is made to fit, or why it is not."""

    measured: Measured | None  # what fits; None: nothing does
    words: str
    limit: int = 0  # tokens it is truncated to; 0: it is not
    shrink: int = 0  # steps by which its media are made smaller


@dataclass(frozen=True, kw_only=True)
class _Fitting:
    """Truncates, shrinks, skips or refuses what does not fit a pack, as the config says."""

    corpora: Sequence[Corpus]
    parts: Sequence[MeasuredPart]
    family: Family
    config: PackConfig
    reserve: int  # tokens that a pack without visual tokens keeps free, for the fake image

    def fitted(self, lines: pa.Table) -> pa.Table:
        """The lines of a plan: overlong samples made to fit or skipped, and those above max_visual_tokens skipped."""
        config = self.config
        changed = {name: lines[name].to_numpy().copy() for name in FITTED}  # texts as Python objects
        tokens, visual = lines["tokens"].to_numpy(), lines["visual_tokens"].to_numpy()
        room = np.where(visual > 0, config.pack_size, config.pack_size - self.reserve)
        for index in np.flatnonzero(aligned(tokens, config.align) > room).tolist():
            line: PlanLine = lines.slice(index, 1).to_pylist()[0]
            length = f"{line['tokens']} tokens"
            if config.overlong_policy == "error":
                raise UserError(
                    f"{self.corpora[line['dataset']].name} row {line['row']}: {length}, a pack holds {room[index]}; "
                    "set overlong to truncate or drop, or raise pack_size"
                )
            fit = self._fit(line["part"], line["line"])
            if fit.measured is None:
                change: dict[str, str | int] = {
                    "reason": "overlong",
                    "detail": f"{length}, a pack holds {room[index]}{fit.words}",
                }
            else:
                change = {
                    "tokens": fit.measured.tokens,
                    "visual_tokens": fit.measured.visual_tokens,
                    "media_bytes": fit.measured.media_bytes,
                    "limit": fit.limit,
                    "shrink": fit.shrink,
                    "detail": f"{fit.words} from {line['tokens']} to {fit.measured.tokens} tokens",
                }
            for name, value in change.items():
                changed[name][index] = value
        if most := config.max_visual_tokens:
            for index in np.flatnonzero(changed["visual_tokens"] > most).tolist():
                if not changed["reason"][index]:
                    changed["reason"][index] = "too_many_visual_tokens"
                    changed["detail"][index] = (
                        f"{changed['visual_tokens'][index]} visual tokens, a pack may hold {most}"
                    )
        for name, values in changed.items():
            field = SCHEMA.field(name)
            lines = lines.set_column(SCHEMA.get_field_index(name), field, pa.array(values, field.type))
        return lines

    def _fit(self, part: int, line: int) -> _Fit:
        policy = self.config.overlong_policy
        if policy not in ("truncate", "shrink"):
            return _Fit(measured=None, words="")
        whole = read_measured(self.parts[part].path, line)
        assert whole is not None, "a row that was skipped is not fitted"
        return self._cut(whole) if policy == "truncate" else self._smaller(whole)

    def _cut(self, whole: Measured) -> _Fit:
        size, reserve = self.config.pack_size, self.reserve
        for limit in (size, size - reserve):  # a sample cut down to its text needs room for the fake image
            cut = truncated(whole, limit, self.family)
            if cut is None:
                return _Fit(measured=None, words="; cut to that it would have no target")
            if cut.visual_tokens or cut.tokens <= size - reserve:
                break
        return _Fit(measured=cut, words="truncated", limit=limit)

    def _smaller(self, whole: Measured) -> _Fit:
        for level in range(1, MAX_SHRINK + 1):
            smaller = shrunk(whole, level, self.family)
            if smaller is not None and aligned(smaller.tokens, self.config.align) <= self.config.pack_size:
                return _Fit(measured=smaller, words=f"shrunk (step {level})", shrink=level)
        return _Fit(measured=None, words="; its media cannot be made small enough")


def _in_pack_order(lines: pa.Table, bins: list[np.ndarray], max_packs: int) -> pa.Table:
    pack, position = np.full(len(lines), -1, dtype=np.int32), np.full(len(lines), -1, dtype=np.int32)
    kept = bins[:max_packs] if max_packs else bins
    order = np.concatenate([*kept, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    sizes = np.array([len(bin_) for bin_ in kept], dtype=np.int64)
    pack[order] = np.repeat(np.arange(len(kept)), sizes)
    position[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    if max_packs and len(bins) > max_packs:
        reasons = np.array(lines["reason"].to_pylist(), dtype=object)
        reasons[np.concatenate(bins[max_packs:])] = "max_packs"
        lines = lines.set_column(SCHEMA.get_field_index("reason"), "reason", pa.array(reasons, pa.string()))
    lines = lines.set_column(0, SCHEMA.field("pack"), pa.array(pack)).set_column(
        1, SCHEMA.field("position"), pa.array(position)
    )
    skipped = np.flatnonzero(pack < 0)
    return lines.take(pa.array(np.concatenate([order, skipped])))
