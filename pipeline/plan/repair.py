"""A plan is mended when rows turn out unreadable or changed, as they are decoded.

What is lost leaves holes in packs, and what was measured again may be too long for its pack. Holes are filled with such
rows and with documents of the last packs, or of rows that --max-packs left over. Only packs with a hole and the last
ones change. All others keep their number and their documents, so the shards they are in stand as they are.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import PackConfig
from ..records import Skip
from .assign import FITTED, TEXT, Key, Plan, aligned, in_order, kinship_of, replaced, reserved, with_columns
from .knapsack import UNPLACED, Ints, Mask, Samples, best_fit, ceil_div
from .mixing import draw_phases, separate


def repaired(
    plan: Plan,
    lost: Mapping[Key, Skip],
    config: PackConfig,
    num_fake_ids: int,
    again: tuple[np.ndarray, pa.Table] | None = None,
) -> Plan:
    """The plan without the lost rows, which it names as skipped, and without their holes.

    It may be a part of a plan: packs with holes, and the last ones, whose numbers are the largest.
    `again`: places in its table, and the lines that are there now (`measured_again`); one of the same length as
    before stays in its pack.
    """
    lines, is_moved = plan.table, np.zeros(len(plan.table), dtype=np.bool_)
    if again is not None:
        lines, is_moved = _exchanged(lines, *again)
    before = lines["pack"].to_numpy().astype(np.int64)
    lost_at = np.sort(plan.places(lost))
    keys = zip(*(lines[name].take(pa.array(lost_at)).to_pylist() for name in ("dataset", "row", "repeat")), strict=True)
    skips = [lost[key] for key in keys]
    lines = with_columns(
        lines,
        {
            name: replaced(lines[name], lost_at, [getattr(skip, name) for skip in skips])
            for name in ("reason", "detail")
        },
    )
    gone = is_moved.copy()
    gone[lost_at] = True
    is_moved &= pc.equal(lines["reason"], "").to_numpy()  # else it was measured to be of no use
    pack = np.where(gone, UNPLACED, before)
    is_spilled = pc.equal(lines["reason"], "max_packs").to_numpy()
    filling = _Filling(lines, config, reserved(config, num_fake_ids))
    spilled_before = is_spilled.copy()
    if gone.any():
        filling.fill(pack, is_spilled, np.unique(before[gone]), is_moved)
    pack = filling.separated(pack, before)
    for is_now, reason in ((is_spilled & ~spilled_before, "max_packs"), (spilled_before & ~is_spilled, "")):
        at = np.flatnonzero(is_now)
        lines = with_columns(lines, {"reason": replaced(lines["reason"], at, [reason] * len(at))})
    _close_ranks(pack, np.unique(before[before >= 0]))
    return in_order(lines, pack)


def _exchanged(lines: pa.Table, where: np.ndarray, fresh: pa.Table) -> tuple[pa.Table, Mask]:
    """With the fresh lines, and which of them are not as they were."""
    old, new = (table.select(FITTED) for table in (lines.take(pa.array(where)), fresh))
    differs = np.zeros(len(where), dtype=np.bool_)
    for name in FITTED:
        differs |= pc.not_equal(old[name], new[name]).to_numpy()
    ascending = np.argsort(where)
    changed = {}
    for name in FITTED:
        if lines[name].type == TEXT:
            changed[name] = replaced(lines[name], where, fresh[name].take(pa.array(ascending)))
        else:
            changed[name] = lines[name].to_numpy().copy()
            changed[name][where] = fresh[name].to_numpy()
    is_moved = np.zeros(len(lines), dtype=np.bool_)
    is_moved[where[differs]] = True
    return with_columns(lines, changed), is_moved


class _Filling:
    """Fills packs with a hole."""

    def __init__(self, lines: pa.Table, config: PackConfig, reserve: int) -> None:
        self.samples = Samples(
            lengths=aligned(lines["tokens"].to_numpy().astype(np.int64), config.align),
            visual_tokens=lines["visual_tokens"].to_numpy().astype(np.int64),
            capacity=config.fill,
            max_visual_tokens=config.max_visual_tokens or None,
            text_reserve=reserve,
            encoder=lines["visual_tokens"].to_numpy().astype(np.int64),
        )
        self.kinship, self.seed = kinship_of(lines), config.seed
        # By --packing-ratio, what is larger than the fill but not than a pack has one of its own.
        self.is_alone = self.samples.lengths > config.fill - np.where(self.samples.is_visual, 0, reserve)

    def fill(self, pack: Ints, is_spilled: Mask, holed: Ints, is_moved: Mask) -> None:
        """Find documents for these packs, and a place for those that moved.

        `is_spilled`: lines that --max-packs left over.
        """
        alone = np.flatnonzero(is_moved & self.is_alone)
        pack[alone] = pack.max() + 1 + np.arange(len(alone))
        moved = is_moved & ~self.is_alone
        spilled = is_spilled & ~self.is_alone
        if spilled.any():
            pool = np.flatnonzero(spilled | moved)
            bins = self._filled(pack, holed, pool)
            placed = bins < len(holed)
            pack[pool[placed]] = holed[bins[placed]]
            is_spilled[pool] = ~placed
            return
        donors = self._donors(pack, holed, int(self.samples.lengths[moved].sum()))
        pool = np.flatnonzero(np.isin(pack, donors) | moved)
        bins = self._filled(pack, holed, pool)
        num_more = max(0, int(bins.max(initial=0)) + 1 - len(holed) - len(donors))
        numbers = np.concatenate([holed, donors, pack.max() + 1 + np.arange(num_more)])
        pack[pool] = numbers[bins]

    def _donors(self, pack: Ints, holed: Ints, num_moved: int) -> Ints:
        """The last packs, as many as the holes are large, without the tokens of what moved."""
        samples = self.samples
        room = len(holed) * samples.capacity - int(samples.lengths[np.isin(pack, holed)].sum()) - num_moved
        others = np.setdiff1d(pack[(pack >= 0) & ~self.is_alone], holed)
        return others[max(0, len(others) - max(0, ceil_div(room, samples.capacity))) :]

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
            encoder=whole.encoder[lines],
        )
        bin_of = np.full(len(lines), UNPLACED, dtype=np.int64)
        bin_of[: len(stay)] = np.searchsorted(holed, pack[stay])
        todo = np.arange(len(stay), len(lines))
        is_visual = samples.is_visual[todo]
        num_bins = best_fit(bin_of, len(holed), todo[is_visual], samples.sizes(), samples)
        best_fit(bin_of, num_bins, todo[~is_visual], samples.lengths, samples)
        return bin_of[len(stay) :]

    def separated(self, pack: Ints, before: Ints) -> Ints:
        """Move documents between packs that have changed, until copies of a row are in different ones."""
        rows, groups = self.kinship
        if rows is None:
            return pack
        changed = np.unique(np.concatenate([pack[pack != before], before[pack != before]]))
        where = np.flatnonzero((pack != UNPLACED) & np.isin(pack, changed) & ~self.is_alone)
        if not len(where):
            return pack
        random = np.random.RandomState(self.seed % (1 << 32))
        kin = draw_phases(rows[where], None if groups is None else groups[where], len(where), random)
        if kin is None:
            return pack
        numbers, own = np.unique(pack[where], return_inverse=True)
        pack = pack.copy()
        pack[where] = numbers[separate(own.astype(np.int64), self.samples.take(where), kin, random)]
        return pack


def _close_ranks(pack: Ints, before: Ints) -> None:
    """No number is missing: the last packs take the numbers of those that are empty now. [0, 3, 1] -> [0, 2, 1]

    `before`: the numbers that there were, ascending; further packs have larger ones.
    """
    numbers = np.unique(pack[pack >= 0])
    wanted = np.union1d(before, numbers)[: len(numbers)]
    late, free = np.setdiff1d(numbers, wanted), np.setdiff1d(wanted, numbers)
    moved = np.isin(pack, late)
    pack[moved] = free[np.searchsorted(late, pack[moved])]
