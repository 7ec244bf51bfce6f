"""Which row a task is at, kept on disk: when a decoder crashes its process, the next attempt knows at which row.

A picture or video can crash the C code that reads it. The task is tried again (by Ray, or by whoever starts the command
again), and a row at which it crashed twice is skipped. Only crashes count, which leave a report of their signal: a
process that was killed from outside, for want of memory or by a user, says nothing about its input.
"""

import faulthandler
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CRASHES_TO_SKIP = 2
CRASHED = "reading its media crashed the process twice"


logger = logging.getLogger(__name__)


class Journal:
    """Names of rows are short texts without line breaks."""

    def __init__(self, folder: Path) -> None:
        self._at, self._report, self._crashes = (folder / name for name in ("at", "report", "crashes"))
        # Files that lie here are of an attempt that did not get through, nor fail by an exception of its own.
        last = self._at.read_text(encoding="utf-8").strip() if self._at.exists() else ""
        crashed = bool(last) and self._report.exists() and self._report.stat().st_size > 0
        if crashed:
            with open(self._crashes, "a", encoding="utf-8") as crashes:
                crashes.write(last + "\n")
        names = self._crashes.read_text(encoding="utf-8").splitlines() if self._crashes.exists() else []
        self._counts = Counter(names)
        if crashed:
            logger.warning("%s: the process crashed at row %s (%d of %d times before it is skipped); trying again",
                           folder, last, self._counts[last], CRASHES_TO_SKIP)  # fmt: skip
        elif last:
            logger.warning("%s: the process was ended from outside at row %s; trying again", folder, last)
        self._file = os.open(self._at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def at(self, row: str) -> None:
        """About to read the media of a row. One write and no flush: the file outlives the process, not the machine."""
        os.pwrite(self._file, f"{row:<64}".encode(), 0)

    def is_poison(self, row: str) -> bool:
        return self._counts[row] >= CRASHES_TO_SKIP


@contextmanager
def journal(folder: Path) -> Iterator[Journal]:
    """The journal of a task; it is removed when the task gets through, or fails by an exception of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = Journal(folder)
    report = open(folder / "report", "wb")  # noqa: SIM115 (faulthandler writes to it until the end)
    before = faulthandler.is_enabled()
    faulthandler.enable(file=report)
    try:
        yield opened
    finally:
        faulthandler.disable()
        if before and sys.__stderr__ is not None:
            faulthandler.enable(file=sys.__stderr__)  # the process's own, were sys.stderr exchanged for a buffer
        report.close()
        os.close(opened._file)
        for name in ("at", "report", "crashes"):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
