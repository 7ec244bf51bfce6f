"""The summary: figures that add up, in the right number, and what they say of mixtures and copies."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from helpers import TinyData, assert_verified, tiny_config
from hypothesis import given, settings, strategies as st

from neatpack.format.manifest import Manifest
from neatpack.pipeline.run import Packed, run_pack, run_plan
from neatpack.pipeline.shard.summary import describe_output, describe_plan, describe_verified
from neatpack.pipeline.shard.words import counted, percent, size

SUM = re.compile(r"  samples   ([\d,]+) = ([\d,]+) rows? \+ ([\d,]+) repeats? = ([\d,]+) \S.* \+ ([\d,]+) skipped")


def line_of(summary: str, name: str) -> str:
    """The line of a summary that begins with this word, without it."""
    (line,) = (line for line in summary.splitlines() if line.startswith(f"  {name:<9} "))
    return line[12:]


def write_meta(folder: Path, entries: dict[str, Any]) -> Path:
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


def packed_of(meta: Path, out: Path, **config: Any) -> tuple[Packed, str]:
    packed = run_pack(tiny_config(meta, out, **config))
    return packed, describe_output(out, packed.manifest)


@pytest.mark.parametrize(
    ("number", "noun", "expected"), [(0, "row", "0 rows"), (1, "pack", "1 pack"), (1200, "shard", "1,200 shards")]
)
def test_counted(number: int, noun: str, expected: str) -> None:
    assert counted(number, noun) == expected


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [(0, 0, "0.0%"), (0, 3, "0.0%"), (1, 3, "33.3%"), (3, 3, "100.0%"), (1, 10**6, "<0.1%"), (99_999, 10**5, ">99.9%")],
)
def test_percent(part: int, whole: int, expected: str) -> None:
    assert percent(part, whole) == expected


def test_size() -> None:
    assert [size(number) for number in (12, 2048, 3 << 30)] == ["12 B", "2.0 KiB", "3.0 GiB"]


def test_one_of_each(tiny: TinyData, tmp_path: Path) -> None:
    meta = tiny.text("a", "b").write()
    packed, summary = packed_of(meta, tmp_path / "out")
    assert line_of(summary, "samples") == "1 = 1 row + 0 repeats = 1 packed + 0 skipped"
    assert line_of(summary, "media") == "0 images, 0 videos; 1 pack without media carries a fake image"
    assert line_of(summary, "on disk").startswith("1 shard, ")
    assert "mixture" not in summary and "repeats  " not in summary
    verified = describe_verified(tmp_path / "out", packed.manifest)
    assert re.search(r"1 input row accounted for, 1 sample and \d+ tokens in 1 pack, 1 shard\n", verified)
    assert verified.endswith("\nall of the samples were packed")


def test_verify_tells_the_share(tiny: TinyData, tmp_path: Path) -> None:
    for i in range(7):
        tiny.text(f"{i}", "b")
    tiny.rows.append("{broken")
    run_pack(tiny_config(tiny.write(), tmp_path / "out"))
    said = describe_verified(tmp_path / "out", Manifest.read(tmp_path / "out"))
    assert said.splitlines()[1] == "87.5% of the samples were packed, 12.5% skipped: 1 bad_row"


@settings(max_examples=12)
@given(
    good=st.integers(0, 12),
    bad=st.integers(0, 4),
    ratios=st.lists(st.sampled_from([0.0, 0.3, 1.0, 1.5, 2.25]), min_size=1, max_size=3),
    holdout=st.sampled_from([0.0, 0.4]),
)
def test_the_figures_add_up(
    good: int, bad: int, ratios: list[float], holdout: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sum")
    data = TinyData(folder)
    for i in range(good):
        data.text(f"question {i}", "answer")
    data.rows += ["{broken"] * bad
    data.write()
    entries = {f"set{i}": {"file_name": "rows.jsonl", "sample_ratio": ratio} for i, ratio in enumerate(ratios)}
    config = tiny_config(write_meta(folder, entries), folder / "out", holdout=holdout)
    planned = describe_plan(run_plan(config))
    packed = run_pack(config)
    outputs = [packed, packed.holdout] if packed.holdout else [packed]
    summaries = [describe_output(folder / "out", each.manifest) for each in outputs if each is packed]
    summaries += [describe_output(folder / "out-holdout", each.manifest) for each in outputs if each is not packed]
    sums = []
    for summary in [*summaries, planned]:
        for found in SUM.findall(summary):
            samples, rows, repeats, taken, skipped = (int(number.replace(",", "")) for number in found)
            assert samples == rows + repeats == taken + skipped
            assert rows == len(ratios) * (good + bad) and repeats >= 0
            sums.append((samples, repeats, taken, skipped))
            told = re.search(r"  skipped   ([\d,]+) of ([\d,]+) samples?, ", summary)
            assert told is not None or not skipped
    assert sums[: len(outputs)] == sums[len(outputs) :], "the plan says what packing gives"


# ---------------------------------------------------------------- mixtures


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 40 rows of short text, of which two are bad, and 260 of long."""
    folder = tmp_path_factory.mktemp("two")
    for name, num_rows, words in (("short", 38, 6), ("long", 260, 30)):
        data = TinyData(folder)
        for i in range(num_rows):
            data.text(f"question {i}", "word " * (words + i % 7))
        data.rows += ["{broken", {"messages": []}] if name == "short" else []
        data.write()
        (folder / "rows.jsonl").rename(folder / f"{name}.jsonl")
    return folder


def weighted(folder: Path, **weights: float) -> Path:
    return write_meta(folder, {name: {"file_name": f"{name}.jsonl", "weight": w} for name, w in weights.items()})


def test_weights_are_shares_of_tokens(two: Path, tmp_path: Path) -> None:
    packed, summary = packed_of(weighted(two, short=0.3, long=0.7), tmp_path / "out")
    assert_verified(tmp_path / "out")
    short, long = pq.read_table(tmp_path / "out/stats/datasets.parquet").to_pylist()
    assert short["tokens"] / (short["tokens"] + long["tokens"]) == pytest.approx(0.3, abs=0.01)
    assert (long["packed"], long["ratio"], long["weight"]) == (260, 1.0, 0.7), "no row is lost, and none repeated"
    assert short["ratio"] == pytest.approx(short["packed"] / 38, rel=0.02) and short["weight"] == 0.3
    assert short["bad_row"] == 2, "a bad row is told once"
    ledger = pq.read_table(tmp_path / "out/ledger/00000.parquet").to_pylist()
    assert {line["row"] for line in ledger if line["status"] == "packed"} == set(range(38))
    assert line_of(summary, "mixture") == f"short 30.0% asked, 30.0% of tokens, each row {short['ratio']:.3g} times"
    assert "            long 70.0% asked, 70.0% of tokens, each row once" in summary
    assert packed.manifest.counts.samples == 300 + (short["packed"] - 38)


def test_plan_and_pack_say_the_same_of_a_mixture_and_always_the_same(two: Path, tmp_path: Path) -> None:
    meta = weighted(two, short=3, long=7)
    planned = describe_plan(run_plan(tiny_config(meta, tmp_path / "plan")))
    _, summary = packed_of(meta, tmp_path / "out")
    assert line_of(planned, "mixture") == line_of(summary, "mixture")
    again, _ = packed_of(meta, tmp_path / "again")
    assert [shard.sha256 for shard in again.manifest.shards] == [
        shard.sha256 for shard in Manifest.read(tmp_path / "out").shards
    ]


def test_another_weight_is_another_output_of_the_same_tokens(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = str(tmp_path / "work")
    first, _ = packed_of(weighted(two, short=0.3, long=0.7), tmp_path / "a", work=work)
    monkeypatch.setattr("neatpack.pipeline.measure.part.measure", lambda *_: pytest.fail("measured again"))
    second, _ = packed_of(weighted(two, short=0.5, long=0.5), tmp_path / "b", work=work)
    assert first.manifest.identity.differences(second.manifest.identity) == [
        "inputs.short.weight: 0.3 -> 0.5",
        "inputs.long.weight: 0.7 -> 0.5",
    ]


def test_what_is_held_out_comes_once_whatever_the_weight(two: Path, tmp_path: Path) -> None:
    packed, _ = packed_of(weighted(two, short=0.3, long=0.7), tmp_path / "out", holdout=0.2)
    assert packed.holdout is not None
    assert {line["repeat"] for line in pq.read_table(tmp_path / "out-holdout/ledger").to_pylist()} == {0}
    assert "weight" in pq.read_schema(tmp_path / "out-holdout/stats/datasets.parquet").names
    short, long = pq.read_table(tmp_path / "out/stats/datasets.parquet").to_pylist()
    assert short["tokens"] / (short["tokens"] + long["tokens"]) == pytest.approx(0.3, abs=0.01)
    assert_verified(tmp_path / "out")
    assert_verified(tmp_path / "out-holdout")


def test_ratios_are_told_too(two: Path, tmp_path: Path) -> None:
    entries = {
        "short": {"file_name": "short.jsonl", "sample_ratio": 2},
        "long": {"file_name": "long.jsonl", "sample_ratio": 0.5},
    }
    _, summary = packed_of(write_meta(two, entries), tmp_path / "out")
    assert re.fullmatch(r"short \d+\.\d% of tokens, each row 2 times", line_of(summary, "mixture"))
    assert re.search(r"^            long \d+\.\d% of tokens, 50.0% of its rows$", summary, re.MULTILINE)
    del entries["long"]["sample_ratio"]
    _, summary = packed_of(write_meta(two, entries), tmp_path / "one")
    assert line_of(summary, "mixture").startswith("short ") and "\n            long" not in summary


# ---------------------------------------------------------------- copies


def test_copies_of_pictures_are_told(tiny: TinyData, tmp_path: Path) -> None:
    for _ in range(3):
        tiny.image(200, 200)
    meta = tiny.write(ratio=25)
    _, summary = packed_of(meta, tmp_path / "out")
    told = line_of(summary, "repeats")
    assert told == "tiny: media stored 25 times, 96% of them copies"
    assert line_of(describe_plan(run_plan(tiny_config(meta, tmp_path / "plan"))), "repeats") == told


def test_few_copies_are_not_worth_a_word(tiny: TinyData, tmp_path: Path) -> None:
    tiny.image(60, 60)
    for i in range(20):
        tiny.image(200, 200).text(f"{i}", "b")
    _, summary = packed_of(tiny.write(ratio=1.05), tmp_path / "out")
    assert "of them copies" not in summary
