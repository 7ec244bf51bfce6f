"""Plans and orders a corpus of any size in partitions, as a job would, of made-up samples: time, fill, balance, trend.

python jobs/simulate.py [--samples 1000000000] [--partition-samples 4000000] [--capacity 16384] [--group-size 512]
                        [--costs bench_scale.json] [--cores 1000]

One partition after the other, so that memory is that of one partition, and a few bytes for each group of packs. A
billion samples take less than an hour on one core. `--costs`: what `jobs/bench_scale.py --json` wrote; then the rest of
the job is reckoned, too.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.bench_plan import mixed_samples
from neatpack.loaders.order import epoch_order
from neatpack.pipeline.plan.balance import balanced_order, correlation, pack_cost, step_ratios
from neatpack.pipeline.plan.knapsack import bin_sums
from neatpack.pipeline.plan.partition import num_partitions
from neatpack.pipeline.plan.plan import plan_packs

Ints = NDArray[np.int64]
RANKS = (8, 64, 512)


class Ratios:
    """Largest load of a step against the mean one, over the steps of all partitions."""

    def __init__(self) -> None:
        self.sums, self.counts = dict.fromkeys(RANKS, 0.0), dict.fromkeys(RANKS, 0)

    def add(self, load: Ints) -> list[float]:
        """Those of these packs; the mean for each number of ranks."""
        found = []
        for ranks in RANKS:
            ratios = step_ratios(load, ranks)
            self.sums[ranks] += float(ratios.sum())
            self.counts[ranks] += len(ratios)
            found.append(float(ratios.mean()) if len(ratios) else 1.0)
        return found

    def means(self) -> list[float]:
        return [self.sums[ranks] / max(1, self.counts[ranks]) for ranks in RANKS]


def planned(num_samples: int, capacity: int, group_size: int, seed: int) -> tuple[Ints, Ints, Ints, float]:
    """Tokens, visual tokens and squares of the packs of one partition, in order, and the seconds that planning took."""
    lengths, visual = mixed_samples(num_samples, capacity, seed)
    started = time.process_time()
    pack = plan_packs(lengths, visual, capacity=capacity, group_size=group_size, seed=0, max_visual_tokens=None,
                      text_reserve=0)  # fmt: skip
    seconds = time.process_time() - started
    count = int(pack.max()) + 1
    assert int(np.bincount(pack, minlength=count).min()) > 0, "no pack is empty"
    tokens, visual, squares = (bin_sums(pack, values, count) for values in (lengths, visual, lengths**2))
    assert int(tokens.max()) <= capacity
    return tokens, visual, squares, seconds


def shown(values: list[float]) -> str:
    return "/".join(f"{value:.4f}" for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plans and orders made-up samples in partitions.")
    parser.add_argument("--samples", type=lambda text: int(float(text)), default=1_000_000_000)
    parser.add_argument("--partition-samples", type=int, default=4_000_000)
    parser.add_argument("--capacity", type=int, default=16_384)
    parser.add_argument("--group-size", type=int, default=512)
    parser.add_argument("--costs", default="")
    parser.add_argument("--cores", type=int, default=1_000)
    args = parser.parse_args()
    number, group = num_partitions(args.samples, args.partition_samples), args.group_size
    sizes = np.full(number, args.samples // number)
    sizes[: args.samples % number] += 1
    visual_ratios, cost_ratios = Ratios(), Ratios()
    groups: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []  # visual tokens and cost of each whole group
    rest: list[Ints] = []
    num_packs, num_tokens, seconds = 0, 0, []
    print(f"{args.samples:,} samples in {number:,} partitions, capacity {args.capacity:,}; balance at {RANKS} ranks")
    for index, size in enumerate(sizes.tolist()):
        tokens, visual, squares, took = planned(size, args.capacity, group, seed=index)
        cost = pack_cost(tokens, visual, squares)
        whole = len(tokens) // group * group
        balance = visual_ratios.add(visual[:whole]), cost_ratios.add(cost[:whole])
        groups.append(
            (visual[:whole].reshape(-1, group).sum(axis=1) / 1.0, cost[:whole].reshape(-1, group).sum(axis=1) / 1.0)
        )
        rest.append(np.stack([tokens[whole:], visual[whole:], squares[whole:]]))
        num_packs, num_tokens = num_packs + len(tokens), num_tokens + int(tokens.sum())
        seconds.append(took)
        fill, peak = (
            tokens.sum() / (len(tokens) * args.capacity),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        )
        print(f"partition {index}: {took:.1f} s, {len(tokens):,} packs {fill:.4%} full, VT {shown(balance[0])}, cost "
              f"{shown(balance[1])}, trend {correlation(visual, 8):+.3f}; {peak:.2f} GB", flush=True)  # fmt: skip
    started = time.process_time()
    tokens, visual, squares = np.concatenate(rest, axis=1)
    order = balanced_order(tokens, visual, squares, group_size=group, seed=0)
    visual_ratios.add(visual[order])
    cost_ratios.add(pack_cost(tokens, visual, squares)[order])
    joined = time.process_time() - started
    started = time.process_time()
    loads = [np.concatenate(values) for values in zip(*groups, strict=True)]
    epoch = epoch_order(np.arange(len(loads[0])), 1, seed=0, epoch=0, loads=[load.astype(np.int64) for load in loads])
    ordered = time.process_time() - started
    stored, shuffled = (correlation(loads[0][each].astype(np.int64), 1) for each in (slice(None), epoch))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    fill = num_tokens / (num_packs * args.capacity)
    print(f"epoch: {num_packs:,} packs {fill:.4%} full, {len(tokens):,} of them in no whole group of a partition; VT "
          f"{shown(visual_ratios.means())}, cost {shown(cost_ratios.means())}; trend as "
          f"stored {stored:+.3f}, shuffled {shuffled:+.3f}; peak {peak:.2f} GB")  # fmt: skip
    each = sum(seconds) / args.samples * 1e6
    print(f"CPU: {sum(seconds):.0f} s for partitions, {each:.2f} us a sample, {max(seconds):.1f} s the longest; "
          f"{joined:.1f} s for what fills no group, {ordered:.1f} s to order {len(epoch):,} groups")  # fmt: skip
    print(f"on {args.cores:,} cores: planned in {-(-number // args.cores) * max(seconds) + joined:.0f} s")
    if args.costs:
        print(reckoned(Path(args.costs), args.samples, min(args.cores, number)))
    return 0


def reckoned(costs: Path, samples: int, cores: int) -> str:
    """The rest of a job but measuring and rendering, by its costs for a row: that of the largest size in the file."""
    figures = max(json.loads(costs.read_text(encoding="utf-8"))["driver"], key=lambda found: found["rows"])
    tasks, millions = figures["tasks"], samples / 1e6
    spread = sum(tasks[name] for name in ("plan_partition", "write_ledger", "finished_shards")) * millions / cores
    alone = max(tasks[name] for name in ("write_index", "write_media")) * millions
    return (
        f"with files, by {costs}: partitions {spread:.0f} s on {cores:,} cores, index and media {alone:.0f} s in a "
        f"task each, driver {figures['driver_us_per_row'] * millions:.0f} s and "
        f"{figures['driver_bytes_per_row'] * samples / 1e9:.1f} GB"
    )


if __name__ == "__main__":
    sys.exit(main())
