"""Running the same functions on Ray or in this process: a bounded window of tasks, results as they come."""

import contextlib
import gc
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal

from .calls import Arguments, Call, Failed, Outcome, Result, TaskTraceback, Then, Waiting, outcome_of, portable, raised
from .clusters import check_nodes, joined, probe_nodes
from .faults import HeadLost, no_answer, of_ray, of_workers
from .freed import keep_freed
from .journal import LATE_MEDIA, MAX_RETRIES, late_media_file
from .logs import ROOT, Relay
from .progress import STARTING, STOPPING, Progress

# Of a task whose rows may crash it, as many as a part has rows with media, about. The task's journal ends it after
# MAX_RETRIES crashes in a row for which no row is to blame.
JOURNALED_RETRIES = 1000
PATIENCE = 10  # seconds for a cluster to answer
# While tasks run, how often it is looked whether the head of the cluster is there, and how long it may be away: a head
# that is restarted comes back in seconds, and after 60 Ray ends this process.
LOOK_SECONDS, AWAY_SECONDS = 5.0, 30.0
LEFT_SECONDS = 60.0  # to wait for tasks of a run that failed, where Ray goes on without us
# Bytes of a worker's own: Python, torch, transformers, a processor. An estimate: what a worker takes differs by their
# versions and by the processor, and some of it is shared with the other workers of its machine.
WORKER_BYTES = 512 << 20

logger = logging.getLogger(__name__)


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
        journaled: bool = False,
    ) -> list[Result]:
        """All results in the order of the items. The first error of a task is raised here.

        `seconds`: about what each takes on one core, if that is known. `memory`: bytes that a task takes, beyond what
        every worker does. `journaled`: as of a Call.
        """
        results: dict[int, Result] = {}
        estimates = seconds or [0.0] * len(items)
        calls = [
            Call(function=function, arguments=item, seconds=estimate, key=index, journaled=journaled)
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
                        raised(outcome)
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
            return outcome_of(call.function, call.arguments, level, self.progress.add)


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
        self._probes: dict[Any, str] = {}  # of nodes that have not been checked: where they are
        self._left: list[Any] = []  # tasks of a flow that failed

    def _outcomes(self, waiting: Waiting, memory: int) -> Generator[tuple[Call, Outcome[Any]], None, None]:
        self.wait_for_left()
        with _faults_told():
            task = self._task(memory)
            check_nodes(self._ray, self._probes, self._finished)
            self._probes = {}
        level = logging.getLogger(ROOT).getEffectiveLevel()
        running: dict[Any, list[Call]] = {}
        try:
            while True:
                while waiting.is_for_here():
                    call = waiting.take()
                    yield call, self._here(call)
                while len(running) < self._window and (calls := waiting.bundle(self.num_workers)):
                    asked = [(call.function, call.arguments) for call in calls]
                    patient = all(call.journaled for call in calls)
                    own = task.options(max_retries=JOURNALED_RETRIES) if patient else task
                    running[own.remote(asked, level, self._env)] = calls
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
            self._left.extend(running)

    def wait_for_left(self) -> None:
        """Wait until the tasks of a flow that failed are done.

        They are not cancelled. If a task completes while `ray.cancel` is at it, by force or not, Ray's core aborts this
        process: 1 in 20 rounds of jobs/ray_abort.py. Where this process ends its connection to Ray, that ends them.
        """
        left, self._left = self._left, []
        if left and (running := self._ray.wait(left, num_returns=len(left), timeout=LEFT_SECONDS)[1]):
            logger.warning("%s of the run that failed still running in Ray", _several(len(running), "task"))

    def probe(self) -> None:
        """Ask every node what it has installed; the first flow compares the answers before it starts tasks."""
        self._probes = probe_nodes(self._ray)

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
    keep_freed()
    outcomes: list[Outcome[Any]] = []
    for function, arguments in calls:
        with _environment(env):
            outcome = outcome_of(function, arguments, level)
        if isinstance(outcome, Failed):
            return [*outcomes, portable(outcome)]
        outcomes.append(outcome)
    return outcomes


def _warm(function: Callable[..., Any], arguments: Arguments) -> None:
    """In a worker. What is wrong there is told by the first task that needs it.

    Modules and vocabularies, 240,000 objects, stay as long as the worker does. The garbage collector is told so:
    a look at all of them takes 0.14 s, as long as rendering 4,000 documents of text, and came once in so many.
    """
    with contextlib.suppress(Exception):
        function(*arguments)
    gc.collect()
    gc.freeze()


def _several(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' if number > 1 else ''}"


def _answers(address: str) -> OSError | None:
    """None if somebody does; else why not. What is no address is not asked."""
    if found := re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+)\]?:(\d+)", address):
        try:
            socket.create_connection((found[1], int(found[2])), timeout=PATIENCE).close()
        except OSError as error:
            return error
    return None


def _head_of(ray: Any) -> str:
    """Where the head of the cluster answers this process. "": it does not, as where only Ray's client leads into its
    network; then its silence tells nothing.
    """
    address = str(ray.get_runtime_context().gcs_address)
    return address if _answers(address) is None else ""


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
    with late_media_file() as file:
        yield from _on_ray(num_workers, {**env, LATE_MEDIA: file}, progress, warm)


def _on_ray(num_workers: int, env: Mapping[str, str], progress: Progress, warm: Call | None) -> Iterator[Engine]:
    progress.enter(STARTING)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # in every worker: one task, one core
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # report to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning about accelerators: we use none
    address = os.environ.get("RAY_ADDRESS") or "local"  # not None: a stale cluster file would make Ray hang
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():  # the caller's, who goes on with it
        with _ray_engine(sys.modules["ray"], num_workers, env, progress, warm, probes=True) as running:
            try:
                yield running
            finally:
                running.wait_for_left()
        return
    if (silent := _answers(address)) is not None:  # Ray itself would try for minutes, and log each time
        raise no_answer(address, silent) from silent
    with joined(address, num_workers) as ray:
        try:
            # A Ray that is started here has what this process has.
            with _ray_engine(ray, num_workers, env, progress, warm, probes=address != "local") as running:
                yield running
        finally:
            progress.enter(STOPPING)


@contextlib.contextmanager
def _ray_engine(
    ray: Any, num_workers: int, env: Mapping[str, str], progress: Progress, warm: Call | None, *, probes: bool
) -> Iterator[RayEngine]:
    try:
        with _faults_told():
            running = RayEngine(env, ray, num_workers, progress, _head_of(ray))
            if probes:
                running.probe()
            if warm is not None:
                running.warm(warm)
        yield running
    except Exception as error:
        progress.on_failure(error)  # now: Ray may end this process while it stops
        raise
