"""Which row a task is at, kept on disk: when a decoder crashes or hangs, the next attempt knows at which row.

A picture or video can crash the C code that reads it, or keep it busy for ever. The process ends then, by a signal of
its own, which leaves a report; the task is tried again (by Ray, or by runtime/again.py), and the row is skipped: at
once if it took too long, and if it crashed, the second time. A process that was killed from outside, for want of memory
or by a user, leaves no report: that says nothing about its input.
"""

import faulthandler
import hashlib
import logging
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .faults import naming
from .objects import Remote
from .storage import Place

CRASHES_TO_SKIP = 2
MAX_RETRIES = 20  # of a task whose process crashed; a row that crashes is skipped before
CRASHED = "reading its media crashed the process twice"
OVERTIME = "took longer than --media-timeout allows"
# Timers that end the process when they run out, and their signals: of CPU, and on the clock. See media/budget.py.
ALARMS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}

_FILES = ("at", "report", "alarm", "crashes", "overtime")
_num_watched = 0

logger = logging.getLogger(__name__)


def is_watched() -> bool:
    """Whether a task with a journal runs in this process: one that is tried again if the process ends."""
    return _num_watched > 0


class Journal:
    """Names of rows are short texts without line breaks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Files that lie here are of an attempt that did not get through, nor fail by an exception of its own.
        last = self._lines("at")[0].strip() if self._lines("at") else ""
        crashed, late = (bool(last) and self._has(name) for name in ("report", "alarm"))
        if late:
            self._append("overtime", last)
            logger.warning("%s: row %s %s; trying again without it", folder, last, OVERTIME)
        elif crashed:
            self._append("crashes", last)
        self._late = set(self._lines("overtime"))
        self._crashes = Counter(self._lines("crashes"))
        if crashed and not late:
            logger.warning("%s: the process crashed at row %s (%d of %d times before it is skipped); trying again",
                           folder, last, self._crashes[last], CRASHES_TO_SKIP)  # fmt: skip
        elif last and not late:
            logger.warning("%s: the process was ended from outside at row %s; trying again", folder, last)
        self._file = os.open(folder / "at", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def at(self, row: str) -> None:
        """About to read the media of a row. One write and no flush: the file outlives the process, not the machine."""
        with naming(self._folder / "at"):
            os.pwrite(self._file, f"{row:<64}".encode(), 0)

    def poison(self, row: str) -> str:
        """Why the media of a row must not be read; "" if they may be."""
        if not self._late and not self._crashes:
            return ""
        if row in self._late:
            return f"reading its media {OVERTIME}"
        return CRASHED if self._crashes[row] >= CRASHES_TO_SKIP else ""

    def _has(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_size > 0

    def _lines(self, name: str) -> list[str]:
        return (self._folder / name).read_text(encoding="utf-8").splitlines() if self._has(name) else []

    def _append(self, name: str, row: str) -> None:
        with open(self._folder / name, "a", encoding="utf-8") as file:
            file.write(row + "\n")


@contextmanager
def journal(place: Place) -> Iterator[Journal]:
    """The journal of a task; it is removed when the task gets through, or fails by an exception of its own.

    C code writes to it while a process crashes, so it is on a disk: of a place in a store, on this machine's own. Each
    machine that tries the task then learns by itself which row it must leave out.
    """
    folder = _beside(place) if isinstance(place, Remote) else place
    folder.mkdir(parents=True, exist_ok=True)
    opened = Journal(folder)
    try:
        with _reported(folder):
            yield opened
    finally:
        os.close(opened._file)
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _beside(place: Remote) -> Path:
    name = hashlib.sha256(place.uri.encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir(), f"neatpack-journals-{os.getuid()}", name)


@contextmanager
def _reported(folder: Path) -> Iterator[None]:
    """What ends the process writes to `report`, or, where a medium takes too long, to `alarm`: in C, at any time."""
    global _num_watched
    before = faulthandler.is_enabled()
    with ExitStack() as files:
        report, alarm = (files.enter_context(open(folder / name, "wb")) for name in ("report", "alarm"))
        faulthandler.enable(file=report)
        for number in ALARMS.values():
            faulthandler.register(number, file=alarm, all_threads=False, chain=True)  # chain: and ends the process
        _num_watched += 1
        try:
            yield
        finally:
            _num_watched -= 1
            for number in ALARMS.values():
                faulthandler.unregister(number)
            faulthandler.disable()
            if before and sys.__stderr__ is not None:
                faulthandler.enable(file=sys.__stderr__)  # the process's own, were sys.stderr exchanged for a buffer
