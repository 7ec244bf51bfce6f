"""The plan of a run: which row goes into which pack, at which position, and which row goes nowhere, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack.pipeline.config import PackConfig, UserError
from neatpack.pipeline.families.base import Family
from neatpack.pipeline.measure.length import shrunk, truncated
from neatpack.pipeline.measure.store import read_measured
from neatpack.pipeline.plan.plan import plan_bins
from neatpack.pipeline.records import Measured
from neatpack.pipeline.runtime.storage import open_arrow

MAX_SHRINK = 16  # halvings: 768 frames are down to 4 after 8, and 100 megapixels to one patch after 16

SCHEMA = pa.schema(
    [
        ("pack", pa.int32()),  # -1: in no pack
        ("position", pa.int32()),
        ("dataset", pa.int32()),  # index into the run's data sets
        ("row", pa.int64()),
        ("repeat", pa.int32()),
        ("part", pa.int32()),  # index into the run's measured parts, and the line in it
        ("line", pa.int32()),
        ("tokens", pa.int32()),
        ("visual_tokens", pa.int32()),
        ("media_bytes", pa.int64()),
        ("limit", pa.int32()),  # tokens to truncate to; 0: whole
        ("shrink", pa.int32()),  # steps by which its media are made smaller
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPart:
    dataset: int
    path: Path


@dataclass(frozen=True)
class Plan:
    """Lines of packed rows in pack order, then lines of skipped rows in source order (see SCHEMA)."""

    table: pa.Table

    @cached_property
    def packed(self) -> pa.Table:
        return self.table.slice(0, int(pc.sum(pc.greater_equal(self.table["pack"], 0)).as_py() or 0))

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each pack's lines start in the table; one more at the end."""
        packs = self.packed["pack"].to_numpy()
        return np.searchsorted(packs, np.arange(self.num_packs + 1))

    @property
    def num_packs(self) -> int:
        return int(self.packed["pack"][-1].as_py()) + 1 if len(self.packed) else 0

    def per_pack(self, column: str) -> np.ndarray:
        """Sum of a column over the documents of each pack."""
        if not self.num_packs:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.packed[column].to_numpy().astype(np.int64), self.starts[:-1])


def make_plan(
    parts: Sequence[MeasuredPart],
    copies: Sequence[np.ndarray],
    datasets: Sequence[str],
    family: Family,
    config: PackConfig,
) -> Plan:
    """Assign every measured row, as often as `copies` (per data set, by row) says."""
    lines = _lines(parts, copies)
    reserve = int(aligned(np.array(len(family.fake_image_ids)), config.align)) if config.fake_image else 0
    lines = _fit_overlong(lines, parts, datasets, family, config, reserve)
    tokens, visual = aligned(lines["tokens"].to_numpy(), config.align), lines["visual_tokens"].to_numpy()
    good = np.flatnonzero(pc.equal(lines["reason"], "").to_numpy())
    # Rows that exceed the fill that packing_ratio asks for, but not the pack, get a pack of their own.
    alone = tokens[good] > np.where(visual[good] > 0, config.fill, config.fill - reserve)
    shared = good[~alone]
    bins = plan_bins(
        tokens[shared],
        visual[shared],
        capacity=config.fill,
        group_size=config.group_size,
        seed=config.seed,
        max_visual_tokens=config.max_visual_tokens or None,
        text_reserve=reserve,
    )
    bins = [shared[bin_] for bin_ in bins]
    bins += list(good[alone][:, None])
    return Plan(_in_pack_order(lines, bins, config.max_packs))


def shard_starts(plan: Plan, shard_bytes: int) -> list[int]:
    """First pack of each shard, and the number of packs at the end: cut where a shard would exceed `shard_bytes`."""
    starts, filled = [0], 0
    for number, size in enumerate(pack_bytes(plan).tolist()):
        if filled and filled + size > shard_bytes:
            starts.append(number)
            filled = 0
        filled += size
    return [*starts, plan.num_packs] if plan.num_packs else [0]


def aligned(tokens: np.ndarray, align: int) -> np.ndarray:
    """What documents occupy in a pack: [5, 8] tokens with align 4 -> [8, 8]."""
    return -(-tokens // align) * align


def pack_bytes(plan: Plan) -> np.ndarray:
    """About what each pack takes on disk: 21 bytes a token (ids, labels, 3 positions, type), pixels, headers."""
    return 21 * plan.per_pack("tokens") + plan.per_pack("media_bytes") + 16_384


def _lines(parts: Sequence[MeasuredPart], copies: Sequence[np.ndarray]) -> pa.Table:
    """One line per row and repetition, in source order."""
    tables = []
    for index, part in enumerate(parts):
        stored = open_arrow(part.path)
        repeats = copies[part.dataset][stored["row"].to_numpy()]
        line = np.repeat(np.arange(len(stored), dtype=np.int32), repeats)
        # repeats [1, 3] -> repeat numbers [0, 0, 1, 2]
        repeat = np.arange(len(line)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        columns = {
            "pack": np.full(len(line), -1),
            "position": np.full(len(line), -1),
            "dataset": np.full(len(line), part.dataset),
            "repeat": repeat,
            "part": np.full(len(line), index),
            "line": line,
            "limit": np.zeros(len(line)),
            "shrink": np.zeros(len(line)),
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


def _fit_overlong(
    lines: pa.Table,
    parts: Sequence[MeasuredPart],
    datasets: Sequence[str],
    family: Family,
    config: PackConfig,
    reserve: int,
) -> pa.Table:
    """Truncate, skip or refuse what does not fit a pack; skip what alone exceeds max_visual_tokens."""
    tokens, visual = lines["tokens"].to_numpy().copy(), lines["visual_tokens"].to_numpy().copy()
    media, limits = lines["media_bytes"].to_numpy().copy(), lines["limit"].to_numpy().copy()
    shrinks = lines["shrink"].to_numpy().copy()
    reasons, details = lines["reason"].to_pylist(), lines["detail"].to_pylist()
    room = np.where(visual > 0, config.pack_size, config.pack_size - reserve)
    for index in np.flatnonzero(aligned(tokens, config.align) > room).tolist():
        length = int(tokens[index])
        if config.overlong_policy == "error":
            row = lines["row"][index].as_py()
            raise UserError(
                f"{datasets[lines['dataset'][index].as_py()]} row {row}: {length} tokens, a pack holds {room[index]}; "
                "set overlong to truncate or drop, or raise pack_size"
            )
        cut, words = None, ""
        if config.overlong_policy in ("truncate", "shrink"):
            whole = read_measured(parts[lines["part"][index].as_py()].path, lines["line"][index].as_py())
            fit = _cut if config.overlong_policy == "truncate" else _smaller
            cut, limits[index], shrinks[index], words = fit(whole, config.pack_size, reserve, config.align, family)
        if cut is None:
            reasons[index] = "overlong"
            details[index] = f"{length} tokens, a pack holds {room[index]}{words}"
            continue
        tokens[index], visual[index], media[index] = cut.tokens, cut.visual_tokens, cut.media_bytes
        details[index] = f"{words} from {length} to {cut.tokens} tokens"
    if config.max_visual_tokens:
        for index in np.flatnonzero(visual > config.max_visual_tokens).tolist():
            if not reasons[index]:
                reasons[index] = "too_many_visual_tokens"
                details[index] = f"{visual[index]} visual tokens, a pack may hold {config.max_visual_tokens}"
    changed = {
        "tokens": tokens,
        "visual_tokens": visual,
        "media_bytes": media,
        "limit": limits,
        "shrink": shrinks,
        "reason": reasons,
        "detail": details,
    }
    for name, values in changed.items():
        lines = lines.set_column(
            SCHEMA.get_field_index(name), SCHEMA.field(name), pa.array(values, SCHEMA.field(name).type)
        )
    return lines


Fitted = tuple[Measured | None, int, int, str]  # what fits, the limit and the steps that made it fit, and words for it


def _cut(whole: Measured, size: int, reserve: int, align: int, family: Family) -> Fitted:
    for limit in (size, size - reserve):  # a sample cut down to its text needs room for the fake image
        cut = truncated(whole, limit, family)
        if cut is None:
            return None, 0, 0, "; cut to that it would have no target"
        if cut.visual_tokens or cut.tokens <= size - reserve:
            break
    return cut, limit, 0, "truncated"


def _smaller(whole: Measured, size: int, reserve: int, align: int, family: Family) -> Fitted:
    for level in range(1, MAX_SHRINK + 1):
        smaller = shrunk(whole, level, family)
        if smaller is not None and aligned(np.array(smaller.tokens), align) <= size:
            return smaller, 0, level, f"shrunk (step {level})"
    return None, 0, 0, "; its media cannot be made small enough"


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
