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

from neatpack.storage.files import name_errors
from neatpack.storage.location import Location, PathLike
from neatpack.storage.private_folders import private_folder

from .faults import MachineError

CRASHES_TO_SKIP = 2
MAX_RETRIES = 20  # of a task whose process crashed; a row that crashes is skipped before
CRASHED = "reading its media crashed the process twice"
OVERTIME = "took longer than --media-timeout allows"
# Timers that end the process when they run out, and their signals: of CPU, and on the clock. See media/budget.py.
ALARMS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}

# Environment variable: a file of the run with a line for each row that is skipped since it ended a process: the key of
# the medium that was read. All processes read it, so that no medium takes too long twice; `run_again` counts the lines.
LATE_MEDIA = "NEATPACK_LATE_MEDIA"
KEY_BYTES = 16

_FILES = ("at", "report", "alarm", "crashes", "overtime", "attempts")
_ROW_WIDTH, _KEY_WIDTH = 64, 2 * KEY_BYTES  # of the file `at`: the row, and the medium that is read
_NO_KEY = "-"
_watching: list["Journal"] = []

logger = logging.getLogger(__name__)


def is_watched() -> bool:
    """Whether a task with a journal runs in this process: one that is tried again if the process ends."""
    return bool(_watching)


def note_medium(key: str) -> None:
    """About to read a medium; `key` as `was_late` takes it."""
    if _watching:
        _watching[-1].note_medium(key)


def was_late(key: str) -> bool:
    """Whether a medium took too long in another row of the run."""
    return bool(_watching) and key in _watching[-1].late_media


@contextmanager
def late_media_file() -> Iterator[str]:
    """An empty file for `LATE_MEDIA`, until the run ends: in the process that made it, not in its children."""
    handle, path = tempfile.mkstemp(prefix="neatpack-late-media-")
    os.close(handle)
    process = os.getpid()
    try:
        yield path
    finally:
        if os.getpid() == process:
            Path(path).unlink(missing_ok=True)


def count_late_media() -> int:
    """Rows of the run that are skipped because their media ended a process."""
    return len(_read_late_media())


def _read_late_media() -> list[str]:
    try:
        return Path(os.environ.get(LATE_MEDIA, os.devnull)).read_text(encoding="utf-8").split()
    except FileNotFoundError:  # on another machine than the one that started the run, nothing was late yet
        return []


def _add_late_medium(key: str) -> None:
    if path := os.environ.get(LATE_MEDIA):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)  # local: private
        os.write(file, f"{key or _NO_KEY}\n".encode())
        os.close(file)


class Journal:
    """Names of rows are short texts without line breaks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Files that lie here are of an attempt that did not get through, nor fail by an exception of its own.
        is_first = not (folder / "at").exists()
        at = self._lines("at")[0] if self._lines("at") else ""
        last, key = at[:_ROW_WIDTH].strip(), at[_ROW_WIDTH:].strip()
        crashed, late = (bool(last) and self._has(name) for name in ("report", "alarm"))
        if late:
            self._append("overtime", last)
            logger.warning("%s: row %s %s; trying again without it", folder, last, OVERTIME)
        elif crashed:
            self._append("crashes", last)
        self._late = set(self._lines("overtime"))
        self._crashes = Counter(self._lines("crashes"))
        if late or (crashed and self._crashes[last] == CRASHES_TO_SKIP):
            _add_late_medium(key)
            (folder / "attempts").unlink(missing_ok=True)  # attempts that leave out one row more do not count
        elif not is_first:
            self._append("attempts", last)
        self.late_media = frozenset(_read_late_media()) - {_NO_KEY}
        if crashed and not late:
            logger.warning("%s: the process crashed at row %s (%d of %d times before it is skipped); trying again",
                           folder, last, self._crashes[last], CRASHES_TO_SKIP)  # fmt: skip
        elif last and not late:
            logger.warning("%s: the process was ended from outside at row %s; trying again", folder, last)
        if len(self._lines("attempts")) > MAX_RETRIES:
            (folder / "attempts").unlink()
            raise MachineError(
                f"{folder}: the process of this task ended {MAX_RETRIES} times in a row (last at row {last or '-'}) "
                "and no row is to blame. Check the machine's memory and run again; what is done is kept.",
                code="worker-crashed",
                folder=str(folder),
                row=last,
            )
        self._file = os.open(folder / "at", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)  # local: private

    def at(self, row: str) -> None:
        """About to read the media of a row. One write and no flush: the file outlives the process, not the machine."""
        with name_errors(self._folder / "at"):
            os.pwrite(self._file, f"{row:<{_ROW_WIDTH + _KEY_WIDTH}}".encode(), 0)

    def note_medium(self, key: str) -> None:
        with name_errors(self._folder / "at"):
            os.pwrite(self._file, f"{key:<{_KEY_WIDTH}}".encode(), _ROW_WIDTH)

    def poison(self, row: str) -> str:
        """Why the media of a row must not be read; "" if they may be."""
        if not self._late and not self._crashes:
            return ""
        if row in self._late:
            return f"reading it {OVERTIME}"
        return CRASHED if self._crashes[row] >= CRASHES_TO_SKIP else ""

    def _has(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_size > 0

    def _lines(self, name: str) -> list[str]:
        return (self._folder / name).read_text(encoding="utf-8").splitlines() if self._has(name) else []

    def _append(self, name: str, row: str) -> None:
        with open(self._folder / name, "a", encoding="utf-8") as file:  # local: a private folder
            file.write(row + "\n")


@contextmanager
def journal(place: PathLike) -> Iterator[Journal]:
    """The journal of a task; it is removed when the task gets through, or fails by an exception of its own.

    C code writes to it while a process crashes, so it is on a disk: of a place in a store, on this machine's own. Each
    machine that tries the task then learns by itself which row it must leave out.
    """
    place = Location.parse(place)
    folder = place.path if place.is_local else _beside(place)
    folder.mkdir(parents=True, exist_ok=True)
    opened = Journal(folder)
    try:
        with _reported(folder):
            _watching.append(opened)
            try:
                yield opened
            finally:
                _watching.remove(opened)
    finally:
        os.close(opened._file)
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _beside(place: Location) -> Path:
    name = hashlib.sha256(place.uri.encode()).hexdigest()[:32]
    return private_folder("journals") / name


@contextmanager
def _reported(folder: Path) -> Iterator[None]:
    """What ends the process writes to `report`, or, where a medium takes too long, to `alarm`: in C, at any time."""
    before = faulthandler.is_enabled()
    with ExitStack() as files:
        files_of_journal = [folder / name for name in ("report", "alarm")]
        report, alarm = (files.enter_context(open(path, "wb")) for path in files_of_journal)  # local: private
        faulthandler.enable(file=report)
        for number in ALARMS.values():
            faulthandler.register(number, file=alarm, all_threads=False, chain=True)  # chain: and ends the process
        try:
            yield
        finally:
            for number in ALARMS.values():
                faulthandler.unregister(number)
            faulthandler.disable()
            if before and sys.__stderr__ is not None:
                faulthandler.enable(file=sys.__stderr__)  # the process's own, were sys.stderr exchanged for a buffer
