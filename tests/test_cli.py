"""The commands as a user meets them: exit codes, words, and what is left on disk."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

import neatpack.pipeline.measure.part
from neatpack.pipeline.cli import main
from neatpack.pipeline.manifest import signed
from neatpack.pipeline.runtime.lock import locked

ROOT = Path(__file__).resolve().parents[1]
PROCESSOR = str(ROOT / "jobs" / "demo" / "processor")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process: exit code, stdout, stderr."""

    def call(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def conversation(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 rows of text, 4 with a picture, and 3 bad ones."""
    folder = tmp_path_factory.mktemp("data")
    rows: list[Any] = [{"messages": conversation(f"Count to {i}.", "one two " * i or "No.")} for i in range(12)]
    for i in range(4):
        Image.new("RGB", (60 + 20 * i, 90), (50 * i, 99, 7)).save(folder / f"{i}.png")
        rows.append({"messages": conversation("<image>What?", "That."), "images": [f"{i}.png"]})
    rows += [[1], {"messages": conversation("<image>?", "!"), "images": ["absent.png"]}, {"messages": []}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    entries = {"tiny": {"file_name": "rows.jsonl"}, "again": {"file_name": "rows.jsonl", "sample_ratio": 0.5}}
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


def flags(meta: Path, out: Path | None = None, /, **overrides: Any) -> list[str]:
    values = {"meta": meta, "processor": PROCESSOR, "datasets": "tiny", "pack-size": 256, "engine": "inline",
              "max-skipped": 0.2}  # fmt: skip
    values |= ({"out": out} if out else {}) | {key.replace("_", "-"): value for key, value in overrides.items()}
    return [str(text) for key, value in values.items() for text in (f"--{key}", value)]


@pytest.fixture
def out(run: Run, meta: Path, tmp_path: Path) -> Path:
    """A finished output."""
    assert run("pack", *flags(meta, tmp_path / "out"))[0] == 0
    return tmp_path / "out"


# ---------------------------------------------------------------- pack


def test_pack_says_what_came_out(run: Run, meta: Path, tmp_path: Path) -> None:
    code, printed, errors = run("pack", *flags(meta, tmp_path / "out"))
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0] == str(tmp_path / "out")
    assert lines[1] == "  samples   19 = 19 rows + 0 repeats = 16 packed + 3 skipped"
    assert lines[2] == "  read as   messages (tiny)", "nobody said it: it was told from the rows"
    assert f"  skipped   3 of 19; each of them: neatpack skipped {tmp_path / 'out'}" in lines
    assert any(
        line.endswith(
            "2  bad_row: not a usable row: broken JSON, unknown keys, roles or types, or what the template cannot write"
        )
        for line in lines
    )
    assert any(line.endswith("1  missing_media: a media file does not exist or may not be read") for line in lines)
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_a_second_run_says_that_there_is_nothing_to_do(run: Run, meta: Path, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    code, printed, errors = run("pack", *flags(meta, out))
    assert (code, errors) == (0, "")
    assert printed.splitlines()[0] == f"{out} is finished and made from the same inputs: nothing to do"
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_a_changed_config_is_refused_by_name_and_overwritten_on_demand(run: Run, meta: Path, out: Path) -> None:
    before = (out / "manifest.json").read_bytes()
    code, printed, errors = run("pack", *flags(meta, out, pack_size=128, seed=3))
    assert (code, printed) == (2, "")
    assert errors.splitlines() == [
        f"neatpack: {out} was made from something else:",
        "  config.pack_size: 256 -> 128",
        "  config.seed: 0 -> 3",
        "give --overwrite to start anew, or another --out",
    ]
    assert (out / "manifest.json").read_bytes() == before
    code, _, errors = run("pack", *flags(meta, out, pack_size=128, seed=3), "--overwrite")
    assert (code, errors) == (0, "")
    assert json.loads((out / "manifest.json").read_text())["identity"]["config"]["pack_size"] == 128
    assert run("verify", out)[0] == 0


def test_other_data_sets_are_refused_by_name(run: Run, meta: Path, out: Path) -> None:
    code, _, errors = run("pack", *flags(meta, out, datasets="tiny,again"))
    assert code == 2
    assert "inputs.again: None -> {" in errors
    assert "inputs.tiny" not in errors


def test_changed_rows_are_refused(run: Run, meta: Path, tmp_path: Path) -> None:
    for name in ("meta.json", "rows.jsonl"):
        (tmp_path / name).write_bytes((meta.parent / name).read_bytes())
    assert run("pack", *flags(tmp_path / "meta.json", tmp_path / "out", max_skipped=1))[0] == 0  # no pictures here
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write(json.dumps({"messages": conversation("More?", "Yes.")}) + "\n")
    code, _, errors = run("pack", *flags(tmp_path / "meta.json", tmp_path / "out"))
    assert code == 2
    assert "inputs.tiny.rows: 19 -> 20" in errors
    assert "inputs.tiny.content: " in errors


def test_another_pack_size_reuses_the_token_store(
    run: Run, meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    measure = neatpack.pipeline.measure.part.measure  # type: ignore[attr-defined]
    monkeypatch.setattr(
        neatpack.pipeline.measure.part,
        "measure",
        lambda *arguments: calls.append(1) or measure(*arguments),  # type: ignore[func-returns-value]
    )
    work = tmp_path / "work"
    assert run("pack", *flags(meta, tmp_path / "a", work=work))[0] == 0
    assert calls
    calls.clear()
    before = {path: path.stat().st_mtime_ns for path in (work / "measured").rglob("*")}
    assert run("pack", *flags(meta, tmp_path / "b", work=work, pack_size=128))[0] == 0
    assert calls == []
    assert {path: path.stat().st_mtime_ns for path in (work / "measured").rglob("*")} == before
    assert run("verify", tmp_path / "b")[0] == 0
    assert run("pack", *flags(meta, tmp_path / "c", work=work, max_pixels=10_000))[0] == 0
    assert calls  # what changes lengths is measured anew


def test_an_output_that_holds_strangers_is_refused(run: Run, meta: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    for more in ([], ["--overwrite"]):
        code, _, errors = run("pack", *flags(meta, tmp_path / "out"), *more)
        assert code == 2
        assert errors == f"neatpack: --out {tmp_path / 'out'} holds other files (thesis.tex); give an empty directory\n"
        assert (tmp_path / "out" / "thesis.tex").exists()


def test_an_output_that_is_a_file_is_refused(run: Run, meta: Path, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    code, _, errors = run("pack", *flags(meta, tmp_path / "out"))
    assert (code, errors) == (2, f"neatpack: --out {tmp_path / 'out'}: is a file; give a directory\n")


def test_rows_that_nobody_expects_do_not_stop_the_run(run: Run, tmp_path: Path) -> None:
    """Each of these raises something else than a plain OSError or JSONDecodeError somewhere below."""
    (tmp_path / "a.png").write_bytes(b"0123456789")

    def image(entry: Any) -> str:
        return json.dumps({"messages": conversation("<image>", "x"), "images": entry})

    rows = {
        image("a\0.png"): "missing_media",
        image("\ud83d.png"): "bad_row",
        image("x" * 300): "missing_media",
        image("."): "missing_media",
        image({"path": "a.png", "offset": 1 << 62, "length": 1 << 62}): "bad_media",
        image({"path": "a.png", "offset": 10**30, "length": 1}): "bad_row",
        '{"messages": ' + "9" * 5000 + "}": "bad_row",
        "[" * 100_000: "bad_row",
        json.dumps({"messages": conversation("\0 <|im_start|> <|image_pad|> \ue000 \u2028", "\ufffe")}): "",
        json.dumps({"messages": conversation("Hi.", "\ud83d")}): "bad_row",
        json.dumps({"messages": conversation("Hi.", ""), "_text_tokens": "?"}): "no_target",
        json.dumps({"messages": conversation("Hi.", "x"), "_text_tokens": "?", "mm_inputs_meta": 7}): "",
    }
    (tmp_path / "rows.jsonl").write_text("".join(row + "\n" for row in rows))
    (tmp_path / "meta.json").write_text(json.dumps({"odd": {"file_name": "rows.jsonl"}}))
    assert run("pack", *flags(tmp_path / "meta.json", tmp_path / "out", datasets="odd", max_skipped=1))[0] == 0
    assert run("verify", tmp_path / "out")[0] == 0
    assert pq.read_table(tmp_path / "out" / "ledger")["reason"].to_pylist() == list(rows.values())


def test_verbose_says_what_is_done(run: Run, meta: Path, tmp_path: Path) -> None:
    code, printed, errors = run("pack", *flags(meta, tmp_path / "out"), "-v")
    assert code == 0
    assert printed.startswith(str(tmp_path / "out"))
    lines = errors.splitlines()
    assert all(re.match(r"I \d\d:\d\d:\d\d \S", line) for line in lines), "level, time, message"
    said = [line[11:] for line in lines]
    for words in (
        "read: 1 task",
        "tiny: 19 rows, 0 sampled out, 0 held out",
        "parts: 1, of which 0 are in the token store already",
        "plan: 16 samples in 2 packs",
        "skipped by the plan: 2 bad_row, 1 missing_media",
        "shards: 1, of which 0 were finished by an earlier run",
        "skipped in all: 2 bad_row, 1 missing_media",
    ):
        assert words in said
    assert any(line.startswith("render: 1 shard done in ") for line in said)
    assert run("pack", *flags(meta, tmp_path / "quiet"))[2] == ""
    detailed = run("pack", *flags(meta, tmp_path / "detailed"), "-vv")[2]
    assert "D " in detailed and "tiny rows from 0: 16 measured, 3 skipped" in detailed


def test_every_command_may_be_verbose(run: Run, meta: Path, out: Path) -> None:
    assert "verify: 1 shard\n" in run("verify", out, "--verbose")[2]
    assert "measure: 1 part\n" in run("plan", *flags(meta), "-v")[2]


def test_config_file(run: Run, meta: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"meta: {meta}\nprocessor: {PROCESSOR}\ndatasets: [tiny]\nout: {tmp_path / 'out'}\n"
        "pack_size: 256\nengine: inline\nmax_skipped: 0.2\n"
    )
    assert run("pack", "--config", config, "--pack-size", 200)[0] == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["identity"]["config"]["pack_size"] == 200


# ---------------------------------------------------------------- a job that loses its data: exit code 1


LOST = "3 of 19 samples skipped, 15.8%: more than max_skipped allows, 5.0%"


def test_a_job_that_loses_its_data_says_so(run: Run, meta: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, printed, errors = run("pack", *flags(meta, out, max_skipped=0.05))
    assert code == 1
    assert printed.startswith(f"{out}\n  samples   19 = 19 rows + 0 repeats = 16 packed + 3 skipped\n")
    first, line, more, last = errors.splitlines()
    assert first == f"neatpack: {out}: {LOST}"
    assert line.startswith("  tiny: 3 of 19 skipped: 1x bad_row: ")
    assert "; 1x missing_media: " in line and f": is media_dir right? it is {meta.parent}" in line
    assert more == f"  every row that is skipped: neatpack skipped {out}"
    assert last == "  if that is right, raise --max-skipped; 1 takes whatever comes"
    assert run("verify", out)[0] == 0, "the output is complete"
    assert run("pack", *flags(meta, out, max_skipped=0.05))[::2] == (1, errors), "and stays what it is"
    code, printed, errors = run("pack", *flags(meta, out, max_skipped=0.16))
    assert (code, errors) == (0, "") and "nothing to do" in printed


def test_plan_says_it_before(run: Run, meta: Path, tmp_path: Path) -> None:
    for place in ([], ["--work", tmp_path / "work"]):
        code, printed, errors = run("plan", *flags(meta, max_skipped=0.05), *place)
        assert (code, errors.splitlines()[0]) == (1, f"neatpack: plan: {LOST}")
        assert printed.startswith("plan\n")


def test_nothing_packed_is_a_failure(run: Run, tmp_path: Path) -> None:
    for rows, words in (
        ("", "rows.jsonl has no rows"),
        ('{"messages": []}\n', "1x bad_row: empty conversation (row 0)"),
    ):
        (tmp_path / "rows.jsonl").write_text(rows)
        (tmp_path / "meta.json").write_text(json.dumps({"none": {"file_name": "rows.jsonl"}}))
        values = flags(tmp_path / "meta.json", tmp_path / f"out{len(rows)}", datasets="none")
        code, _, errors = run("pack", *values)
        assert code == 1
        told = errors[errors.index("neatpack: ") :].splitlines()  # after a warning: no format fits these rows
        assert "nothing is packed" in told[0] and words in told[1]


# ---------------------------------------------------------------- skipped


def test_skipped_lists_where_and_why(run: Run, meta: Path, out: Path) -> None:
    rows = meta.parent / "rows.jsonl"
    code, printed, errors = run("skipped", out)
    assert (code, errors) == (0, "")
    first, second, third = printed.splitlines()
    assert first == f"{rows}:17: tiny row 16: bad_row: line 17: a JSON list where an object was expected"
    assert second == f"{rows}:18: tiny row 17: missing_media: absent.png: No such file or directory"
    assert third == f"{rows}:19: tiny row 18: bad_row: empty conversation"
    assert run("skipped", out, "--reason", "missing_media,no_target")[1] == second + "\n"
    assert run("skipped", out, "--dataset", "tiny")[1] == printed


def test_skipped_rows_are_written_as_they_were_and_packed_again(
    run: Run, meta: Path, out: Path, tmp_path: Path
) -> None:
    lines = (meta.parent / "rows.jsonl").read_text().splitlines(keepends=True)
    assert run("skipped", out, "--rows")[:2] == (0, "".join(lines[16:]))
    code, printed, _ = run("skipped", out, "--reason", "missing_media", "--rows", "--out", tmp_path / "repair.jsonl")
    assert (code, printed) == (0, "")
    assert (tmp_path / "repair.jsonl").read_text() == lines[17]
    Image.new("RGB", (60, 60)).save(tmp_path / "absent.png")
    (tmp_path / "meta.json").write_text(json.dumps({"repair": {"file_name": "repair.jsonl"}}))
    assert run("pack", *flags(tmp_path / "meta.json", tmp_path / "repaired", datasets="repair"))[0] == 0


def test_skipped_as_json_lines(run: Run, meta: Path, out: Path) -> None:
    code, printed, _ = run("skipped", out, "--jsonl")
    first, second, _ = map(json.loads, printed.splitlines())
    assert code == 0
    assert (first["row"], first["line"], first["json"]) == (16, 17, [1])
    assert second == {
        "dataset": "tiny", "row": 17, "id": "", "reason": "missing_media",
        "detail": "absent.png: No such file or directory", "file": f"{meta.parent}/rows.jsonl",
        "line": 18, "json": {"messages": conversation("<image>?", "!"), "images": ["absent.png"]},
    }  # fmt: skip


def test_skipped_without_the_data_file(run: Run, meta: Path, out: Path) -> None:
    (out / "sources.json").unlink()
    forms: list[tuple[list[str], int]] = [([], 0), (["--jsonl"], 0), (["--rows"], 1)]
    for form, code in forms:
        found = run("skipped", out, *form)
        assert found[0] == code
        assert f"{out}/sources.json does not say where the rows of tiny are" in found[2]
        assert len(found[1].splitlines()) == (0 if form == ["--rows"] else 3)
    assert "neatpack: 3 rows could not be read and written" in found[2]


def test_skipped_refuses_what_it_does_not_know(run: Run, out: Path, tmp_path: Path) -> None:
    wrong: list[tuple[list[Any], str]] = [
        ([out, "--reason", "bad"], "--reason bad: unknown; known: sampled_out, "),
        ([out, "--dataset", "huge"], f"--dataset huge: not in {out}, which has tiny"),
        ([tmp_path / "absent"], f"{tmp_path}/absent/manifest.json: missing"),
    ]
    for arguments, words in wrong:
        code, printed, errors = run("skipped", *arguments)
        assert (code, printed) == (2, "")
        assert errors.startswith(f"neatpack: {words}")


# ---------------------------------------------------------------- what is wrong with the input: exit code 2

WRONG_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "no meta": ({"meta": "/absent/meta.json"}, "--meta /absent/meta.json: no such file"),
    "no such data set": ({"datasets": "huge"}, "--datasets huge: not in "),
    "no processor": ({"processor": "/absent/processor"}, "--processor /absent/processor: "),
    "no family": ({"family": "gpt"}, "--family gpt: unknown; known: qwen2_vl, qwen3_vl"),
    "a tiny pack": ({"pack-size": 4}, "pack_size is 4; it must be at least 16"),
    "all is held out": ({"holdout": 1}, "holdout is 1.0; it must be at least 0 and below 1"),
    "not a number": ({"pack-size": "8k"}, "pack_size: '8k' is not a whole number"),
    "an overlong row": ({"pack-size": 32, "overlong": "error"}, "tiny row "),
    "no config file": ({"config": "/absent.yaml"}, "--config /absent.yaml: no such file"),
}


@pytest.mark.parametrize("command", ["pack", "plan"])
@pytest.mark.parametrize(("change", "words"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_wrong_input(run: Run, meta: Path, tmp_path: Path, command: str, change: dict[str, Any], words: str) -> None:
    code, printed, errors = run(command, *flags(meta, tmp_path / "out", **change))
    assert (code, printed) == (2, "")
    assert errors.startswith(f"neatpack: {words}")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_wrong_flags(run: Run, meta: Path) -> None:
    for arguments, words in [
        ([], "the following arguments are required: COMMAND"),
        (["pak"], "invalid choice: 'pak'"),
        (["pack", "--pack-sise", "1"], "unrecognized arguments: --pack-sise 1"),
        (["pack", *flags(meta), "--engine", "spark"], "invalid choice: 'spark'"),
        (["verify"], "the following arguments are required: OUT"),
    ]:
        code, _, errors = run(*arguments)
        assert (code, words in errors) == (2, True), arguments


def test_missing_flags(run: Run, meta: Path) -> None:
    code, _, errors = run("pack", *flags(meta))
    assert (code, errors) == (2, "neatpack: missing --out: give the flag, or the key in --config\n")


# ---------------------------------------------------------------- plan


def test_plan_prints_what_packing_would_give(run: Run, meta: Path, tmp_path: Path) -> None:
    code, planned, errors = run("plan", *flags(meta))
    assert (code, errors) == (0, "")
    lines = planned.splitlines()
    assert lines[:2] == ["plan", "  samples   19 = 19 rows + 0 repeats = 16 to pack + 3 skipped"]
    assert [line.split()[0] for line in lines[2:6]] == ["read", "packs", "tokens", "on"]
    assert "  skipped   3 of 19; the ledger will name each row" in lines
    # and packing gives it: fake images aside, which only packing adds
    code, packed, _ = run("pack", *flags(meta, tmp_path / "out"))
    assert code == 0
    packs = [line.split(",")[0] for line in (planned + packed).splitlines() if line.startswith("  packs")]
    assert len(packs) == 2
    assert packs[0] == packs[1]


def test_plan_keeps_what_it_measured(run: Run, meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("plan", *flags(meta, tmp_path / "out"))[0] == 0
    assert not (tmp_path / "out" / "shards").exists()
    monkeypatch.setattr(neatpack.pipeline.measure.part, "measure", lambda *_: pytest.fail("measured again"))
    assert run("pack", *flags(meta, tmp_path / "out"))[0] == 0


def test_plan_decodes_no_pixels(run: Run, meta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda *_: pytest.fail("pixels were decoded"))
    assert run("plan", *flags(meta))[0] == 0


def test_plan_leaves_nothing_behind_without_a_folder(
    run: Run, meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run("plan", *flags(meta))[0] == 0
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- verify: exit code 1 and what is wrong


def test_verify_a_good_output(run: Run, out: Path) -> None:
    code, printed, errors = run("verify", out)
    assert (code, errors) == (0, "")
    assert printed.startswith(f"{out}: verified. 19 input rows accounted for, 16 samples and ")
    assert printed.endswith("\n84.2% of the samples were packed, 15.8% skipped: 2 bad_row, 1 missing_media\n")


def edit_manifest(out: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """And sign it again: an edit without that is found before anything else is looked at."""
    manifest = json.loads((out / "manifest.json").read_text())
    manifest.pop("digest")
    change(manifest)
    (out / "manifest.json").write_bytes(signed(manifest))


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


SHARD, LEDGER = "shards/pack-000000.tar", "ledger/00000.parquet"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit in a shard": (lambda out: flip(out / SHARD, 5000), "pack-000000.tar: pack 0: its crc32 is "),
    "a shard is cut": (
        lambda out: (out / SHARD).write_bytes((out / SHARD).read_bytes()[:-512]),
        "pack-000000.tar: ",
    ),
    "a shard is gone": (lambda out: (out / SHARD).unlink(), "pack-000000.tar: missing"),
    "the ledger is gone": (lambda out: (out / LEDGER).unlink(), "ledger/00000.parquet: missing"),
    "a bit in the ledger": (
        lambda out: flip(out / LEDGER, 100),
        "ledger/00000.parquet: sha256 differs from the manifest's",
    ),
    "the pixel table is gone": (lambda out: (out / "image_table.npy").unlink(), "image_table.npy: missing"),
    "a bit in the index": (
        lambda out: flip(out / "index.parquet", 100),
        "index.parquet: sha256 differs from the manifest's",
    ),
    "the manifest has another digest": (
        lambda out: edit_manifest(out, lambda m: m["shards"][0].update(sha256="0" * 64)),
        "pack-000000.tar: sha256 differs from the manifest's",
    ),
    "the manifest counts another number of packs": (
        lambda out: edit_manifest(out, lambda m: m["counts"].update(packs=99)),
        "manifest: counts.packs is 99, index and ledger say 2",
    ),
    "the manifest knows more rows": (
        lambda out: edit_manifest(out, lambda m: m["identity"]["inputs"]["tiny"].update(rows=20)),
        "ledger: data set tiny has 20 rows, the ledger 19",
    ),
    "the manifest has lost its shards": (
        lambda out: edit_manifest(
            out, lambda m: [m["shards"].clear(), m["index"].update(offsets=[0], crc32=[], times=[])]
        ),
        "shards/pack-000000.tar: not in the manifest; remove it",
    ),
    "the manifest asks for smaller packs": (
        lambda out: edit_manifest(out, lambda m: m["identity"]["config"].update(pack_size=100)),
        "its tokens are not between 1 and pack_size 100",
    ),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES)
def test_verify_names_the_damage(run: Run, out: Path, damage: Callable[[Path], Any], words: str) -> None:
    damage(out)
    code, printed, errors = run("verify", out)
    assert code == 1
    assert words in printed
    assert errors == f"{out}: {len(printed.splitlines())} problem{'s' * (len(printed.splitlines()) > 1)}\n"


def test_verify_does_not_hold_shards_against_a_broken_table(run: Run, out: Path) -> None:
    flip(out / "index.parquet", 100)
    flip(out / SHARD, 5000)
    assert run("verify", out)[:2] == (
        1,
        "index.parquet: sha256 differs from the manifest's\n"
        "shards: not checked, for they are held against manifest, index and ledger\n",
    )


def test_verify_what_is_not_finished(run: Run, out: Path, tmp_path: Path) -> None:
    (out / "manifest.json").unlink()
    code, printed, errors = run("verify", out)
    assert (code, printed) == (1, "")
    assert errors == f"neatpack: {out}/manifest.json: missing, so packing has not finished; run pack again\n"
    assert run("verify", tmp_path / "absent")[0] == 1


def test_verify_a_broken_manifest(run: Run, out: Path) -> None:
    (out / "manifest.json").write_text("{")
    code, _, errors = run("verify", out)
    assert code == 1
    assert errors.startswith(f"neatpack: {out}/manifest.json: not JSON: ")
    (out / "manifest.json").write_text('{"format": 99}')
    known = f"this neatpack ({neatpack.__version__}) reads formats 5 to 7; use the neatpack that made it, or pack again"
    assert run("verify", out)[::2] == (1, f"neatpack: {out}/manifest.json: format 99, {known}\n")


# ---------------------------------------------------------------- as programs


def program(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd="/", timeout=60)


HELP = [
    ["--help"],
    ["pack", "--help"],
    ["plan", "--help"],
    ["split", "--help"],
    ["verify", "--help"],
    ["skipped", "--help"],
]
WRONG = [["pack", "--pack-size", "8k"], ["plan", "--meta", "m.json"], ["split", "--meta", "m.json", "--out", "o"]]


@pytest.mark.parametrize("arguments", [*HELP, *WRONG], ids=" ".join)
def test_help_and_wrong_flags_need_neither_torch_nor_ray(arguments: list[str]) -> None:
    code = (
        "import sys; from pipeline.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('loaded:', *{'torch', 'transformers', 'ray', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "loaded:"
    if arguments in HELP:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(" ".join(["usage: neatpack", *arguments[:-1]]))
    else:
        assert done.stderr.startswith("neatpack: ")


def test_the_script_runs_from_anywhere() -> None:
    done = program(str(ROOT / "pipeline" / "pack.py"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: neatpack pack ")
    assert "--pack-size" in done.stdout
    done = program(str(ROOT / "pipeline" / "pack.py"), "--pack-size", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "neatpack: missing --meta, --processor, --out: give the flag, or the key in --config\n"


def test_help_names_every_key_and_its_default(run: Run) -> None:
    code, printed, _ = run("pack", "--help")
    words = " ".join(printed.split())
    assert code == 0
    for text in ("--meta META", "(required)", "--pack-size PACK_SIZE tokens in a pack, at most (default: 8192)"):
        assert text in words
    assert "--fake-image, --no-fake-image" in words
    assert "(default: true)" in words
    assert "--overwrite" not in run("plan", "--help")[1]
    code, printed, _ = run("split", "--help")
    assert code == 0 and "--holdout HOLDOUT" in printed
    assert "--processor" not in printed and "--pack-size" not in printed


def test_version(run: Run) -> None:
    from neatpack import __version__

    assert run("--version")[:2] == (0, f"neatpack {__version__}\n")


def test_two_runs_into_one_output(run: Run, meta: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked([out / "work"]):
        code, _, errors = run("pack", *flags(meta, out))
    assert code == 2
    assert errors.startswith(f"neatpack: {out}/work is in use by another run (process {os.getpid()} on ")
    assert errors.count("\n") == 1
    assert run("pack", *flags(meta, out))[0] == 0
