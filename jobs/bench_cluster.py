"""How a packing job scales: with one and with two workers on Ray, and with many that are simulated.

python jobs/bench_cluster.py [--meta META.json --processor DIR] [--times 4] [--repeats 3] [--rows 100000]
                             [--media 0.5] [--workers 1,2,8,64] [--no-ray] [--json FILE]

On Ray: the job (all rows, so many times) with one and with two workers, in turns; medians. Ray's start and what workers
import first are told apart. Machines are noisy, and two workers on two busy cores tell little: so the CPU time of the
tasks is told, too, and what follows from it.

Simulated: tasks are timed one by one in this process, by CPU time. Then a job of so many rows (the same, repeated) is
cut as it would be for each number of workers, by the very functions that pack, and run by workers on paper: a call
takes what the estimate says, times what such calls took against their estimate; a task costs Ray 5 ms on its worker,
and 1 ms in the driver, which sends one at a time. Efficiency is the time of all tasks by workers times makespan; useful
is what is left of it without the joining of pieces. "Uncut": with a task for each 4 MiB of rows and for each shard.

--media is the share of rows with media. Without --meta it draws the demo data.
"""

import argparse
import dataclasses
import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from jobs.demo.make_data import make_demo
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.lines import Source, media_seconds, rows
from neatpack.pipeline.ingest.meta import Dataset, read_meta
from neatpack.pipeline.ingest.written import write_data
from neatpack.pipeline.inputs import inputs_of, read_rows
from neatpack.pipeline.measure.part import measure_part
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.runtime.calls import Call, Done, Outcome, Waiting
from neatpack.pipeline.runtime.engine import Engine, RayEngine, engine
from neatpack.pipeline.runtime.progress import LOADING, STARTING, STOPPING, Progress
from neatpack.pipeline.runtime.work import Work
from neatpack.pipeline.shard.pieces import join_task, write_shards
from neatpack.pipeline.shard.writer import shard_task
from neatpack.pipeline.stages import plan_all, processor_key, render, shard_jobs, task_environment, warming
from neatpack.storage.location import Location

NOT_WORK = (LOADING, STARTING, STOPPING)  # stages of a run that more workers do not shorten
MEDIA = " (media)"  # after the name of a data set: those of its rows that have some
DRAWS = 5  # simulations of a job, each with other calls as long as some were; means are told
TASK_SECONDS, SEND_SECONDS = 5e-3, 1e-3  # that a task costs Ray, on the worker and in the driver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meta")
    parser.add_argument("--processor", default=str(Path(__file__).parent / "demo" / "processor"))
    parser.add_argument("--times", type=int, default=4, help="how often the job that is really done has each row")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=100_000, help="of the job that is simulated")
    parser.add_argument("--media", type=float, default=0.5, help="the share of rows with media in it")
    parser.add_argument("--workers", default="1,2,8,64", help="that are simulated")
    parser.add_argument("--ray", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    processor = os.path.abspath(args.processor)
    if args.child:
        print(json.dumps(on_ray(Path(args.meta), processor, args.child)))
        return 0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as name:
        folder = Path(name)
        meta = Path(args.meta).resolve() if args.meta else make_demo(folder / "demo")
        data = read(meta, folder)
        num_rows = sum(len(texts) for *_, texts in data)
        job = repeated(data, args.times * num_rows, args.media, folder / "job")
        print(f"{args.times * num_rows:,} rows, {args.media:.0%} of them with media\n")
        if args.ray:
            found["ray"] = compare(job, processor, args.repeats)
        took = timed_one_by_one(config_of(job, processor, folder / "timed"), num_workers=64)
        found["calls"] = took.told()
        print_calls(took)
        large = repeated(data, args.rows, args.media, folder / "large")
        small = repeated(data, args.rows, args.media, folder / "small", once=True)
        found["simulated"] = simulate(
            [int(number) for number in args.workers.split(",")],
            took,
            config_of(large, processor, folder / "large-out"),
            config_of(small, processor, folder / "small-out"),
        )
        print_simulated(found["simulated"], args.rows)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


# The data


def read(meta: Path, folder: Path) -> list[tuple[Dataset, Source, list[bytes]]]:
    """All rows of all data sets, those with media and those without apart."""
    own = [dataclasses.replace(dataset, sample_ratio=1.0, weight=None) for dataset in read_meta(meta)]
    data = []
    for dataset, source, _ in read_rows(own, PackConfig(), Location.parse(folder / "imported"), Engine({})):
        texts = [row.text.strip() for part in source.parts for row in rows(part)]
        for has, name in ((False, dataset.name), (True, f"{dataset.name}{MEDIA}")):
            if chosen := [text for text in texts if has_media(text) == has]:
                data.append((dataclasses.replace(dataset, name=name), source, chosen))
    return data


def has_media(text: bytes) -> bool:
    return media_seconds(text) > 0


def repeated(
    data: list[tuple[Dataset, Source, list[bytes]]], num_rows: int, media: float, folder: Path, *, once: bool = False
) -> Path:
    """So many rows, of which a share has media, by repeating those of each kind alike, or by their sample_ratio.

    The meta JSON.
    """
    counts = {True: 0, False: 0}
    for dataset, _, texts in data:
        counts[dataset.name.endswith(MEDIA)] += len(texts)
    times = {has: num_rows * share / max(1, counts[has]) for has, share in ((True, media), (False, 1 - media))}

    def chosen(dataset: Dataset, source: Source, texts: list[bytes]) -> tuple[Dataset, Source, Iterable[bytes]]:
        ratio = times[dataset.name.endswith(MEDIA)]
        if once:
            return dataclasses.replace(dataset, sample_ratio=ratio), source, texts
        return dataset, source, islice(cycle(texts), round(ratio * len(texts)))

    write_data(Location.parse(folder), (chosen(*each) for each in data if times[each[0].name.endswith(MEDIA)] > 0))
    return folder / "meta.json"


def config_of(meta: Path, processor: str, out: Path) -> PackConfig:
    return PackConfig(meta=str(meta), processor=processor, out=str(out), engine="inline", max_skipped=1.0)


# On Ray


def on_ray(meta: Path, processor: str, num_workers: int) -> dict[str, Any]:
    """A run with so many workers, in a process of its own: seconds by stage, and until it could begin."""
    with tempfile.TemporaryDirectory(prefix="bench-cluster-out-") as folder:
        config = dataclasses.replace(config_of(meta, processor, Path(folder)), engine="ray", num_workers=num_workers)
        family_for(processor_key(config))
        progress = Progress()
        start = time.perf_counter()
        with engine("ray", num_workers, warm=warming(config)) as running:
            assert isinstance(running, RayEngine)
            started = time.perf_counter()
            running.wait_until_warm()
            warm = time.perf_counter()
            packed = run_pack(config, progress)
        stages = {stage.name: stage for stage in progress.stages if stage.name not in NOT_WORK}
        return {
            "workers": num_workers,
            "start": started - start,
            "imports": warm - started,
            "stages": {name: stage.seconds for name, stage in stages.items()},
            "cpu": {name: stage.work.cpu_seconds for name, stage in stages.items()},
            "tasks": {name: stage.work.done["tasks"] for name, stage in stages.items()},
            "sha256": [shard.sha256 for shard in packed.manifest.shards],
        }


def compare(meta: Path, processor: str, repeats: int) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for _ in range(repeats):
        for num_workers in (1, 2):
            command = [sys.executable, __file__, "--meta", str(meta), "--processor", processor]
            ended = subprocess.run([*command, "--child", str(num_workers)], stdout=subprocess.PIPE, check=True)
            runs.append(json.loads(ended.stdout.splitlines()[-1]))
    assert len({tuple(run["sha256"]) for run in runs}) == 1, "the same bytes, whatever the number of workers"
    by_workers = [[run for run in runs if run["workers"] == number] for number in (1, 2)]

    def medians(of: Callable[[dict[str, Any]], float]) -> list[float]:
        return [statistics.median(map(of, own)) for own in by_workers]

    def line(name: str, one: float, two: float) -> None:
        print(f"{name:24}{one:10.2f}{two:10.2f}{one / two if two else 0:10.2f}")

    print(f"{'on Ray, s':24}{'1 worker':>10}{'2 workers':>10}{'ratio':>10}")
    line("(Ray's start)", *medians(lambda run: run["start"]))
    line("(first imports)", *medians(lambda run: run["imports"]))
    for name in runs[0]["stages"]:
        line(name, *(statistics.median(run["stages"][name] for run in own) for own in by_workers))
    line("all but the first two", *medians(lambda run: sum(run["stages"].values())))
    line("CPU time of tasks", *medians(lambda run: sum(run["cpu"].values())))
    print(f"{len(runs[0]['sha256'])} shards, byte for byte the same\n")
    return runs


# Timed one by one


@dataclass
class Took:
    """What calls took, by the names of their functions."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    estimated: dict[str, list[float]] = field(default_factory=dict)

    def add(self, call: Call, seconds: float) -> None:
        self.seconds.setdefault(call.function.__name__, []).append(seconds)
        self.estimated.setdefault(call.function.__name__, []).append(call.seconds)

    def of(self, call: Call, rng: random.Random) -> float:
        """What a call like this takes: by its estimate, and how wrong one of the five most similar ones was."""
        name = call.function.__name__
        known = zip(self.estimated[name], self.seconds[name], strict=True)
        similar = heapq.nsmallest(5, known, key=lambda each: abs(each[0] - call.seconds))
        estimated, seconds = rng.choice(similar)
        return seconds * (call.seconds / estimated if estimated else 1.0)

    def told(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "calls": len(seconds),
                "total": sum(seconds),
                "median": statistics.median(seconds),
                "longest": max(seconds),
                "estimated": sum(self.estimated[name]),
            }
            for name, seconds in self.seconds.items()
        }


class Timing(Engine):
    """Runs calls here, cut as for more workers, and takes their time."""

    def __init__(self, env: dict[str, str], num_workers: int) -> None:
        super().__init__(env)
        self.num_workers = num_workers
        self.took = Took()

    def _outcomes(self, waiting: Waiting, memory: int) -> Generator[tuple[Call, Outcome[Any]], None, None]:
        while waiting:
            call = waiting.take()
            start = time.process_time()
            outcome = self._here(call)
            self.took.add(call, time.process_time() - start)
            yield call, outcome


def timed_one_by_one(config: PackConfig, num_workers: int) -> Took:
    import torch

    torch.set_num_threads(1)
    family = family_for(processor_key(config))
    warm = warming(config)
    warm.function(*warm.arguments)  # as workers do before their first task: it is no part of one
    running = Timing(task_environment(config), num_workers)
    (inputs,) = inputs_of(config, read_meta(Path(config.meta)), family, running)
    (planned,) = plan_all([inputs], running)
    first, *_ = shard_jobs(planned)
    running.took.add(Call(function=shard_task, arguments=(), seconds=first.seconds), 0.0)
    start = time.process_time()
    shard_task(first)  # one as a whole; `render` has cut it for so many workers
    running.took.seconds["shard_task"][0] = time.process_time() - start
    first.done.unlink()
    render(planned, running)
    return running.took


def print_calls(took: Took) -> None:
    print(f"{'one by one, CPU s':24}{'calls':>10}{'total':>10}{'median':>10}{'longest':>10}{'estimated':>10}")
    for name, told in took.told().items():
        times = "".join(f"{told[key]:10.3f}" for key in ("total", "median", "longest", "estimated"))
        print(f"{name:24}{told['calls']:10}{times}")
    print()


# Simulated


class Simulated(Engine):
    """Workers on paper, and a clock that is a number."""

    def __init__(self, num_workers: int, took: Took, *, bundled: bool, seed: int) -> None:
        super().__init__({})
        self.num_workers, self._took, self._bundled = num_workers, took, bundled
        self._rng = random.Random(seed)
        self.clock = self.work = self.joining = 0.0
        self.num_tasks = 0

    def _outcomes(self, waiting: Waiting, memory: int) -> Generator[tuple[Call, Outcome[Any]], None, None]:
        sent: deque[tuple[float, list[Call]]] = deque()  # and when: workers begin while others are sent theirs
        running: list[tuple[float, int, list[Call]]] = []
        driver = self.clock
        while waiting or sent or running:
            while waiting and len(sent) + len(running) < 2 * self.num_workers:
                driver = max(driver, self.clock) + SEND_SECONDS
                sent.append((driver, waiting.bundle(self.num_workers) if self._bundled else [waiting.take()]))
            while sent and len(running) < self.num_workers:
                sent_at, calls = sent.popleft()
                seconds = [self._took.of(call, self._rng) for call in calls]
                self.work += sum(seconds)
                self.joining += sum(seconds) if calls[0].function is join_task else 0.0
                self.num_tasks += 1
                ends = max(sent_at, self.clock) + TASK_SECONDS + sum(seconds)
                heapq.heappush(running, (ends, self.num_tasks, calls))
            self.clock, _, calls = heapq.heappop(running)
            for call in calls:
                yield call, Done(result=None, logs=[], work=Work())


def simulate(
    numbers: Sequence[int], took: Took, large: PackConfig, small: PackConfig
) -> dict[str, dict[str, dict[str, float]]]:
    """`large`: the job, of which rows are read; `small`: the same by repeating measured rows, of which packs are made.

    By the way of cutting and the number of workers: what was simulated of each stage.
    """
    family = family_for(processor_key(small))
    here = Engine(task_environment(small))
    (inputs,) = inputs_of(small, read_meta(Path(small.meta)), family, here)
    (planned,) = plan_all([inputs], here)
    data = read_rows(read_meta(Path(large.meta)), large, large.work_dir / "imported", here)
    parts = [part for _, source, _ in data for part in source.parts]
    ranges: dict[tuple[str, int], float] = {}
    for part in parts:
        ranges[part.byte_range] = ranges.get(part.byte_range, 0.0) + part.seconds
    jobs = shard_jobs(planned)

    def cut(running: Engine) -> Iterator[str]:
        yield "measure"
        running.run(measure_part, [()] * len(parts), title="measure", seconds=[part.seconds for part in parts])
        yield "render"
        write_shards(jobs, largest=0, running=running)  # on paper, packs take no memory

    def uncut(running: Engine) -> Iterator[str]:
        yield "measure"
        running.run(measure_part, [()] * len(ranges), title="measure", seconds=list(ranges.values()))
        yield "render"
        running.run(shard_task, [()] * len(jobs), title="render", seconds=[job.seconds for job in jobs])

    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, way in (("cut", cut), ("uncut", uncut)):
        found[name] = {}
        for number in numbers:
            runs = []
            for seed in range(DRAWS):
                running = Simulated(number, took, bundled=way is cut, seed=seed)
                runs.append(staged(way(running), running))
            found[name][str(number)] = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
    return found


def staged(steps: Iterator[str], running: Simulated) -> dict[str, float]:
    """What each step of a simulation took, and all of them: a step ends where the next is named."""
    found: dict[str, float] = {}
    name = next(steps, None)
    while name is not None:
        clock, tasks = running.clock, running.num_tasks
        following = next(steps, None)
        found |= {f"{name}_seconds": running.clock - clock, f"{name}_tasks": running.num_tasks - tasks}
        name = following
    room = running.num_workers * running.clock
    useful = running.work - running.joining
    return found | {"seconds": running.clock, "efficiency": running.work / room, "useful": useful / room}


def print_simulated(found: dict[str, dict[str, dict[str, float]]], num_rows: int) -> None:
    print(f"{num_rows:,} rows, simulated")
    columns = ["measure_tasks", "measure_seconds", "render_tasks", "render_seconds", "seconds", "efficiency", "useful"]
    print(f"{'':8}{'workers':>8}" + "".join(f"{name.replace('_', ' '):>17}" for name in columns))
    for way, by_workers in found.items():
        for number, figures in by_workers.items():
            shown = "".join(
                f"{figures[name]:17.0f}" if name.endswith("tasks") else f"{figures[name]:17.3f}" for name in columns
            )
            print(f"{way:8}{number:>8}{shown}")


if __name__ == "__main__":
    raise SystemExit(main())
