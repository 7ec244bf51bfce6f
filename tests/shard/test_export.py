"""`neatpack export energon`: what is written, that nothing else is touched, and what is refused."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified, main
from support.data import TinyData, mixed_rows
from support.errors import numbers_in, prints_code
from support.outputs import files_of
from support.packed import tiny_config
from support.shards import write_index

from neatpack import run_pack

pytestmark = pytest.mark.net


@pytest.fixture
def config(tmp_path):
    data = mixed_rows(TinyData(tmp_path / "data"), num_text=40, num_images=36)
    return tiny_config(data.write(), tmp_path / "out")


@pytest.fixture
def out(config, tmp_path):
    run_pack(config)
    return tmp_path / "out"


def test_the_index_becomes_energons_files_and_the_output_stays_as_it_was(out, capsys):
    before = files_of(out)
    assert main(["export", "energon", str(out)]) == 0
    index = pq.read_table(out / "index.parquet").to_pylist()
    shards = sorted({line["shard"] for line in index})
    assert len(shards) > 1
    told = capsys.readouterr().out
    assert told.startswith(str(out)) and numbers_in(told.removeprefix(str(out))) == [len(index), len(shards)]
    after = files_of(out)
    assert {name: after[name] for name in before} == before
    new = [".nv-meta/.info.json", ".nv-meta/dataset.yaml", ".nv-meta/split.yaml", ".nv-meta/tools.yaml"]
    assert sorted(set(after) - set(before)) == [*new, *(f"shards/{shard}.idx" for shard in shards)]
    for shard in shards:
        lines = [line for line in index if line["shard"] == shard]
        ends = [line["offset"] + line["bytes"] for line in lines]
        assert np.frombuffer(after[f"shards/{shard}.idx"], "<u8").tolist() == [0, *ends]
        assert json.loads(after[".nv-meta/.info.json"])["shard_counts"][f"shards/{shard}"] == len(lines)
    assert_verified(out)


def test_again_gives_the_same_bytes(out):
    assert main(["export", "energon", str(out)]) == 0
    before = files_of(out)
    assert main(["export", "energon", str(out)]) == 0
    assert files_of(out) == before


def test_a_shard_that_lost_all_its_packs_is_not_named(out):
    """Of such a shard, whose rows all failed on decode, the manifest has an entry and the index no line."""
    index = pq.read_table(out / "index.parquet").to_pylist()
    last = index[-1]["shard"]
    write_index(out, [line for line in index if line["shard"] != last])
    assert main(["export", "energon", str(out)]) == 0
    splits = json.loads((out / ".nv-meta" / "split.yaml").read_text())
    assert splits["split_parts"]["train"] and f"shards/{last}" not in splits["split_parts"]["train"]
    assert not (out / "shards" / f"{last}.idx").exists()


def test_an_unfinished_output_is_refused(out, capsys):
    (out / "manifest.json").unlink()
    before = files_of(out)
    assert main(["export", "energon", str(out)]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "output-missing") and f"{out}/manifest.json" in told
    assert files_of(out) == before


def test_a_damaged_index_is_refused(out, capsys):
    (out / "index.parquet").write_bytes(b"PAR1")
    assert main(["export", "energon", str(out)]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "output-damaged") and "index.parquet" in told
    assert not (out / ".nv-meta").exists()


def test_unknown_loaders_are_refused_and_help_names_the_known(capsys):
    for arguments, code in ((["export", "mosaic", "out"], 2), (["export", "--help"], 0)):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == code
    printed = capsys.readouterr()
    assert "mosaic" in printed.err and "energon" in printed.out


def test_overwriting_the_output_takes_the_export_along(out, config):
    assert main(["export", "energon", str(out)]) == 0
    run_pack(tiny_config(config.meta, out, pack_size=384, overwrite=True))
    assert not [name for name in files_of(out) if name.startswith(".nv-meta") or name.endswith(".idx")]
