"""Runs that are disturbed: each must end in a sentence or go on, commit nothing by halves, and come to the same bytes.

python jobs/chaos.py [--seed 0] [--minutes 2] [--engine inline|ray] [--only "killed at"] [--cases 100] [--case 17]
python jobs/chaos.py --every

A case is a small `neatpack pack`, into a new folder or over a finished output, and one fault in it: a call that fails
as on a full or broken disk, files that may not grow, the process killed at a call or at some time; with --engine ray
(half a minute each), a worker, the raylet, the driver or one of two nodes killed. Then the same command runs in peace.
Cases are drawn by (seed, number): --case N does one again; where kills go by time, as exactly as the machine keeps
time. --every lets each call fail in turn instead, by each fault.

Prints how often each fault had which outcome. Exits 1 after the first failures, and tells them.

Only processes that it started itself are killed: the run's, and its descendants.
"""

import argparse
import itertools
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from errno import EIO, EMFILE, ENOSPC, EROFS
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.breaking.disk import KILL, Disk
from jobs.breaking.processes import Started, kill, named_below
from jobs.breaking.run import ENDED, Job, files_of, killed_on, run_here, run_on
from jobs.fuzzing.output import PROCESSOR, make

MOST_FAILURES = 5
Outcome = str
Case = Callable[[Job, random.Random], Outcome]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--engine", choices=ENGINES, default="inline")
    parser.add_argument("--only", default="", help="faults whose name begins so")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="at most")
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--every", action="store_true", help="each call in turn, by each fault, however long it takes")
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    numbers = iter([args.case]) if args.case is not None else itertools.takewhile(
        lambda number: number < args.cases and time.monotonic() < until, itertools.count())  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        jobs = make_jobs(Path(folder))
        faults = {name: case for name, case in ENGINES[args.engine].items() if name.startswith(args.only)}
        drawn = every_call(jobs, faults) if args.every else by_seed(jobs, faults, args.seed, numbers)
        counts, failures = chaos(drawn)
    print_table(counts)
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    return 1 if failures else 0


# Cases


def make_jobs(folder: Path) -> dict[str, Job]:
    """Into a new folder, and over a finished output. Made in peace, by the way."""
    expected = files_of(make(folder))
    flags = ["--meta", str(folder / "meta.json"), "--processor", str(PROCESSOR), "--group-size", "2", "--shard-mb", "1"]
    flags += ["--pixels", "u8"]  # as `make` has it: two shards
    old = folder / "old"
    code, told = run_here(
        ["pack", *flags, "--engine", "inline", "--pack-size", "320", "--overlong", "drop", "--out", str(old)]
    )
    assert code == 0, told
    flags += ["--engine", "inline", "--pack-size", "384", "--overlong", "drop"]
    return {
        name: Job(flags=flags, out=folder / name, expected=expected, before=before)
        for name, before in {"new": None, "overwritten": old}.items()
    }


def by_seed(
    jobs: Mapping[str, Job], faults: Mapping[str, Case], seed: int, numbers: Iterator[int]
) -> Iterator[tuple[str, str, Callable[[], Outcome]]]:
    """(fault, what names the case, the case)."""
    for number in numbers:
        rng = random.Random(f"{seed}/{number}")
        fault, where = rng.choice(list(faults)), rng.choice(list(jobs))
        yield fault, f"seed {seed}, case {number}, {fault}, {where}", partial(faults[fault], jobs[where], rng)


def every_call(jobs: Mapping[str, Job], faults: Mapping[str, Case]) -> Iterator[tuple[str, str, Callable[[], Outcome]]]:
    for fault, (where, job) in itertools.product([name for name in faults if name in AT_CALLS], jobs.items()):
        for at in range(num_calls(job, AT_CALLS[fault])):
            yield fault, f"call {at}, {fault}, {where}", partial(at_call, AT_CALLS[fault], job, at)


def chaos(drawn: Iterator[tuple[str, str, Callable[[], Outcome]]]) -> tuple[Counter[tuple[str, Outcome]], list[str]]:
    """How often which fault had which outcome; and what must not be, at most a few."""
    counts: Counter[tuple[str, Outcome]] = Counter()
    failures: list[str] = []
    for fault, name, case in drawn:
        try:
            outcome = case()
        except Exception:  # a Wrong, or what a run did not tell in a sentence
            outcome = "wrong"
            failures.append(f"{name}\n{traceback.format_exc()}")
        counts[fault, outcome] += 1
        if len(failures) == MOST_FAILURES:
            break
    return counts, failures


def print_table(counts: Counter[tuple[str, Outcome]]) -> None:
    outcomes = sorted({outcome for _, outcome in counts})
    print(f"{'fault':32}{'times':>8}" + "".join(f"{outcome:>20}" for outcome in outcomes))
    for fault in sorted({fault for fault, _ in counts}):
        times = [counts[fault, outcome] for outcome in outcomes]
        print(f"{fault:32}{sum(times):8}" + "".join(f"{number:20}" for number in times))


# Faults


def num_calls(job: Job, fault: int | str) -> int:
    """How many calls of a run a fault may befall."""
    job.prepare()
    disk = Disk(job.out, fault, -1)
    run_on(disk, job.command)
    return disk.num_calls


def at_call(fault: int | str, job: Job, at: int) -> Outcome:
    job.prepare()
    disk = Disk(job.out, fault, at)
    return job.check(*(killed_on if fault == KILL else run_on)(disk, job.command))


def at_some_call(fault: int | str, job: Job, rng: random.Random) -> Outcome:
    return at_call(fault, job, rng.randrange(num_calls(job, fault)))


def files_stay_small(job: Job, rng: random.Random) -> Outcome:
    """The kernel refuses what is written beyond a size."""
    job.prepare()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(len(content) for content in job.expected.values())
    resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(1, largest), before[1]))
    try:
        ended = run_here(job.command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return job.check(*ended)


def killed_at_a_time(job: Job, rng: random.Random) -> Outcome:
    """The command itself, as the shell starts it, when it has made so many files, and a little later."""
    job.prepare()
    before = num_files(job.out)
    wanted = before + rng.randrange(2 * len(job.expected))
    with Started(job.command) as run:
        while run.lives() and num_files(job.out) <= wanted:
            time.sleep(0.001)
        time.sleep(0.05 * rng.random())
        kill(run.pid)
        return job.check(*run.ended())


def killed_on_ray(victim: str, job: Job, rng: random.Random) -> Outcome:
    """A process of a run on Ray, some time after its first task began: the driver, or one whose name has this in it."""
    job.prepare()
    with Started([*job.command, "--engine", "ray", "--num-workers", "1"]) as run:
        while run.lives() and not run.named(TASK):
            time.sleep(0.01)
        time.sleep(3 * rng.random())
        found = run.named(victim) if victim else [run.pid]
        for pid in found[:1]:
            kill(pid)
        outcome = job.check(*run.ended())
        return outcome if found else ENDED


def node_killed(job: Job, rng: random.Random) -> Outcome:
    """One of two nodes, some time after its worker has begun to warm, or has a task, and others wait for it.

    What tasks give must fit into little shared memory.
    """
    import ray
    from ray.cluster_utils import Cluster

    job.prepare()
    little: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}  # the least that Ray takes
    cluster = Cluster(initialize_head=True, head_node_args={**little, "include_dashboard": False})
    try:
        node = cluster.add_node(**little)
        raylet = node.all_processes["raylet"][0].process.pid
        with Started([*job.command, "--engine", "ray"], {"RAY_ADDRESS": cluster.address}) as run:
            while run.lives() and not named_below(raylet, OURS):
                time.sleep(0.01)
            time.sleep(2 * rng.random())
            found = run.lives()
            cluster.remove_node(node, allow_graceful=False)
            outcome = job.check(*run.ended())
        return outcome if found else ENDED
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


def num_files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


TASK, OURS, RAYLET, DRIVER = "ray::_task", "ray::_", "/raylet", ""  # OURS: also while a worker warms
# By the names of the table.
AT_CALLS: dict[str, int | str] = {
    "no space": ENOSPC,
    "I/O error": EIO,
    "too many open files": EMFILE,
    "read-only": EROFS,
    "killed at a call": KILL,
}
INLINE: dict[str, Case] = {
    **{name: partial(at_some_call, fault) for name, fault in AT_CALLS.items()},
    "files stay small": files_stay_small,
    "killed at a time": killed_at_a_time,
}
ON_RAY: dict[str, Case] = {
    "worker killed": partial(killed_on_ray, TASK),
    "raylet killed": partial(killed_on_ray, RAYLET),
    "driver killed": partial(killed_on_ray, DRIVER),
    "node killed": node_killed,
}
ENGINES = {"inline": INLINE, "ray": ON_RAY}

if __name__ == "__main__":
    raise SystemExit(main())
