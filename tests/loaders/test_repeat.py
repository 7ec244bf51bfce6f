"""--repeat-at-load: what a sample_ratio repeats is stored once, and the loader repeats its packs."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.data import TinyData, mixed_rows
from support.errors import raises
from support.outputs import read_packs
from support.packed import tiny_config

from neatpack import PackedShards, run_pack
from neatpack.loaders.hf import IndexedPacks

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Twelve text rows taken 2.5 times, and a few pictures taken once; packs of a few rows."""
    folder = tmp_path_factory.mktemp("repeat")
    mixed_rows(TinyData(folder / "often"), num_text=12, num_images=0).write()
    mixed_rows(TinyData(folder / "once"), num_text=4, num_images=6).write()
    meta = {
        "often": {"file_name": "often/rows.jsonl", "sample_ratio": 2.5},
        "once": {"file_name": "once/rows.jsonl", "media_dir": "once"},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    run_pack(tiny_config(folder / "meta.json", folder / "out", pack_size=96, group_size=2, repeat_at_load=True))
    return folder / "out"


def packs_by_times(out) -> dict[float, set[int]]:
    index = pq.read_table(out / "index.parquet").to_pylist()
    return {times: {line["pack"] for line in index if line["times"] == times} for times in (1.0, 2.5)}


def test_rows_are_stored_once_in_packs_of_their_own(out):
    assert_verified(out)
    ledger = pq.read_table(out / "ledger").to_pylist()
    assert {line["repeat"] for line in ledger} == {0}
    names = {pack.number: {doc.dataset for doc in pack.documents if doc.row >= 0} for pack in read_packs(out)}
    by_times = packs_by_times(out)
    assert len(by_times[2.5]) >= 4 and len(by_times[1.0]) >= 4
    assert all(names[pack] == {"often"} for pack in by_times[2.5])
    assert all(names[pack] == {"once"} for pack in by_times[1.0])


def test_epochs_have_packs_as_often_as_asked(out):
    by_times = packs_by_times(out)
    packs = PackedShards(out, rank=0, world_size=1)
    epochs = [[item["pack"] for item in packs] for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [len(by_times[1.0]) + round(2.5 * len(by_times[2.5]))] * 4
    assert len(packs) == len(epochs[0]) == len(IndexedPacks(out))
    for epoch in epochs:
        counts = Counter(epoch)
        assert all(counts[pack] == 1 for pack in by_times[1.0])
        assert all(counts[pack] in (2, 3) for pack in by_times[2.5])
    if len(by_times[2.5]) % 2 == 0:  # half packs cannot come
        counts = Counter(epochs[0] + epochs[1])
        assert all(counts[pack] == 5 for pack in by_times[2.5]), "nothing comes again before all of it has come"
    assert epochs[0] != epochs[1]


def test_every_third_of_an_epoch_has_a_copy_of_three(tmp_path):
    """Copies are as far apart as those that are stored: the loader goes through all packs before one comes again."""
    mixed_rows(TinyData(tmp_path / "often"), num_text=60, num_images=0).write()
    mixed_rows(TinyData(tmp_path / "once"), num_text=20, num_images=0).write()
    meta = {"often": {"file_name": "often/rows.jsonl", "sample_ratio": 3}, "once": {"file_name": "once/rows.jsonl"}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", pack_size=512, group_size=2, repeat_at_load=True))
    ledger = pq.read_table(tmp_path / "out" / "ledger").to_pylist()
    often = {line["pack"] for line in ledger if line["dataset"] == "often" and line["pack"] >= 0}
    assert len(often) >= 8
    packs = PackedShards(tmp_path / "out", rank=0, world_size=1)
    for _ in range(3):
        epoch = [item["pack"] for item in packs]
        places = [place for place, pack in enumerate(epoch) if pack in often]
        for third in range(3):
            own = places[third * len(often) : (third + 1) * len(often)]
            assert {epoch[place] for place in own} == often, "all of them before one comes again"
            first, last = (third * len(epoch) / 3, (third + 1) * len(epoch) / 3)
            assert first - 4 <= own[0] and own[-1] < last + 4, "as far as groups of two can be divided"


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_resuming_with_other_ranks(out, stop):
    whole = [item["pack"] for item in PackedShards(out, rank=0, world_size=1)]
    first = PackedShards(out, rank=0, world_size=1)
    iterator = iter(first)
    seen = [next(iterator)["pack"] for _ in range(stop)]
    state = first.state_dict()
    resumed = [PackedShards(out, rank=rank, world_size=2, drop_last=False) for rank in range(2)]
    for packs in resumed:
        packs.load_state_dict(state)
    rest = [item["pack"] for pair in zip(*resumed, strict=True) for item in pair]
    assert (seen + rest)[: len(whole)] == whole


def test_a_mix_keeps_how_often_packs_come(out):
    packs = PackedShards([("a", out, 0.5), ("b", out, 0.5)], rank=0, world_size=1)
    by_times = packs_by_times(out)
    counts = Counter(item["pack"] for item in packs if item["output"] == "a")
    often = sum(counts[pack] for pack in by_times[2.5])
    assert abs(often / counts.total() - 2.5 * len(by_times[2.5]) / len(packs) * 2) < 0.15
    alone = PackedShards(out, rank=0, world_size=1).state_dict()
    with raises(ValueError, "loader-state", key="num_packs"):
        packs.load_state_dict(alone)


def test_weights_are_met_by_the_loader(tmp_path):
    for name, num_text in (("small", 6), ("large", 24)):
        mixed_rows(TinyData(tmp_path / name), num_text=num_text, num_images=0).write()
    meta = {name: {"file_name": f"{name}/rows.jsonl", "weight": 1} for name in ("small", "large")}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", pack_size=160, group_size=2, repeat_at_load=True))
    assert_verified(tmp_path / "out")
    index = pq.read_table(tmp_path / "out" / "index.parquet").to_pylist()
    of_small = next(line["times"] for line in index if line["times"] > 1)
    tokens = {
        line["dataset"]: line["tokens"] * line["times"]
        for line in pq.read_table(tmp_path / "out" / "stats" / "datasets.parquet").to_pylist()
    }
    assert of_small > 2
    assert tokens["small"] == pytest.approx(tokens["large"])
