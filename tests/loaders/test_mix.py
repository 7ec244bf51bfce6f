"""Several outputs as one: by exhausting, by weight, in balanced steps, resumed anywhere."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import TinyData, mixed_rows, packed_rows, tiny_config
from hypothesis import given, settings, strategies as st
from support.errors import raises

from neatpack import PackedShards
from neatpack.errors import OutputError
from neatpack.format.manifest import Manifest
from neatpack.loaders.mix import has_copies
from neatpack.loaders.order import Source, epoch_order, mixed_order, shares
from neatpack.pipeline.run import run_pack


@pytest.fixture(scope="module")
def outs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    return {
        "pictures": packed_rows(folder / "pictures", 0, 12, pack_size=200, group_size=2),
        "text": packed_rows(folder / "text", 30, 0, pack_size=200, group_size=2),
    }


def keys(items):
    return [(item["output"], item["pack"]) for item in items]


def source(num_packs, group_size, per_epoch, first=0):
    return Source(packs=np.arange(num_packs), group_size=group_size, loads=tuple, per_epoch=per_epoch, first=first)


# The order


def test_outputs_with_copies_keep_them_spread(tmp_path):
    data = mixed_rows(TinyData(tmp_path / "data"), 20, 0)
    run_pack(tiny_config(data.write(ratio=2.0), tmp_path / "out", pack_size=200, group_size=2))
    manifest = Manifest.read(tmp_path / "out")
    assert has_copies(manifest)
    assert not has_copies(replace(manifest, counts=replace(manifest.counts, samples=manifest.counts.rows)))
    packs = [item["pack"] for item in PackedShards(tmp_path / "out", rank=0, world_size=1)]
    expected = epoch_order(np.arange(len(packs)), 2, 0, 0, keeps_spread=True)
    assert sorted(packs) == sorted(expected.tolist()) and len(packs) > 8


def test_by_hand():
    """Groups of two; 7 of 10 and 9 of 6 packs an epoch: what a pass leaves over is where the next epoch goes on."""
    sources = [source(10, 2, 7), source(6, 2, 9, first=100)]
    order = [mixed_order(sources, 0, epoch, shuffle=False).tolist() for epoch in range(2)]
    assert order[0] == [100, 101, 0, 1, 102, 103, 2, 3, 104, 105, 4, 5, 100, 101, 6, 102]
    assert order[1] == [104, 105, 8, 9, 100, 101, 0, 1, 102, 103, 2, 3, 104, 105, 7, 103]


@given(num=st.integers(0, 40), group_size=st.sampled_from([1, 2, 4, 12]), epoch=st.integers(0, 2))
def test_one_output_is_its_own_order(num, group_size, epoch):
    packs = np.setdiff1d(np.arange(num), [3, 17])
    alone = Source(packs=packs, group_size=group_size, loads=tuple, per_epoch=len(packs))
    assert mixed_order([alone], 5, epoch).tolist() == epoch_order(packs, group_size, 5, epoch).tolist()


ONE = st.tuples(st.integers(1, 30), st.sampled_from([1, 2, 4]), st.integers(0, 40))


@given(st.lists(ONE, min_size=1, max_size=3), st.integers(0, 3))
def test_nothing_comes_again_before_all_has_come(spec, seed):
    sources = [source(*numbers, first=100 * index) for index, numbers in enumerate(spec)]  # type: ignore[misc]
    epochs = [mixed_order(sources, seed, epoch) for epoch in range(4)]
    for index, (num_packs, _, per_epoch) in enumerate(spec):
        given_out = [order[order // 100 == index] for order in epochs]
        assert [len(packs) for packs in given_out] == [per_epoch] * 4
        counts = Counter({100 * index + pack: 0 for pack in range(num_packs)})
        for packs in given_out:
            counts.update(packs.tolist())
            assert max(counts.values()) - min(counts.values()) <= 1


def test_steps_come_from_one_group_and_outputs_take_turns():
    sources = [source(64, 8, 64), source(32, 8, 32, first=100)]
    order = mixed_order(sources, 1, 2)
    steps = order.reshape(-1, 8)
    assert all(len(set(step // 100)) == 1 and len(set(step % 100 // 8)) == 1 for step in steps)
    assert [int((quarter // 100 == 1).sum()) for quarter in order.reshape(4, -1)] == [8, 8, 8, 8]


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0.01, 10)), min_size=1, max_size=5))
def test_shares_add_up(spec):
    sizes, weights = zip(*spec, strict=True)
    counts = shares(sizes, weights)
    assert sum(counts) == sum(sizes)
    assert all(abs(n - w / sum(weights) * sum(sizes)) < 1 for n, w in zip(counts, weights, strict=True))
    assert shares([10, 20], [0.7, 0.3]) == [21, 9]


# Outputs


def test_without_weights_every_pack_comes_once(outs):
    packs = PackedShards([("pictures", outs["pictures"]), ("text", outs["text"])], check="none")
    found = keys(packs)
    numbers = {name: PackedShards(out).reader.packs.tolist() for name, out in outs.items()}
    assert sorted(found) == sorted((name, number) for name in outs for number in numbers[name])
    item, alone = packs.pack(1, output="text"), PackedShards(outs["text"]).pack(1)
    assert item["input_ids"].tolist() == alone["input_ids"].tolist() and item["output"] == "text"
    with raises(ValueError, "mixture-invalid", output="coco"):
        packs.pack(1, output="coco")


def test_weights_are_shares_of_the_packs(outs):
    packs = PackedShards([("pictures", outs["pictures"], 3), ("text", outs["text"], 1)], check="none")
    for _ in range(3):
        counts = Counter(name for name, _ in keys(packs))
        assert counts["pictures"] == pytest.approx(0.75 * packs.mix.num_packs, abs=1)
        assert counts.total() == packs.mix.num_packs


@settings(max_examples=20)
@given(before=st.integers(1, 4), after=st.integers(1, 4), stop=st.integers(0, 12), weighted=st.booleans())
def test_a_mix_resumes_with_other_ranks(outs, before, after, stop, weighted):
    def stream(rank, world_size):
        spec = [(n, o, w) if weighted else (n, o) for (n, o), w in zip(outs.items(), (0.7, 0.3), strict=True)]
        return PackedShards(spec, rank=rank, world_size=world_size, check="none", pixels="uint8", seed=3)

    whole = keys(stream(0, 1))
    seen = []
    for rank in range(before):
        loader = stream(rank, before).loader(collate_fn=keys)
        seen += [key for _, batch in zip(range(stop), loader, strict=False) for key in batch]
    state = loader.state_dict()
    rest = []
    if state["epoch"] == 0:
        for rank in range(after):
            dataset = stream(rank, after)
            dataset.load_state_dict(state)
            rest += keys(dataset)
    assert len(seen) + len(rest) > len(whole) - max(before, after)
    assert not Counter(seen) + Counter(rest) - Counter(whole)


def test_what_does_not_fit_together(outs, tmp_path):
    data = mixed_rows(TinyData(tmp_path / "data"), num_text=4, num_images=2)
    run_pack(tiny_config(data.write(), tmp_path / "qwen3", family="qwen3_vl"))
    with raises(OutputError, "mixture-invalid", names=["a", "b"]) as caught:
        PackedShards([("a", outs["text"]), ("b", tmp_path / "qwen3")])
    assert "family.name" in caught.error.fields["differing"]
    run_pack(tiny_config(tmp_path / "data" / "meta.json", tmp_path / "small", max_pixels=56 * 56))
    with raises(OutputError, "mixture-invalid", names=["a", "b"]) as caught:
        PackedShards([("a", outs["text"]), ("b", tmp_path / "small")])
    assert {"processor", "config.max_pixels"} <= set(caught.error.fields["differing"])
    state = PackedShards([("a", outs["text"]), ("b", outs["pictures"])]).state_dict()
    with raises(
        ValueError, "loader-state", expected=[["b", 7, 7], ["a", 3, 3]], got=[["a", 7, 7], ["b", 3, 3]], key="mix"
    ):
        PackedShards([("b", outs["text"]), ("a", outs["pictures"])]).load_state_dict(state)
    with raises(
        ValueError, "loader-state", expected=[["a", 7, 9], ["b", 3, 1]], got=[["a", 7, 7], ["b", 3, 3]], key="mix"
    ):
        PackedShards([("a", outs["text"], 0.9), ("b", outs["pictures"], 0.1)]).load_state_dict(state)


@pytest.mark.parametrize(
    ("entries", "fields"),
    [
        ([], {"outputs": []}),
        ([("a",)], {"outputs": [("a",)]}),
        ([("a", "x", 0.5), ("b", "y")], {"outputs": [("a", "x", 0.5), ("b", "y")]}),
        ([("a", "x"), ("a", "y")], {"names": ["a", "a"]}),
        ([("a", "x", 0.5), ("b", "y", 0.0)], {"weights": [0.5, 0.0]}),
    ],
)
def test_wrong_lists(entries, fields):
    with raises(ValueError, "mixture-invalid", **fields):
        PackedShards(entries)
