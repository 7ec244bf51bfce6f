"""Processes that a process started, as Linux tells them."""

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Those that live: children first, each followed by its own."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        pass
    return found


def name_of(pid: int) -> str:
    """What it calls itself: of a worker of Ray at work "ray::" and the task; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGKILL)
