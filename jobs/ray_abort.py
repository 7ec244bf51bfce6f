"""Count how often a failing run on Ray kills its driver: rounds of tasks that complete while they are stopped.

    python jobs/ray_abort.py --rounds 200                 # neatpack's engine: tasks of a failed run are left alone
    python jobs/ray_abort.py --rounds 60 --cancel force   # the calls of Ray that neatpack 0.10 made, and no others
    python jobs/ray_abort.py --rounds 60 --cancel soft    # the same without force

Ray's core aborts the process (`Tried to complete task that was not pending`) if a task completes while it is cancelled.
Rounds therefore run in a child process, with one Ray for many rounds. A child that dies is replaced.
"""

import argparse
import importlib
import random
import subprocess
import sys
import time
from typing import Any, Literal

from neatpack.pipeline.runtime.calls import Call
from neatpack.pipeline.runtime.engine import RayEngine, engine
from neatpack.pipeline.runtime.faults import MachineError
from neatpack.pipeline.runtime.journal import MAX_RETRIES

NUM_WORKERS = 2
NUM_TASKS = 8  # of a round
LONGEST = 0.01  # seconds of a task: the stop after the first failure finds others at any point
SHORT = 0.0005  # seconds of a task that is cancelled
ROUND = "round"  # the first word of a line that a child prints after each round

Cancel = Literal["", "soft", "force"]


class Unreadable:
    """An argument that no worker can read, after some seconds, as if the workers lacked a package."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return _fail_after, (self.seconds,)


def _fail_after(seconds: float) -> None:
    time.sleep(seconds)
    importlib.import_module("package_that_no_worker_has")


def run_rounds(first: int, last: int, cancel: Cancel) -> None:
    """Run the rounds in this process; a line on stdout counts each."""
    with engine("ray", NUM_WORKERS) as running:
        assert isinstance(running, RayEngine)
        for number in range(first, last):
            if cancel:
                run_cancelled_round(running, number, force=cancel == "force")
            else:
                run_round(running, number)
            print(ROUND, number, flush=True)


def run_round(running: RayEngine, number: int) -> None:
    """Run tasks that all fail within milliseconds, as those do whose workers lack a package."""
    draw = random.Random(number)
    calls = [Call(function=print, arguments=(Unreadable(draw.random() * LONGEST),)) for _ in range(NUM_TASKS)]
    try:
        running.flow(calls, lambda call, result: (), title="abort")
    except MachineError:
        return
    raise AssertionError(f"round {number}: no task failed")


def run_cancelled_round(running: RayEngine, number: int, *, force: bool) -> None:
    """Start tasks that fail at once, wait for the first and cancel all."""
    ray, draw = running._ray, random.Random(number)
    task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES, scheduling_strategy="SPREAD")(_fail)
    references = [task.remote(draw.random() * SHORT) for _ in range(2 * NUM_WORKERS)]
    ray.wait(references, num_returns=1)
    time.sleep(draw.random() * SHORT)
    for reference in references:
        ray.cancel(reference, force=force)
    if not force:
        ray.wait(references, num_returns=len(references))


def _fail(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    raise ValueError


def count_aborts(num_rounds: int, cancel: Cancel = "") -> int:
    """Run the rounds in child processes and return how many of these Ray's core aborted."""
    aborts, done, starts_left = 0, 0, 3
    while done < num_rounds:
        command = [sys.executable, __file__, "--from", str(done), "--rounds", str(num_rounds), "--child"]
        child = subprocess.run([*command, "--cancel", cancel], capture_output=True, text=True)
        ran = sum(line.startswith(ROUND) for line in child.stdout.splitlines())
        done += ran
        if child.returncode:
            if "Ray does not start" in child.stderr and starts_left:  # a busy machine: it has a time limit of its own
                starts_left -= 1
                continue
            if "Check failed" not in child.stderr:
                raise SystemExit(f"exit code {child.returncode}:\n{child.stderr}")
            aborts, done = aborts + 1, done + 1
            reason = next(line for line in child.stderr.splitlines() if "Check failed" in line)
            print(f"round {done}: the driver died (exit code {child.returncode}): {reason.strip()}")
    print(f"{num_rounds} rounds, {aborts} aborts")
    return aborts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="number of rounds (default: 200)")
    parser.add_argument("--cancel", choices=("", "soft", "force"), default="", help="cancel the tasks of failed rounds")
    parser.add_argument("--from", type=int, default=0, dest="first", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_rounds(options.first, options.rounds, options.cancel)
        return 0
    return 1 if count_aborts(options.rounds, options.cancel) else 0


if __name__ == "__main__":
    raise SystemExit(main())
