"""Running the same functions on Ray or in this process: a bounded window of tasks, results as they come."""

import contextlib
import logging
import os
import pickle
import re
import socket
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NoReturn, TypeVar

from ..errors import UserError
from .faults import behind, no_answer, not_started, of_ray, of_workers
from .journal import MAX_RETRIES
from .logs import ROOT, LogLine, Relay, collected
from .progress import STARTING, STOPPING, Progress
from .work import Listener, Work, reported_to

PATIENCE = 10  # seconds for a cluster to answer

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


class Engine:
    """Runs tasks one after the other in this process, each with these environment variables."""

    num_workers = 1

    def __init__(self, env: Mapping[str, str], progress: Progress | None = None) -> None:
        self._env = env
        self.progress = progress or Progress()

    def run(
        self, function: Callable[..., Result], items: Sequence[Arguments], *, title: str, unit: str = "part"
    ) -> list[Result]:
        """All results in the order of the items. The first error of a task is raised here.

        What tasks log under "neatpack" reaches this process's log, each message once: see runtime/logs.py. What they
        did goes to the stage of `progress` that is on.
        """
        results: dict[int, Result] = {}
        if not items:
            return []
        several = f"{len(items)} {unit}{'s' if len(items) > 1 else ''}"
        logger.info("%s: %s", title, several)
        started, relay = time.monotonic(), Relay()
        watched = self.progress.tasks(len(items), self.num_workers, unit)
        with watched, contextlib.closing(self._outcomes(function, items)) as outcomes:
            try:
                for index, outcome in outcomes:
                    relay.pass_on(outcome.logs)
                    if isinstance(outcome, Failed):
                        _raise(outcome)
                    results[index] = outcome.result
                    outcome.work.done.update(tasks=1)
                    self.progress.add(outcome.work)
            finally:
                relay.summarize()
        logger.info("%s: %s done in %.1f s", title, several, time.monotonic() - started)
        return [results[index] for index in range(len(items))]

    def _outcomes(
        self, function: Callable[..., Result], items: Sequence[Arguments]
    ) -> Generator[tuple[int, Outcome[Result]], None, None]:
        """(index of the item, outcome), in any order."""
        level = logging.getLogger(ROOT).getEffectiveLevel()
        for index, arguments in enumerate(items):
            with _environment(self._env):
                outcome = _outcome(function, arguments, level, self.progress.add)
            yield index, outcome


class RayEngine(Engine):
    """Runs Ray tasks, at most `window` in flight."""

    def __init__(self, env: Mapping[str, str], ray: Any, num_workers: int, progress: Progress | None = None) -> None:
        super().__init__(env, progress)
        self._ray = ray
        self.num_workers = num_workers or int(ray.cluster_resources().get("CPU", 1))
        self._window = 2 * self.num_workers

    def _outcomes(
        self, function: Callable[..., Result], items: Sequence[Arguments]
    ) -> Generator[tuple[int, Outcome[Result]], None, None]:
        task = self._ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_task)
        level = logging.getLogger(ROOT).getEffectiveLevel()
        waiting: dict[Any, int] = {}
        left = enumerate(items)
        try:
            while True:
                while len(waiting) < self._window and (item := next(left, None)) is not None:
                    waiting[task.remote(function, item[1], level, self._env)] = item[0]
                if not waiting:
                    return
                with _faults_told():
                    (done,), _ = self._ray.wait(list(waiting), num_returns=1)
                    outcome = self._ray.get(done)
                    if isinstance(outcome, Failed) and (lacking := of_workers(outcome.error)):
                        raise lacking from TaskTraceback(outcome.traceback)
                yield waiting.pop(done), outcome
        finally:
            for reference in waiting:
                self._ray.cancel(reference, force=True)


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


def _task(function: Callable[..., Result], arguments: Arguments, level: int, env: Mapping[str, str]) -> Outcome[Result]:
    """In a worker, on one thread: Ray counts CPUs, and two thread pools on one core get in each other's way."""
    import torch

    torch.set_num_threads(1)
    with _environment(env):
        outcome = _outcome(function, arguments, level)
    return outcome if isinstance(outcome, Done) else _portable(outcome)


def _portable(failed: Failed) -> Failed:
    """An exception whose constructor takes other arguments than it keeps cannot be unpickled: its words go instead."""
    try:
        pickle.loads(pickle.dumps(failed.error))
    except Exception:
        words = RuntimeError(f"{type(failed.error).__name__}: {failed.error}")
        return Failed(error=words, traceback=failed.traceback, logs=failed.logs)
    return failed


def _raise(failed: Failed) -> NoReturn:
    """An error from a worker has lost its traceback, and gets it as text; a UserError speaks for itself."""
    if failed.error.__traceback__ is None and not isinstance(failed.error, UserError):
        raise failed.error from TaskTraceback(failed.traceback)
    raise failed.error


def _expect_answer(address: str) -> None:
    """Ray itself would try for minutes, and tell each time."""
    if found := re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+)\]?:(\d+)", address):
        try:
            socket.create_connection((found[1], int(found[2])), timeout=PATIENCE).close()
        except OSError as error:
            raise no_answer(address, error) from error


@contextlib.contextmanager
def engine(
    kind: Literal["ray", "inline"],
    num_workers: int = 0,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Iterator[Engine]:
    """The engine of a run; a Ray started here is shut down here. num_workers 0: every CPU that Ray has.

    `env`: environment variables of the tasks. They come with each task: a cluster that runs already takes no others.
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

    if ray.is_initialized():
        yield RayEngine(env, ray, num_workers, progress)
        return
    # "local" and not None: a stale cluster file would make a bare ray.init() hang.
    address = os.environ.get("RAY_ADDRESS") or "local"
    local: dict[str, Any] = {"num_cpus": num_workers or None, "include_dashboard": False} if address == "local" else {}
    _expect_answer(address)
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
        raise not_started(error) from error
    try:
        yield RayEngine(env, ray, num_workers, progress)
    finally:
        progress.enter(STOPPING)
        ray.shutdown()
