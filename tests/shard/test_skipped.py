"""`neatpack skipped`: which rows, why, and where they came from, whatever became of their files."""

import gzip
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import ROOT, TinyData, files_of, tiny_config
from support.errors import raises

from neatpack.format.manifest import Manifest
from neatpack.pipeline.config import UserError
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.skipped import SkippedRow, skipped_rows

BROKEN = '{"messages": [oops'


@pytest.fixture
def data(tiny: TinyData) -> TinyData:
    """Row 0 is good; behind a blank line, row 1 is broken, row 2 has no target and row 3 no picture."""
    tiny.text("a", "b")
    tiny.rows += ["", BROKEN]
    return tiny.row([("user", "?")]).row([("user", "<image>?"), ("assistant", "x")], images=["gone.png"])


def listed(out: Path, **options: Any) -> tuple[list[SkippedRow], list[str]]:
    """The rows, and what stood in the way of reading them."""
    problems: list[str] = []
    return list(skipped_rows(out, Manifest.read(out), follow=True, problems=problems, **options)), problems


def test_file_line_and_text_of_each(data: TinyData, tmp_path: Path) -> None:
    run_pack(tiny_config(data.write(ratio=2), tmp_path / "out"))
    rows, problems = listed(tmp_path / "out")
    file = str(data.folder / "rows.jsonl")
    assert [(row.row, row.reason, row.file, row.line) for row in rows] == [
        (1, "bad_row", file, 3),
        (2, "no_target", file, 4),
        (3, "missing_media", file, 5),
    ], "each row once, though it was taken twice"
    assert rows[0].text == BROKEN.encode() + b"\n"
    assert rows[1].described() == f"{file}:4: tiny row 2: no_target: no assistant turn"
    assert problems == []


def test_each_is_one_line() -> None:
    row = SkippedRow(
        dataset="a", row=0, id="x\ny", reason="missing_media", detail="b\n.png: gone", file="", line=None, text=None
    )
    assert row.described() == "a row 0 (id x\\ny): missing_media: b\\n.png: gone"


def test_as_json(data: TinyData, tmp_path: Path) -> None:
    run_pack(tiny_config(data.write(), tmp_path / "out"))
    broken, no_target, _ = (row.to_json() for row in listed(tmp_path / "out")[0])
    assert list(broken) == ["dataset", "row", "id", "reason", "detail", "file", "line", "text"]
    assert broken["text"] == BROKEN
    assert no_target["json"] == data.rows[3] and no_target["row"] == 2


def test_some_reasons_and_data_sets(data: TinyData, tmp_path: Path) -> None:
    data.write()
    entry = {"file_name": "rows.jsonl"}
    (data.folder / "meta.json").write_text(json.dumps({"a": entry, "b": entry | {"sample_ratio": 0.25}}))
    run_pack(tiny_config(data.folder / "meta.json", tmp_path / "out"))

    def found(**options: Any) -> list[tuple[str, int, str]]:
        return [(row.dataset, row.row, row.reason) for row in listed(tmp_path / "out", **options)[0]]

    assert found(dataset="a", reasons=["bad_row", "no_target"]) == [("a", 1, "bad_row"), ("a", 2, "no_target")]
    assert not [reason for *_, reason in found() if reason == "sampled_out"]
    assert len(found(reasons=["sampled_out"])) == 3
    with raises(UserError, "option-invalid", option="reason", got="bad"):
        found(reasons=["bad"])
    with raises(UserError, "dataset-unknown", dataset="c", known=["a", "b"]):
        found(dataset="c")


@pytest.mark.parametrize("kind", ["json", "jsonl.gz", "parquet"])
def test_files_that_were_rewritten_have_rows_and_no_lines(tiny: TinyData, tmp_path: Path, kind: str) -> None:
    tiny.text("a", "b").row([("user", "?")])
    tiny.write()
    file = tiny.folder / f"rows.{kind}"
    if kind == "json":
        file.write_text(json.dumps(tiny.rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(tiny.rows), file)
    else:
        file.write_bytes(gzip.compress((tiny.folder / "rows.jsonl").read_bytes()))
    (tiny.folder / "meta.json").write_text(json.dumps({"tiny": {"file_name": file.name}}))
    run_pack(tiny_config(tiny.folder / "meta.json", tmp_path / "out"))
    ((row,), problems) = listed(tmp_path / "out")
    assert (row.row, row.file, row.line, problems) == (1, str(file), None, [])
    assert json.loads(row.text or b"") == tiny.rows[1]
    assert row.described() == f"{file}: tiny row 1: no_target: no assistant turn"
    (tmp_path / "out").rename(tmp_path / "moved")
    assert listed(tmp_path / "moved")[0] == [row], "the rewriting moved along"


def test_files_that_are_gone_or_changed(data: TinyData, tmp_path: Path) -> None:
    run_pack(tiny_config(data.write(), tmp_path / "out"))
    file = data.folder / "rows.jsonl"
    before = listed(tmp_path / "out")[0]
    file.write_text("\n" + file.read_text())
    rows, problems = listed(tmp_path / "out")
    assert [problem.partition(": ")[0] for problem in problems] == [str(file)]
    assert [(row.row, row.reason, row.detail) for row in rows] == [(row.row, row.reason, row.detail) for row in before]
    assert {(row.line, row.text) for row in rows} == {(None, None)}
    file.unlink()
    assert listed(tmp_path / "out")[1] == [f"{file}: No such file or directory"]
    (tmp_path / "out" / "sources.json").unlink()
    rows, (problem,) = listed(tmp_path / "out")
    assert problem.startswith(str(tmp_path / "out/sources.json")) and "tiny" in problem
    assert rows[0].described().startswith("tiny row 1: bad_row: line 3: broken JSON: ")


def test_where_the_rows_came_from_is_on_disk_and_no_part_of_the_identity(data: TinyData, tmp_path: Path) -> None:
    first = run_pack(tiny_config(data.write(), tmp_path / "out")).manifest
    (digest,) = (entry["content"] for entry in first.identity.inputs.values())
    files = [{"file": "rows.jsonl", "digest": digest, "rows": 4}]  # one line is blank
    found = json.loads((tmp_path / "out/sources.json").read_text())
    assert found == {"base": "", "processor": "processor", "datasets": {"tiny": {"files": files}}}
    data.folder.rename(tmp_path / "moved")
    second = run_pack(tiny_config(tmp_path / "moved/meta.json", tmp_path / "other")).manifest
    assert second.identity == first.identity
    assert "sources.json" in first.files
    assert files_of(tmp_path / "out") == files_of(tmp_path / "other"), "where the data lie is in no byte of an output"
    run_pack(tiny_config(tmp_path / "moved/meta.json", tmp_path / "out", overwrite=True))
    assert listed(tmp_path / "out")[0][0].file == str(tmp_path / "moved/rows.jsonl")


def test_no_file_of_an_output_tells_of_the_machine(data: TinyData, tmp_path: Path) -> None:
    """Rows of a file that was rewritten, too; only what the user asks for, or writes into a row, is there."""
    data.write()
    (data.folder / "rows.json").write_text(json.dumps([*data.rows[3:], data.rows[0]]))
    both = {"a": {"file_name": "rows.jsonl"}, "b": {"file_name": "rows.json"}}
    (data.folder / "meta.json").write_text(json.dumps(both))
    run_pack(tiny_config(data.folder / "meta.json", tmp_path / "out"))
    private = (str(tmp_path), socket.gethostname(), str(ROOT), str(Path.home()))
    tables = [str(pq.read_table(tmp_path / "out" / name).to_pylist()) for name in files_of(tmp_path / "out")
              if name.endswith(".parquet")]  # fmt: skip
    rest = [content.decode("latin-1") for content in files_of(tmp_path / "out").values()]
    assert not [word for word in private if any(word in text for text in tables + rest)]
    missing = [row for row in listed(tmp_path / "out")[0] if row.reason == "missing_media"]
    assert [(row.dataset, row.detail) for row in missing] == [
        (name, "gone.png: No such file or directory") for name in "ab"
    ]
    assert missing[0].file == str(data.folder / "rows.jsonl") and missing[1].text is not None


def test_paths_are_recorded_where_they_are_asked_for(data: TinyData, tmp_path: Path) -> None:
    run_pack(tiny_config(data.write(), tmp_path / "out"))
    run_pack(tiny_config(data.write(), tmp_path / "told", record_paths=True))
    for name in ("out", "told"):
        shutil.rmtree(tmp_path / name / "work")
    rows, (problem,) = listed(tmp_path / "out")
    assert "work/base.json" in problem and "--record-paths" in problem
    assert {row.text for row in rows} == {None}
    rows, problems = listed(tmp_path / "told")
    assert problems == [] and rows[0].file == str(data.folder / "rows.jsonl") and rows[0].line == 3


def test_ids_are_listed(data: TinyData, tmp_path: Path) -> None:
    data.rows.append({"id": "the bad one", "messages": []})
    manifest = run_pack(tiny_config(data.write(), tmp_path / "out")).manifest
    *_, last = skipped_rows(tmp_path / "out", manifest, problems=[])
    assert last.id == "the bad one" and "tiny row 4 (id the bad one): bad_row: " in last.described()


def test_rows_of_several_files(tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(good) + "\n[1]\n")
    (tmp_path / "b.json").write_text(json.dumps([good, {"messages": []}]))
    (tmp_path / "c.jsonl").write_text("\n" + json.dumps(good) + "\n{\n")
    (tmp_path / "meta.json").write_text(json.dumps({"all": {"file_name": ["a.jsonl", "b.json", "c.jsonl"]}}))
    manifest = run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out")).manifest
    problems: list[str] = []
    found = list(skipped_rows(tmp_path / "out", manifest, follow=True, problems=problems))
    assert problems == []
    assert [(Path(row.file).name, row.row, row.line) for row in found] == [
        ("a.jsonl", 1, 2),
        ("b.json", 3, None),
        ("c.jsonl", 5, 3),
    ]
    (tmp_path / "a.jsonl").write_text("{}\n")
    again = list(skipped_rows(tmp_path / "out", manifest, follow=True, problems=problems))
    assert [problem.partition(": ")[0] for problem in problems] == [f"{tmp_path}/a.jsonl"]
    assert [(row.row, row.text is None) for row in again] == [(1, True), (3, False), (5, False)]
