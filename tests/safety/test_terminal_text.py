"""Terminal escapes, direction controls and forged lines in data do nothing, whichever command prints them."""

import ast
import json
import logging
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import ROOT, TinyData, tiny_config

from jobs.fuzzing.output import sign
from neatpack.pipeline.cli import main
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.runtime.logs import logged_to_stderr
from neatpack.pipeline.safe import harmless, harmless_html, harmless_json, harmless_line
from neatpack.pipeline.view.columns import aligned

CLEAR = "\x1b[2J\x1b]0;owned\x07"  # clears the screen and renames the window
C1 = "\x9b31m"  # the same escape in one byte
BIDI = "\u202eevil\u2066"  # reverses what follows
FORGED = "a\nE 12:00:00 all of it was verified"
ISOLATE_TAG = "\u2067\U000e0041\u2028x\r"
ATTACKS = {"escape": CLEAR, "c1": C1, "bidi": BIDI, "tag": ISOLATE_TAG}
PRINTS = ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write", "traceback.print_exception")
ACTING = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def acting(text: str) -> list[str]:
    """Characters that act in a terminal or page."""
    return [char for char in text if unicodedata.category(char) in ACTING and char not in "\n\t\u200c\u200d"]


@pytest.fixture(params=list(ATTACKS.values()), ids=list(ATTACKS))
def attack(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def out(attack: str, tmp_path: Path) -> Path:
    """An output whose ids, media names, columns and broken rows hold the attack."""
    data = TinyData(tmp_path / "data")
    data.row([("user", f"Why {attack}?"), ("assistant", f"So {attack}.")], id=f"id {attack}")
    data.row([("user", "<image>?"), ("assistant", "x")], images=[f"{attack}.png"], id=f"lost {attack}")
    data.row([("user", "?"), ("assistant", "x")], **{f"column {attack}": 1})
    data.row([(attack, "?"), ("assistant", "x")])
    data.rows.append('{"messages": [' + json.dumps(attack, ensure_ascii=False) + "oops")
    run_pack(tiny_config(data.write(), tmp_path / "out", max_skipped=1))
    return tmp_path / "out"


def test_no_command_prints_what_acts(
    out: Path, tmp_path: Path, attack: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    meta = str(tmp_path / "data/meta.json")
    processor = json.loads((out / "work/base.json").read_text())["processor"]
    job = ["--meta", meta, "--processor", processor, "--engine", "inline", "--max-skipped", "1"]
    commands = [
        ["pack", *job, "--out", str(tmp_path / "again"), "-vv"],
        ["plan", *job, "-vv"],
        ["skipped", str(out)],
        ["skipped", str(out), "--follow-sources"],
        ["skipped", str(out), "--jsonl", "--follow-sources"],
        ["diff", str(out), str(tmp_path / "again")],
        ["diff", str(out), str(tmp_path / "again"), "--json"],
        ["inspect", str(out)],
        ["inspect", str(out), "--json"],
        ["show", str(out), "0", "--follow-sources", "--color", "never"],
        ["show", "--meta", meta, "--processor", processor, "--row", "tiny:1"],
        ["verify", str(out)],
        ["export", "hub-card", str(out)],
    ]
    for command in commands:
        main(command)
        printed = b"".join(capfdbinary.readouterr()).decode()
        assert printed and not acting(printed), command
    for page in (out / "report.html", out / "README.md"):
        assert not acting(page.read_text())


def test_json_keeps_its_values(out: Path, attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skipped", str(out), "--jsonl"]) == 0
    ids = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
    assert f"lost {attack}" in ids


def test_pages_write_out_direction_controls(out: Path, tmp_path: Path) -> None:
    assert main(["show", str(out), "0", "--follow-sources", "--html", str(tmp_path / "page.html")]) == 0
    assert main(["report", str(out), "--follow-sources"]) == 0
    for page in (tmp_path / "page.html", out / "report.html"):
        assert not acting(page.read_text()) and "⟨U+" in page.read_text()


def test_a_forged_ledger_and_manifest_are_harmless(
    tmp_path: Path, tiny: TinyData, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Of a downloaded output every text is a stranger's, names of data sets included."""
    run_pack(tiny_config(tiny.text("a", "b").row([("user", "?")]).write(), tmp_path / "out"))
    ledger = tmp_path / "out/ledger/00000.parquet"
    table = pq.read_table(ledger)
    for name in ("id", "detail", "dataset"):
        if name in table.column_names:
            texts = [f"{CLEAR}{FORGED}"] * len(table)
            at = table.column_names.index(name)
            table = table.set_column(at, table.field(at), [texts])
    pq.write_table(table, ledger)

    def rename(found: dict[str, Any]) -> None:
        found["identity"]["inputs"] = {f"{CLEAR}{FORGED}": entry for entry in found["identity"]["inputs"].values()}
        found["identity"]["versions"] = {"numpy": BIDI}
        found["neatpack"] = CLEAR

    sign(tmp_path / "out", rename)
    for command in ("verify", "skipped", "inspect", "report", "show"):
        main([command, str(tmp_path / "out"), *(["0"] if command == "show" else [])])
        printed = b"".join(capfdbinary.readouterr()).decode()
        assert printed and not acting(printed), command
        assert not re.search(r"^E 12:00:00", printed, re.MULTILINE), command
    assert not acting((tmp_path / "out/report.html").read_text())


@pytest.mark.parametrize("words", [CLEAR, C1, BIDI, FORGED, "one\rtwo", "\u2029"])
def test_log_lines_are_harmless_and_start_where_they_start(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with logged_to_stderr(2):
        logging.getLogger("neatpack.loaders.somewhere").warning("column %s is not read", words)
        try:
            raise ValueError(words)
        except ValueError:
            logging.getLogger("neatpack.somewhere").exception("failed")
    printed = capsys.readouterr().err
    assert not acting(printed)
    assert [line[0] for line in printed.splitlines() if not line.startswith("  ")] == ["W", "E"]


def test_errors_and_tracebacks_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from neatpack.pipeline.cli import _print_traceback

    (tmp_path / "meta.json").write_text(json.dumps({CLEAR: {"file_name": BIDI}}))
    assert main(["pack", "--meta", str(tmp_path / "meta.json"), "--processor", CLEAR, "--out", str(tmp_path)]) == 2
    _print_traceback(ValueError, ValueError(CLEAR), None)
    printed = capsys.readouterr().err
    assert printed and not acting(printed)


def test_tables_are_harmless() -> None:
    lines = list(aligned(["a", BIDI], [[CLEAR, 1], [FORGED, 2]]))
    assert len(lines) == 3 and not acting("".join(lines))


def test_what_is_harmless_stays_so_and_is_unchanged() -> None:
    rng = np.random.default_rng(0)
    alphabet = [*'az⟦⟨ \n\t"\\<&é漢\u200d', *CLEAR, *C1, *BIDI, *ISOLATE_TAG, "\ud800", "\ufeff", "\U0010ffff"]
    for _ in range(300):
        text = "".join(rng.choice(alphabet, 20))
        for function in (harmless, harmless_line, harmless_html):
            assert not acting(function(text)) and harmless(function(text)) == function(text)
        assert "\n" not in harmless_line(text)
        assert json.loads(harmless_json(json.dumps(text, ensure_ascii=False))) == json.loads(json.dumps(text))
    assert harmless("Größe ⟦漢字⟧ می‌خواهم 👩‍🚀\n\t½") == "Größe ⟦漢字⟧ می‌خواهم 👩‍🚀\n\t½"


def test_one_function_prints() -> None:
    """Nothing in pipeline/ prints but by runtime/logs.py, and but for `show` and `skipped`, which write bytes."""
    found = set()
    for path in (ROOT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in PRINTS:
                found.add(str(path.relative_to(ROOT)))
    assert found == {"pipeline/runtime/logs.py", "pipeline/commands/show.py", "pipeline/commands/skipped.py"}
