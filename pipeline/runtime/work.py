"""Work: what tasks have done, in figures that add up. It is the one thing that stages report; see runtime/progress.py.

A task says what it did where it does it (`did`, `timed`); outside of a job nobody listens, and nothing is counted.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(kw_only=True, slots=True)
class Work:
    """Adds up over tasks. It travels: a few numbers."""

    done: Counter[str] = field(default_factory=Counter)  # by noun in the plural: rows, images, bytes, tasks …
    skipped: Counter[str] = field(default_factory=Counter)  # rows, by reason
    seconds: dict[str, float] = field(default_factory=dict)  # by what they went into: decoding, writing …
    task_seconds: float = 0.0  # of all tasks, on the clock; more than `seconds` where something has no name
    cpu_seconds: float = 0.0  # of which on a CPU: the rest was spent waiting

    def add(self, more: "Work") -> None:
        self.done.update(more.done)
        self.skipped.update(more.skipped)
        for kind, seconds in more.seconds.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.task_seconds += more.task_seconds
        self.cpu_seconds += more.cpu_seconds


Listener = Callable[[Work], None]


class _Task:
    """The task that runs in this process."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.inner = 0.0  # seconds inside `timed` that are over, of the `timed` that is open


_task: _Task | None = None


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """Around a task: what it did goes to `listener` as it is done, and the time of the whole at the end."""
    global _task
    before, _task = _task, _Task(listener)
    clock, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        _task = before
        listener(Work(task_seconds=time.perf_counter() - clock, cpu_seconds=time.process_time() - cpu))


def did(*, skipped: Mapping[str, int] | None = None, **done: int) -> None:
    """So many rows, images, bytes …, since the last time."""
    if _task is not None:
        _task.listener(Work(done=Counter(done), skipped=Counter(skipped or {})))


@contextmanager
def timed(kind: str) -> Iterator[None]:
    """What the time in here goes into. One inside another counts for itself alone."""
    task = _task
    if task is None:
        yield
        return
    outer, task.inner, start = task.inner, 0.0, time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - start
        task.listener(Work(seconds={kind: took - task.inner}))
        task.inner = outer + took


def each_timed(kind: str, items: Iterable[Item]) -> Iterator[Item]:
    """The items of something that makes them one by one: the time that it takes, and not that of who uses them."""
    left = iter(items)
    while True:
        with timed(kind):
            try:
                item = next(left)
            except StopIteration:
                return
        yield item
