"""What a job costs its driver, and its tasks, by the row: a token store of made-up rows, and the real plan, ledger,
index and commit of it. Shards are not rendered; their notes, and files of their size, are made up, too.
"""

import logging
import math
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from neatpack.format.index import SCHEMA as INDEX
from neatpack.format.members import member_names
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.lines import Part, Source
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.ingest.written import SplitRows
from neatpack.pipeline.inputs import output_of
from neatpack.pipeline.measure.store import MeasuredPart
from neatpack.pipeline.plan.files import read_shard
from neatpack.pipeline.planned import Planned
from neatpack.pipeline.planning import planned_of
from neatpack.pipeline.runtime.calls import Arguments, Call, Outcome, Waiting, outcome_of
from neatpack.pipeline.runtime.engine import Engine
from neatpack.pipeline.runtime.logs import ROOT
from neatpack.pipeline.shard.note import DatasetSums, ShardNote
from neatpack.pipeline.shard.writer import ShardJob
from neatpack.pipeline.stages import processor_key, render, shard_jobs
from neatpack.storage.location import Location
from neatpack.storage.tables import write_arrow

PROCESSOR = Path(__file__).resolve().parents[1] / "demo" / "processor"
PART_ROWS = 5_000
NAMES = ("pictures", "charts", "text")  # half, a quarter, a quarter of the rows; the last has no pictures
CAPACITY = 16_384
TABLES = ("write_index", "write_loader_index", "write_stats", "write_media")  # tasks that follow what is gathered
SKIPPED = 0.01  # of the rows, with words about a file that is missing

Result = TypeVar("Result")


class Children(Engine):
    """Runs tasks in a process of their own, and keeps what they cost there."""

    def __init__(self) -> None:
        super().__init__({})
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        self.seconds: dict[str, float] = {}  # of CPU, by task
        self.longest: dict[str, float] = {}  # of which the longest call took so many
        self.peak = 0  # bytes

    def _outcomes(self, waiting: Waiting, memory: int) -> Generator[tuple[Call, Outcome[Any]], None, None]:
        while waiting:
            call = waiting.take()
            outcome, seconds, peak = self._pool.submit(_measured, call.function, call.arguments).result()
            name = call.function.__name__
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.longest[name] = max(seconds, self.longest.get(name, 0.0))
            self.peak = max(self.peak, peak)
            yield call, outcome

    def close(self) -> None:
        self._pool.shutdown()


def _measured(function: Callable[..., Result], arguments: Arguments) -> tuple[Outcome[Result], float, int]:
    started = time.process_time()
    outcome = outcome_of(function, arguments, logging.getLogger(ROOT).getEffectiveLevel())
    return outcome, time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measure(num_rows: int, *, partition_samples: int = 4_000_000) -> dict[str, Any]:
    """Figures of one size. In a process of its own: memory that was once taken stays taken."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder), num_rows, partition_samples)


def _measure(folder: Path, num_rows: int, partition_samples: int) -> dict[str, Any]:
    config = PackConfig(meta="absent", processor=str(PROCESSOR), out=str(folder / "out"), pack_size=CAPACITY,
                        partition_samples=partition_samples, engine="inline", max_skipped=1.0, pixels="u8")  # fmt: skip
    key = processor_key(config)
    family = family_for(key)
    parts = write_store(folder / "measured", num_rows, PART_ROWS)
    running = Children()
    running.run(_warm, [(key,)], title="warm", unit="worker")
    running.seconds.clear()
    running.longest.clear()
    data = _data(parts)
    before, cpu = _start()
    planned = planned_of(output_of("train", config, family, data), parts, key, running)
    seconds, peak = _stop(before, cpu)
    jobs = shard_jobs(planned)
    for job in jobs:
        write_note(job, family.media)
    num_shards, num_packs = len(jobs), planned.num_packs
    del jobs
    before, cpu = _start()
    manifest = render(planned, running).manifest
    more_seconds, more_peak = _stop(before, cpu)
    running.close()
    missing = sum(not (folder / "out" / name).is_file() for name in manifest.files)
    assert not missing and manifest.counts.samples == num_rows and manifest.counts.packs == num_packs
    tasks = {name: count / num_rows * 1e6 for name, count in running.seconds.items()}
    longest = running.longest
    tables = max(longest[name] for name in TABLES)
    # The driver, the largest partition, and at the end its ledger or the longest table, whichever takes longer.
    alone = longest["plan_partition"] + max(longest["write_ledger"], longest["gather"] + tables)
    return {
        "rows": num_rows,
        "partitions": planned.num_partitions,
        "packs": num_packs,
        "shards": num_shards,
        "driver_us_per_row": (seconds + more_seconds) / num_rows * 1e6,
        "driver_bytes_per_row": max(peak, more_peak) / num_rows,
        "tasks_us_per_row": sum(tasks.values()),
        "us_per_row": (seconds + more_seconds) / num_rows * 1e6 + sum(tasks.values()),
        "serial_us_per_row": (seconds + more_seconds + alone) / num_rows * 1e6,
        "largest_task_bytes": running.peak,
        "tasks": {name: round(value, 4) for name, value in tasks.items()},
    }


def planned_rows(folder: Path, num_rows: int, config: PackConfig, running: Engine, *, part_rows: int) -> Planned:
    """A plan of made-up rows, which are measured already."""
    key = processor_key(config)
    parts = write_store(folder, num_rows, part_rows)
    return planned_of(output_of("train", config, family_for(key), _data(parts)), parts, key, running)


def _data(parts: Sequence[MeasuredPart]) -> list[SplitRows]:
    data = []
    for index, name in enumerate(NAMES):
        file = f"/data/{name}.jsonl"
        own = tuple(part.part for part in parts if part.corpus == index)
        source = Source(files=(file,), digests=("d",), digest="d", parts=own)
        dataset = Dataset(name=name, files=(file,), media_dir="/media")
        data.append((dataset, source, np.zeros(source.num_rows, np.bool_)))
    return data


def _start() -> tuple[int, float]:
    """Memory of this process now, and its CPU time; the peak is counted from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS"), time.process_time()


def _stop(before: int, cpu: float) -> tuple[float, int]:
    return time.process_time() - cpu, max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    """Of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10


def _warm(key: ProcessorKey) -> None:
    family_for(key)


def write_store(folder: Path, num_rows: int, part_rows: int) -> list[MeasuredPart]:
    """Rows as they are after measuring, without their tokens; one in a hundred is skipped."""
    parts, rng = [], np.random.default_rng(0)
    for corpus, rows in enumerate((num_rows // 2, num_rows // 4, num_rows - num_rows // 2 - num_rows // 4)):
        for number in range(math.ceil(rows / part_rows)):
            first, count = number * part_rows, min(part_rows, rows - number * part_rows)
            path = folder / f"{corpus}-{number:06d}.arrow"
            write_arrow(path, _stored(first, count, rng, is_text=corpus == 2))
            part = Part(file=f"/data/{NAMES[corpus]}.jsonl", start=first, end=first + count, first_row=first,
                        num_rows=count, first_line=first + 1)  # fmt: skip
            parts.append(MeasuredPart(corpus=corpus, part=part, path=Location.parse(path)))
    return parts


def _stored(first: int, count: int, rng: np.random.Generator, *, is_text: bool) -> pa.Table:
    visual = np.zeros(count) if is_text else np.clip(rng.lognormal(np.log(450), 0.8, count), 64, 4096)
    text = rng.lognormal(np.log(200 if is_text else 60), 1.0, count)
    visual = visual.astype(np.int32)
    tokens = np.minimum(visual + np.maximum(text, 8).astype(np.int32), CAPACITY - 64)
    is_bad = rng.random(count) < SKIPPED
    rows = np.arange(first, first + count)
    details = np.where(is_bad, np.char.add(np.char.add("/media/", rows.astype(str)), ".jpg: No such file"), "")
    return pa.table(
        {
            "row": pa.array(rows, pa.int64()),
            "tokens": pa.array(np.where(is_bad, 0, tokens), pa.int32()),
            "visual_tokens": pa.array(np.where(is_bad, 0, visual), pa.int32()),
            "audio_tokens": pa.array(np.zeros(count), pa.int32()),
            "media_bytes": (media := pa.array(np.where(is_bad, 0, visual * 2352), pa.int64())),
            "picture_bytes": media,
            "reason": pa.array(np.where(is_bad, "missing_media", "")),
            "detail": pa.array(details),
            "id": pa.array(np.char.add("sample-", rows.astype(str))),
            "group": pa.array(np.zeros(count), pa.int64()),
            "at": pa.array(2048 * np.arange(count), pa.int64()),
            "size": pa.array(np.full(count, 2048), pa.int32()),
        }
    )


def write_note(job: ShardJob, media: Any) -> None:
    """As if its shard had been rendered: lines of its packs, an empty file of its size, the note."""
    plan, names = read_shard(job.plan, job.batch, job.shift), member_names(media)
    count = plan.num_packs
    tokens, visual = plan.per_pack("tokens"), plan.per_pack("visual_tokens")
    sizes = np.repeat((21 * tokens // len(names))[:, None], len(names), axis=1)
    ends = np.cumsum(512 + sizes + -sizes % 512, axis=1)
    bytes_ = ends[:, -1]
    offset = np.cumsum(bytes_) - bytes_
    starts = offset[:, None] + 512 + np.concatenate([np.zeros((count, 1), np.int64), ends[:, :-1]], axis=1)
    places = pa.StructArray.from_arrays(
        [pa.array(list(names) * count), pa.array(starts.ravel(), pa.int64()), pa.array(sizes.ravel(), pa.int64())],
        ["name", "offset", "size"],
    )
    columns = {
        "pack": np.arange(job.first, job.last), "offset": offset, "bytes": bytes_, "tokens": tokens,
        "visual_tokens": visual, "target_tokens": tokens // 8, "num_documents": np.diff(plan.starts),
        "shard": pa.array([job.name] * count),
        "members": pa.ListArray.from_arrays(pa.array(np.arange(count + 1) * len(names), pa.int32()), places),
    }  # fmt: skip
    zeros = np.zeros(count, np.int64)
    arrays = [columns.get(field.name, zeros) for field in INDEX]
    cast = [(each if isinstance(each, pa.Array) else pa.array(each)).cast(field.type)
            for each, field in zip(arrays, INDEX, strict=True)]  # fmt: skip
    write_arrow(job.lines, pa.table(cast, schema=INDEX))
    size = int(bytes_.sum()) + 1024
    job.tar.parent.mkdir()
    with open(str(job.tar), "wb") as file:
        os.truncate(file.fileno(), size)
    sums = tuple(DatasetSums(name, 8 * count, count, 0, 0) for name in NAMES)
    ShardNote(
        fingerprint=job.fingerprint, shard=job.name, bytes=size, sha256="0" * 64, first_pack=job.first,
        num_packs=count, lost=(), sums=sums,
    ).write(job.done)  # fmt: skip
