"""`neatpack pack`: exit codes, words, and what is left on disk."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import PROCESSOR, Run, conversation, flags
from support.errors import prints_code

pytestmark = pytest.mark.net


@pytest.fixture
def out(run: Run, meta: Path, tmp_path: Path) -> Path:
    """Just made, and where it was made."""
    assert run("pack", *flags(meta, tmp_path / "out"))[0] == 0
    return tmp_path / "out"


def test_a_second_run_says_that_there_is_nothing_to_do(run: Run, meta: Path, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    code, printed, errors = run("pack", *flags(meta, out))
    assert (code, errors) == (0, "")
    assert printed.splitlines()[0].startswith(f"{out} ")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_a_changed_config_is_refused_by_name_and_overwritten_on_demand(run: Run, meta: Path, out: Path) -> None:
    before = (out / "manifest.json").read_bytes()
    code, printed, errors = run("pack", *flags(meta, out, pack_size=128, seed=3))
    assert (code, printed) == (2, "")
    lines = errors.splitlines()
    assert prints_code(errors, "output-mismatch") and str(out) in lines[0] and "--overwrite" in errors
    assert lines[1:3] == ["  config.pack_size: 256 -> 128", "  config.seed: 0 -> 3"]
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


def test_an_output_that_holds_strangers_is_refused(run: Run, meta: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    for more in ([], ["--overwrite"]):
        code, _, errors = run("pack", *flags(meta, tmp_path / "out"), *more)
        assert code == 2
        assert prints_code(errors, "out-not-empty") and str(tmp_path / "out") in errors and "thesis.tex" in errors
        assert (tmp_path / "out" / "thesis.tex").exists()


def test_an_output_that_is_a_file_is_refused(run: Run, meta: Path, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    code, _, errors = run("pack", *flags(meta, tmp_path / "out"))
    assert code == 2 and prints_code(errors, "out-not-empty") and str(tmp_path / "out") in errors


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


def test_config_file(run: Run, meta: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"meta: {meta}\nprocessor: {PROCESSOR}\ndatasets: [tiny]\nout: {tmp_path / 'out'}\n"
        "pack_size: 256\nengine: inline\nmax_skipped: 0.2\n"
    )
    assert run("pack", "--config", config, "--pack-size", 200)[0] == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["identity"]["config"]["pack_size"] == 200


def test_nothing_packed_is_a_failure(run: Run, tmp_path: Path) -> None:
    for rows, words in (
        ("", "rows.jsonl"),
        ('{"messages": []}\n', "1x bad_row: "),
    ):
        (tmp_path / "rows.jsonl").write_text(rows)
        (tmp_path / "meta.json").write_text(json.dumps({"none": {"file_name": "rows.jsonl"}}))
        values = flags(tmp_path / "meta.json", tmp_path / f"out{len(rows)}", datasets="none")
        code, _, errors = run("pack", *values)
        assert code == 1
        told = errors[errors.index("neatpack: ") :].splitlines()  # after a warning: no format fits these rows
        assert prints_code(told[0], "no-rows") and words in told[1]


# What is wrong with the input: exit code 2

WRONG_INPUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no meta": ({"meta": "/absent/meta.json"}, "meta-unreadable", "/absent/meta.json"),
    "no such data set": ({"datasets": "huge"}, "dataset-unknown", "huge"),
    "no processor": ({"processor": "/absent/processor"}, "processor-missing", "/absent/processor"),
    "no family": ({"family": "gpt"}, "option-invalid", "gpt"),
    "a tiny pack": ({"pack-size": 4}, "option-invalid", "pack_size"),
    "all is held out": ({"holdout": 1}, "option-invalid", "holdout"),
    "not a number": ({"pack-size": "8k"}, "option-invalid", "8k"),
    "an overlong row": ({"pack-size": 32, "overlong": "error"}, "overlong", "tiny row "),
    "no config file": ({"config": "/absent.yaml"}, "config-unreadable", "/absent.yaml"),
}


@pytest.mark.parametrize("command", ["pack", "plan"])
@pytest.mark.parametrize(("change", "error", "fact"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_wrong_input(
    run: Run, meta: Path, tmp_path: Path, command: str, change: dict[str, Any], error: str, fact: str
) -> None:
    code, printed, errors = run(command, *flags(meta, tmp_path / "out", **change))
    assert (code, printed) == (2, "")
    assert prints_code(errors, error) and fact in errors
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_missing_flags(run: Run, meta: Path) -> None:
    code, _, errors = run("pack", *flags(meta))
    assert code == 2 and prints_code(errors, "option-missing") and "--out" in errors
