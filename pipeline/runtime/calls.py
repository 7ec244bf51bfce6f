"""Calls that wait for their turn, and what comes of them."""

import heapq
import itertools
import math
import pickle
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from neatpack.errors import UserError

from .faults import behind
from .logs import LogLine, collected
from .work import Listener, Work, reported_to

# Seconds of work that calls of one task have together, if each alone has less: Ray starts about 1,000 tasks a second,
# and a task costs it some 7 ms. Less where little is left, so that the last tasks end together: a quarter of each
# worker's share of what waits, and no less than the second number, of which those 7 ms are a fifteenth.
MOST_SECONDS, LEAST_SECONDS, SHARE = 1.0, 0.1, 4
HERE_SECONDS = 0.5  # of calls that may be done in this process: less than it takes until workers have started

Result = TypeVar("Result")
Arguments = tuple[Any, ...]  # of a task; keep them small, they are sent to other machines


@dataclass(frozen=True, kw_only=True, slots=True)
class Done(Generic[Result]):
    """What a task gives back."""

    result: Result
    logs: list[LogLine]
    work: Work  # that was not told while it was done


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A task that ended by an exception. It is returned and not raised, so that what the task logged comes along."""

    error: Exception
    traceback: str  # as text: the error's own does not survive the way from another process
    logs: list[LogLine]


Outcome = Done[Result] | Failed


class TaskTraceback(Exception):
    """The cause of an error that was raised in a worker: where in there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Call:
    """A function to be called by a task."""

    function: Callable[..., Any]
    arguments: Arguments
    seconds: float = 0.0  # about what it takes on one core; 0: nobody knows
    journaled: bool = False  # it bounds itself how often it is tried again after a crash: see journal.py
    here: bool = False  # may be done in this process, if it is short: nothing that a decoder could crash on
    key: Any = None  # whose result it is, for who asked

    @property
    def magnitude(self) -> int:
        """Of its seconds, by powers of two: what is within a factor of two counts as equally long."""
        return math.floor(math.log2(self.seconds)) if self.seconds > 0 else 0


Then = Callable[[Call, Any], Iterable[Call]]  # told of each result as it comes; gives the calls that follow from it


class Waiting:
    """Calls that wait for their turn. What follows from a result is begun before the rest of what it follows.

    `longest_first`: so that no long one is left at the end. Those that are about equally long keep their order.
    """

    def __init__(self, calls: Iterable[Call], *, longest_first: bool) -> None:
        self._longest_first = longest_first
        self._heap: list[tuple[bool, int, int, Call]] = []
        self._numbers = itertools.count()
        self._seconds = 0.0
        for call in calls:
            self.add(call, follows=False)

    def add(self, call: Call, *, follows: bool = True) -> None:
        rank = -call.magnitude if self._longest_first else 0
        heapq.heappush(self._heap, (not follows, rank, next(self._numbers), call))
        self._seconds += call.seconds

    def take(self) -> Call:
        call = heapq.heappop(self._heap)[-1]
        self._seconds -= call.seconds
        return call

    def bundle(self, num_workers: int) -> list[Call]:
        """The calls of the next task: one, or several short ones; none where nothing waits."""
        most = min(MOST_SECONDS, max(LEAST_SECONDS, self._seconds / (SHARE * num_workers)))
        calls: list[Call] = []
        seconds = 0.0
        while self and (not calls or (seconds > 0 and 0 < self._heap[0][-1].seconds <= most - seconds)):
            calls.append(self.take())
            seconds += calls[-1].seconds
        return calls

    def is_for_here(self) -> bool:
        """Whether the next call is best done in this process."""
        return bool(self._heap) and self._heap[0][-1].here and self._seconds <= HERE_SECONDS

    def __len__(self) -> int:
        return len(self._heap)


def outcome_of(
    function: Callable[..., Result], arguments: Arguments, level: int, listener: Listener | None = None
) -> Outcome[Result]:
    """`listener`: told of the work as it is done; without one, the outcome has it."""
    work = Work()
    with collected(level) as logs:
        try:
            with reported_to(listener or work.add):
                result = function(*arguments)
            return Done(result=result, logs=logs, work=work)
        except Exception as error:
            # Here, because what an error was raised for does not survive the way from another process.
            told = behind(error) if isinstance(error, UserError) else error
            return Failed(error=told, traceback=traceback.format_exc(), logs=logs)


def portable(failed: Failed) -> Failed:
    """An exception whose constructor takes other arguments than it keeps cannot be unpickled: its words go instead."""
    try:
        pickle.loads(pickle.dumps(failed.error))
    except Exception:
        words = RuntimeError(f"{type(failed.error).__name__}: {failed.error}")
        return Failed(error=words, traceback=failed.traceback, logs=failed.logs)
    return failed


def raised(failed: Failed) -> NoReturn:
    """Raises it. What comes from a worker has no traceback any more but as text; a UserError speaks for itself."""
    if failed.error.__traceback__ is None and not isinstance(failed.error, UserError):
        raise failed.error from TaskTraceback(failed.traceback)
    raise failed.error
