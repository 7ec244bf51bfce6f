"""What test_partitions.py proves by internals."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.data import TinyData, mixed_rows
from support.outputs import files_of, read_ledger, read_packs
from support.packed import tiny_config

from neatpack import PackConfig, run_pack, run_plan
from neatpack.pipeline.shard import pieces
from neatpack.pipeline.shard.summary import describe_plan
from neatpack.pipeline.shard.tables import ledger_names
from neatpack.pipeline.shard.writer import shard_task


def split(data: TinyData, num_files: int, name: str) -> list[str]:
    """Rows in several files, each a part of its own."""
    files = []
    for number in range(num_files):
        files.append(f"{name}-{number}.jsonl")
        rows = data.rows[number * len(data.rows) // num_files : (number + 1) * len(data.rows) // num_files]
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (data.folder / files[-1]).write_text("".join(line + "\n" for line in lines))
    return files


@pytest.fixture
def data(tmp_path: Path) -> TinyData:
    """46 rows of pictures and text in eight files, 21 of text in five, one of which is broken."""
    made = mixed_rows(TinyData(tmp_path / "data"), 30, 16)
    text = mixed_rows(TinyData(tmp_path / "data"), 20, 0).row([], note="nothing is said")
    meta = {
        "tiny": {"file_name": split(made, 8, "rows"), "media_dir": "."},
        "text": {"file_name": split(text, 5, "text")},
    }
    (made.folder / "meta.json").write_text(json.dumps(meta))
    return made


def config(data: TinyData, out: Path, **keys: Any) -> PackConfig:
    given: dict[str, Any] = {"pack_size": 256, "partition_samples": 22, "group_size": 2, "max_skipped": 1.0}
    return tiny_config(data.folder / "meta.json", out, **given | keys)


def ledger_of(out: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    lines = read_ledger(out)
    found = {(line["dataset"], line["row"], line["repeat"]): line for line in lines}
    assert len(found) == len(lines)
    return found


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


def cut(path: Path) -> None:
    """Opens with a valid size, and fails on decode."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


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
