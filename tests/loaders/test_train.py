"""jobs/train_tiny.py: two real processes, trained from shards; killed, they go on as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR, ROOT, TinyData, mixed_rows, tiny_config

from neatpack import PackedShards
from neatpack.pipeline.run import run_pack

STEPS = 14


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    run_pack(
        tiny_config(
            mixed_rows(TinyData(folder / "data"), num_text=20, num_images=10).write(), folder / "out", pack_size=384
        )
    )
    return folder / "out"


def start(out, log, checkpoint):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(ROOT / "jobs" / "train_tiny.py"), str(out), "--model", str(DEMO_PROCESSOR), "--steps", str(STEPS),
        "--checkpoint", str(checkpoint),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=log, stderr=subprocess.PIPE, env=environment, start_new_session=True)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def test_ddp_from_shards_and_exact_resume(out, tmp_path):
    whole = tmp_path / "whole.jsonl"
    with open(whole, "wb") as log:
        process = start(out, log, tmp_path / "whole.pt")
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()[-3000:]
    expected = lines_of(whole)
    assert [line["step"] for line in expected] == list(range(1, STEPS + 1))

    # the packs of each step are the plan's: neighbours of the epoch's order, one per rank
    ranks = [PackedShards(out, rank=rank, world_size=2, check="none") for rank in range(2)]
    order = []
    for epoch in range(expected[-1]["epoch"] + 1):
        for dataset in ranks:
            dataset.set_epoch(epoch)
        order += [[[int(a)], [int(b)]] for a, b in zip(*(dataset._share() for dataset in ranks), strict=True)]
    assert [line["packs"] for line in expected] == order[:STEPS]
    assert expected[-1]["epoch"] >= 1, "more than one epoch"
    losses = [line["loss"] for line in expected]
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3]), losses

    # killed in the middle of it, all of it
    broken = tmp_path / "broken.jsonl"
    with open(broken, "wb") as log:
        process = start(out, log, tmp_path / "broken.pt")
        deadline = time.monotonic() + 200
        while len(lines_of(broken)) < 5:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    with open(broken, "ab") as log:
        process = start(out, log, tmp_path / "broken.pt")
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()[-3000:]
    resumed = {line["step"]: line for line in lines_of(broken)}  # a step may be there twice: trained, killed unsaved
    assert [resumed[step] for step in range(1, STEPS + 1)] == expected
