"""Stages, their time and what tasks did in them, by a clock of the test's own; and what is shown of that."""

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from helpers import DEMO_PROCESSOR, ROOT, files_of, mixed_rows
from support.errors import prints_code

from neatpack.pipeline.display import Lines, Terminal, minutes, outcome, picture, rounded, state, time_line
from neatpack.pipeline.runtime.engine import Engine, engine
from neatpack.pipeline.runtime.progress import WORKERS, Progress
from neatpack.pipeline.runtime.work import Work, did, each_timed, reported_to, timed


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def work(**done: int) -> Work:
    return Work(done=Counter(done))


# ---------------------------------------------------------------- Work


def test_a_task_says_what_it_did_and_nobody_need_listen():
    did(rows=1)  # in no task: nothing happens
    with timed("decoding"):
        pass
    heard = Work()
    with reported_to(heard.add):
        did(rows=2, images=1, skipped={"bad_row": 1})
        did(rows=3)
    assert heard.done == {"rows": 5, "images": 1}
    assert heard.skipped == {"bad_row": 1}
    assert heard.task_seconds > 0
    did(rows=1)
    assert heard.done["rows"] == 5


def test_time_inside_time_counts_once(monkeypatch: pytest.MonkeyPatch, clock: Clock):
    monkeypatch.setattr("neatpack.pipeline.runtime.work.time.perf_counter", clock)
    heard = Work()

    def frames():
        for number in range(2):
            clock.now += 2
            yield number

    with reported_to(heard.add):
        with timed("resizing"):
            clock.now += 1
            with timed("decoding"):
                clock.now += 10
            for _ in each_timed("decoding", frames()):
                clock.now += 1  # what is done with a frame is no decoding
        clock.now += 0.5
    assert heard.seconds == {"decoding": 14, "resizing": 3}
    assert heard.task_seconds == 17.5


@pytest.mark.parametrize("kind", ["inline", pytest.param("ray", marks=pytest.mark.on_ray)])
def test_work_of_tasks_comes_to_the_stage_that_is_on(kind: str):
    def task(number: int) -> None:
        did(rows=number, skipped={"bad_row": 1})
        with timed("counting"):
            pass

    progress = Progress(["first", "second"])
    with engine(kind, num_workers=1, progress=progress) as running:
        progress.enter("first")
        running.run(task, [(2,), (3,)], title="x", unit="thing")
        progress.enter("second")
        running.run(task, [(5,)], title="x")
    first, second = (stage for stage in progress.stages if stage.name in ("first", "second"))
    assert first.work.done == {"rows": 5, "tasks": 2} and second.work.done == {"rows": 5, "tasks": 1}
    assert progress.skipped == {"bad_row": 3}
    assert first.unit == "thing" and first.expected == {"tasks": 2}
    assert first.work.seconds.keys() == {"counting"} and 0 < first.work.task_seconds <= first.worker_seconds


# ---------------------------------------------------------------- Progress


def test_the_times_of_the_stages_add_up(clock: Clock):
    progress = Progress(["loading", "reading", "planning"], clock)
    progress.enter("loading")
    clock.now += 3
    progress.enter("reading", rows=10)
    clock.now += 2
    progress.enter("checking media")  # not announced: it comes after what is on
    clock.now += 1
    progress.enter("reading", rows=5)  # once more
    clock.now += 4
    progress.end()
    assert [(stage.name, stage.seconds) for stage in progress.stages] == [
        ("loading", 3), ("reading", 6), ("checking media", 1), ("planning", 0),
    ]  # fmt: skip
    assert progress.stages[1].expected == {"rows": 15}
    assert time_line(progress) == "10.0 s: loading 3.0, reading 6.0, checking media 1.0"


def test_figures_are_rounded_to_what_adds_up():
    assert rounded([1.5, 1.25, 0.25]) == [2, 1, 0]
    assert rounded([]) == []
    numbers = [0.31, 7.77, 2.5, 2.5, 0.04, 11.9]
    assert sum(rounded(numbers)) == round(sum(numbers))
    assert all(abs(whole - number) < 1 for whole, number in zip(rounded(numbers), numbers, strict=True))


def test_the_last_line_says_what_was_measured(clock: Clock):
    progress = Progress(["loading", "measuring", "rendering"], clock)
    progress.enter("loading")
    clock.now += 1
    progress.enter("measuring")
    with progress.tasks(1, 4, "part"):  # one task keeps one of four workers
        clock.now += 10
    progress.add(Work(task_seconds=4, cpu_seconds=4, seconds={"tokenizing": 3}))
    assert progress.now and progress.now.limit() == (WORKERS, 0.6)
    progress.enter("rendering")
    with progress.tasks(8, 2, "shard"):
        clock.now += 5
    progress.add(Work(task_seconds=10, cpu_seconds=3, seconds={"decoding": 4, "writing": 3}))
    progress.end()
    assert time_line(progress) == (
        "16.0 s: loading 1.0, measuring 10.0 (limited by waiting for workers, 60%), rendering 5.0 (40% decoding)"
    )
    progress.stages[2].work.cpu_seconds = 1
    assert time_line(progress).endswith("; 64% of the tasks' time was waiting for disk, network or a CPU")
    progress.stages[2].work.seconds = {"decoding": 1}
    assert progress.stages[2].limit() is None, "what has no name is not told"


def test_time_is_kept_for_reports(tmp_path: Path, clock: Clock):
    progress = Progress(["loading", "rendering"], clock)
    progress.enter("loading")
    clock.now += 1
    progress.enter("rendering")
    clock.now += 2
    progress.add(Work(done=Counter(rows=7), seconds={"decoding": 1.5}, task_seconds=2.0, cpu_seconds=1.0))
    progress.write(tmp_path / "timing.json", engine="ray")
    found = json.loads((tmp_path / "timing.json").read_text())
    assert (found["engine"], found["seconds"], [stage["seconds"] for stage in found["stages"]]) == ("ray", 3, [1, 2])
    assert found["stages"][1]["done"] == {"rows": 7}
    assert found["stages"][1]["task_seconds_by_kind"] == {"decoding": 1.5}


# ---------------------------------------------------------------- in words


def half_measured(clock: Clock) -> Progress:
    """One of two stages done, and half of the next."""
    progress = Progress(["reading", "measuring", "planning"], clock)
    progress.enter("reading")
    clock.now += 0.5
    progress.add(work(files=1, rows=308, bytes=1 << 20))
    progress.enter("measuring", rows=308)
    clock.now += 4
    progress.add(Work(done=Counter(rows=77, images=40), skipped=Counter(missing_media=1, bad_row=2)))
    return progress


def test_what_is_said_of_a_stage(clock: Clock):
    progress = half_measured(clock)
    reading, measuring, _ = progress.stages
    assert outcome(reading) == "0.5 s, 1 file, 308 rows, 616 rows/s, 2.0 MiB/s"
    assert state(progress, measuring) == "25.0%, 0:12 left, 77 of 308 rows, 19 rows/s, 10 images/s"
    assert [minutes(seconds) for seconds in (0, 75.9, 3675)] == ["0:00", "1:15", "1:01:15"]


def test_the_picture_has_all_stages_and_fits(clock: Clock):
    progress = half_measured(clock)
    assert picture(progress, "neatpack plan", 80, 24) == [
        "[0:04] neatpack plan",
        "✓ reading    0.5 s, 1 file, 308 rows, 616 rows/s, 2.0 MiB/s",
        "▸ measuring  25.0%, 0:12 left, 77 of 308 rows, 19 rows/s, 10 images/s",
        "  planning",
        "  skipped so far: 2 bad_row, 1 missing_media",
    ]
    narrow = picture(progress, "neatpack plan", 24, 24)
    assert max(map(len, narrow)) == 24 and narrow[2] == "▸ measuring  25.0%, 0:1…"
    assert picture(progress, "neatpack plan", 24, 3) == [narrow[2]], "a low one has what is on"


def screen(written: str) -> list[str]:
    """What a terminal shows: lines, cursor up, and clear to the end, which are all that is used."""
    lines, row = [""], 0
    for piece in re.findall(r"\x1b\[\d*[AJ]|\r|\n|[^\x1b\r\n]+", written):
        if piece == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece.endswith("A") and piece[0] == "\x1b":
            row -= int(piece[2:-1])
            assert row >= 0
        elif piece == "\x1b[J":
            lines[row:] = [""]
        elif piece != "\r":
            lines[row] = piece
    return lines


def test_a_terminal_is_drawn_in_place_and_left_clean(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "81")
    progress, stream = half_measured(clock), io.StringIO()
    view = Terminal(progress, "neatpack plan", stream)
    view.tick()
    drawn = picture(progress, "neatpack plan", 80, 24)
    assert screen(stream.getvalue()) == [*drawn, ""]
    view.write("W 12:00:00 a warning")
    assert screen(stream.getvalue()) == ["W 12:00:00 a warning", *drawn, ""], "above it, not into it"
    clock.now += 1
    progress.enter("planning")
    view.tick()
    assert screen(stream.getvalue()) == ["W 12:00:00 a warning", *picture(progress, "neatpack plan", 80, 24), ""]
    view.clear()
    assert screen(stream.getvalue()) == ["W 12:00:00 a warning", ""]


def test_plain_lines_say_the_same(clock: Clock):
    progress, said = Progress(["reading", "measuring"], clock), []
    view = Lines(progress, "neatpack plan meta.json", said.append)
    progress.enter("reading")
    view.tick()
    clock.now += 0.5
    progress.add(work(files=1, rows=4))
    progress.enter("measuring", rows=4)
    clock.now += 30
    progress.add(Work(done=Counter(rows=1), skipped=Counter(bad_row=1)))
    view.tick()
    clock.now += 30
    view.tick()
    progress.add(work(rows=3))
    progress.enter("planning")
    progress.end()
    assert said == [
        "[0:00] neatpack plan meta.json: reading, measuring",
        "[0:00] reading: 0.5 s, 1 file, 4 rows, 8 rows/s",
        "[0:30] measuring: 25.0%, 1:30 left, 1 of 4 rows, 0 rows/s; skipped so far: 1 bad_row",
        "[1:00] measuring: 25.0%, 3:00 left, 1 of 4 rows, 0 rows/s",
        "[1:00] measuring: 60.0 s, 4 rows, 0 rows/s",
    ], "skips when there are more, and nothing of a stage that did nothing"  # fmt: skip


# ---------------------------------------------------------------- the commands


BEFORE_HEAVY = """
import sys
from neatpack.pipeline import cli

class Stream:
    def write(self, text):
        if text.strip():
            heavy = {{"numpy", "torch", "transformers", "ray", "pyarrow"}} & set(sys.modules)
            print("first:", " ".join(text.split()), sorted(heavy))
            sys.stderr = sys.__stderr__
    def flush(self): pass
    def isatty(self): return {tty}

sys.stderr = Stream()
cli.main(sys.argv[1:], in_fork=True)
"""


@pytest.mark.parametrize("tty", [False, True])
def test_the_first_sign_of_life_comes_before_anything_heavy(tty: bool, tmp_path: Path):
    flags = ["plan", "--meta", tmp_path / "absent.json", "--processor", DEMO_PROCESSOR, "--engine", "ray"]
    command = [sys.executable, "-c", BEFORE_HEAVY.format(tty=tty), *map(str, flags)]
    environment = os.environ | {"COLUMNS": "500", "TERM": "xterm"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120)
    first = done.stdout.splitlines()[0]
    assert first.startswith("first: ") and f"neatpack plan {tmp_path}/absent.json" in first and first.endswith(" []")
    assert f"{tmp_path}/absent.json" in done.stderr and prints_code(done.stderr, "meta-unreadable")


def test_the_command_shows_it_and_keeps_the_time(tiny, tmp_path: Path):
    out = tmp_path / "out"
    flags = {"meta": mixed_rows(tiny, 4, 2).write(), "processor": DEMO_PROCESSOR, "out": out, "engine": "inline"}
    command = [sys.executable, "-m", "neatpack.pipeline.cli", "pack"]
    command += [str(text) for key, value in flags.items() for text in (f"--{key}", value)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].endswith(": loading, reading, measuring, planning, rendering, committing")
    assert re.search(r"measuring: \d+\.\d s, 6 rows, 2 images, ", done.stderr)
    assert re.search(r"rendering: \d+\.\d s, 6 rows, 2 images, 1 pack, ", done.stderr)
    assert re.match(r"\d+\.\d s: loading ", lines[-1])
    figures = [float(each) for each in re.findall(r"(?:^| )(\d+\.\d)(?= s:|[,;]| \(|$)", lines[-1])]
    assert figures[0] == pytest.approx(sum(figures[1:]))
    timing = json.loads((out / "work" / "timing.json").read_text())
    stages = {stage["stage"]: stage for stage in timing["stages"]}
    assert stages["rendering"]["done"] == {"rows": 6, "packs": 1, "bytes": stages["rendering"]["done"]["bytes"],
                                           "images": 2, "videos": 0, "sounds": 0, "tasks": 1}  # fmt: skip
    assert "timing.json" not in str(files_of(out).keys()), "where no two runs give the same bytes, nothing is compared"


def test_ctrl_c_leaves_a_clean_screen(tiny, tmp_path: Path):
    flags = {"meta": mixed_rows(tiny).write(), "processor": DEMO_PROCESSOR, "out": tmp_path / "out", "engine": "inline"}
    given = [str(text) for key, value in flags.items() for text in (f"--{key}", value)]
    child, terminal = pty.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
        os.chdir(ROOT)
        os.environ["TERM"] = "xterm"
        # As the installed script does. By `python -m`, Python may end by SIGINT though the interrupt was caught.
        code = "from neatpack.pipeline.cli import command; raise SystemExit(command())"
        os.execv(sys.executable, [sys.executable, "-c", code, "pack", *given])
    written, asked = b"", False
    with contextlib.suppress(OSError):  # Linux's way to say that nobody is at the other end
        while piece := os.read(terminal, 65536):
            written += piece
            if not asked and "▸ loading".encode() in written and b"\x1b[" in written:  # drawn, and once more
                os.write(terminal, b"\x03")
                asked = True
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    shown = screen(written.decode().replace("^C", ""))
    assert len(shown) == 2 and shown[0].startswith("neatpack: ") and not shown[1]


def test_another_program_hears_nothing(tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    running = Engine({})
    assert running.run(str, [(1,)], title="x") == ["1"]
    assert capfd.readouterr() == ("", "")
