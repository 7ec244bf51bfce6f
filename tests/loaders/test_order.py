"""Which pack comes when, and to whom: functions of integers."""

import numpy as np
from hypothesis import given, strategies as st

from neatpack.loaders.order import epoch_order, rank_share, share_length, worker_share
from neatpack.pipeline.plan.balance import correlation, step_imbalance

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
    assert [rank_share(order, 0, r, 2, drop_last=True).tolist() for r in (0, 1)] == [[10, 12], [11, 13]]
    assert [rank_share(order, 0, r, 2, drop_last=False).tolist() for r in (0, 1)] == [[10, 12, 14], [11, 13, 10]]
    assert [rank_share(order, 3, r, 2, drop_last=True).tolist() for r in (0, 1)] == [[13], [14]]
    assert [rank_share(order, 0, r, 7, drop_last=False).tolist() for r in range(7)] == [
        [10],
        [11],
        [12],
        [13],
        [14],
        [10],
        [11],
    ]
    assert worker_share(5, 2, 0, 2).tolist() == [0, 1, 4]
    assert worker_share(5, 2, 1, 2).tolist() == [2, 3]


@given(num=st.integers(0, 50), world=st.integers(1, 8), position=st.integers(0, 50), drop_last=st.booleans())
def test_ranks_share_what_is_left(num, world, position, drop_last):
    order = np.arange(100, 100 + num)
    shares = [rank_share(order, position, rank, world, drop_last=drop_last).tolist() for rank in range(world)]
    assert {len(share) for share in shares} == {share_length(num, position, world, drop_last=drop_last)}
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
