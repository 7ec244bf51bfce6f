"""Running the same functions on Ray or in this process: a bounded window of tasks, results as they come."""

import contextlib
import heapq
import itertools
import logging
import math
import os
import pickle
import re
import socket
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NoReturn, TypeVar

from ..errors import UserError
from .faults import HeadLost, behind, no_answer, not_joined, not_started, of_ray, of_workers
from .journal import MAX_RETRIES
from .logs import ROOT, LogLine, Relay, collected
from .progress import STARTING, STOPPING, Progress
from .work import Listener, Work, reported_to

PATIENCE = 10  # seconds for a cluster to answer
# While tasks run, how often it is looked whether the head of the cluster is there, and how long it may be away: a head
# that is restarted comes back in seconds, and after 60 Ray ends this process.
LOOK_SECONDS, AWAY_SECONDS = 5.0, 30.0
# Seconds of work that calls of one task have together, if each alone has less: Ray starts about 1,000 tasks a second,
# and a task costs it some 7 ms. Less where little is left, so that the last tasks end together: a quarter of each
# worker's share of what waits, and no less than the second number, of which those 7 ms are a fifteenth.
MOST_SECONDS, LEAST_SECONDS, SHARE = 1.0, 0.1, 4
HERE_SECONDS = 0.5  # of calls that may be done in this process: less than it takes until workers have started
# Bytes of a worker's own: Python, torch, transformers, a processor. An estimate: what a worker takes differs by their
# versions and by the processor, and some of it is shared with the other workers of its machine.
WORKER_BYTES = 512 << 20

Result = TypeVar("Result")
Arguments = tuple[Any, ...]  # of a task; keep them small, they are sent to other machines

logger = logging.getLogger(__name__)


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


class Engine:
    """Runs tasks one after the other in this process, each with these environment variables."""

    num_workers = 1

    def __init__(self, env: Mapping[str, str], progress: Progress | None = None) -> None:
        self._env = env
        self.progress = progress or Progress()

    def run(
        self,
        function: Callable[..., Result],
        items: Sequence[Arguments],
        *,
        title: str,
        unit: str = "part",
        seconds: Sequence[float] = (),
        memory: int = 0,
    ) -> list[Result]:
        """All results in the order of the items. The first error of a task is raised here.

        `seconds`: about what each takes on one core, if that is known. `memory`: bytes that a task takes, beyond what
        every worker does.
        """
        results: dict[int, Result] = {}
        estimates = seconds or [0.0] * len(items)
        calls = [
            Call(function=function, arguments=item, seconds=estimate, key=index)
            for index, (item, estimate) in enumerate(zip(items, estimates, strict=True))
        ]

        def keep(call: Call, result: Result) -> tuple[Call, ...]:
            results[call.key] = result
            return ()

        self.flow(calls, keep, title=title, unit=unit, memory=memory)
        return [results[index] for index in range(len(items))]

    def flow(self, calls: Sequence[Call], then: Then, *, title: str, unit: str = "part", memory: int = 0) -> None:
        """Calls, and those that follow from their results, in one window: what comes next begins while others run.

        What tasks log under "neatpack" reaches this process's log, each message once: see runtime/logs.py. What they
        did goes to the stage of `progress` that is on.
        """
        if not calls:
            return
        waiting = Waiting(calls, longest_first=self.num_workers > 1)
        logger.info("%s: %s", title, _several(len(calls), unit))
        started, relay, num_calls = time.monotonic(), Relay(), len(calls)
        watched = self.progress.tasks(num_calls, self.num_workers, unit)
        with watched as more, contextlib.closing(self._outcomes(waiting, memory)) as outcomes:
            try:
                for call, outcome in outcomes:
                    relay.pass_on(outcome.logs)
                    if isinstance(outcome, Failed):
                        _raise(outcome)
                    outcome.work.done.update(tasks=1)
                    self.progress.add(outcome.work)
                    following = list(then(call, outcome.result))
                    more(len(following))
                    num_calls += len(following)
                    for each in following:
                        waiting.add(each)
            finally:
                relay.summarize()
        logger.info("%s: %s done in %.1f s", title, _several(num_calls, unit), time.monotonic() - started)

    def _outcomes(self, waiting: Waiting, memory: int) -> Generator[tuple[Call, Outcome[Any]], None, None]:
        """Of all that waits, also of what is added on the way, in any order."""
        while waiting:
            call = waiting.take()
            yield call, self._here(call)

    def _here(self, call: Call) -> Outcome[Any]:
        with _environment(self._env):
            level = logging.getLogger(ROOT).getEffectiveLevel()
            return _outcome(call.function, call.arguments, level, self.progress.add)


class RayEngine(Engine):
    """Runs Ray tasks, at most `window` in flight, on all nodes alike."""

    def __init__(
        self, env: Mapping[str, str], ray: Any, num_workers: int, progress: Progress | None = None, head: str = ""
    ) -> None:
        """`head`: where the head of the cluster answers; "": nobody looks."""
        super().__init__(env, progress)
        self._ray, self._head = ray, head
        self.num_workers = num_workers or int(ray.cluster_resources().get("CPU", 1))
        self._window = 2 * self.num_workers
        self._warmed: list[Any] = []

    def _outcomes(self, waiting: Waiting, memory: int) -> Generator[tuple[Call, Outcome[Any]], None, None]:
        with _faults_told():
            task = self._task(memory)
        level = logging.getLogger(ROOT).getEffectiveLevel()
        running: dict[Any, list[Call]] = {}
        try:
            while True:
                while waiting.is_for_here():
                    call = waiting.take()
                    yield call, self._here(call)
                while len(running) < self._window and (calls := waiting.bundle(self.num_workers)):
                    asked = [(call.function, call.arguments) for call in calls]
                    running[task.remote(asked, level, self._env)] = calls
                if not running:
                    return
                with _faults_told():
                    done = self._finished(list(running))
                    outcomes = self._ray.get(done)
                    for failed in (each[-1] for each in outcomes if isinstance(each[-1], Failed)):
                        if lacking := of_workers(failed.error):
                            raise lacking from TaskTraceback(failed.traceback)
                for reference, each in zip(done, outcomes, strict=True):
                    yield from zip(running.pop(reference), each, strict=False)  # a failed call is the last of its task
        except HeadLost:
            running.clear()  # nobody is there to cancel them
            raise
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def warm(self, call: Call) -> None:
        """Have every worker make this call, while this process goes on: imports and a processor take 5 s."""
        task = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_warm)
        self._warmed = [task.remote(call.function, call.arguments) for _ in range(self.num_workers)]

    def wait_until_warm(self) -> None:
        self._ray.get(self._warmed)

    def _finished(self, references: list[Any]) -> list[Any]:
        """One at least, and all that are: asking for each apart would take as long as the tasks of a large cluster."""
        seen = time.monotonic()
        while not self._ray.wait(references, num_returns=1, timeout=LOOK_SECONDS)[0]:
            if not self._head or _answers(self._head) is None:
                seen = time.monotonic()
            elif time.monotonic() - seen > AWAY_SECONDS:
                raise HeadLost(self._head)
        done: list[Any] = self._ray.wait(references, num_returns=len(references), timeout=0)[0]
        return done

    def _task(self, memory: int) -> Any:
        """The remote function. What it asks for is no more than the largest node has: else nothing would ever run."""
        largest = max((node["Resources"].get("memory", 0.0) for node in self._ray.nodes() if node["Alive"]), default=0)
        return self._ray.remote(
            num_cpus=1,
            memory=int(min(WORKER_BYTES + memory, largest)),
            max_retries=MAX_RETRIES,
            scheduling_strategy="SPREAD",
        )(_task)


@contextlib.contextmanager
def _faults_told() -> Iterator[None]:
    """A node that is lost, or a full object store, as a MachineError."""
    try:
        yield
    except Exception as error:
        if (fault := of_workers(error) or of_ray(error)) is None:
            raise
        raise fault from error


def _outcome(
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


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """Set in here, and as before behind: a worker may have tasks of another run next."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _task(
    calls: Sequence[tuple[Callable[..., Any], Arguments]], level: int, env: Mapping[str, str]
) -> list[Outcome[Any]]:
    """In a worker, on one thread: Ray counts CPUs, and two thread pools on one core get in each other's way.

    One outcome per call, up to the first that failed.
    """
    import torch

    torch.set_num_threads(1)
    outcomes: list[Outcome[Any]] = []
    for function, arguments in calls:
        with _environment(env):
            outcome = _outcome(function, arguments, level)
        if isinstance(outcome, Failed):
            return [*outcomes, _portable(outcome)]
        outcomes.append(outcome)
    return outcomes


def _warm(function: Callable[..., Any], arguments: Arguments) -> None:
    """In a worker. What is wrong there is told by the first task that needs it."""
    with contextlib.suppress(Exception):
        function(*arguments)


def _portable(failed: Failed) -> Failed:
    """An exception whose constructor takes other arguments than it keeps cannot be unpickled: its words go instead."""
    try:
        pickle.loads(pickle.dumps(failed.error))
    except Exception:
        words = RuntimeError(f"{type(failed.error).__name__}: {failed.error}")
        return Failed(error=words, traceback=failed.traceback, logs=failed.logs)
    return failed


def _several(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' if number > 1 else ''}"


def _raise(failed: Failed) -> NoReturn:
    """An error from a worker has lost its traceback, and gets it as text; a UserError speaks for itself."""
    if failed.error.__traceback__ is None and not isinstance(failed.error, UserError):
        raise failed.error from TaskTraceback(failed.traceback)
    raise failed.error


def _answers(address: str) -> OSError | None:
    """None if somebody does; else why not. What is no address is not asked."""
    if found := re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+)\]?:(\d+)", address):
        try:
            socket.create_connection((found[1], int(found[2])), timeout=PATIENCE).close()
        except OSError as error:
            return error
    return None


@contextlib.contextmanager
def engine(
    kind: Literal["ray", "inline"],
    num_workers: int = 0,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    warm: Call | None = None,
) -> Iterator[Engine]:
    """The engine of a run; a Ray started here is shut down here. num_workers 0: every CPU that Ray has.

    `env`: environment variables of the tasks. They come with each task: a cluster that runs already takes no others.
    `warm`: what workers do first, without being waited for.
    """
    env, progress = env or {}, progress or Progress()
    if kind == "inline":
        yield Engine(env, progress)
        return
    progress.enter(STARTING)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # in every worker: one task, one core
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # report to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning about accelerators: we use none
    import ray

    def started() -> RayEngine:
        with _faults_told():
            running = RayEngine(env, ray, num_workers, progress, ray.get_runtime_context().gcs_address)
            if warm is not None:
                running.warm(warm)
        return running

    if ray.is_initialized():
        yield started()
        return
    # "local" and not None: a stale cluster file would make a bare ray.init() hang.
    address = os.environ.get("RAY_ADDRESS") or "local"
    local: dict[str, Any] = {"num_cpus": num_workers or None, "include_dashboard": False} if address == "local" else {}
    if (silent := _answers(address)) is not None:  # Ray itself would try for minutes, and tell each time
        raise no_answer(address, silent) from silent
    chatty = logger.isEnabledFor(logging.INFO)  # -v: what Ray has to say, too
    try:
        ray.init(
            address=address,
            # Else what workers print stays in Ray's session folder; what they log comes with results.
            log_to_driver=chatty,
            logging_level=logging.INFO if chatty else logging.ERROR,
            runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "false"}},
            **local,
        )
    except Exception as error:  # of any class; and none is about what we give it, which is always the same
        raise (not_started(error) if address == "local" else not_joined(address, error)) from error
    is_there = True
    try:
        yield started()
    except HeadLost:
        is_there = False
        raise
    finally:
        progress.enter(STOPPING)
        if is_there:  # else it would wait for it until Ray ends this process, before anybody is told
            ray.shutdown()
