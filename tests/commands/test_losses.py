"""What a job would lose is said in time, in rows and tokens, and nothing is rendered until somebody decides."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import Run, conversation, flags
from helpers import picture
from support.errors import numbers_in, prints_code

from neatpack.format.manifest import Manifest

ASK = conversation("How do I write <image> in HTML?", "So.")


def write_meta(folder: Path, rows: list[Any], **entry: Any) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps({"tiny": {"file_name": "rows.jsonl"} | entry}))
    return folder / "meta.json"


def pack(run: Run, meta: Path, *more: Any) -> tuple[int, str, str]:
    return run("pack", *flags(meta, meta.parent / "out", max_skipped=0.05), *more)


def is_rendered(meta: Path) -> bool:
    return (meta.parent / "out" / "shards").exists()


def test_a_named_column_that_no_row_has_is_an_error(run: Run, tmp_path: Path) -> None:
    """Whether or not rows have tags: without any, they would be packed without a word."""
    for rows in ([{"messages": ASK}] * 25, [{"messages": conversation("Why?", "So.")}] * 25):
        meta = write_meta(tmp_path, rows, columns={"images": "imgs"})
        code, printed, errors = pack(run, meta)
        assert (code, printed) == (2, "") and not is_rendered(meta) and "lenient" not in errors
        assert prints_code(errors, "column-missing")
        assert all(fact in errors for fact in ("'tiny'", "columns.images", "'imgs'", "messages"))
    assert pack(run, write_meta(tmp_path, [{"messages": conversation("Why?", "So.")}] * 25))[0] == 0, "in the same OUT"


def test_tags_where_no_row_has_media(run: Run, tmp_path: Path) -> None:
    rows = [{"messages": ASK}] * 4 + [{"messages": conversation("Why?", "So.")}] * 60
    meta = write_meta(tmp_path, rows)
    code, _, errors = pack(run, meta)
    assert code == 1 and not is_rendered(meta) and "lenient" not in errors
    text, column = errors.index('set "placeholders": "text"'), errors.index('name it: "columns": {"images": …}')
    assert text < column
    code, printed, errors = pack(run, write_meta(tmp_path, rows, placeholders="text"))
    assert (code, errors) == (0, "") and "nothing skipped" in printed


def test_unknown_keys_are_errors_unless_they_are_allowed(run: Run, tmp_path: Path) -> None:
    meta = write_meta(tmp_path, [{"messages": conversation("Why?", "So.")}], sampel_ratio=0.5)
    code, _, errors = pack(run, meta)
    assert code == 2 and prints_code(errors, "meta-unknown-key")
    assert "'sampel_ratio'" in errors and "'sample_ratio'" in errors
    code, printed, errors = pack(run, meta, "--allow-unknown-keys")
    assert code == 0
    (warning,) = Manifest.read(tmp_path / "out").warnings
    assert warning.startswith("meta.json: ") and "'sampel_ratio'" in warning, "no folder of this machine"
    assert f"\n    {warning}\n" in printed and "'sampel_ratio'" in errors
    report = (tmp_path / "out" / "report.html").read_text()
    assert '<section id="warnings"' in report and "sampel_ratio" in report
    assert f"    {warning}\n" in pack(run, meta, "--allow-unknown-keys")[1], "said again, when there is nothing to do"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """40 documents, of which 11 are longer than a pack and have most of the tokens."""
    rows = [{"messages": conversation(f"{i}?", "word " * (600 if i < 11 else 20))} for i in range(40)]
    return write_meta(tmp_path, rows)


def test_overlong_rows_are_lost_unless_that_is_chosen(run: Run, documents: Path) -> None:
    code, printed, errors = pack(run, documents)
    assert code == 1 and not is_rendered(documents)
    assert prints_code(errors, "too-many-skipped")
    told = re.search(r": 11 of 40 .*27\.5%.* ([\d,]+) of ([\d,]+) .* (\d\d\.\d)%", errors)
    assert told and float(told[3]) > 80
    assert f"{told[3]}%" in errors.splitlines()[1] and f"11x overlong ({told[1]} tokens): " in errors
    assert re.search(rf"  skipped +11 of 40 .*{told[1]} of {told[2]} .*{told[3]}%", printed)
    assert f"  11  overlong ({told[1]} tokens): " in printed
    assert run("plan", *flags(documents, max_skipped=0.05))[0] == 1
    code, printed, errors = pack(run, documents, "--overlong", "drop")
    assert (code, errors) == (0, "") and f"{told[1]} of {told[2]} " in printed and f"{told[3]}%" in printed
    out = documents.parent / "out"
    lines = [line for line in pq.read_table(out / "ledger").to_pylist() if line["status"] == "skipped"]
    assert f"{sum(line['tokens'] for line in lines):,}" == told[1] and all(line["tokens"] > 600 for line in lines)
    assert Manifest.read(out).counts.skipped_tokens == {"overlong": int(told[1].replace(",", ""))}
    assert pq.read_table(out / "stats/datasets.parquet")["skipped_tokens"].to_pylist() == [
        int(told[1].replace(",", ""))
    ]
    assert told[1] in (out / "report.html").read_text()
    assert run("verify", out)[0] == 0
    code, _, errors = pack(run, documents)
    assert code == 1 and "overlong" in errors, "the same output, judged by another choice"


def test_keep_going_renders_all_the_same(run: Run, documents: Path) -> None:
    code, _, errors = pack(run, documents)
    kept, _, again = pack(run, documents, "--keep-going")
    assert (code, kept) == (1, 1) and is_rendered(documents)
    assert errors.splitlines()[:2] == again.splitlines()[:2], "the same table"
    assert run("verify", documents.parent / "out")[0] == 0
    assert run("plan", *flags(documents), "--keep-going")[0] == 2, "which has nothing to go on with"


def test_a_few_rows_with_most_of_the_tokens_are_too_many(run: Run, tmp_path: Path) -> None:
    rows = [{"messages": conversation(f"{i}?", "word " * (900 if i == 50 else 5))} for i in range(100)]
    code, _, errors = pack(run, write_meta(tmp_path, rows))
    assert code == 1 and prints_code(errors, "too-many-skipped") and re.search(r": 1 of 100 .*1\.0%", errors)


def test_a_column_of_media_that_nothing_reads_is_an_error(run: Run, tmp_path: Path) -> None:
    rows = [{"caption": f"A cat, {i}.", "image_url": f"https://host/{i}?w=9"} for i in range(24)]
    code, _, errors = pack(run, write_meta(tmp_path, rows))
    assert code == 2 and prints_code(errors, "column-unread") and '"columns": {"images": "image_url"}' in errors
    meta = write_meta(tmp_path, rows, ignore_columns=["image_url"])
    code, printed, errors = pack(run, meta)
    assert (code, errors) == (0, "") and "24 packed + 0 skipped" in printed


def test_text_that_is_not_read_is_named_everywhere(run: Run, tmp_path: Path) -> None:
    row = {"question": "Which?", "answer": "Blue.", "choices": ["Red.", "Blue."], "lecture": "Colours are many. " * 4}
    code, printed, errors = pack(run, write_meta(tmp_path, [row] * 3))
    words = "'lecture' (77.4%), 'choices' (10.8%)"
    manifest = Manifest.read(tmp_path / "out")
    report = (tmp_path / "out" / "report.html").read_text()
    assert code == 0 and words in printed and words in errors and words in manifest.warnings[0]
    assert "&#x27;lecture&#x27; (77.4%)" in report
    code, printed, errors = pack(
        run, write_meta(tmp_path, [row] * 3, ignore_columns=["choices", "lecture"]), "--overwrite"
    )
    assert (code, errors) == (0, "") and "warnings" not in printed


def test_media_that_fail_late_are_judged_by_the_output(run: Run, tmp_path: Path) -> None:
    rows: list[Any] = [{"messages": conversation(f"{i}?", "So.")} for i in range(6)]
    for i in range(2):
        file = picture(tmp_path / f"{i}.png", 60, 60)
        file.write_bytes(file.read_bytes()[:-400])
        rows.append({"messages": conversation("<image>What?", "That."), "images": [file.name]})
    meta = write_meta(tmp_path, rows)
    assert run("plan", *flags(meta, max_skipped=0.05))[0] == 0, "their headers are fine"
    code, printed, errors = pack(run, meta)
    assert code == 1 and is_rendered(meta) and "6 packed + 2 skipped" in printed
    assert prints_code(errors, "too-many-skipped")
    assert re.search(r": 2 of 8 .*25\.0%.* \d+ of \d+ .*\d+\.\d%", errors)
    assert f"neatpack skipped {tmp_path / 'out'}" in errors
    assert run("verify", tmp_path / "out")[0] == 0
    assert pack(run, meta)[::2] == (1, errors), "and again, when there is nothing to do"


def test_warnings_do_not_depend_on_what_was_measured_before(run: Run, tmp_path: Path) -> None:
    """Of several parts, all of which have something to tell, and some of which are in the token store already."""
    rows = [
        {"text": f"Page {i}.", "page": f"https://host/{i}" + (".jpg" if i % 96 == 0 and i >= 384 else "")}
        for i in range(20_000)
    ]
    meta = write_meta(tmp_path, rows)
    manifests = []
    for out in ("one", "two", "three"):
        measured = sorted((tmp_path / "work").glob("measured/*/*.arrow"))
        for part in measured[::2]:
            part.unlink()
        values = flags(meta, tmp_path / out, work=tmp_path / "work", pack_size=8192)
        assert run("pack", *values)[0] == 0
        manifests.append((tmp_path / out / "manifest.json").read_bytes())
    assert len(measured) > 2 and len(set(manifests)) == 1
    (warning,) = Manifest.read(tmp_path / "one").warnings
    assert "'page'" in warning and 384 in numbers_in(warning)
