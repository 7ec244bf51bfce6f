"""A job in several partitions: whole, verified, resumed and mended like any other, and the same rows as in one."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified, main
from support.data import TinyData
from support.errors import raises
from support.partitions import config, cut, data as data, ledger_of

from neatpack import PackedShards, UserError, run_pack

pytestmark = pytest.mark.net

PICTURES = range(30, 46)  # rows of the first data set


def test_packs_of_all_partitions_are_loaded(data: TinyData, tmp_path: Path) -> None:
    manifest = run_pack(config(data, tmp_path / "out")).manifest
    seen = [pack["pack"] for pack in PackedShards(tmp_path / "out", rank=0, world_size=1)]
    assert sorted(seen) == list(range(manifest.counts.packs))


def test_the_commands_read_all_ledgers(data: TinyData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    run_pack(config(data, tmp_path / "one", partition_samples=4_000_000))
    run_pack(config(data, tmp_path / "out"))
    for command in (["verify", out, "--engine", "inline"], ["inspect", out], ["report", out]):
        assert main(command) == 0, command
    capsys.readouterr()
    assert main(["skipped", out]) == 0
    skipped = capsys.readouterr().out
    assert main(["skipped", str(tmp_path / "one")]) == 0
    assert skipped == capsys.readouterr().out and "text row 20" in skipped
    main(["diff", str(tmp_path / "one"), out, "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sum(rows.values()) == rows["same"] + rows["moved"] + rows["shifted"] == 67, rows


def test_rows_of_both_splits_are_in_the_ledgers(data: TinyData, tmp_path: Path) -> None:
    run_pack(config(data, tmp_path / "out", holdout=0.3))
    for out in (tmp_path / "out", tmp_path / "out-holdout"):
        assert_verified(out)
        assert len(ledger_of(out)) == 67


def test_no_more_packs_than_are_wanted(data: TinyData, tmp_path: Path) -> None:
    manifest = run_pack(config(data, tmp_path / "out", max_packs=5)).manifest
    assert assert_verified(tmp_path / "out").counts.packs == 5
    assert manifest.counts.skipped["max_packs"] > 0


def test_the_first_row_that_is_too_long_is_told(data: TinyData, tmp_path: Path) -> None:
    """Of the whole job, whichever partition is planned first."""
    errors = []
    for samples in (22, 4_000_000):
        with raises(UserError, "overlong", dataset="tiny") as caught:
            run_pack(config(data, tmp_path / str(samples), overlong="error", partition_samples=samples))
        errors.append((str(caught.error), caught.error.fields))
    assert errors[0] == errors[1]


def test_weights_are_about_all_partitions(data: TinyData, tmp_path: Path) -> None:
    meta = json.loads((data.folder / "meta.json").read_text())
    meta["tiny"]["weight"], meta["text"]["weight"] = 1, 3
    (data.folder / "meta.json").write_text(json.dumps(meta))
    run_pack(config(data, tmp_path / "out"))
    assert_verified(tmp_path / "out")
    tiny, text = pq.read_table(tmp_path / "out/stats/datasets.parquet")["tokens"].to_pylist()
    assert text / (tiny + text) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("rows", [[31], [31, 33, 38, 44], PICTURES], ids=["one", "some", "all pictures"])
def test_holes_are_filled_from_the_last_packs(data: TinyData, tmp_path: Path, rows: list[int]) -> None:
    run_pack(config(data, tmp_path / "whole"))
    for row in rows:
        cut(data.folder / f"{row}.png")
    manifest = run_pack(config(data, tmp_path / "out")).manifest
    assert assert_verified(tmp_path / "out").counts == dataclasses.asdict(manifest.counts)
    whole, lines = ledger_of(tmp_path / "whole"), ledger_of(tmp_path / "out")
    assert whole.keys() == lines.keys()
    lost = [key for key in lines if lines[key]["reason"] == "bad_media"]
    assert lost == [key for key in lines if key[0] == "tiny" and key[1] in rows and whole[key]["status"] == "packed"]
    assert sorted({line["pack"] for line in lines.values()} - {-1}) == list(range(manifest.counts.packs))
    assert {shard.first_pack for shard in manifest.shards} == {
        int(first) for first in np.cumsum([0, *(shard.num_packs for shard in manifest.shards)][:-1])
    }
