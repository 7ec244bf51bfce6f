"""Log records of tasks, which run in other processes: collected there, passed on to the driver's log, each once.

Everything in pipeline/ logs by its module's name, under "neatpack". Applications that call run_pack configure that
logger as any other; the commands write it to stderr.
"""

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..safe import harmless

ROOT = "neatpack"
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # by how often -v is given


@dataclass(frozen=True, slots=True)
class LogLine:
    """A record that can travel: its message is formatted, with the traceback if it has one."""

    name: str  # of the logger
    level: int
    message: str


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(LogLine(record.name, record.levelno, self.format(record)))


@contextmanager
def collected(level: int) -> Iterator[list[LogLine]]:
    """What is logged meanwhile in this process, from `level` up. It goes nowhere else: workers stay silent."""
    root, collector = logging.getLogger(ROOT), _Collector()
    before = root.level, root.propagate, root.handlers
    # To set a level, logging goes through all loggers that there are, 400 of which packages have made.
    is_other = root.getEffectiveLevel() != level
    if is_other:
        root.setLevel(level)
    root.propagate, root.handlers = False, [collector]
    try:
        yield collector.lines
    finally:
        level_before, root.propagate, root.handlers = before
        if is_other:
            root.setLevel(level_before)


class Relay:
    """Passes log lines of many tasks on to this process's log.

    A message is logged when it first comes. If it came more than once, `summarize` logs it with the count: a thousand
    tasks that complain of the same thing give two lines.
    """

    def __init__(self) -> None:
        self._counts: Counter[LogLine] = Counter()

    def pass_on(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._counts[line] += 1
            if self._counts[line] == 1:
                logging.getLogger(line.name).log(line.level, "%s", line.message)

    def summarize(self) -> None:
        for line, count in self._counts.items():
            if count > 1:
                logging.getLogger(line.name).log(line.level, "%s (%d times in all)", line.message, count)


def to_stderr(text: str) -> None:
    """Print a message, made harmless. stderr is looked up now: a caller may have exchanged it."""
    print(harmless(text), file=sys.stderr, flush=True)


def to_stdout(text: str) -> None:
    """Print what a command found, made harmless."""
    print(harmless(text), flush=True)


class _Stderr(logging.Handler):
    write: Callable[[str], None] = staticmethod(to_stderr)

    def emit(self, record: logging.LogRecord) -> None:
        # Indented: a line break in data cannot forge the start of another message.
        type(self).write(re.sub(r"\n(?! )", "\n  ", harmless(self.format(record))))


def write_line(text: str) -> None:
    """Write a line, made harmless, to where log lines go: stderr, above what a command draws there."""
    _Stderr.write(harmless(text))


@contextmanager
def written_by(write: Callable[[str], None]) -> Iterator[None]:
    """Around something that redraws a part of the screen: log lines go above it, not into it."""
    before, _Stderr.write = _Stderr.write, staticmethod(write)
    try:
        yield
    finally:
        _Stderr.write = staticmethod(before)


@contextmanager
def logged_to_stderr(verbosity: int) -> Iterator[None]:
    """What the commands do: warnings and errors on stderr; with verbosity 1 INFO, with 2 or more DEBUG too."""
    root, handler = logging.getLogger(ROOT), _Stderr()
    handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(message)s", datefmt="%H:%M:%S"))
    before = root.level
    root.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
