"""Media that crash the process: the row is found and skipped, the rest goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers import DEMO_PROCESSOR, ROOT, mixed_rows
from hostile import slow_jpeg

from neatpack.pipeline.runtime.journal import CRASHED, OVERTIME, Journal, journal

pytestmark = pytest.mark.slow

# A decoder with bugs, in every process that finds this on its path: a picture whose name says so brings it down, or
# keeps it in C code for ever, with the interpreter's lock.
CRASHING = """
import ctypes
import PIL.Image
def do_on(word, deed, function):
    def wrapper(self, *args, **kwargs):
        if word in str(getattr(getattr(self, "fp", self), "name", "")):
            deed()
        return function(self, *args, **kwargs)
    return wrapper
PIL.Image.open = do_on("poison-open", lambda: ctypes.string_at(0), PIL.Image.open)
PIL.Image.open = do_on("hang-open", lambda: ctypes.PyDLL(None).sleep(1000), PIL.Image.open)
"""
# The command forks before it imports anything heavy, and after each crash again: with this, what takes 3 s of CPU to
# import is there before the first fork, and not imported five times.
IMPORTED = """
import torch, transformers, neatpack.pipeline.run
from transformers import AutoTokenizer, PreTrainedTokenizerFast
"""


def crash_in(folder: Path, row: str, code: str) -> int:
    """A process that dies while it reads a row."""
    script = (
        "from neatpack.pipeline.runtime.journal import CRASHED, OVERTIME, journal\nfrom pathlib import Path\n"
        f"with journal(Path({str(folder)!r})) as j:\n"
    )
    script += f"    j.at({row!r})\n    {code}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True).returncode


def test_a_row_that_crashed_twice_is_poison(tmp_path):
    folder = tmp_path / "journal"
    segfault = "import ctypes; ctypes.string_at(0)"
    assert crash_in(folder, "7", segfault) == -11
    assert Journal(folder).poison("7") == ""
    assert crash_in(folder, "7", segfault) == -11
    assert Journal(folder).poison("7") == CRASHED
    assert Journal(folder).poison("8") == ""


def test_a_kill_from_outside_is_nobodys_fault(tmp_path):
    for _ in range(3):
        assert crash_in(tmp_path / "journal", "7", "import os; os.kill(os.getpid(), 9)") == -9
    assert Journal(tmp_path / "journal").poison("7") == ""


@pytest.mark.parametrize(("timer", "code"), [("ITIMER_PROF", -27), ("ITIMER_REAL", -14)])
def test_a_row_that_took_too_long_is_poison_at_once(tmp_path, timer, code):
    """The interpreter's lock is held all the time."""
    wait = f"import signal, ctypes; signal.setitimer(signal.{timer}, 0.05); sum(range(10**12))"
    assert crash_in(tmp_path / "journal", "7", wait) == code
    opened = Journal(tmp_path / "journal")
    assert opened.poison("7").endswith(OVERTIME)
    assert opened.poison("8") == ""


def test_the_attempt_after_a_crash_says_so(tmp_path, caplog):
    folder = tmp_path / "journal"
    crash_in(folder, "7", "import ctypes; ctypes.string_at(0)")
    Journal(folder)
    Journal(folder)  # the first one has not come to any row
    crash_in(folder, "8", "import os; os.kill(os.getpid(), 9)")
    Journal(folder)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert [record.args for record in caplog.records] == [(folder, "7", 1, 2), (folder, "8")]


def test_nothing_is_left_behind(tmp_path):
    with journal(tmp_path / "journal") as watch:
        watch.at("1")
    assert not (tmp_path / "journal").exists()
    with pytest.raises(ValueError), journal(tmp_path / "journal"):
        raise ValueError
    assert not (tmp_path / "journal").exists()


ENDS = ("SIGSEGV", "SIGALRM", "SIGPROF")


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_pictures_that_crash_the_decoder_or_keep_it_busy_are_skipped(engine, tiny, tmp_path):
    mixed_rows(tiny, num_text=6, num_images=7)
    for index, name in ((7, "poison-open.png"), (8, "hang-open.png"), (9, "slow.jpg")):
        (tiny.folder / f"{index}.png").rename(tiny.folder / name)
        tiny.rows[index]["images"] = [name]
    slow_jpeg(tiny.folder / "slow.jpg", scans=2000)  # 30 seconds
    meta = tiny.write()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CRASHING + (IMPORTED if engine == "inline" else ""))
    command = [sys.executable, "-m", "neatpack.pipeline.cli", "pack", "--meta", str(meta),
               "--processor", str(DEMO_PROCESSOR), "--out", str(tmp_path / "out"),
               "--pack-size", "512", "--max-pixels", "20000", "--engine", engine, "--max-skipped", "0.3",
               "--media-timeout", "1", "--num-workers", "1"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    said = done.stderr
    assert done.returncode == 0, said
    # In-process, each crash ends the process of the job, and the command starts another; Ray does so with its workers.
    # Which of the two alarms comes first depends on how busy the machine is.
    ends = {name: sum(line.startswith("neatpack: ") and name in line for line in said.splitlines()) for name in ENDS}
    expected = (2, 2) if engine == "inline" else (0, 0)
    assert (ends["SIGSEGV"], ends["SIGALRM"] + ends["SIGPROF"]) == expected
    lines = pq.read_table(tmp_path / "out" / "ledger").to_pylist()
    skipped = {line["row"]: (line["reason"], line["detail"]) for line in lines if line["status"] == "skipped"}
    detail = CRASHED
    late = f"reading it {OVERTIME}"
    bad = {7: detail, 8: late, 9: late}
    assert skipped == {row: ("bad_media", words) for row, words in bad.items()}
    assert not list((tmp_path / "out").rglob("*.journal"))
    # The crashes are in the log of the command, also where they happened in a worker; each skipped row once.
    assert said.count("tiny row 7: " + detail) == 1
    assert said.count("tiny row 8: " + late) == said.count("row 0/9/0: " + late) == 1
    assert f"row 8 {OVERTIME}" in said
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]["packed"] == 10
