"""What reading a medium may take: seconds of CPU, seconds on the clock, and memory.

Where decoding is a loop of ours it looks at the time itself, and the medium is refused. C code that does not come back
cannot be interrupted from inside: then the kernel ends the process by a signal, the journal (runtime/journal.py) knows
at which row, and the next attempt leaves that row out. So this is for tasks that are tried again, and for no other
program that reads media.
"""

import hashlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from neatpack.storage.uris import is_uri

from ..records import MediaError, MediaRef
from ..runtime.journal import ALARMS, KEY_BYTES, OVERTIME, is_watched, note_medium, was_late
from .limits import limits

MEMORY = 4 << 30  # bytes beyond what the process has; 100 megapixels with alpha take 2.4 GB
CLOCK = 5  # seconds on the clock for a second of CPU: disks are slow, and others use them, too
FRAMES_PER_MINUTE = 24 * 60  # of a list of pictures
LATE = 0.5  # the process is ended so many times --media-timeout behind the budget: our own loops come first


_shared: list["_Left"] = []  # of the row that is read; none: each medium has its own


@dataclass(slots=True)
class _Left:
    """Seconds of CPU and on the clock."""

    cpu: float
    clock: float

    @classmethod
    def at_first(cls) -> "_Left":
        return cls(limits().media_timeout, CLOCK * limits().media_timeout)

    def add(self, seconds: float) -> None:
        self.cpu += seconds
        self.clock += CLOCK * seconds


@contextmanager
def shared_budget(num_frames: int = 0) -> Iterator[None]:
    """Around all media of a row: together they may take the time of one, and what their minutes add to it.

    `num_frames`: of videos that are lists of pictures, which have their minutes, too.
    """
    _shared.append(_Left.at_first())
    _shared[-1].add(num_frames / FRAMES_PER_MINUTE * limits().media_timeout)
    try:
        yield
    finally:
        _shared.pop()


class Budget:
    """Of one medium; it runs inside `with`."""

    def __init__(self, ref: MediaRef) -> None:
        self._ref = ref
        self._bounds_time = is_watched() and limits().media_timeout > 0
        self._left = _shared[-1] if _shared else _Left.at_first()  # when it last began to run
        self._since = 0.0, 0.0

    def __enter__(self) -> Self:
        if self._bounds_time:
            key = _key(self._ref) if self._ref.path else ""
            if was_late(key):
                raise MediaError(
                    "bad_media", f"{self._ref.shown}: {OVERTIME}, in a row before this one", medium=self._ref.shown
                )
            if min(self._left.cpu, self._left.clock) < 0:
                raise MediaError("bad_media", f"{self._ref.shown}: its row {OVERTIME}", medium=self._ref.shown)
            note_medium(key)
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._stop()
        if isinstance(error, MemoryError) and is_watched():
            raise MediaError(
                "bad_media", f"{self._ref.shown}: takes more than {MEMORY >> 20} MiB of memory", medium=self._ref.shown
            ) from None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Around what others do with a part of the medium."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def extend(self, seconds: float) -> None:
        """For so many seconds of video or sound: --media-timeout is for each minute of them, too."""
        more = min(seconds, limits().max_media_seconds) / 60 * limits().media_timeout
        self._stop()
        self._left.add(more)
        self._start()

    def check(self) -> None:
        if self._bounds_time and min(self._now_left()) < 0:
            raise MediaError("bad_media", f"{self._ref.shown}: {OVERTIME}", medium=self._ref.shown)

    def _now_left(self) -> tuple[float, float]:
        cpu, clock = time.process_time() - self._since[0], time.monotonic() - self._since[1]
        return self._left.cpu - cpu, self._left.clock - clock

    def _start(self) -> None:
        self._since = time.process_time(), time.monotonic()
        if self._bounds_time:
            for timer, left in zip(ALARMS, (self._left.cpu, self._left.clock), strict=True):
                signal.setitimer(timer, max(left, 0.0) + LATE * limits().media_timeout)
        if is_watched():
            bound_memory(MEMORY)

    def _stop(self) -> None:
        if is_watched():
            bound_memory(None)
        if self._bounds_time:
            for timer in ALARMS:
                signal.setitimer(timer, 0)
        self._left.cpu, self._left.clock = self._now_left()


def _key(ref: MediaRef) -> str:
    """Return what tells a medium from others: where it is, and its file's size and time of change."""
    status: tuple[int, ...] = ()
    if not is_uri(ref.path):
        with suppress(OSError, ValueError):
            found = os.stat(ref.path)
            status = found.st_size, found.st_mtime_ns
    what = repr((ref.path, ref.offset, ref.length, ref.inside, status))
    return hashlib.blake2b(what.encode(errors="surrogatepass"), digest_size=KEY_BYTES).hexdigest()


def bound_memory(more: int | None) -> None:
    """Allow the process so many bytes beyond what it has; None: as many as there are."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        return  # somebody has set a bound already
    most = resource.RLIM_INFINITY
    if more is not None and (now := _data_bytes(int(10 * time.monotonic()))):
        most = now + more
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


@lru_cache(maxsize=1)
def _data_bytes(_tenth_of_a_second: int) -> int:
    """What counts against the bound so far; 0 where the system does not tell, and there is no bound then.

    Asked for ten times a second at most: headers are read faster than this.
    """
    try:
        with open("/proc/self/statm", "rb") as file:  # local: the kernel says what a process takes
            return int(file.read().split()[5]) * resource.getpagesize()
    except FileNotFoundError:  # Linux alone has it
        return 0
