"""What a command shows of its progress, on stderr: on a terminal all stages, redrawn in place; elsewhere plain lines.

Imports nothing heavy: the first line is there before torch, transformers or Ray are.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from .runtime.logs import to_stderr, written_by
from .runtime.progress import Progress, Stage
from .safe import harmless_line
from .shard.words import clipped, counted, percent, size

TERMINAL_SECONDS, LINE_SECONDS = 0.2, 30.0  # between two pictures of the same thing
SINGULAR = {"files": "file", "rows": "row", "images": "image", "videos": "video", "sounds": "sound", "packs": "pack"}
RATED = ("rows", "images", "videos", "sounds")  # whose number by second is worth telling
UP, CLEAR = "\x1b[{}A", "\x1b[J"  # so many lines up; from here to the end of the screen


@contextmanager
def shown(
    title: str,
    stages: Sequence[str],
    *,
    visible: bool = True,
    on_failure: Callable[[Exception], object] = lambda error: None,
) -> Iterator[Progress]:
    """The progress of a command, shown until it ends; at a good end, a line says where the time went.

    `on_failure` gets the error that ends the job, before what the job used is stopped.
    """
    progress, title = Progress(stages), harmless_line(title)
    progress.on_failure = on_failure
    progress.enter(stages[0])
    if not visible:
        yield progress
        return
    view = Terminal(progress, title, sys.stderr) if _is_terminal(sys.stderr) else Lines(progress, title, to_stderr)
    with written_by(view.write), _repeated(view.tick, view.interval):
        try:
            yield progress
            progress.end()
        finally:  # whatever ended it, the screen is left to what comes next
            view.clear()
    to_stderr(time_line(progress))


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


@contextmanager
def _repeated(tick: Callable[[], None], interval: float) -> Iterator[None]:
    """Also while the program waits for something else. Signals stay with the main thread: a timer of a medium's budget
    interrupts who decodes (media/budget.py)."""
    ended = threading.Event()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not ended.wait(interval):
            tick()

    tick()
    thread = threading.Thread(target=run, name="neatpack progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Lines:
    """A line at the start, at the end of every stage that took a while or did something, and every 30 seconds."""

    interval = LINE_SECONDS

    def __init__(self, progress: Progress, title: str, write: Callable[[str], None]) -> None:
        self._progress, self._title, self.write = progress, title, write
        progress.on_end = self._ended
        self._begun, self._told = False, ""

    def tick(self) -> None:
        with self._progress.lock:
            if not self._begun:
                self._begun = True
                self._say(f"{self._title}: {', '.join(stage.name for stage in self._progress.stages)}")
            elif (stage := self._progress.now) is not None:
                self._say(f"{stage.name}: {state(self._progress, stage) or '…'}{self._skips()}")

    def clear(self) -> None:
        """Lines stay."""

    def _ended(self, stage: Stage) -> None:
        if stage.work.done or stage.seconds >= 1:
            self._say(f"{stage.name}: {outcome(stage)}{self._skips()}")

    def _skips(self) -> str:
        """What was not told before."""
        before, self._told = self._told, skipped(self._progress)
        return f"; {self._told}" if self._told != before else ""

    def _say(self, text: str) -> None:
        self.write(f"[{minutes(self._progress.seconds())}] {text}")


class Terminal:
    """All stages, one below the other."""

    interval = TERMINAL_SECONDS

    def __init__(self, progress: Progress, title: str, stream: TextIO) -> None:
        self._progress, self._title, self._stream = progress, title, stream
        self._height = 0  # of what is on the screen

    def tick(self) -> None:
        width, height = shutil.get_terminal_size()
        with self._progress.lock:
            lines = picture(self._progress, self._title, width - 1, height - 1)
            self._draw(lines)

    def write(self, text: str) -> None:
        """Above the picture."""
        with self._progress.lock:
            self._draw([])
            self._stream.write(text + "\n")
        self.tick()

    def clear(self) -> None:
        with self._progress.lock:
            self._draw([])

    def _draw(self, lines: Sequence[str]) -> None:
        """In one piece, so that nothing flickers. The cursor waits below the picture, at the start of a line."""
        up = UP.format(self._height) if self._height else ""
        clear = f"\r{up}{CLEAR}" if self._height else ""
        self._stream.write(clear + "".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._height = len(lines)


def picture(progress: Progress, title: str, width: int, height: int) -> list[str]:
    """One line per stage, none longer than `width`: one that is broken by the terminal could not be drawn over."""
    name_width = max([len(stage.name) for stage in progress.stages], default=0)
    lines = [f"[{minutes(progress.seconds())}] {title}"]
    for stage in progress.stages:
        if stage is progress.now:
            mark, text = "▸", state(progress, stage)
        else:
            mark, text = ("✓", outcome(stage)) if stage.seconds else (" ", "")
        lines.append(f"{mark} {stage.name:<{name_width}}  {text}".rstrip())
    if skips := skipped(progress):
        lines.append(f"  {skips}")
    if len(lines) > height:  # what is on is what matters
        lines = [line for line in lines if line.startswith("▸")][:height]
    return [clipped(line, width) for line in lines]


def state(progress: Progress, stage: Stage) -> str:
    """Of the stage that is on, what matters most first: "45%, 0:02 left, 140 of 308 rows, 310 rows/s, 1.2 MiB/s"."""
    seconds, done, expected = progress.seconds_of(stage), stage.work.done, stage.expected
    words = []
    if expected["rows"]:
        words.append(percent(min(done["rows"], expected["rows"]), expected["rows"]))
        if 0 < done["rows"] < expected["rows"] and seconds >= 1:
            words.append(f"{minutes((expected['rows'] - done['rows']) * seconds / done['rows'])} left")
        words.append(f"{done['rows']:,} of {counted(expected['rows'], 'row')}")
    elif expected["tasks"]:
        words.append(f"{done['tasks']:,} of {counted(expected['tasks'], stage.unit)}")
    elif seconds >= 1:
        words.append(f"{seconds:.0f} s")
    return ", ".join([*words, *_rates(stage, seconds)])


def outcome(stage: Stage) -> str:
    """Of a stage that is over: "2.0 s, 308 rows, 310 images, 154 rows/s, 155 images/s, 1.2 MiB/s"."""
    done = [counted(stage.work.done[noun], one) for noun, one in SINGULAR.items() if stage.work.done[noun]]
    return ", ".join([f"{stage.seconds:.1f} s", *done, *_rates(stage, stage.seconds)])


def _rates(stage: Stage, seconds: float) -> list[str]:
    done = stage.work.done
    if seconds <= 0:
        return []
    rates = [f"{done[noun] / seconds:,.0f} {noun}/s" for noun in RATED if done[noun]]
    return rates + ([f"{size(done['bytes'] / seconds)}/s"] if done["bytes"] else [])


def skipped(progress: Progress) -> str:
    counts = sorted(progress.skipped.items(), key=lambda each: (-each[1], each[0]))
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts if count)
    return f"skipped so far: {reasons}" if reasons else ""


def time_line(progress: Progress) -> str:
    """Where the time went, in figures that add up: "7.0 s: loading 3.1, rendering 3.9 (limited by decoding, 62%)"."""
    tenths = rounded([10 * progress.seconds_of(stage) for stage in progress.stages])
    words = []
    for stage, number in zip(progress.stages, tenths, strict=True):
        if number:
            words.append(f"{stage.name} {number / 10:.1f}{_why(stage)}")
    on_clock = sum(stage.work.task_seconds for stage in progress.stages)
    on_cpu = sum(stage.work.cpu_seconds for stage in progress.stages)
    waited = ""
    if on_clock >= 1 and on_cpu < 0.5 * on_clock:  # worth a word only if tasks did little else
        waited = f"; {1 - on_cpu / on_clock:.0%} of the tasks' time was waiting for disk, network or a CPU"
    return f"{sum(tenths) / 10:.1f} s: {', '.join(words)}{waited}" if words else "0.0 s"


def _why(stage: Stage) -> str:
    """What the time of the workers went into."""
    if (limit := stage.limit()) is None:
        return ""
    kind, share = limit
    return f" (limited by {kind}, {share:.0%})" if share >= 0.5 else f" ({share:.0%} {kind})"


def rounded(numbers: Sequence[float]) -> list[int]:
    """To integers whose sum is the rounded sum: [1.5, 1.25, 0.25] (3.0) -> [2, 1, 0]."""
    floors = [int(number) for number in numbers]
    most = sorted(range(len(numbers)), key=lambda index: floors[index] - numbers[index])
    for index in most[: round(sum(numbers)) - sum(floors)]:
        floors[index] += 1
    return floors


def minutes(seconds: float) -> str:
    """75 -> "1:15", 3675 -> "1:01:15"."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
