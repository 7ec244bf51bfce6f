"""Plans on disk: a batch per shard, and figures of each."""

import hashlib
from pathlib import Path

import numpy as np
from helpers import plan_of

from neatpack.pipeline.plan.cost import pack_seconds
from neatpack.pipeline.plan.files import read_plan, read_shard, read_skipped, write_plan
from neatpack.pipeline.plan.table import SHAPING, Plan

# Packs of 1, 2, 1 and 3 documents, and a row in none.
PACKS = (0, 1, 1, 2, 3, 3, 3)


def plan() -> Plan:
    lines = [{"pack": pack, "row": 10 * at, "tokens": 5 + at, "id": f"row {at}"} for at, pack in enumerate(PACKS)]
    return plan_of(*lines, {"pack": -1, "row": 99, "reason": "overlong", "detail": "too long"})


def test_a_batch_per_shard_and_one_of_what_is_skipped(tmp_path: Path) -> None:
    file = write_plan(tmp_path / "plan.arrow", 0, plan(), num_corpora=1, shard_bytes=1, starts=(0, 1, 3))
    assert [(cut.first, cut.num_packs, cut.num_lines) for cut in file.cuts] == [(0, 1, 1), (1, 2, 3), (3, 1, 3)]
    assert read_plan(tmp_path / "plan.arrow").table.equals(plan().table)
    second = read_shard(tmp_path / "plan.arrow", 1, shift=40)
    assert (second.first, second.num_packs, second.starts.tolist()) == (41, 2, [0, 2, 3])
    assert [line["row"] for line in second.lines_in_pack(41)] == [10, 20]
    assert second.table["id"].to_pylist() == ["row 1", "row 2", "row 3"]
    assert read_skipped(tmp_path / "plan.arrow")["detail"].to_pylist() == ["too long"]


def test_figures_of_shards_are_those_of_each_alone(tmp_path: Path) -> None:
    file = write_plan(tmp_path / "plan.arrow", 0, plan(), num_corpora=1, shard_bytes=1, starts=(0, 1, 3))
    for batch, cut in enumerate(file.cuts):
        alone = read_shard(tmp_path / "plan.arrow", batch, shift=0)
        digest = hashlib.sha256()
        for name in SHAPING:
            digest.update(np.ascontiguousarray(alone.packed[name].to_numpy()).tobytes())
        assert cut.digest == digest.hexdigest()
        assert cut.seconds == round(float(pack_seconds(alone).sum()), 3)
    shifted = plan().shifted(40)
    assert shifted.digests([0, 1, 3])[1] != plan().digests([0, 1, 3])[1], "a pack under another number is another"


def test_a_plan_of_nothing_has_the_batch_of_what_is_skipped(tmp_path: Path) -> None:
    nothing = plan_of({"pack": -1, "row": 1, "reason": "bad_row"})
    file = write_plan(tmp_path / "plan.arrow", 0, nothing, num_corpora=1, shard_bytes=1)
    assert (file.cuts, file.num_packs, file.corpora[0].skipped) == ((), 0, {"bad_row": 1})
    assert read_skipped(tmp_path / "plan.arrow")["row"].to_pylist() == [1]
