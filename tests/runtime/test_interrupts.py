"""Ctrl-C that comes where Python cannot raise it, and jobs that are killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import DEMO_PROCESSOR, ROOT
from support.data import mixed_rows
from support.errors import printed_code

pytestmark = pytest.mark.net

# The command, as its script starts it, with Ctrl-C while transformers is imported.
COMMAND = """
import contextlib, os, signal, sys
from importlib.metadata import entry_points

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def in_a_finalizer():
    Finalized()

def where_all_is_caught():
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)

class Finder:
    def find_spec(self, name, *_):
        if name == "transformers":
            print("lost", flush=True)
            {lose}

{before}
sys.meta_path.insert(0, Finder())
(command,) = entry_points(group="console_scripts", name="neatpack")
raise SystemExit(command.load()())
"""


def run(tiny, out: Path, lose: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    def interruptible() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it

    flags = {"meta": mixed_rows(tiny, 2, 0).write(), "processor": DEMO_PROCESSOR, "out": out, "engine": "inline"}
    script = COMMAND.format(lose=lose, before=before)
    command = [sys.executable, "-c", script, "pack", *(f"--{key}={value}" for key, value in flags.items())]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, preexec_fn=interruptible)


@pytest.mark.parametrize("lose", ["in_a_finalizer()", "where_all_is_caught()"])
def test_interrupt_that_an_import_loses_ends_the_command_and_cleans_up(tiny, tmp_path: Path, lose: str):
    out = tmp_path / "out"
    done = run(tiny, out, lose)
    assert (done.returncode, done.stdout) == (1, "lost\n"), done.stderr
    assert done.stderr.splitlines()[-1].startswith("neatpack: ") and "Traceback" not in done.stderr
    assert out.is_dir() and not (out / "manifest.json").exists() and not (out / "work/lock").exists()


def test_who_ignores_ctrl_c_goes_on(tiny, tmp_path: Path):
    before = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    done = run(tiny, tmp_path / "out", "in_a_finalizer()", before)
    assert done.returncode == 0 and (tmp_path / "out/manifest.json").exists(), done.stderr


def test_killed_job_says_why(tiny, tmp_path: Path):
    done = run(tiny, tmp_path / "out", "os.kill(os.getpid(), signal.SIGKILL)")
    assert (done.returncode, printed_code(done.stderr)) == (-signal.SIGKILL, "memory")
    done = run(tiny, tmp_path / "out", "os.kill(os.getpid(), signal.SIGTERM)")
    assert done.returncode == -signal.SIGTERM and "[memory]" not in done.stderr
