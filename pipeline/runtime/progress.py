"""Progress: the stages of a run, what each has done so far, and the time it took.

At any time one stage is on, so that the times of the stages add up to that of the run. What is shown of it, and where,
is the matter of pipeline/display.py.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from neatpack.storage.files import write_json
from neatpack.storage.location import Location

from .interrupts import check_interrupted
from .work import Work

# The stages of the commands, in their order.
LOADING, STARTING, READING, MEASURING = "loading", "starting Ray", "reading", "measuring"
PLANNING, RENDERING, COMMITTING, STOPPING = "planning", "rendering", "committing", "stopping Ray"
RENDERING_AGAIN = "rendering again"  # what a mended plan changed
CHECKING, SPLITTING, VERIFYING = "checking media", "splitting", "verifying"

FILE = "work/timing.json"  # in OUT: beside what is reproducible, not in it

WORKERS = "waiting for workers"  # CPUs that were ours and had no task: workers start, or a few long tasks are left


@dataclass(kw_only=True, slots=True)
class Stage:
    name: str
    work: Work = field(default_factory=Work)
    expected: Counter[str] = field(default_factory=Counter)  # of work.done, where it is known before
    seconds: float = 0.0  # on the clock, until it was last left
    worker_seconds: float = 0.0  # the same for each worker that could have had a task
    unit: str = "task"  # what a task is about: a shard, a file

    def limit(self) -> tuple[str, float] | None:
        """What most of the workers' time went into, and its share; None without tasks, or if that has no name."""
        work = self.work
        whole = max(self.worker_seconds, work.task_seconds)
        if not whole:
            return None
        named = sum(work.seconds.values())
        shares = {"": work.task_seconds - named, WORKERS: whole - work.task_seconds, **work.seconds}
        kind = max(shares, key=lambda name: shares[name])
        return (kind, shares[kind] / whole) if kind else None

    def to_json(self) -> dict[str, Any]:
        work = self.work
        times = {"worker_seconds": self.worker_seconds, "task_seconds": work.task_seconds,
                 "cpu_seconds": work.cpu_seconds}  # fmt: skip
        return {
            "stage": self.name,
            "seconds": round(self.seconds, 3),
            "done": dict(work.done),
            **{name: round(value, 3) for name, value in times.items()},
            "task_seconds_by_kind": {kind: round(value, 3) for kind, value in work.seconds.items()},
        }


class Progress:
    """Of one run. Stages may be entered again, and such as were not announced.

    Several threads may ask and tell. A Ctrl-C that Python lost ends the run where it tells something.
    """

    def __init__(self, stages: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.stages = [Stage(name=name) for name in stages]
        self.skipped: Counter[str] = Counter()  # rows so far, by reason
        self.on_end: Callable[[Stage], None] = lambda stage: None  # told of each stage that is left
        self.on_failure: Callable[[Exception], object] = lambda error: None  # gets what ends the run, before clean-up
        self.lock = threading.RLock()
        self._started = self._since = clock()
        self._now: Stage | None = None

    @property
    def now(self) -> Stage | None:
        """The stage that is on."""
        return self._now

    def seconds(self) -> float:
        return self.clock() - self._started

    def seconds_of(self, stage: Stage) -> float:
        return stage.seconds + (self.clock() - self._since if stage is self._now else 0.0)

    def enter(self, name: str, **expected: int) -> None:
        """The stage before ends. `expected`: so many rows are to come."""
        check_interrupted()
        with self.lock:
            stage = self._stage(name)
            if stage is not self._now:
                self._leave()
            stage.expected.update(expected)
            self._now = stage

    def end(self) -> None:
        with self.lock:
            self._leave()

    def add(self, work: Work) -> None:
        """To the stage that is on."""
        check_interrupted()
        with self.lock:
            self.skipped.update(work.skipped)
            if self._now is not None:
                self._now.work.add(work)

    def set_skipped(self, counts: Mapping[str, int]) -> None:
        """All so far: a plan knows them better than the tasks that led to it, some of which an earlier run did."""
        with self.lock:
            self.skipped = Counter(counts)

    @contextmanager
    def tasks(self, num_tasks: int, num_workers: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Around tasks of the stage that is on. Gives what is to be told when there are more than that."""
        start, stage = self.clock(), self._now

        def more(number: int) -> None:
            nonlocal num_tasks
            num_tasks += number
            if stage is not None:
                stage.expected.update(tasks=number)

        if stage is not None:
            stage.unit = unit
            stage.expected.update(tasks=num_tasks)
        try:
            yield more
        finally:
            if stage is not None:
                stage.worker_seconds += (self.clock() - start) * min(num_tasks, num_workers)

    def write(self, path: Location, **about: Any) -> None:
        """Time by stage, of the run so far."""
        with self.lock:
            now = [Stage.to_json(stage) | {"seconds": round(self.seconds_of(stage), 3)} for stage in self.stages]
            content = {**about, "seconds": round(self.seconds(), 3), "stages": now}
        write_json(path, content)

    def _stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        place = self.stages.index(self._now) + 1 if self._now is not None else len(self.stages)
        self.stages.insert(place, stage := Stage(name=name))
        return stage

    def _leave(self) -> None:
        stage, self._now = self._now, None
        now = self.clock()
        if stage is not None:
            stage.seconds += now - self._since
            self.on_end(stage)
        self._since = now
