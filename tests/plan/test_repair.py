"""A plan that lost rows: no hole, no missing number, no row twice, and most packs as they were."""

from typing import Any

import numpy as np
import pytest
from helpers import plan_of
from hypothesis import given, strategies as st

from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.plan.assign import Plan
from neatpack.pipeline.plan.plan import plan_bins
from neatpack.pipeline.plan.repair import repaired
from neatpack.pipeline.records import Skip

BAD = Skip(reason="bad_media", detail="cat.png: cut")


def config(**keys: Any) -> PackConfig:
    return PackConfig(meta="m", processor="p", out="o", pack_size=32, **keys)


def line(pack: int, row: int, tokens: int, visual: int = 1, **more: Any) -> dict[str, Any]:
    return {"pack": pack, "row": row, "line": row, "tokens": tokens, "visual_tokens": visual} | more


def rows_of(plan: Plan) -> list[list[int]]:
    return [[each["row"] for each in plan.lines_in_pack(number)] for number in range(plan.num_packs)]


def test_a_hole_is_filled_from_the_last_pack():
    plan = plan_of(line(0, 0, 20), line(0, 1, 12), line(1, 2, 32), line(2, 3, 30), line(3, 4, 9), line(3, 5, 12))
    mended = repaired(plan, {(0, 1, 0): BAD}, config(), 3)
    assert rows_of(mended) == [[0, 5], [2], [3], [4]]
    last = mended.table.to_pylist()[-1]
    assert (last["row"], last["pack"], last["position"], last["reason"], last["detail"]) == (
        1, -1, -1, "bad_media", "cat.png: cut"
    )  # fmt: skip


def test_a_pack_that_is_lost_as_a_whole_gives_its_number_to_the_last():
    plan = plan_of(line(0, 0, 32), line(1, 1, 32), line(2, 2, 30), line(3, 3, 32))
    assert rows_of(repaired(plan, {(0, 1, 0): BAD}, config(), 3)) == [[0], [3], [2]]


def test_everything_lost():
    plan = plan_of(line(0, 0, 32), line(1, 1, 32))
    mended = repaired(plan, {(0, 0, 0): BAD, (0, 1, 0): BAD}, config(), 3)
    assert (mended.num_packs, mended.skip_counts()) == (0, {"bad_media": 2})


def test_rows_beyond_max_packs_come_first():
    spilled = line(-1, 3, 11, reason="max_packs", position=-1)
    plan = plan_of(
        line(0, 0, 20), line(0, 1, 12), line(1, 2, 12), spilled, spilled | {"row": 4, "line": 4, "tokens": 13}
    )
    mended = repaired(plan, {(0, 1, 0): BAD}, config(max_packs=2), 3)
    assert rows_of(mended) == [[0, 3], [2]]
    assert mended.skip_counts() == {"bad_media": 1, "max_packs": 1}


def test_a_row_that_is_in_no_pack_cannot_be_lost():
    with pytest.raises(AssertionError):
        repaired(plan_of(line(0, 0, 20)), {(0, 7, 0): BAD}, config(), 3)


documents = st.lists(st.tuples(st.integers(5, 32), st.booleans(), st.booleans()), min_size=1, max_size=60)


@given(documents, st.sampled_from([1, 4]), st.sampled_from([0, 20]), st.sampled_from([1.0, 0.75]))
def test_any_plan(found, align, max_visual, ratio):
    """Each document: tokens, whether seen, whether it will be lost."""
    settings = config(align=align, max_visual_tokens=max_visual, packing_ratio=ratio)
    fake = 3
    tokens = np.array([tokens for tokens, *_ in found])
    visual = np.array([min(tokens - 4, 20) if seen else 0 for tokens, seen, *_ in found])
    taken = -(-tokens // align) * align
    reserve = -(-fake // align) * align
    fits = taken <= np.where(visual > 0, 32, 32 - reserve)
    alone = taken > np.where(visual > 0, settings.fill, settings.fill - reserve)
    shared = np.flatnonzero(fits & ~alone)
    bins = [shared[bin_] for bin_ in plan_bins(
        taken[shared], visual[shared], capacity=settings.fill, group_size=2, max_visual_tokens=max_visual or None,
        text_reserve=reserve)]  # fmt: skip
    bins += [np.array([index]) for index in np.flatnonzero(fits & alone)]
    lines = [
        line(number, int(row), int(tokens[row]), int(visual[row]), position=position)
        for number, bin_ in enumerate(bins) for position, row in enumerate(bin_)
    ]  # fmt: skip
    lines += [line(-1, row, int(tokens[row]), reason="overlong") for row in np.flatnonzero(~fits).tolist()]
    plan = plan_of(*lines)
    lost = [row for row in np.flatnonzero(fits).tolist() if found[row][2]]

    mended = repaired(plan, {(0, row, 0): BAD for row in lost}, settings, fake)

    before, after = rows_of(plan), rows_of(mended)
    assert sorted(sum(after, [])) == sorted(set(sum(before, [])) - set(lost))
    assert len(mended.table) == len(plan.table)
    assert all(after) and len(after) <= len(before)
    assert {
        row: each["position"] for rows in [mended.packed.to_pylist()] for each in rows for row in [each["row"]]
    } == {row: position for pack in after for position, row in enumerate(pack)}
    for pack in after:
        seen = sum(visual[pack])
        assert sum(taken[pack]) + (0 if seen else reserve) <= (32 if len(pack) == 1 else settings.fill)
        assert not max_visual or seen <= max_visual
    stays = [pack for pack in before if not set(pack) & set(lost)]
    changed = [pack for pack in stays if pack not in after]
    assert len(changed) <= 2 * (len(before) - len(stays)), "a pack is given up for each pack with a hole, at most"
    if not lost:
        assert mended.table.equals(plan.table)
