"""--holdout and `neatpack split`: two outputs of one run, which share no row and together have all."""

import dataclasses
import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from places import DEMO_PROCESSOR
from processors import qwen3_omni
from source_data import wav, with_sounds
from support.commands import assert_verified, main, run_command
from support.data import TinyData, mixed_rows
from support.errors import numbers_in, prints_code, raises
from support.outputs import files_of, read_ledger, read_manifest, read_packs
from support.packed import documents_of, tiny_config

from jobs.breaking.disk import KILL, Disk
from jobs.breaking.run import killed_on
from neatpack import PackedShards, UserError, run_pack, run_plan

pytestmark = pytest.mark.net

SHARE = 0.3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 rows and a bad one, some of them twice."""
    tiny = mixed_rows(TinyData(tmp_path_factory.mktemp("data")), num_images=40)
    tiny.rows += [tiny.rows[number] | {"id": number} for number in (3, 5, 8, 40, 41)]
    tiny.rows.append("{broken")
    return tiny.write()


@pytest.fixture(scope="module")
def outputs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """OUT and OUT-holdout."""
    out = tmp_path_factory.mktemp("packed") / "out"
    run_pack(tiny_config(data, out, holdout=SHARE))
    return out, beside(out)


def copied(outputs: tuple[Path, Path], out: Path) -> None:
    """OUT and OUT-holdout as they are after such a run."""
    for each, copy in zip(outputs, (out, beside(out)), strict=True):
        shutil.copytree(each, copy)


def beside(out: Path) -> Path:
    return out.with_name(f"{out.name}-holdout")


def split(meta: Path, out: Path) -> dict[str, int]:
    """Run `neatpack split`; return the number of rows of each half."""
    code, printed, errors = run_command("split", "--meta", meta, "--out", out, "--engine", "inline", "--holdout", SHARE)
    assert code == 0, errors
    (trained, *_), (held, *_) = (numbers_in(line) for line in printed.splitlines())
    return {"train": int(trained), "holdout": int(held)}


def ledger_of(out: Path) -> list[dict[str, Any]]:
    return read_ledger(out)


def rows_of(out: Path, *, without: str) -> set[int]:
    return {line["row"] for line in ledger_of(out) if line["reason"] != without}


# ---------------------------------------------------------------- pack


def test_every_row_belongs_to_one_output_and_is_in_both_ledgers(outputs: tuple[Path, Path]) -> None:
    train, holdout = outputs
    trained, held = rows_of(train, without="held_out"), rows_of(holdout, without="not_held_out")
    assert trained | held == set(range(76)) and not trained & held
    assert 10 < len(held) < 40
    counts = [assert_verified(out).counts for out in outputs]
    assert [each.rows for each in counts] == [each.samples for each in counts] == [76, 76]
    assert counts[0].skipped["held_out"] == len(held) and counts[1].skipped["not_held_out"] == len(trained)
    skipped = [{k: v for k, v in each.skipped.items() if not k.endswith("held_out")} for each in counts]
    assert [*skipped[0].items(), *skipped[1].items()] == [("bad_row", 1)], "in the output it belongs to"
    documents = [{document.row for pack in read_packs(out) for document in pack.documents} - {-1} for out in outputs]
    assert documents[0] | documents[1] == set(range(75)) and not documents[0] & documents[1]


def test_copies_of_a_row_do_not_leak(outputs: tuple[Path, Path]) -> None:
    held = rows_of(outputs[1], without="not_held_out")
    pairs = {(original in held, copy in held) for copy, original in enumerate((3, 5, 8, 40, 41), start=70)}
    assert pairs == {(False, False), (True, True)}


def test_both_are_ordinary_outputs(outputs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for out in outputs:
        assert main(["verify", str(out)]) == 0
        packs = PackedShards(out, seed=1)
        assert {pack["pack"] for pack in packs} == set(range(read_manifest(out).counts.packs))
    assert 76 in numbers_in(capsys.readouterr().out)
    train, holdout = (read_manifest(out).identity for out in outputs)
    assert [train.config.pop("split"), holdout.config.pop("split")] == ["train", "holdout"] and train == holdout


def test_what_is_held_out_comes_once_and_the_others_as_sample_ratio_says(tiny: TinyData, tmp_path: Path) -> None:
    for number in range(40):
        tiny.text(f"question {number}", "answer")
    held = {}
    for ratio in (0.0, 0.5, 1.0, 2.0):
        out = tmp_path / str(ratio)
        run_pack(tiny_config(tiny.write(ratio=ratio), out, holdout=SHARE))
        assert_verified(out)
        assert_verified(beside(out))
        held[ratio] = rows_of(beside(out), without="not_held_out")
        packed = [[line for line in ledger_of(each) if line["status"] == "packed"] for each in (out, beside(out))]
        assert len(packed[0]) == int(ratio * (40 - len(held[ratio])))
        assert len(packed[1]) == (len(held[ratio]) if ratio else 0)
        assert {line["repeat"] for line in packed[1]} <= {0}
        reasons = {line["reason"] for line in ledger_of(beside(out))}
        assert reasons == {"not_held_out", "sampled_out" if not ratio else ""}
    assert len({frozenset(rows) for rows in held.values()}) == 1


def test_the_choice_does_not_depend_on_how_it_is_packed(data: Path, outputs: tuple[Path, Path], tmp_path: Path) -> None:
    run_pack(tiny_config(data, tmp_path / "out", holdout=SHARE, pack_size=300, seed=5, placeholders="lenient"))
    for out, reason in ((tmp_path / "out", "held_out"), (beside(tmp_path / "out"), "not_held_out")):
        assert rows_of(out, without=reason) == rows_of(outputs[reason == "not_held_out"], without=reason)


def test_without_it_there_is_one_output(data: Path, tmp_path: Path) -> None:
    assert run_pack(tiny_config(data, tmp_path / "out")).holdout is None
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_rows_that_are_held_out_are_measured_whatever_another_share_measured(tiny: TinyData, tmp_path: Path) -> None:
    """One token store for all: with a sample_ratio below 1, which rows are in it depends on the share."""
    for number in range(40):
        tiny.text(f"question {number}", "answer")
    meta = tiny.write(ratio=0.5)
    for name, share in (("a", 0.0), ("b", 0.2), ("c", 0.6)):
        run_pack(tiny_config(meta, tmp_path / name, holdout=share, work=str(tmp_path / "work")))
        run_pack(tiny_config(meta, tmp_path / f"{name}-alone", holdout=share))
        assert files_of(tmp_path / name) == files_of(tmp_path / f"{name}-alone")
    for name in "bc":
        assert files_of(beside(tmp_path / name)) == files_of(beside(tmp_path / f"{name}-alone"))
        assert_verified(beside(tmp_path / name))


def test_another_share_does_not_tokenize_again(data: Path, tmp_path: Path) -> None:
    def measured() -> set[Path]:
        return {path for path in (tmp_path / "work/measured").rglob("*") if path.is_file()}

    run_pack(tiny_config(data, tmp_path / "a", work=str(tmp_path / "work")))
    before = measured()
    packed = run_pack(tiny_config(data, tmp_path / "b", work=str(tmp_path / "work"), holdout=SHARE))
    assert before and measured() == before and packed.manifest.counts.packed > 0


@settings(max_examples=15)
@given(
    rows=st.lists(st.sampled_from(["a", "b", "c", "{broken", "no target", "long"]), max_size=15),
    share=st.sampled_from([0.01, 0.5, 0.99]),
    ratio=st.sampled_from([0.0, 0.4, 1.0, 1.7]),
)
def test_the_ledgers_add_up_for_any_rows(
    rows: list[str], share: float, ratio: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    tiny = TinyData(folder / "data")
    for kind in rows:
        if kind == "{broken":
            tiny.rows.append(kind)
        else:
            tiny.row([("user", kind), *([] if kind == "no target" else [("assistant", kind * 100)])])
    packed = run_pack(tiny_config(tiny.write(ratio=ratio), folder / "out", holdout=share, pack_size=64))
    assert packed.holdout is not None
    for out, manifest in ((folder / "out", packed.manifest), (folder / "out-holdout", packed.holdout.manifest)):
        assert assert_verified(out).counts == dataclasses.asdict(manifest.counts)
        assert manifest.counts.rows == len(rows)
        assert manifest.counts.packed + sum(manifest.counts.skipped.values()) == manifest.counts.samples
    held = rows_of(folder / "out-holdout", without="not_held_out")
    assert held == set(range(len(rows))) - rows_of(folder / "out", without="held_out")
    assert not {rows[number] for number in held} & {rows[number] for number in range(len(rows)) if number not in held}


# ---------------------------------------------------------------- killed, changed, run again


def test_same_bytes_however_often_it_is_killed(data: Path, outputs: tuple[Path, Path], tmp_path: Path) -> None:
    """Each life ends before a call that changes files; the last one is whole."""
    out, kills = tmp_path / "out", 0
    command = ["pack", "--meta", str(data), "--processor", str(DEMO_PROCESSOR), "--out", str(out), "--engine", "inline",
               "--holdout", str(SHARE), "--pack-size", "512", "--shard-mb", "1", "--group-size", "4", "--pixels", "u8",
               "--keep-going"]  # fmt: skip
    while (code := killed_on(Disk(tmp_path, KILL, 50 + 20 * kills), command)[0]) == -signal.SIGKILL:
        kills += 1
    assert code == 0 and kills > 4
    assert [files_of(each) for each in (out, beside(out))] == [files_of(each) for each in outputs]
    assert not list(tmp_path.rglob("*.part")), "left-overs of killed runs"


@pytest.mark.on_ray
def test_same_bytes_on_ray(data: Path, outputs: tuple[Path, Path], tmp_path: Path) -> None:
    run_pack(tiny_config(data, tmp_path / "out", holdout=SHARE, engine="ray", num_workers=2))
    assert files_of(tmp_path / "out") == files_of(outputs[0])
    assert files_of(beside(tmp_path / "out")) == files_of(outputs[1])


def test_a_lost_shard_of_the_holdout_is_made_again(data: Path, outputs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    copied(outputs, out)
    for path in ("manifest.json", "shards/pack-000000.tar"):
        (beside(out) / path).unlink()
    run_pack(tiny_config(data, out, holdout=SHARE))
    assert files_of(beside(out)) == files_of(outputs[1])


def test_a_second_run_does_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["pack", "--meta", str(data), "--processor", str(DEMO_PROCESSOR), "--out", str(out), "--engine", "inline",
               "--holdout", "0.3"]  # fmt: skip
    assert main(command) == 0
    first = capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert main(command) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{out} ") and told.partition("\n")[2] == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_another_share_is_refused_and_overwrites_both_on_demand(
    data: Path, outputs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    copied(outputs, out)
    before = files_of(tmp_path)
    with raises(UserError, "output-mismatch", out=str(out), changed=["config.holdout"]):
        run_pack(tiny_config(data, out, holdout=0.1))
    assert files_of(tmp_path) == before
    run_pack(tiny_config(data, out, holdout=0.1, overwrite=True))
    for each in (out, beside(out)):
        assert assert_verified(each).identity.config["holdout"] == 0.1


def test_a_refused_holdout_leaves_both_as_they_were(data: Path, tmp_path: Path) -> None:
    run_pack(tiny_config(data, tmp_path / "out-holdout"))
    before = files_of(tmp_path)
    with raises(UserError, "output-mismatch", out=str(tmp_path / "out-holdout")):
        run_pack(tiny_config(data, tmp_path / "out", holdout=SHARE, work=str(tmp_path / "work")))
    assert files_of(tmp_path) == before
    (tmp_path / "strange-holdout").mkdir()
    (tmp_path / "strange-holdout" / "thesis.tex").touch()
    with raises(UserError, "out-not-empty", out=str(tmp_path / "strange-holdout"), files=["thesis.tex"]):
        run_pack(tiny_config(data, tmp_path / "strange", holdout=SHARE))
    assert not (tmp_path / "strange").exists()


def test_what_was_held_out_is_not_packed_beside_it(data: Path, outputs: tuple[Path, Path], tmp_path: Path) -> None:
    """Nobody should validate on rows that a newer output trains on."""
    config = tiny_config(data, tmp_path / "out", holdout=SHARE)
    copied(outputs, tmp_path / "out")
    for overwrite in (False, True):
        with raises(UserError, "output-mismatch", holdout=str(tmp_path / "out-holdout")):
            run_pack(dataclasses.replace(config, holdout=0.0, overwrite=overwrite))
    assert_verified(tmp_path / "out")
    run_pack(tiny_config(data, tmp_path / "other-holdout"))
    run_pack(tiny_config(data, tmp_path / "other"))  # beside it is somebody's own output of that name


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_is_below_one(share: float, tmp_path: Path) -> None:
    with raises(UserError, "option-invalid", option="holdout"):
        tiny_config(tmp_path / "meta.json", tmp_path / "out", holdout=share)


# ---------------------------------------------------------------- plan


def test_plan_tells_of_both(data: Path, outputs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--meta", str(data), "--processor", str(DEMO_PROCESSOR), "--engine", "inline", "--pack-size",
               "512", "--group-size", "4", "--holdout", "0.3"]  # fmt: skip
    assert main(command) == 0
    train, holdout = capsys.readouterr().out.split("plan of the holdout\n")
    for text, out, reason in ((train, outputs[0], "held_out"), (holdout, outputs[1], "not_held_out")):
        counts = read_manifest(out).counts
        skipped = sum(counts.skipped.values())
        assert (
            f"  samples   76 = 76 rows + 0 repeats = {counts.packed} to pack + {skipped} skipped\n"
            f"  read as   messages (tiny)\n  packs     {counts.packs} of 512 tokens"
        ) in text
        assert f"{counts.skipped[reason]}  {reason}: " in text
        assert f"  skipped   {skipped} of 76 samples, " in text


def test_lengths_are_not_written_for_rows_that_are_held_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "--meta", str(data), "--processor", str(DEMO_PROCESSOR), "--engine", "inline"]
    assert main([*command, "--holdout", "0.3", "--write-lengths", str(tmp_path / "lengths")]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "option-conflict") and "--write-lengths" in told and "--holdout" in told
    assert not (tmp_path / "lengths").exists()


def test_a_plan_in_python(data: Path, outputs: tuple[Path, Path], tmp_path: Path) -> None:
    planned = run_plan(tiny_config(data, tmp_path / "out", holdout=SHARE))
    assert planned.holdout is not None and planned.holdout.holdout is None
    packs = [read_manifest(out).counts.packs for out in outputs]
    assert [planned.num_packs, planned.holdout.num_packs] == packs
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ---------------------------------------------------------------- split


@pytest.mark.parametrize("ratio", [0.0, 0.6, 1.0, 1.5])
def test_packing_the_halves_gives_the_same_packs(data: Path, ratio: float, tmp_path: Path) -> None:
    """Of text and pictures; the rows have other numbers, and all else is the same."""
    meta = json.loads(data.read_text())
    meta["tiny"] |= {"sample_ratio": ratio, "file_name": str(data.parent / "rows.jsonl"), "media_dir": str(data.parent)}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", holdout=SHARE))
    counts = split(tmp_path / "meta.json", tmp_path / "halves")
    for half, out in (("train", tmp_path / "out"), ("holdout", beside(tmp_path / "out"))):
        run_pack(tiny_config(tmp_path / "halves" / half / "meta.json", tmp_path / half))
        manifest = assert_verified(tmp_path / half)
        assert manifest.counts.rows == counts[half] > 10
        assert "missing_media" not in manifest.counts.skipped
        packs = [list(read_packs(each)) for each in (out, tmp_path / half)]
        assert len(packs[0]) == len(packs[1]) == manifest.counts.packs
        assert bool(ratio) == bool(packs[0])
        for ours, theirs in zip(*packs, strict=True):
            assert all(np.array_equal(array, theirs.arrays[name]) for name, array in ours.arrays.items())


def test_a_half_has_the_rows_as_they_are(data: Path, outputs: tuple[Path, Path], tmp_path: Path) -> None:
    split(data, tmp_path / "halves")
    lines = (data.parent / "rows.jsonl").read_text().splitlines()
    held = rows_of(outputs[1], without="not_held_out")
    for half, rows in (("train", set(range(76)) - held), ("holdout", held)):
        written = (tmp_path / "halves" / half / "000.jsonl").read_text().splitlines()
        assert written == [lines[row] for row in sorted(rows)]
    assert sorted(path.name for path in (tmp_path / "halves").iterdir()) == ["holdout", "train"]


def test_embedded_media_are_found(tmp_path: Path) -> None:
    """Of parquet, and of a JSON array beside it, of which nothing is left over."""
    tiny = mixed_rows(TinyData(tmp_path / "data"), num_text=0, num_images=20)
    rows = [row | {"images": [{"bytes": (tiny.folder / row["images"][0]).read_bytes()}]} for row in tiny.rows]
    pq.write_table(pa.Table.from_pylist(rows), tiny.folder / "rows.parquet")
    (tiny.folder / "rows.json").write_text(json.dumps(tiny.rows))
    meta = tiny.folder / "meta.json"
    meta.write_text(json.dumps({"a": {"file_name": "rows.parquet"}, "b/b": {"file_name": "rows.json"}}))
    run_pack(tiny_config(meta, tmp_path / "out", holdout=SHARE))
    counts = split(meta, tmp_path / "halves")
    assert counts["train"] + counts["holdout"] == 40 and counts["holdout"] > 5
    for half, out in (("train", tmp_path / "out"), ("holdout", beside(tmp_path / "out"))):
        run_pack(tiny_config(tmp_path / "halves" / half / "meta.json", tmp_path / half))
        assert assert_verified(tmp_path / half).counts.skipped == {}
        pixels = [
            [pack.arrays["pixel_values"].tolist() for pack in read_packs(each)] for each in (out, tmp_path / half)
        ]
        assert pixels[0] == pixels[1]
    assert [path.name for path in (tmp_path / "halves" / "media").glob("*/*")] == ["media.bin"]


def test_named_sources_are_split_too(tmp_path: Path) -> None:
    """Sounds of a source stand beside the conversation: the half must say where."""
    sounds = with_sounds([wav(0.1 * number) for number in range(1, 21)], [f"text {number}" for number in range(20)])
    sounds.save_to_disk(tmp_path / "saved")
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps({"speech": {"source": "cv17", "path_or_dataset": "saved"}}))
    counts = split(meta, tmp_path / "halves")
    assert counts["train"] + counts["holdout"] == 20 and counts["holdout"] > 2

    processor = str(qwen3_omni.make(tmp_path / "processor"))

    def packed(meta_file: Path, name: str) -> Counter[bytes]:
        """What is said, and a token for each piece of its sound: no two sounds are as long."""
        out = tmp_path / name
        run_pack(tiny_config(meta_file, out, processor=processor, pack_size=128, fake_image=False))
        assert assert_verified(out).counts.skipped == {}
        packs = [document for pack in PackedShards(out) for document in documents_of(out, pack)]
        return Counter(each["input_ids"].numpy().tobytes() for each in packs)

    halves = [packed(tmp_path / "halves" / half / "meta.json", half) for half in ("train", "holdout")]
    assert halves[0] + halves[1] == packed(meta, "whole") and not halves[0] & halves[1]


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["split", "--meta", str(data), "--out", str(tmp_path / "halves"), "--engine", "inline"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "option-missing") and "--holdout" in told
    assert main([*command, "--holdout", "2"]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "option-invalid") and "holdout" in told and 2 in numbers_in(told)
    assert not (tmp_path / "halves").exists()
    assert main([*command, "--holdout", "0.3"]) == 0
    train, holdout = (
        len(as_text.splitlines()) for as_text in map(Path.read_text, sorted(tmp_path.rglob("000.jsonl"))[::-1])
    )
    assert capsys.readouterr().out == (
        f"{train} rows in {tmp_path}/halves/train/meta.json\n{holdout} rows in {tmp_path}/halves/holdout/meta.json\n"
    )
    before = files_of(tmp_path)
    again = ["split", "--meta", str(tmp_path / "halves/train/meta.json"), *command[3:], "--holdout", "0.3"]
    assert main(again) == 2, "it would write over what it reads"
    told = capsys.readouterr().err
    assert prints_code(told, "out-not-empty") and f"{tmp_path}/halves" in told
    assert files_of(tmp_path) == before


def test_split_keeps_weights_for_training(tmp_path: Path) -> None:
    """Rows that are held out come once; those of the other half in the shares that were asked for."""
    tiny = TinyData(tmp_path)
    for i in range(30):
        tiny.text(f"question {i}", "answer")
    tiny.write()
    entries = {name: {"file_name": "rows.jsonl", "weight": weight} for name, weight in (("a", 3), ("b", 1))}
    (tmp_path / "meta.json").write_text(json.dumps(entries))
    split(tmp_path / "meta.json", tmp_path / "halves")
    halves = {half: json.loads((tmp_path / "halves" / half / "meta.json").read_text()) for half in ("train", "holdout")}
    assert [halves["train"][name]["weight"] for name in "ab"] == [0.75, 0.25]
    assert [halves["holdout"][name]["sample_ratio"] for name in "ab"] == [1.0, 1.0]
    assert not any("weight" in entry for entry in halves["holdout"].values())
