"""What test_partitions.py proves by internals."""

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.data import TinyData
from support.outputs import files_of, read_packs
from support.partitions import config, cut, data as data, ledger_of

from neatpack import run_pack, run_plan
from neatpack.pipeline.shard import pieces
from neatpack.pipeline.shard.summary import describe_plan
from neatpack.pipeline.shard.tables import ledger_names
from neatpack.pipeline.shard.writer import shard_task


def test_the_same_rows_as_in_one_partition(data: TinyData, tmp_path: Path) -> None:
    run_pack(config(data, tmp_path / "one", partition_samples=4_000_000))
    manifest = run_pack(config(data, tmp_path / "out")).manifest
    whole = assert_verified(tmp_path / "one")
    assert assert_verified(tmp_path / "out").counts == dataclasses.asdict(manifest.counts)
    assert [[name[-10:] for name in names] for names in ledger_names(manifest).values()] == [
        ["00.parquet", "01.parquet", "02.parquet", "03.parquet"],  # the last: of packs that fill no group
        ["00.parquet", "01.parquet", "02.parquet", "03.parquet"],
    ]
    one, several = ledger_of(tmp_path / "one"), ledger_of(tmp_path / "out")
    same = ("id", "status", "reason", "detail", "tokens", "visual_tokens")
    assert {key: [line[name] for name in same] for key, line in one.items()} == {
        key: [line[name] for name in same] for key, line in several.items()
    }
    assert (manifest.counts.samples, manifest.counts.skipped) == (whole.counts.samples, whole.counts.skipped)
    assert [pack.number for pack in read_packs(tmp_path / "out")] == list(range(manifest.counts.packs))
    figures = [pq.read_table(out / "stats/datasets.parquet") for out in (tmp_path / "one", tmp_path / "out")]
    assert figures[0].equals(figures[1])


def test_killed_at_any_shard(data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While shards are written for the first time, and again where holes are filled."""
    for row in (31, 35, 44):
        cut(data.folder / f"{row}.png")
    run_pack(config(data, tmp_path / "whole"))
    for stop in range(1, 40, 2):
        out, calls = tmp_path / f"out{stop}", 0

        def task(job: Any, stop: int = stop) -> Any:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt
            return shard_task(job)

        monkeypatch.setattr(pieces, "shard_task", task)
        try:
            run_pack(config(data, out))
        except KeyboardInterrupt:
            monkeypatch.setattr(pieces, "shard_task", shard_task)
            run_pack(config(data, out))
            assert files_of(out) == files_of(tmp_path / "whole")
        else:
            break
    assert stop > 5, "the first round and the second"


def test_a_plan_in_figures(data: TinyData, tmp_path: Path) -> None:
    plans = [run_plan(config(data, tmp_path / "out", partition_samples=samples)) for samples in (22, 4_000_000)]
    assert (plans[0].num_partitions, plans[1].num_partitions) == (3, 1)
    first, second = (describe_plan(planned).splitlines() for planned in plans)
    assert first[1] == second[1] and first[1].startswith("  samples   67 = 67 rows + 0 repeats")
    assert plans[0].skip_counts() == plans[1].skip_counts()
