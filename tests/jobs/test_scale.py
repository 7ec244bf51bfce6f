"""The benchmark of size finds what grows, and its made-up notes are such as a run takes for its own."""

from pathlib import Path
from typing import Any

from helpers import DEMO_PROCESSOR

from jobs.bench_scale import missed, table
from jobs.scale.driver import planned_rows, write_note
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.runtime.engine import Engine
from neatpack.pipeline.shard.verify import verify_ledger
from neatpack.pipeline.stages import render, shard_jobs


def figures(rows: int, us: float, driver_us: float = 0.1, driver_bytes: float = 10.0) -> dict[str, Any]:
    return {"rows": rows, "partitions": 1, "packs": 1, "shards": 1, "driver_us_per_row": driver_us,
            "driver_bytes_per_row": driver_bytes, "tasks_us_per_row": us - driver_us, "us_per_row": us,
            "serial_us_per_row": us, "largest_task_bytes": 0}  # fmt: skip


def test_what_grows_is_missed():
    small, large = figures(100_000, 5.0, driver_us=9.0), figures(10_000_000, 5.4)
    assert missed([small, large]) == [], "small jobs have costs that do not grow"
    assert missed([small, large | {"us_per_row": 5.6}]) == [
        "a row costs 1.12 times as much in 10,000,000 as in 100,000"
    ]
    assert len(missed([large | {"driver_us_per_row": 0.3, "driver_bytes_per_row": 51.0}])) == 2
    assert "10,000,000" in table([small, large])[2]


def test_an_output_of_made_up_rows_adds_up(tmp_path: Path):
    """Plan, ledger, index and manifest are real, and of three partitions."""
    config = PackConfig(meta="m", processor=str(DEMO_PROCESSOR), out=str(tmp_path / "out"), pack_size=16_384,
                        partition_samples=1_000, group_size=8, max_skipped=1.0, pixels="u8")  # fmt: skip
    planned = planned_rows(tmp_path / "store", 3_000, config, Engine({}), part_rows=100)
    assert (planned.num_partitions, len(planned.files)) == (3, 4)
    for job in shard_jobs(planned):
        write_note(job, planned.inputs.family.media)
    done = render(planned, Engine({}))
    assert done.reused_shards == len(done.manifest.shards) > 10
    assert verify_ledger(tmp_path / "out", done.manifest) == []
