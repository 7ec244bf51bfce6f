"""HF Trainer and accelerate: packs by index, and what is refused because half of the packs would be lost."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from helpers import DEMO_PROCESSOR, ROOT, TinyData, mixed_rows, tiny_config
from torch.utils.data import DataLoader

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.loaders.hf import IndexedPacks
from neatpack.pipeline.run import run_pack


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf")
    data = mixed_rows(TinyData(folder / "data"), num_text=16, num_images=8)
    run_pack(tiny_config(data.write(), folder / "out", pack_size=310, group_size=2))
    return folder / "out"


def numbers(items):
    return [item["pack"] for item in items]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_indices_are_the_epochs_order(out, num_workers, caplog):
    packs, stream = IndexedPacks(out), PackedShards(out)
    assert len(packs) == len(stream) == 8
    loader = DataLoader(packs, batch_size=2, num_workers=num_workers, collate_fn=numbers)
    for epoch in range(2):
        packs.set_epoch(epoch)
        assert sum(loader, []) == numbers(stream)
        assert sum(loader, []) == sum(loader, []), "until it is told of another epoch"
    assert "random order" not in caplog.text
    with pytest.raises(IndexError, match="index 8, but an epoch has 8 packs"):
        packs[8]


def test_a_random_order_is_said_once(out, caplog):
    packs = IndexedPacks(out)
    for index in (3, 1, 5, 0, 3, 1):
        packs[index]
    assert caplog.text.count('train_sampling_strategy="sequential"') == 1


def test_a_pack_that_trainer_has_cut_down_is_explained(out):
    pack = PackedShards(out).pack(0)
    cut = {key: pack[key] for key in ("input_ids", "labels", "attention_mask", "pixel_values")}
    with pytest.raises(ValueError, match=r"a pack without seq_lens_padded, .* neatpack.loaders.hf.IndexedPacks"):
        neat_packed_vlm_collater([cut])
    assert not isinstance(IndexedPacks(out)[0], dict)


@pytest.fixture(scope="module")
def ranks(out, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--redirects",
               "1", "--log-dir", str(folder / "logs"), str(ROOT / "tests" / "loaders" / "hf_trainers.py"), str(out),
               str(DEMO_PROCESSOR), str(folder)]  # fmt: skip
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    logs = sorted((folder / "logs").rglob("stdout.log"), key=str)
    return [json.loads(log.read_text().splitlines()[-1]) for log in logs]


@pytest.fixture(scope="module")
def sums(out):
    return {int(pack["input_ids"].sum()) for pack in PackedShards(out)}


def test_trainer_with_its_defaults_trains_every_pack_once(ranks, sums):
    assert len(ranks) == 2 and len(sums) == 8
    trained = [rank["defaults"] for rank in ranks]
    assert Counter(trained[0]["seen"] + trained[1]["seen"]) == Counter(sums)
    assert [(rank["steps"], rank["length"]) for rank in trained] == [(4, 8), (4, 8)]


@pytest.mark.parametrize("how", ["trainer", "dispatch True", "dispatch False"])
def test_a_second_sharding_is_refused(ranks, how):
    for rank in ranks:
        assert "accelerate would share out the packs of this rank among all ranks once more" in rank[how]
        assert "neatpack.loaders.hf.IndexedPacks(out)" in rank[how]


def test_accelerate_keeps_the_balanced_order_and_tells_the_epoch(ranks, sums, out):
    assert Counter(ranks[0]["ours"] + ranks[1]["ours"]) == Counter(sums), "a loader that accelerate does not know"
    stream = PackedShards(out)
    for epoch in range(2):
        expected = [int(pack["input_ids"].sum()) for pack in stream]
        assert [ranks[index % 2]["prepared"][epoch][index // 2] for index in range(8)] == expected
