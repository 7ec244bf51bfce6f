"""A command in a process of its own, and the processes that it starts, as Linux tells them."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Started:
    """`neatpack COMMAND`, as the shell starts it. What it started and left is killed in the end, nothing else."""

    def __init__(self, command: Sequence[str], also: Mapping[str, str] | None = None) -> None:
        """`also`: variables of its environment."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        line = [sys.executable, "-m", "neatpack.pipeline.cli", *command]
        environment = os.environ | {"PYTHONPATH": str(ROOT), **(also or {})}
        self._process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=self._errors)
        self._seen: set[tuple[int, str]] = set()

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        if self.lives():
            kill(self.pid)
        self._process.wait()
        for pid, born in self._seen:
            if _born(pid) == born:  # it, and no later process of the same number
                kill(pid)
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def lives(self) -> bool:
        return self._process.poll() is None

    def named(self, part: str) -> list[int]:
        """Its living descendants whose name has this in it. Workers of Ray are named by the task that they are at."""
        found = _descendants(self.pid)
        self._seen.update((pid, _born(pid)) for pid in found)
        return [pid for pid in found if part in _name(pid)]

    def ended(self) -> tuple[int, str]:
        """Waits for it: exit code and stderr."""
        code = self._process.wait()
        self._errors.seek(0)
        return code, self._errors.read().decode(errors="replace")


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGKILL)


def named_below(pid: int, part: str) -> list[int]:
    """Living descendants of a process whose name has this in it."""
    return [each for each in _descendants(pid) if part in _name(each)]


def _descendants(pid: int) -> list[int]:
    children = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(file).split()]
    return [each for child in children for each in (child, *_descendants(child))]


def _name(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).split(b"\0")[0].decode(errors="replace")


def _born(pid: int) -> str:
    """When, in ticks of the kernel; "" if it has ended. The second field, the name in brackets, may have spaces."""
    return " ".join(_read(Path(f"/proc/{pid}/stat")).decode(errors="replace").rpartition(")")[2].split()[19:20])


def _read(file: Path) -> bytes:
    """b"" of a process that has just ended."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
