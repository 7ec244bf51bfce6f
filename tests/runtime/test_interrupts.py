"""Ctrl-C that comes where Python cannot raise it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import DEMO_PROCESSOR, ROOT, mixed_rows

LOSE = """
import contextlib, signal, sys

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def in_a_finalizer():
    Finalized()

def where_all_is_caught():
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)
"""
TOLD = """
from neatpack.pipeline.runtime.interrupts import remember_interrupts
from neatpack.pipeline.runtime.progress import Progress
from neatpack.pipeline.runtime.work import Work

remember_interrupts()
for tell in (lambda progress: progress.enter("stage"), lambda progress: progress.add(Work())):
    progress = Progress()
    {lose}()
    try:
        try:
            tell(progress)
        finally:
            tell(progress)
            print("cleaned up", end=", ")
    except KeyboardInterrupt:
        print("ended")
"""
IMPORTING = """
from neatpack.pipeline import cli

class Finder:
    def find_spec(self, name, *_):
        if name == "neatpack.pipeline.run":
            print("lost")
            in_a_finalizer()

sys.meta_path.insert(0, Finder())
raise SystemExit(cli.command())
"""


def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    def interruptible() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it

    command = [sys.executable, "-c", LOSE + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, preexec_fn=interruptible)


@pytest.mark.parametrize("lose", ["in_a_finalizer", "where_all_is_caught"])
def test_a_run_ends_where_it_next_tells_something_and_cleans_up(lose: str):
    done = run(TOLD.format(lose=lose))
    assert (done.stdout, done.stderr) == ("cleaned up, ended\n" * 2, "")


def test_an_interrupt_that_an_import_loses_ends_the_command(tiny, tmp_path: Path):
    out = tmp_path / "out"
    flags = {"meta": mixed_rows(tiny, 2, 0).write(), "processor": DEMO_PROCESSOR, "out": out, "engine": "inline"}
    done = run(IMPORTING, "pack", *(text for key, value in flags.items() for text in (f"--{key}", value)))
    assert done.returncode == 1 and done.stdout == "lost\n"
    (told,) = done.stderr.splitlines()[1:]
    assert told.startswith("neatpack: ")
    assert not (out / "manifest.json").exists()


def test_who_ignores_ctrl_c_goes_on():
    script = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + TOLD.format(lose="in_a_finalizer")
    assert run(script).stdout == "cleaned up, " * 2


KILLED = """
import os, signal, sys
from neatpack.pipeline.runtime.again import run_again

raise SystemExit(run_again(lambda: os.kill(os.getpid(), signal.Signals[sys.argv[1]])))
"""


@pytest.mark.parametrize(("name", "words"), [("SIGKILL", "give the job more memory"), ("SIGTERM", "")])
def test_killed_job_says_why(name: str, words: str):
    done = run(KILLED, name)
    assert done.returncode == -signal.Signals[name]
    assert words in done.stderr and bool(done.stderr) == bool(words)
