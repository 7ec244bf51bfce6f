"""The whole path on small data: what goes in comes out once, in the same bytes, whatever happens on the way."""

import dataclasses
import logging
import os
import re
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from hypothesis import given, settings, strategies as st
from support.commands import assert_verified, main
from support.data import TinyData, mixed_rows, picture
from support.errors import prints_code, raises
from support.outputs import files_of, read_manifest, read_packs
from support.packed import tiny_config
from support.run_data import cut, data as data, expected as expected, ledger_of

from neatpack import UserError, run_pack, run_plan

pytestmark = pytest.mark.net


def test_every_row_ends_in_the_ledger_once(tiny, tmp_path):
    mixed_rows(tiny)
    tiny.rows += ["{broken", "[1, 2]", {"messages": []}]
    tiny.row([("user", "no answer")])
    tiny.row([("user", "<image>?"), ("assistant", "x")], images=["nowhere.png"])
    tiny.row([("user", "no tag"), ("assistant", "x")], images=["0.png"])
    tiny.row([("user", "<video>?"), ("assistant", "x")], videos=["a.mp4"])
    tiny.row([("user", "<audio>?"), ("assistant", "x")], audios=["a.mp3"])
    run_pack(tiny_config(tiny.write(), tmp_path / "out"))
    assert_verified(tmp_path / "out")
    lines = ledger_of(tmp_path / "out")
    assert [line["row"] for line in lines] == list(range(50))
    assert [line["reason"] for line in lines if line["status"] == "skipped"] == [
        "bad_row", "bad_row", "bad_row", "no_target", "missing_media", "bad_placeholders", "missing_media",
        "audio_unsupported",
    ]  # fmt: skip


def test_ledger_says_where_each_row_is(tiny, tmp_path):
    run_pack(tiny_config(mixed_rows(tiny).write(), tmp_path / "out"))
    packs = {pack.number: pack for pack in read_packs(tmp_path / "out")}
    for line in ledger_of(tmp_path / "out"):
        document = packs[line["pack"]].documents[line["position"]]
        assert (document.row, document.repeat, document.tokens) == (line["row"], line["repeat"], line["tokens"])


def test_the_holes_of_unreadable_pictures_are_filled(tiny, tmp_path):
    mixed_rows(tiny).image(420, 420)
    meta = tiny.write()
    run_pack(tiny_config(meta, tmp_path / "whole", max_pixels=200_000))
    whole, lost = ledger_of(tmp_path / "whole"), 42  # a picture so large that a document of the last pack fits there
    last = max(line["pack"] for line in whole)
    assert whole[lost]["pack"] < last
    cut(tiny.folder / f"{lost}.png")
    run_pack(tiny_config(meta, tmp_path / "out", max_pixels=200_000))
    assert_verified(tmp_path / "out")
    lines, holed = ledger_of(tmp_path / "out"), whole[lost]["pack"]
    assert (lines[lost]["status"], lines[lost]["reason"], lines[lost]["pack"]) == ("skipped", "bad_media", -1)
    for before, after in zip(whole, lines, strict=True):
        if before["pack"] not in (holed, last):
            assert before == after
    before, after = (
        pq.read_table(tmp_path / name / "index.parquet")["tokens"].to_pylist() for name in ("whole", "out")
    )
    assert before[holed] - whole[lost]["tokens"] < after[holed] <= 512
    assert after[last] < before[last]


@pytest.mark.parametrize("size", [(97, 94), (300, 300), (2000, 30)], ids=["the same", "longer", "refused"])
def test_a_medium_that_changes_after_it_was_measured(tiny, tmp_path, size):
    """It is measured again, and the output is what it would be if the new one had been there all the time."""
    mixed_rows(tiny)
    meta, picture_file = tiny.write(), tiny.folder / "33.png"
    config = tiny_config(meta, tmp_path / "out")
    run_plan(config)
    picture(picture_file, *size, seed=99)
    run_pack(config)
    assert_verified(tmp_path / "out")
    run_pack(tiny_config(meta, tmp_path / "fresh"))
    found, fresh = (ledger_of(tmp_path / name) for name in ("out", "fresh"))
    told = [("status", "reason", "detail", "tokens", "visual_tokens")] * 2
    assert [[line[key] for key in told[0]] for line in found] == [[line[key] for key in told[1]] for line in fresh]
    packs = {(document.row, *size): pack for pack in read_packs(tmp_path / "out") for document in pack.documents}
    assert ((33, *size) in packs) == (fresh[33]["status"] == "packed")
    run_pack(dataclasses.replace(config, work=str(tmp_path / "other"), out=str(tmp_path / "third")))


def test_touching_a_medium_changes_nothing(tiny, tmp_path, caplog):
    meta = mixed_rows(tiny).write()
    run_plan(tiny_config(meta, tmp_path / "out"))
    os.utime(tiny.folder / "33.png", (1, 1))
    run_pack(tiny_config(meta, tmp_path / "out"))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert_verified(tmp_path / "out")


@pytest.mark.parametrize("level", ["size", "digest"])
def test_changed_media_are_another_output_on_demand(tiny, tmp_path, level):
    meta, out = mixed_rows(tiny).write(), tmp_path / "out"
    run_pack(tiny_config(meta, out, check_media=level))
    assert run_pack(tiny_config(meta, out, check_media=level)).already_done
    file = tiny.folder / "33.png"
    if level == "size":
        file.write_bytes(file.read_bytes() + b"more")
    else:  # in the middle: neither size nor ends tell
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with raises(UserError, "output-mismatch", changed=["inputs.tiny.media"]):
        run_pack(tiny_config(meta, out, check_media=level))


def test_a_pack_whose_only_row_is_unreadable_is_not_written(tiny, tmp_path):
    tiny.text("a", "word " * 40).image(100, 100)
    meta = tiny.write()
    cut(tiny.folder / "1.png")
    manifest = run_pack(tiny_config(meta, tmp_path / "out", pack_size=64)).manifest
    assert_verified(tmp_path / "out")
    assert dataclasses.asdict(manifest.counts) | {"tokens": 0, "target_tokens": 0} == {
        "rows": 2, "samples": 2, "packed": 1, "skipped": {"bad_media": 1}, "fitted": {}, "packs": 1, "tokens": 0,
        "visual_tokens": 1, "target_tokens": 0, "skipped_tokens": {"bad_media": 33},
    }  # fmt: skip
    assert [line["pack"] for line in pq.read_table(tmp_path / "out/index.parquet").to_pylist()] == [0]


def test_nothing_to_pack(tiny, tmp_path):
    tiny.row([("user", "no answer")])
    manifest = run_pack(tiny_config(tiny.write(), tmp_path / "out")).manifest
    assert_verified(tmp_path / "out")
    assert manifest.counts.packs == 0


def test_sample_ratio_takes_a_part_or_repeats(tiny, tmp_path):
    for i in range(8):
        tiny.text(f"question {i}", "answer")
    run_pack(tiny_config(tiny.write(ratio=0.5), tmp_path / "half"))
    run_pack(tiny_config(tiny.write(ratio=2.25), tmp_path / "more"))
    half, more = ledger_of(tmp_path / "half"), ledger_of(tmp_path / "more")
    assert len(half) == 8
    assert sum(line["reason"] == "sampled_out" for line in half) == 4
    assert len(more) == 18
    assert {line["repeat"] for line in more} == {0, 1, 2}
    assert all(line["status"] == "packed" for line in more)
    assert_verified(tmp_path / "half")
    assert_verified(tmp_path / "more")


def test_text_only_packs_carry_the_fake_image_unless_told_not_to(tiny, tmp_path):
    meta = tiny.text("a", "b").write()
    run_pack(tiny_config(meta, tmp_path / "with"))
    run_pack(tiny_config(meta, tmp_path / "without", fake_image=False))
    (with_fake,), (without,) = read_packs(tmp_path / "with"), read_packs(tmp_path / "without")
    assert with_fake.fake_image and not without.fake_image
    assert len(with_fake.documents) == 2 and len(without.documents) == 1
    assert with_fake.arrays["labels"][-3:].tolist() == [-100] * 3
    assert with_fake.arrays["position_ids"][:, -3:].tolist() == [[0, 1, 2]] * 3
    assert with_fake.arrays["image_grid_thw"].tolist() == [[1, 2, 2]]
    assert len(without.arrays["pixel_values"]) == 0
    assert_verified(tmp_path / "with")
    assert_verified(tmp_path / "without")


def test_every_pack_has_the_same_members_and_json_keys(tiny, tmp_path):
    run_pack(tiny_config(mixed_rows(tiny).write(), tmp_path / "out"))
    members = {}
    for path in (tmp_path / "out/shards").iterdir():
        for member in tarfile.TarFile(path).getmembers():
            key, name = member.name.split(".", 1)
            members.setdefault(key, []).append(name)
            assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
    assert len(members) > 3
    assert len({tuple(names) for names in members.values()}) == 1


@pytest.mark.parametrize("align", [8, 6])
def test_documents_are_aligned(tiny, tmp_path, align):
    """Padding counts against the capacity, is trained on nowhere, and is not in the ledger."""
    size = 504  # a multiple of both
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "out", align=align, pack_size=size))
    run_pack(tiny_config(meta, tmp_path / "plain", pack_size=size))
    assert_verified(tmp_path / "out")
    for pack in read_packs(tmp_path / "out"):
        padded = pack.arrays["seq_lens_padded"]
        assert (padded % align == 0).all() and ((padded - pack.arrays["seq_lens"]) < align).all()
        assert padded.sum() == len(pack.arrays["input_ids"]) <= size
    plain, out = ledger_of(tmp_path / "plain"), ledger_of(tmp_path / "out")
    assert [line["tokens"] for line in out] == [line["tokens"] for line in plain]


class TestOverlong:
    def test_dropped_by_default_and_said_so(self, tiny, tmp_path):
        tiny.text("long", "word " * 600).text("short", "word")
        manifest = run_pack(tiny_config(tiny.write(), tmp_path / "out", pack_size=64)).manifest
        assert manifest.counts.skipped == {"overlong": 1}

    def test_truncation_keeps_whole_pictures(self, tiny, tmp_path):
        tiny.row([("user", "<image><image>?"), ("assistant", "one " * 100)], images=["a.png", "a.png"])
        tiny.row([("user", "?"), ("assistant", "two " * 400)])
        tiny.row(
            [("user", "?"), ("assistant", "kept"), ("user", "and<image>"), ("assistant", "gone")], images=["a.png"]
        )
        picture(tiny.folder / "a.png", 112, 112)  # 16 tokens
        run_pack(tiny_config(tiny.write(), tmp_path / "out", pack_size=60, overlong="truncate"))
        assert_verified(tmp_path / "out")
        lines = ledger_of(tmp_path / "out")
        assert [line["status"] for line in lines] == ["packed"] * 3
        manifest = read_manifest(tmp_path / "out")
        assert manifest.counts.fitted == {"truncated": 2}
        assert lines[0]["tokens"] == 60 and lines[0]["visual_tokens"] == 32
        assert lines[1]["tokens"] == 57  # 3 tokens left for the fake image
        assert lines[2]["detail"] == ""  # it fits
        run_pack(tiny_config(tiny.write(), tmp_path / "small", pack_size=26, overlong="truncate"))
        assert_verified(tmp_path / "small")
        lines = ledger_of(tmp_path / "small")
        assert lines[0]["reason"] == "overlong"  # no target within 26 tokens
        assert (lines[2]["status"], lines[2]["visual_tokens"]) == ("packed", 0)  # cut before its picture

    def test_shrinking_makes_media_smaller(self, tiny, tmp_path):
        tiny.image(400, 400).text("long", "word " * 600)  # 64 visual tokens, and text that nothing can shrink
        run_pack(tiny_config(tiny.write(), tmp_path / "out", pack_size=60, overlong="shrink"))
        assert_verified(tmp_path / "out")
        picture_line, text_line = ledger_of(tmp_path / "out")
        assert picture_line["status"] == "packed" and picture_line["visual_tokens"] == 25
        assert picture_line["detail"] == "shrunk (step 1) from 81 to 42 tokens"
        assert text_line["reason"] == "overlong"

    def test_error_names_the_row(self, tiny, tmp_path):
        tiny.text("short", "word").text("long", "word " * 600)
        with raises(UserError, "overlong", dataset="tiny", row=1, room=61):
            run_pack(tiny_config(tiny.write(), tmp_path / "out", pack_size=64, overlong="error"))

    def test_the_seeds_name_for_it(self, tiny, tmp_path):
        tiny.text("long", "word " * 600)
        with pytest.raises(UserError):
            run_pack(tiny_config(tiny.write(), tmp_path / "out", pack_size=64, drop_long_samples=False))


def test_visual_tokens_are_bounded(tiny, tmp_path):
    for _ in range(6):
        tiny.image(112, 112)  # 16 visual tokens each
    tiny.image(200, 200)  # 49
    run_pack(tiny_config(tiny.write(), tmp_path / "out", max_visual_tokens=32))
    index = pq.read_table(tmp_path / "out/index.parquet")
    assert index["visual_tokens"].to_pylist() == [32, 32, 32]
    assert ledger_of(tmp_path / "out")[-1]["reason"] == "too_many_visual_tokens"


def test_max_packs_and_packing_ratio(tiny, tmp_path):
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "all"))
    run_pack(tiny_config(meta, tmp_path / "two", max_packs=2))
    run_pack(tiny_config(meta, tmp_path / "half", packing_ratio=0.5))
    assert len(list(read_packs(tmp_path / "two"))) == 2
    assert {line["reason"] for line in ledger_of(tmp_path / "two")} == {"", "max_packs"}
    tokens = {name: pq.read_table(tmp_path / name / "index.parquet")["tokens"].to_numpy() for name in ("all", "half")}
    assert len(tokens["half"]) > 1.4 * len(tokens["all"])
    fitting = [p for p in read_packs(tmp_path / "half") if len(p.documents) - p.fake_image > 1]
    assert max(len(p.arrays["input_ids"]) for p in fitting) <= 256
    for name in ("two", "half"):
        assert_verified(tmp_path / name)


def test_an_output_of_an_older_format_is_refused_and_overwritten_on_demand(tiny, tmp_path):
    config = tiny_config(tiny.text("a", "b").write(), tmp_path / "out")
    run_pack(config)
    manifest = tmp_path / "out/manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 8,', '"format": 2,'))
    with raises(UserError, "output-format", out=str(tmp_path / "out"), got=2):
        run_pack(config)
    manifest.unlink()
    begun = tmp_path / "out/work/run.json"
    begun.write_text(begun.read_text().replace('"code"', '"codes"'))
    with raises(UserError, "output-damaged", key="identity", missing=["code"]):
        run_pack(config)
    run_pack(dataclasses.replace(config, overwrite=True))
    assert_verified(tmp_path / "out")


ROWS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.integers(0, 120)),
        st.tuples(st.just("image"), st.integers(1, 150)),
        st.sampled_from([("broken", 0), ("no_target", 0), ("missing", 0), ("unreadable", 90), ("surplus", 0)]),
    ),
    max_size=25,
)


@settings(max_examples=25)
@given(rows=ROWS, ratio=st.sampled_from([0.0, 0.4, 1.0, 1.7]), size=st.sampled_from([64, 200]), seed=st.integers(0, 9))
def test_conservation_for_any_rows(rows, ratio, size, seed, tmp_path_factory):
    """Random good and bad rows: verified, every row accounted for, and as many samples as sample_ratio asks."""
    folder = tmp_path_factory.mktemp("any")
    data = TinyData(folder / "data")
    for kind, number in rows:
        if kind == "text":
            data.text("?", "a b " * number)  # none at all is no_target
        elif kind in ("image", "unreadable"):
            data.image(number, number + 3)
            if kind == "unreadable":
                path = data.folder / f"{len(data.rows) - 1}.png"
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        elif kind == "broken":
            data.rows.append('{"messages": [')
        elif kind == "no_target":
            data.row([("user", "?")])
        else:
            data.row([("user", "<image>?" if kind == "missing" else "?"), ("assistant", "!")], images=["nowhere.png"])
    manifest = run_pack(tiny_config(data.write(ratio=ratio), folder / "out", pack_size=size, seed=seed)).manifest
    assert_verified(folder / "out")
    counts = manifest.counts
    assert counts.rows == len(rows)
    assert counts.packed + sum(counts.skipped.values()) == counts.samples


@pytest.mark.on_ray
@pytest.mark.parametrize("workers", [1, 2])
def test_same_bytes_on_ray(data, expected, workers, tmp_path):
    run_pack(tiny_config(data, tmp_path / "out", engine="ray", num_workers=workers))
    assert files_of(tmp_path / "out") == expected


def test_finished_shards_are_not_redone(data, expected, tmp_path):
    out = tmp_path / "out"
    run_pack(tiny_config(data, out))
    (out / "manifest.json").unlink()
    first = out / "shards" / "pack-000000.tar"
    first.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in (out / "shards").iterdir()}
    packed = run_pack(tiny_config(data, out))
    assert packed.reused_shards == len(before)
    assert {path.name: path.stat().st_mtime_ns for path in (out / "shards").iterdir() if path != first} == before
    assert files_of(out) == expected


def test_a_second_run_does_nothing(data, tmp_path, capsys):
    config = tiny_config(data, tmp_path / "out")
    run_pack(config)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert run_pack(config).already_done
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_readable_by_plain_webdataset(tiny, tmp_path):
    run_pack(tiny_config(mixed_rows(tiny).write(), tmp_path / "out"))
    ours = list(read_packs(tmp_path / "out"))
    urls = sorted(str(path) for path in (tmp_path / "out/shards").iterdir())
    theirs = list(wds.WebDataset(urls, shardshuffle=False).decode())
    assert len(theirs) == len(ours)
    for pack, sample in zip(ours, theirs, strict=True):
        assert sample["__key__"] == f"{pack.number:09d}"
        assert sample["json"]["num_tokens"] == len(pack.arrays["input_ids"])
        for name, array in pack.arrays.items():
            assert np.array_equal(sample[f"{name}.npy"], array)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_the_real_data(name, shared, tmp_path, capsys):
    """Every row accounted for, planned == materialized for all of it (verify checks each document)."""
    command = ["--meta", str(shared / "data/meta.json"), "--processor", str(shared / "processors" / name), "--out",
               str(tmp_path / "out"), "--pack-size", "8192", "--engine", "inline"]  # fmt: skip
    # Four rows are longer than a pack: 0.2% of them, with more than 5% of the tokens.
    assert main(["pack", *command]) == 1 and not (tmp_path / "out/shards").exists()
    planned = capsys.readouterr()
    assert main(["pack", *command, "--overlong", "drop"]) == 0
    packed = capsys.readouterr()
    (lost,) = re.findall(r"  4  overlong \(([\d,]+) tokens\)", packed.out)
    assert f"  4  overlong ({lost} tokens)" in planned.out
    assert prints_code(planned.err, "too-many-skipped") and f" {lost} of " in planned.err
    assert packed.err.count("skipped") == 0
    report = (tmp_path / "out/report.html").read_text()
    assert lost in report and "overlong" in report
    manifest = assert_verified(tmp_path / "out")
    counts = manifest.counts
    assert counts.rows == 3093
    assert set(counts.skipped) == {"sampled_out", "overlong"}
    videos = pa.compute.sum(pq.read_table(tmp_path / "out/index.parquet")["num_videos"]).as_py()
    assert videos == 9
    assert f"{counts.skipped_tokens['overlong']:,}" == lost
    full = pa.compute.sum(pq.read_table(tmp_path / "out/index.parquet")["tokens"]).as_py()
    assert full / (counts.packs * 8192) > 0.98
    assert os.path.getsize(tmp_path / "out/shards/pack-000000.tar") == manifest.shards[0].bytes


def test_repaired_media_are_picked_up_by_overwrite(tiny, tmp_path):
    tiny.text("a", "b").row([("user", "<image>?"), ("assistant", "x")], images=["late.png"])
    meta = tiny.write()
    run_pack(tiny_config(meta, tmp_path / "out"))
    assert ledger_of(tmp_path / "out")[1]["reason"] == "missing_media"
    picture(tiny.folder / "late.png", 60, 60)
    assert run_pack(tiny_config(meta, tmp_path / "out")).already_done
    run_pack(tiny_config(meta, tmp_path / "out", overwrite=True))
    assert_verified(tmp_path / "out")
    assert [line["status"] for line in ledger_of(tmp_path / "out")] == ["packed", "packed"]


def test_precomputed_hints_are_not_trusted_over_the_truth(tiny, tmp_path):
    tiny.image(100, 100).text("a", "b")
    run_pack(tiny_config(tiny.write(), tmp_path / "plain"))
    for row in tiny.rows:
        row |= {"_text_tokens": 1, "mm_inputs_meta": {"images_meta": [[9999, 1]], "videos_meta": []}}
    run_pack(tiny_config(tiny.write(), tmp_path / "hinted"))
    assert_verified(tmp_path / "hinted")
    assert ledger_of(tmp_path / "hinted") == ledger_of(tmp_path / "plain")
