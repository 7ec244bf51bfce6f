"""Rows that turn out unreadable when they are decoded leave holes in their packs. Here the plan is mended.

A hole is filled with documents of the last packs, or of rows that --max-packs left over. Only packs with a hole and the
last ones change. All others keep their number and their documents, so the shards they are in stand as they are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ..config import PackConfig
from ..records import Skip
from .assign import SCHEMA, Plan, aligned, reserved
from .knapsack import UNPLACED, Ints, Mask, Samples, best_fit, ceil_div

Key = tuple[int, int, int]  # index of the corpus, row, repetition


def repaired(plan: Plan, lost: Mapping[Key, Skip], config: PackConfig, num_fake_ids: int) -> Plan:
    """The plan without the lost rows, which it names as skipped, and without their holes."""
    lines = plan.table
    pack, reason, detail = (lines[name].to_numpy().copy() for name in ("pack", "reason", "detail"))
    is_lost = _mark(lines, lost, reason, detail)
    holed = np.unique(pack[is_lost])
    pack[is_lost] = UNPLACED
    filling = _Filling(lines, config, reserved(config, num_fake_ids))
    times = lines["times"].to_numpy()
    for each in np.unique(times[is_lost]):  # rows of one pack come equally often
        filling.fill(pack, reason, holed[plan.times_per_pack[holed] == each], times == each)
    _close_ranks(pack)
    return _in_order(lines, pack, reason, detail)


def _mark(lines: pa.Table, lost: Mapping[Key, Skip], reason: np.ndarray, detail: np.ndarray) -> Mask:
    """Which lines are lost; their reasons are set."""
    keys = [lines[name].to_numpy() for name in ("dataset", "row", "repeat")]
    is_lost = np.zeros(len(lines), dtype=np.bool_)
    for index in np.flatnonzero(np.isin(keys[1], [row for _, row, _ in lost])).tolist():
        if skip := lost.get((int(keys[0][index]), int(keys[1][index]), int(keys[2][index]))):
            is_lost[index], reason[index], detail[index] = True, skip.reason, skip.detail
    assert is_lost.sum() == len(lost), "a lost row that was not planned"
    return is_lost


class _Filling:
    """Fills packs with a hole."""

    def __init__(self, lines: pa.Table, config: PackConfig, reserve: int) -> None:
        self.samples = Samples(
            lengths=aligned(lines["tokens"].to_numpy().astype(np.int64), config.align),
            visual_tokens=lines["visual_tokens"].to_numpy().astype(np.int64),
            capacity=config.fill,
            max_visual_tokens=config.max_visual_tokens or None,
            text_reserve=reserve,
        )
        # By --packing-ratio, what is larger than the fill but not than a pack has one of its own.
        self.is_alone = self.samples.lengths > config.fill - np.where(self.samples.is_visual, 0, reserve)

    def fill(self, pack: Ints, reason: np.ndarray, holed: Ints, mine: Mask) -> None:
        """Documents for these packs, out of the lines that may be with theirs."""
        spilled = np.flatnonzero(mine & (reason == "max_packs") & ~self.is_alone)
        if len(spilled):
            bins = self._filled(pack, holed, spilled)
            placed = bins < len(holed)
            pack[spilled[placed]], reason[spilled[placed]] = holed[bins[placed]], ""
            return
        donors = self._donors(pack, holed, mine)
        given = np.flatnonzero(np.isin(pack, donors))
        bins = self._filled(pack, holed, given)
        num_more = max(0, int(bins.max(initial=0)) + 1 - len(holed) - len(donors))
        numbers = np.concatenate([holed, donors, pack.max() + 1 + np.arange(num_more)])
        pack[given] = numbers[bins]

    def _donors(self, pack: Ints, holed: Ints, mine: Mask) -> Ints:
        """The last packs, as many as the holes are large."""
        samples = self.samples
        room = len(holed) * samples.capacity - int(samples.lengths[np.isin(pack, holed)].sum())
        others = np.setdiff1d(pack[mine & (pack >= 0) & ~self.is_alone], holed)
        return others[max(0, len(others) - ceil_div(room, samples.capacity)) :]

    def _filled(self, pack: Ints, holed: Ints, pool: Ints) -> Ints:
        """The bin of each line of the pool: a pack with a hole (0, 1, …), or a further one."""
        stay = np.flatnonzero(np.isin(pack, holed))
        lines = np.concatenate([stay, pool])
        whole = self.samples
        samples = Samples(
            lengths=whole.lengths[lines],
            visual_tokens=whole.visual_tokens[lines],
            capacity=whole.capacity,
            max_visual_tokens=whole.max_visual_tokens,
            text_reserve=whole.text_reserve,
        )
        bin_of = np.full(len(lines), UNPLACED, dtype=np.int64)
        bin_of[: len(stay)] = np.searchsorted(holed, pack[stay])
        todo = np.arange(len(stay), len(lines))
        is_visual = samples.is_visual[todo]
        num_bins = best_fit(bin_of, len(holed), todo[is_visual], samples.sizes(), samples)
        best_fit(bin_of, num_bins, todo[~is_visual], samples.lengths, samples)
        return bin_of[len(stay) :]


def _close_ranks(pack: Ints) -> None:
    """No number is missing: the last packs take the numbers of those that are empty now. [0, 3, 1] -> [0, 2, 1]"""
    numbers = np.unique(pack[pack >= 0])
    count = len(numbers)
    late, free = numbers[numbers >= count], np.setdiff1d(np.arange(count), numbers)
    moved = pack >= count
    pack[moved] = free[np.searchsorted(late, pack[moved])]


def _in_order(lines: pa.Table, pack: Ints, reason: np.ndarray, detail: np.ndarray) -> Plan:
    """As `Plan` says: by pack and in source order, then what is skipped in source order."""
    source: Sequence[np.ndarray] = [lines[name].to_numpy() for name in ("repeat", "line", "part")]
    order = np.lexsort([*source, np.where(pack < 0, len(pack), pack)])
    num_packed = int((pack >= 0).sum())
    position = np.full(len(pack), -1, dtype=np.int32)
    packed = pack[order[:num_packed]]
    position[order[:num_packed]] = np.arange(num_packed) - np.searchsorted(packed, packed)
    changed = {"pack": pack, "position": position, "reason": reason, "detail": detail}
    for name, values in changed.items():
        column = SCHEMA.get_field_index(name)
        lines = lines.set_column(column, SCHEMA.field(column), pa.array(values, SCHEMA.field(column).type))
    return Plan(lines.take(pa.array(order)).combine_chunks())
