"""The tables of an output as text, JSON and answers to SQL: numbers that add up, and are the manifest's."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import TinyData, tiny_config
from hypothesis import given, strategies as st
from support.errors import prints_code

from neatpack.format.manifest import MEDIA, Manifest, signed
from neatpack.pipeline.cli import main
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.view.inspect import PERCENTILES, _Spread, inspected, with_total
from neatpack.storage.files import sha256_of


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Two data sets, with skips, repetitions, padding and a fake image."""
    folder = tmp_path_factory.mktemp("inspected")
    data = TinyData(folder / "data")
    for number in range(12):
        data.text(f"Count to {number}.", "one two " * (number + 1))
    data.image(60, 90).image(90, 90, "<image>What?" + " why" * 80)
    data.rows += ["{broken", {"messages": []}]
    data.write()
    entry = {"file_name": "rows.jsonl", "media_dir": "."}
    (folder / "data/meta.json").write_text(json.dumps({"once": entry, "often": {**entry, "sample_ratio": 2.5}}))
    run_pack(tiny_config(folder / "data/meta.json", folder / "out", pack_size=128, align=8, max_skipped=1))
    return folder / "out"


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@given(st.lists(st.lists(st.integers(0, 1 << 40), max_size=30), max_size=5))
def test_spreads_are_those_of_all_numbers_at_once(pieces: list[list[int]]) -> None:
    spread = _Spread()
    for piece in pieces:
        spread.add(pa.chunked_array([pa.array(piece, pa.int64())]))
    values = np.array([value for piece in pieces for value in piece], np.int64)
    line = spread.line("pack", "num_documents")
    assert (line["of"], line["figure"], line["count"], line["sum"]) == ("pack", "documents", len(values), values.sum())
    for name, percentile in PERCENTILES.items():
        expected = np.percentile(values, percentile, method="inverted_cdf") if len(values) else None
        assert line[name] == expected
    assert line["mean"] == (pytest.approx(values.mean()) if len(values) else None)


def test_sums_are_the_manifests(out: Path):
    manifest = Manifest.read(out)
    tables = inspected(out, manifest)
    *_, total = with_total(tables["datasets"])
    counts, index = manifest.counts, pq.read_table(out / "index.parquet").to_pydict()
    assert {line["dataset"] for line in tables["datasets"]} == {"once", "often", "(fake images)", "(padding)"}
    assert total == {
        "dataset": "total", "rows": counts.rows, "samples": counts.samples, "packed": counts.packed,
        "skipped": sum(counts.skipped.values()), "tokens": counts.tokens, "visual_tokens": counts.visual_tokens,
        "target_tokens": counts.target_tokens, "images": sum(index["num_images"]), "videos": 0, "audio": 0,
    }  # fmt: skip
    shards = with_total(tables["shards"])[-1]
    assert shards["tokens"] == counts.tokens and shards["packs"] == counts.packs
    assert {line["reason"]: line["samples"] for line in tables["skipped"]} == counts.skipped
    lengths = {(line["of"], line["figure"]): line for line in tables["lengths"]}
    assert lengths["pack", "tokens"]["sum"] == counts.tokens
    assert lengths["pack", "tokens"]["max"] == max(index["tokens"])
    assert lengths["document", "tokens"]["count"] == counts.packed


def test_the_text(out: Path, capsys):
    code, printed, errors = run(capsys, "inspect", out)
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0] == str(out)
    assert re.fullmatch(r"neatpack \S+, qwen2_vl, \d+ packs of 128 tokens, train, fingerprint \w{20}", lines[1])
    titles = [line for line in lines if line.endswith(":")]
    assert titles == ["datasets:", "skipped:", "lengths:", "sharing packs:", "shards:"]
    assert "\x1b" not in printed and not any(line.endswith(" ") for line in lines)


def test_json(out: Path, capsys):
    code, printed, _ = run(capsys, "inspect", out, "--json")
    found = json.loads(printed)
    assert code == 0
    assert found["datasets"] == inspected(out, Manifest.read(out))["datasets"]
    assert found["fingerprint"] == Manifest.read(out).fingerprint


def test_sql(out: Path, capsys):
    pytest.importorskip("duckdb")
    query = "select reason, count(*) as n from ledger where status = 'skipped' group by all order by n desc, reason"
    code, printed, errors = run(capsys, "inspect", out, "--sql", query)
    assert (code, errors) == (0, "")
    counts = Manifest.read(out).counts.skipped
    assert [line.split() for line in printed.splitlines()[1:]] == [
        [reason, str(counts[reason])] for reason in sorted(counts, key=lambda reason: (-counts[reason], reason))
    ]
    query = "select (select sum(tokens) from packs) as tokens, (select count(*) from index) as packs"
    assert json.loads(run(capsys, "inspect", out, "--json", "--sql", query)[1]) == {
        "tokens": Manifest.read(out).counts.tokens,
        "packs": Manifest.read(out).counts.packs,
    }


def test_wrong_sql(out: Path, capsys):
    pytest.importorskip("duckdb")
    code, printed, errors = run(capsys, "inspect", out, "--sql", "select x from nothing")
    assert (code, printed) == (2, "")
    assert prints_code(errors, "option-invalid") and "--sql" in errors
    assert all(table in errors for table in ("nothing", "index", "ledger", "datasets", "packs", "shards", "media"))


def test_no_sql(out: Path, capsys):
    pytest.importorskip("duckdb")
    code, printed, errors = run(capsys, "inspect", out, "--sql", " -- nothing")
    assert (code, printed) == (2, "")
    assert prints_code(errors, "option-invalid") and "--sql" in errors and "' -- nothing'" in errors


def test_without_duckdb(out: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, _, errors = run(capsys, "inspect", out, "--sql", "select 1")
    assert code == 2 and prints_code(errors, "package-missing") and "pip install duckdb" in errors


def test_no_output(tmp_path: Path, capsys):
    code, printed, errors = run(capsys, "inspect", tmp_path)
    assert (code, printed) == (2, "")
    assert prints_code(errors, "output-missing") and f"{tmp_path}/manifest.json" in errors


def test_a_damaged_table(out: Path, tmp_path: Path, capsys):
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out/stats/shards.parquet"
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    code, _, errors = run(capsys, "inspect", tmp_path / "out")
    assert code == 2
    assert prints_code(errors, "output-damaged") and str(path) in errors
    path.unlink()
    errors = run(capsys, "inspect", tmp_path / "out")[2]
    assert prints_code(errors, "output-damaged") and str(path) in errors


def test_an_output_of_an_older_neatpack(out: Path, tmp_path: Path, capsys):
    """Which had no sizes of media, and less to say of data sets."""
    shutil.copytree(out, tmp_path / "out")
    old = tmp_path / "out/stats/datasets.parquet"
    pq.write_table(pq.read_table(old).drop_columns(["target_tokens", "num_images", "num_videos", "num_audios"]), old)
    found = json.loads((out / "manifest.json").read_text())
    found.pop("digest")
    del found["files"][MEDIA]
    found["files"]["stats/datasets.parquet"] = sha256_of(old)
    (tmp_path / "out/manifest.json").write_bytes(signed(found))
    code, printed, errors = run(capsys, "inspect", tmp_path / "out")
    assert (code, errors) == (0, "")
    once = next(line.split() for line in printed.splitlines() if line.startswith("once"))
    assert once[-4:] == ["-", "-", "-", "-"]
