"""`neatpack show` from the command line: a pack and a row, in a pipe and in files; wrong flags."""

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from places import DEMO_PROCESSOR, ROOT
from support.commands import main
from support.data import TinyData
from support.errors import prints_code
from support.outputs import read_ledger, read_packs
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = pytest.mark.net

SHOWN = """\
│ <|im_start|>user
│ <|vision_start|>⟨image 1: 90x60 -> 84x56, 6 tokens⟩<|vision_end|>What?<|im_end|>
│ <|im_start|>assistant
│ ⟦That.<|im_end|>⟧
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows 0 to 5: a picture, a text, a broken row, one without an answer, a long one, a picture that is none."""
    data = TinyData(tmp_path_factory.mktemp("show") / "data").image(60, 90).text("Why?", "So.")
    data.rows.append('{"messages": [')
    data.row([("user", "Nothing?")], id="silent")
    data.text("Long?", "word " * 900)
    data.row([("user", "<image>What?"), ("assistant", "That.")], images=["none.png"])
    (data.folder / "none.png").write_bytes((data.folder / "0.png").read_bytes()[:200])
    return data.write()


@pytest.fixture(scope="module")
def out(data):
    run_pack(tiny_config(data, data.parent.parent / "out", max_skipped=1.0))
    return data.parent.parent / "out"


def shown(capfdbinary, *arguments) -> tuple[int, str]:
    code = main(["show", *(["--follow-sources"] if "--row" not in arguments else []), *map(str, arguments)])
    return code, capfdbinary.readouterr().out.decode()


def row_flags(data, row, *more):
    return ("--meta", data, "--processor", DEMO_PROCESSOR, "--row", f"tiny:{row}", "--pack-size", "512", *more)


def test_a_pack_in_a_pipe(out, capfdbinary):
    code, text = shown(capfdbinary, out, 0)
    assert code == 0 and SHOWN in text and "\x1b" not in text
    assert "│ ⟦So.<|im_end|>⟧\n" in text
    assert "⟦…⟧ trained on" in text, "the legend"


def test_one_document(out, capfdbinary):
    (pack,) = read_packs(out)
    position = [document.row for document in pack.documents].index(1)
    _, text = shown(capfdbinary, out, 0, "--doc", position)
    assert "⟦So." in text and "⟦That." not in text and f"document {position}: tiny row 1\n" in text


def test_colours_are_as_asked(out, capfdbinary, monkeypatch):
    assert "\x1b[38;2;" in shown(capfdbinary, out, 0, "--color", "always")[1]
    assert "\x1b" not in shown(capfdbinary, out, 0, "--color", "never")[1]


@pytest.mark.parametrize(("set_to", "expected"), [("truecolor", True), ("", False)])
def test_a_terminal_gets_colours_and_thumbnails_if_it_has_them(out, set_to, expected):
    """In a terminal of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLORTERM": set_to, "COLUMNS": "80", "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "neatpack.pipeline.cli", "show", str(out), "0", "--follow-sources"]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, env=env, close_fds=True)
    os.close(follower)
    content = b""
    while True:
        try:
            block = os.read(leader, 65536)
        except OSError:  # the terminal is closed
            break
        if not block:
            break
        content += block
    os.close(leader)
    assert process.wait() == 0, content
    assert b"\x1b[32mThat.\x1b[0m" in content
    assert (b"\x1b[38;2;" in content) == expected


def test_no_heavy_module_is_imported(out):
    code = (
        "import sys; from neatpack.pipeline.cli import main; main(['show', sys.argv[1], '0', '--html', sys.argv[2]]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'ray')))"
    )
    page = out.parent / "light.html"
    done = subprocess.run([sys.executable, "-c", code, str(out), str(page)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "<!doctype html>" in page.read_text()


def test_files(out, tmp_path, capfdbinary):
    code, text = shown(capfdbinary, out, 0, "--html", tmp_path / "a.html", "--png", tmp_path / "a.png")
    assert code == 0 and text.count("pack 0 of ") == 2
    assert "⟦" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert np.asarray(Image.open(tmp_path / "a.png")).shape[1] == 1000


def test_a_row_before_packing_is_the_document_of_the_pack(data, out, capfdbinary):
    _, whole = shown(capfdbinary, out, 0)
    code, text = shown(capfdbinary, *row_flags(data, 0))
    assert code == 0
    part = text.split("document 0: tiny row 0\n")[1]
    assert part in whole and SHOWN in part, "figures, text, labels and positions are the same"


def test_flags_shape_a_row(data, capfdbinary):
    _, text = shown(capfdbinary, *row_flags(data, 1, "--train-on", "all"))
    assert "│ ⟦user\n" in text.replace("<|im_start|>", "") or "<|im_start|>⟦user" in text
    _, text = shown(capfdbinary, *row_flags(data, 0, "--max-pixels", "3136", "--min-pixels", "784"))
    assert "image 1: 90x60 -> 56x28, 2 tokens" in text
    code, text = shown(capfdbinary, *row_flags(data, 4, "--overlong", "truncate"))
    assert code == 0 and "truncated from" in text


@pytest.mark.parametrize("row", [2, 3, 4, 5])
def test_a_skipped_row_says_what_the_ledger_says(data, out, capfdbinary, row):
    (line,) = (line for line in read_ledger(out) if line["row"] == row)
    assert line["status"] == "skipped"
    code, text = shown(capfdbinary, *row_flags(data, row))
    assert code == 1 and f": {line['reason']}: {line['detail']}\n" in text
    assert f"rows.jsonl:{row + 1}: tiny row {row}" in text


def test_sample_ratio_does_not_hide_a_row(tmp_path, data, capfdbinary):
    meta = json.loads(data.read_text())
    meta["tiny"] |= {"sample_ratio": 0.1, "file_name": str(data.parent / "rows.jsonl"), "media_dir": str(data.parent)}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    for row in (0, 1):
        code, text = shown(capfdbinary, *row_flags(tmp_path / "meta.json", row))
        assert code == 0 and "trained on" in text


WRONG = {
    ("OUT", "x"): ("option-invalid", "PACK x"),
    ("OUT", "-1"): ("", ""),
    ("OUT", "7"): ("document-unknown", "7"),
    ("OUT",): ("option-missing", "--row"),
    ("OUT", "0", "--doc", "x"): ("option-invalid", "--doc x"),
    ("OUT", "0", "--train-on", "all"): ("option-conflict", "--train-on"),
    ("OUT/absent", "0"): ("output-missing", "OUT/absent"),
    ("--meta", "META", "--processor", "P", "--row", "tiny"): ("option-invalid", "--row tiny"),
    ("--meta", "META", "--processor", "P", "--row", "tiny:x"): ("option-invalid", "--row x"),
    ("--meta", "META", "--processor", "P", "--row", "tiny:9"): ("dataset-unknown", "tiny:9"),
    ("--meta", "META", "--processor", "P", "--row", "other:1"): ("dataset-unknown", "other"),
    ("--meta", "META", "--row", "tiny:1"): ("option-missing", "--processor"),
    ("OUT", "0", "--meta", "META", "--processor", "P", "--row", "tiny:1"): ("option-conflict", "--row"),
}


@pytest.mark.parametrize(("arguments", "expected"), WRONG.items(), ids=map(" ".join, WRONG))
def test_what_is_wrong_is_told(out, data, capsys, arguments, expected):
    given = [
        a.replace("OUT", str(out)).replace("META", str(data)) if a != "P" else str(DEMO_PROCESSOR) for a in arguments
    ]
    try:
        code = main(["show", *given])
    except SystemExit as error:  # argparse
        code = error.code
    assert code == 2
    told = capsys.readouterr().err
    error, fact = expected
    assert fact.replace("OUT", str(out)) in told and (not error or prints_code(told, error))


def test_a_file_that_cannot_be_written(out, capsys):
    assert main(["show", str(out), "0", "--html", "/proc/none/a.html"]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "machine") and "--html /proc/none/a.html" in told
