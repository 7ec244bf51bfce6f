"""Running the same functions on Ray or in this process: a bounded window of tasks, results as they come."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from neatpack.pipeline.config import PackConfig, UserError

Result = TypeVar("Result")


class Engine:
    """Maps a function over items in this process."""

    def map(self, function: Callable[..., Result], items: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        """(index of the item, result), in any order. Items are argument tuples: small, for they travel."""
        for index, arguments in enumerate(items):
            yield index, function(*arguments)

    def run(
        self, function: Callable[..., Result], items: list[tuple[Any, ...]], *, title: str, unit: str = "part"
    ) -> list[Result]:
        """All results in the order of the items, with progress on stderr."""
        results: list[Any] = [None] * len(items)
        if not items:
            return results
        # A terminal gets a moving line; a log file gets one every 30 seconds at most.
        interval = 0.2 if sys.stderr.isatty() else 30
        bar = tqdm(total=len(items), desc=title, unit=unit, mininterval=interval, delay=1, file=sys.stderr)
        with bar:
            for index, result in self.map(function, items):
                results[index] = result
                bar.update()
        return results


class RayEngine(Engine):
    """Maps a function over items as Ray tasks, at most `window` in flight."""

    def __init__(self, ray: Any, num_workers: int) -> None:
        self._ray = ray
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self._window = 2 * (num_workers or cpus)

    def map(self, function: Callable[..., Result], items: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        # A crashed worker is retried, and its journal sees to it that this ends; an exception of ours would only come
        # again.
        task = self._ray.remote(num_cpus=1, max_retries=20)(_single_threaded)
        waiting: dict[Any, int] = {}
        left = enumerate(items)
        try:
            while True:
                while len(waiting) < self._window and (item := next(left, None)) is not None:
                    waiting[task.remote(function, *item[1])] = item[0]
                if not waiting:
                    return
                (done,), _ = self._ray.wait(list(waiting), num_returns=1)
                try:
                    yield waiting.pop(done), self._ray.get(done)
                except self._ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, UserError):
                        raise error.cause from None
                    raise
        finally:
            for reference in waiting:
                self._ray.cancel(reference, force=True)


def _single_threaded(function: Callable[..., Result], *arguments: Any) -> Result:
    """One task, one core: Ray counts CPUs, and two thread pools on one core only get in each other's way."""
    import torch

    torch.set_num_threads(1)
    return function(*arguments)


@contextlib.contextmanager
def engine(config: PackConfig) -> Iterator[Engine]:
    """The engine of a run; a Ray started here is shut down here."""
    if config.engine == "inline":
        yield Engine()
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # in every worker: one task, one core
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # report to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning about accelerators: we use none
    import ray

    if ray.is_initialized():
        yield RayEngine(ray, config.num_workers)
        return
    # "local" and not None: a stale cluster file would make a bare ray.init() hang.
    address = os.environ.get("RAY_ADDRESS") or "local"
    local = {"num_cpus": config.num_workers or None, "include_dashboard": False} if address == "local" else {}
    ray.init(
        address=address,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "false"}},
        **local,
    )
    try:
        yield RayEngine(ray, config.num_workers)
    finally:
        ray.shutdown()
