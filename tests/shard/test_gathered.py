"""Tables of packs and media do not depend on how what shards have left is gathered."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers import TinyData, assert_verified, files_of, mixed_rows, tiny_config

from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard import gathered
from neatpack.storage import tables


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return mixed_rows(TinyData(tmp_path / "data"), 30, 16).write()


def test_many_tasks_gather_what_one_does(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of one pack each; by all of them, and by two at a time."""
    monkeypatch.setattr("neatpack.pipeline.plan.tasks.write_plan", _shard_by_shard)
    one = run_pack(tiny_config(data, tmp_path / "one", pack_size=256)).manifest
    assert len(one.shards) > 6
    monkeypatch.setattr(gathered, "SHARDS_AT_ONCE", 2)
    run_pack(tiny_config(data, tmp_path / "many", pack_size=256))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")
    assert not (tmp_path / "many/work/gathered").exists(), "it is of no use any more"
    assert_verified(tmp_path / "many")


def test_a_row_group_may_begin_within_a_chunk(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of plan files and of ROW_GROUP lines, wherever chunks end."""
    monkeypatch.setattr("neatpack.pipeline.plan.tasks.write_plan", _shard_by_shard)
    monkeypatch.setattr(gathered, "SHARDS_AT_ONCE", 3)
    monkeypatch.setattr(gathered, "ROW_GROUP", 2)
    assert tables.ROW_GROUP > 2
    manifest = run_pack(tiny_config(data, tmp_path / "out", pack_size=256, group_size=2, partition_samples=22)).manifest
    index = pq.ParquetFile(tmp_path / "out/index.parquet")
    assert [index.metadata.row_group(number).num_rows for number in range(3)] == [2, 2, 2]
    assert index.read()["pack"].to_pylist() == list(range(manifest.counts.packs))
    assert_verified(tmp_path / "out")


def _shard_by_shard(*arguments, **options):
    from neatpack.pipeline.plan.files import write_plan

    path, number, plan, num_corpora, _, *rest = arguments
    return write_plan(path, number, plan, num_corpora, 1, *rest, **options)
