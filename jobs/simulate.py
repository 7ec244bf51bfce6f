"""Plans and orders a corpus of any size in partitions, as a job would, of made-up samples: time, fill, balance, trend.

python jobs/simulate.py [--samples 1000000000] [--partition-samples 4000000] [--capacity 16384] [--group-size 512]
                        [--workers 1] [--costs bench_scale.json] [--cores 1000]

Each of the workers, which are processes, plans one partition after the other, so that memory is that of one partition
for each of them, and a few bytes for each group of packs. Results do not depend on their number. A billion samples
take less than an hour of CPU. `--costs`: what `jobs/bench_scale.py --json` wrote; then the rest of
the job is reckoned, too.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.plan_data import mixed_samples
from jobs.scale.driver import TABLES
from neatpack.format.groups import correlation
from neatpack.loaders.order import epoch_order
from neatpack.pipeline.plan.balance import balanced_order, step_ratios
from neatpack.pipeline.plan.knapsack import bin_sums
from neatpack.pipeline.plan.partition import num_partitions
from neatpack.pipeline.plan.plan import plan_packs
from neatpack.pipeline.step_cost import DEFAULT_COST, PRESETS

Ints = NDArray[np.int64]
RANKS = (8, 64, 512)
COST = PRESETS[DEFAULT_COST]


class Ratios:
    """Largest load of a step against the mean one, over the steps of all partitions."""

    def __init__(self) -> None:
        self.sums, self.counts = np.zeros(len(RANKS)), np.zeros(len(RANKS), dtype=np.int64)

    def add(self, load: Ints) -> "Ratios":
        """The steps of these packs."""
        for at, ranks in enumerate(RANKS):
            ratios = step_ratios(load, ranks)
            self.sums[at] += ratios.sum()
            self.counts[at] += len(ratios)
        return self

    def join(self, others: "Ratios") -> None:
        self.sums += others.sums
        self.counts += others.counts

    def __str__(self) -> str:
        """The mean for each number of ranks."""
        return "/".join(f"{value:.4f}" for value in self.sums / np.maximum(1, self.counts))


class Partition(NamedTuple):
    """What is known of a partition that is planned: figures, and the loads of groups."""

    num_packs: int
    num_tokens: int
    encoders: Ratios  # of its whole groups
    cost: Ratios
    trend: float
    groups: NDArray[np.float64]  # [2, groups]: encoder load and cost of each whole group
    rest: Ints  # [2, packs]: of packs that fill none
    seconds: float  # of CPU that planning took
    peak: float  # GB of memory that its process had, at most


class Job(NamedTuple):
    number: int  # of the partition
    num_samples: int
    capacity: int
    group_size: int


def planned(job: Job) -> Partition:
    lengths, visual = mixed_samples(job.num_samples, job.capacity, job.number)
    started = time.process_time()
    pack = plan_packs(lengths, visual, capacity=job.capacity, group_size=job.group_size, seed=0, max_visual_tokens=None,
                      text_reserve=0, cost=COST)  # fmt: skip
    seconds = time.process_time() - started
    count = int(pack.max()) + 1
    assert int(np.bincount(pack, minlength=count).min()) > 0, "no pack is empty"
    tokens, visual, squares = (bin_sums(pack, values, count) for values in (lengths, visual, lengths**2))
    assert int(tokens.max()) <= job.capacity
    encoders = COST.of_encoders(visual, np.zeros_like(visual))
    loads = np.stack([encoders, COST.of_packs(tokens, encoders, squares)])
    whole = count // job.group_size * job.group_size
    return Partition(
        num_packs=count,
        num_tokens=int(tokens.sum()),
        encoders=Ratios().add(loads[0, :whole]),
        cost=Ratios().add(loads[1, :whole]),
        trend=correlation(visual, 8),
        groups=loads[:, :whole].reshape(2, -1, job.group_size).sum(axis=2) / 1.0,
        rest=loads[:, whole:],
        seconds=seconds,
        peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    )


def in_order(jobs: Sequence[Job], workers: int) -> Iterator[Partition]:
    """All partitions, in their order, whoever is ready first. No more is kept of one than its figures."""
    if workers == 1:
        yield from map(planned, jobs)
        return
    # Spawned: a forked process would keep what its parent had in memory.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(planned, jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plans and orders made-up samples in partitions.")
    parser.add_argument("--samples", type=lambda text: int(float(text)), default=1_000_000_000)
    parser.add_argument("--partition-samples", type=int, default=4_000_000)
    parser.add_argument("--capacity", type=int, default=16_384)
    parser.add_argument("--group-size", type=int, default=512)
    parser.add_argument("--workers", type=int, default=1, help="processes that plan partitions")
    parser.add_argument("--costs", default="")
    parser.add_argument("--cores", type=int, default=1_000)
    args = parser.parse_args()
    number, group = num_partitions(args.samples, args.partition_samples), args.group_size
    sizes = np.full(number, args.samples // number)
    sizes[: args.samples % number] += 1
    jobs = [Job(at, size, args.capacity, group) for at, size in enumerate(sizes.tolist())]
    encoders, costs, found = Ratios(), Ratios(), []
    print(f"{args.samples:,} samples in {number:,} partitions, capacity {args.capacity:,}; balance at {RANKS} ranks")
    clock = time.perf_counter()
    for index, each in enumerate(in_order(jobs, args.workers)):
        found.append(each)
        encoders.join(each.encoders)
        costs.join(each.cost)
        fill = each.num_tokens / (each.num_packs * args.capacity)
        print(f"partition {index}: {each.seconds:.1f} s, {each.num_packs:,} packs {fill:.4%} full, VT {each.encoders}, "
              f"cost {each.cost}, trend {each.trend:+.3f}; {each.peak:.2f} GB", flush=True)  # fmt: skip
    clock = time.perf_counter() - clock
    started = time.process_time()
    rest = np.concatenate([each.rest for each in found], axis=1)
    order = balanced_order(rest[0], rest[1], group_size=group, seed=0)
    encoders.add(rest[0][order])
    costs.add(rest[1][order])
    joined = time.process_time() - started
    started = time.process_time()
    loads = np.concatenate([each.groups for each in found], axis=1).astype(np.int64)
    epoch = epoch_order(np.arange(len(loads[0])), 1, seed=0, epoch=0, loads=list(loads))
    ordered = time.process_time() - started
    stored, shuffled = (correlation(loads[0][each], 1) for each in (slice(None), epoch))
    peak = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, *(each.peak for each in found))
    num_packs, seconds = sum(each.num_packs for each in found), [each.seconds for each in found]
    fill = sum(each.num_tokens for each in found) / (num_packs * args.capacity)
    print(f"epoch: {num_packs:,} packs {fill:.4%} full, {rest.shape[1]:,} of them in no whole group of a partition; VT "
          f"{encoders}, cost {costs}; trend as stored {stored:+.3f}, shuffled {shuffled:+.3f}; peak of a process "
          f"{peak:.2f} GB")  # fmt: skip
    us = sum(seconds) / args.samples * 1e6
    print(f"CPU: {sum(seconds):.0f} s for partitions, {us:.2f} us a sample, {max(seconds):.1f} s the longest; "
          f"{joined:.1f} s for what fills no group, {ordered:.1f} s to order {len(epoch):,} groups; on the clock, with "
          f"{args.workers} workers and making the samples up, {clock:.0f} s for partitions")  # fmt: skip
    print(f"on {args.cores:,} cores: planned in {-(-number // args.cores) * max(seconds) + joined:.0f} s")
    if args.costs:
        print(reckoned(Path(args.costs), args.samples, min(args.cores, number)))
    return 0


def reckoned(costs: Path, samples: int, cores: int) -> str:
    """The rest of a job but measuring and rendering, by its costs for a row: that of the largest size in the file."""
    figures = max(json.loads(costs.read_text(encoding="utf-8"))["driver"], key=lambda found: found["rows"])
    tasks, millions = figures["tasks"], samples / 1e6
    spread = (
        sum(tasks[name] for name in ("plan_partition", "write_ledger", "finished_shards", "gather")) * millions / cores
    )
    alone = max(tasks[name] for name in TABLES) * millions
    return (
        f"with files, by {costs}: partitions {spread:.0f} s on {cores:,} cores, index, statistics and media at once, "
        f"a task each, {alone:.0f} s, driver {figures['driver_us_per_row'] * millions:.0f} s and "
        f"{figures['driver_bytes_per_row'] * samples / 1e9:.1f} GB"
    )


if __name__ == "__main__":
    sys.exit(main())
