"""Which pack comes when, and to whom: functions of integers."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st

from neatpack.format.groups import correlation
from neatpack.loaders import order as orders
from neatpack.loaders.order import Source, epoch_order, lazy_order, mixed_order, rank_share, share_length
from neatpack.pipeline.plan.balance import step_imbalance

ORDERS = st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 4, 6, 12]), st.integers(0, 3), st.integers(0, 3))


@given(ORDERS, st.lists(st.integers(0, 59), max_size=3))
def test_an_epoch_has_every_pack_once_and_groups_stay_together(spec, missing):
    num_packs, group_size, seed, epoch = spec
    packs = np.setdiff1d(np.arange(num_packs), missing)
    order = epoch_order(packs, group_size, seed, epoch)
    assert sorted(order.tolist()) == packs.tolist()
    assert order.tolist() == epoch_order(packs, group_size, seed, epoch).tolist()
    whole = [g for g in range(num_packs // group_size + 1) if (packs // group_size == g).sum() == group_size]
    groups = order[: len(whole) * group_size].reshape(-1, group_size) // group_size
    assert sorted(groups[:, 0].tolist()) == whole
    assert (groups == groups[:, :1]).all()


def told(packs, group_size, seed, epoch, source=0):
    """The order as it is told: keys are drawn level by level for all groups, and the smallest comes first."""
    keys = iter(
        np.random.PCG64(np.random.SeedSequence([seed, epoch, source] if source else [seed, epoch])).random_raw(9999)
    )
    whole = len(packs) // group_size * group_size

    def shuffled(blocks):
        return [block for _, block in sorted([(int(next(keys)), number) for number in range(len(blocks))])]

    groups = [packs[at : at + group_size] for at in range(0, whole, group_size)]
    level = [[groups[number] for number in shuffled(groups)]]
    size = group_size
    while size > 1 and groups:
        prime = max(p for p in range(2, size + 1) if size % p == 0 and all(p % q for q in range(2, p)))
        cut = [
            [block[at : at + size // prime] for at in range(0, size, size // prime)] for row in level for block in row
        ]
        level = [[parts[number] for number in shuffled(parts)] for parts in cut]
        size //= prime
    return [pack for row in level for block in row for pack in block]


@pytest.mark.parametrize(("num", "group_size"), [(0, 4), (24, 12), (40, 8), (21, 7), (9, 1), (30, 30)])
@pytest.mark.parametrize("source", [0, 2])
def test_the_order_is_the_one_that_is_told(num, group_size, source):
    """It must stay what it is: a run that resumes would train some packs twice, and others never."""
    assert epoch_order(np.arange(num), group_size, 3, 1, source=source).tolist() == told(
        list(range(num)), group_size, 3, 1, source
    )


def test_the_order_stays():
    """As it was before it was computed by group."""
    loads = [np.arange(50) ** 2 % 37, np.arange(50) % 7]
    assert " ".join(map(str, epoch_order(np.arange(50), 6, 1, 2, loads))) == (
        "7 6 10 11 9 8 33 32 35 34 30 31 26 27 24 25 28 29 16 17 15 14 12 13 3 2 1 0 4 5 37 36 38 39 40 41 45 "
        "44 43 42 47 46 21 20 22 23 18 19 48 49"
    )
    gaps = np.delete(np.arange(30), [4, 17])
    assert " ".join(map(str, epoch_order(gaps, 4, 0, 0))) == (
        "22 23 21 20 15 14 12 13 11 10 8 9 1 0 2 3 25 24 27 26 5 6 7 16 19 18 29 28"
    )


def some_loads(num):
    return [np.arange(num) % 5]


@pytest.mark.parametrize("chunk", [5, 1 << 17])
@given(data=st.data())
def test_parts_are_those_of_the_whole(chunk, data):
    """Also of mixed outputs that an epoch ends or begins in the middle of; and a draw that is known needs no loads."""
    sources = [Source(packs=range(num), group_size=group_size, loads=partial(some_loads, num),
                      first=100 * at, per_epoch=data.draw(st.integers(0, 2 * num)))
               for at, (num, group_size) in enumerate([(30, 4), (17, 6)])]  # fmt: skip
    epoch, shuffle, drawn = data.draw(st.integers(0, 3)), data.draw(st.booleans()), {}
    whole = mixed_order(sources, 7, epoch, shuffle=shuffle)
    old, orders.CHUNK = orders.CHUNK, chunk
    try:
        lazy_order(sources, 7, epoch, shuffle=shuffle, drawn=drawn)
        known = lazy_order([replace(each, loads=None) for each in sources], 7, epoch, shuffle=shuffle, drawn=drawn)
        first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(whole) + 2)] * 2)))
        assert len(known) == len(whole) == sum(source.per_epoch for source in sources)
        assert known[first:last].tolist() == whole[first:last].tolist()
        assert known[:].tolist() == whole.tolist()
    finally:
        orders.CHUNK = old


def test_epochs_differ():
    orders = {tuple(epoch_order(np.arange(64), 8, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_blocks_inside_a_group_stay_together_too():
    """Group 8: aligned pairs and fours of a step are neighbours of the plan, so that 2 or 4 ranks are balanced."""
    order = epoch_order(np.arange(64), 8, 1, 5)
    for size in (2, 4, 8):
        assert all(len(set(step // size)) == 1 for step in order.reshape(-1, size))


def test_shares_by_hand():
    order = np.array([10, 11, 12, 13, 14])
    assert [rank_share(order, 0, r, 2, 0, 2).tolist() for r in (0, 1)] == [[10, 12], [11, 13]]
    assert [rank_share(order, 0, r, 2, 0, 3).tolist() for r in (0, 1)] == [[10, 12, 14], [11, 13, 10]]
    assert [rank_share(order, 0, r, 2, 1, 3).tolist() for r in (0, 1)] == [[12, 14], [13, 10]]
    assert [rank_share(order, 3, r, 2, 0, 1).tolist() for r in (0, 1)] == [[13], [14]]
    assert [rank_share(order, 0, r, 7, 0, 1).tolist() for r in range(7)] == [
        [10],
        [11],
        [12],
        [13],
        [14],
        [10],
        [11],
    ]


@given(num=st.integers(0, 50), world=st.integers(1, 8), position=st.integers(0, 50), drop_last=st.booleans())
def test_ranks_share_what_is_left(num, world, position, drop_last):
    order = np.arange(100, 100 + num)
    length = share_length(num, position, world, drop_last=drop_last)
    shares = [rank_share(order, position, rank, world, 0, length).tolist() for rank in range(world)]
    assert {len(share) for share in shares} == {length}
    seen = [pack for step in zip(*shares, strict=True) for pack in step]
    left = order[position:].tolist()
    if drop_last:
        assert seen == left[: len(left) // world * world]
    else:
        assert seen[: len(left)] == left
        assert len(seen) - len(left) < world


def test_steps_are_balanced_through_shuffled_epochs(tmp_path):
    """The plan's balance survives the loader's shuffle: modelled on the visual tokens of 2,000 packs."""
    rng = np.random.default_rng(0)
    visual = np.sort(rng.integers(1000, 9000, 2048)).reshape(-1, 64)
    visual = visual[rng.permutation(len(visual))].reshape(-1)  # groups of 64 alike packs
    order = epoch_order(np.arange(2048), 64, 0, 3)
    for world in (2, 8, 64):
        assert step_imbalance(visual[order], world) < 1.04
    assert step_imbalance(visual[rng.permutation(2048)], 64) > 1.5


def test_no_epoch_is_a_curriculum():
    """100 groups that differ in load: a plain shuffle of them trends by chance beyond 0.1 in a third of all epochs."""
    loads = np.repeat(np.arange(100), 8) ** 2
    trends = [abs(correlation(loads[epoch_order(np.arange(800), 8, 0, epoch, [loads])], 8)) for epoch in range(40)]
    assert max(trends) < 0.1
    plain = [abs(correlation(loads[epoch_order(np.arange(800), 8, 0, epoch)], 8)) for epoch in range(40)]
    assert max(plain) > 0.1, "the test can fail"
