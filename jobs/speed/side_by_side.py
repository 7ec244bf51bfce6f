"""What every section of jobs/bench.py is made of: sides that run in turns, and rows of the table.

A section is a module of jobs/speed/ with `rows(options)`. It compares what we do with the least that anybody would have
to do (the limit), both in this process or in processes of their own, in turns, by CPU time: machines are noisy, and a
clock also measures the neighbours.
"""

import math
import resource
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LONGER = 8
ENOUGH = 8.0  # seconds of a side, after which it is not repeated for being short


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Of a run of the benchmark."""

    folder: Path  # temporary, for whatever a section writes
    meta: Path | None  # data to measure by; None: a section draws its own
    processor: str
    repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of the table: a figure, and what is wanted of it (at most that)."""

    what: str  # "render + write / decode + resize, per picture"
    figure: float
    wanted: float | None = None  # None: told, and held to nothing
    unit: str = "x"  # "x": a ratio
    of: Mapping[str, float] = field(default_factory=dict)  # what it was reckoned from, CPU seconds by side

    @property
    def is_met(self) -> bool | None:
        return None if self.wanted is None else self.figure <= self.wanted


def cpu_seconds() -> float:
    """Of this process, its threads, and its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def side_by_side(
    sides: Mapping[str, Callable[[], object]], repeats: int, before: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """The median CPU seconds of each side; they run in turns, once before they are timed. `before` each of them, what
    is not timed is done.

    Short ones run up to `LONGER` times as often: one and the same tenth of a second of work was seen to take 137 to 240
    us a row within a minute, on a machine that others use, too.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}

    def run() -> None:
        for name, side in sides.items():
            before()
            start = cpu_seconds()
            side()
            times[name].append(cpu_seconds() - start)

    run()
    longest = max(own.pop() for own in times.values())
    for _ in range(min(LONGER * repeats, max(repeats, math.ceil(ENOUGH / max(longest, 0.001))))):
        run()
    return {name: statistics.median(own) for name, own in times.items()}
