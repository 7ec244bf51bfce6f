"""The driver of a job: meta JSON -> packed shards, stage by stage."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from neatpack.pipeline.config import PackConfig, UserError, fingerprint
from neatpack.pipeline.families.base import Family
from neatpack.pipeline.families.registry import ProcessorKey, family_for
from neatpack.pipeline.ingest.imported import lines_of
from neatpack.pipeline.ingest.lines import Lines, Part, Source, part_ranges, rows, scan, source_of
from neatpack.pipeline.ingest.meta import Dataset, copies_of_rows, read_meta
from neatpack.pipeline.ingest.sharegpt import convert, parse_row
from neatpack.pipeline.measure.hints import write_lengths
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.measure.store import has_media_trouble, write_measured
from neatpack.pipeline.plan.assign import MeasuredPart, Plan, make_plan, shard_starts
from neatpack.pipeline.records import Example, Measured, Skip
from neatpack.pipeline.runtime.engine import Engine, engine
from neatpack.pipeline.runtime.journal import DETAIL as CRASHED, Journal, journal
from neatpack.pipeline.runtime.storage import open_arrow, read_json, write_arrow, write_json
from neatpack.pipeline.shard.commit import claim, commit, refuse_strangers, versions
from neatpack.pipeline.shard.writer import ShardJob, finished, write_shard

SCAN_RANGES = 64  # byte ranges in a scanning task: 256 MiB, a fraction of a second
BATCH = 64  # rows tokenized at once


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What the first half of a run gives: everything known before a pixel is decoded."""

    datasets: list[Dataset]
    sources: list[Source]
    copies: list[np.ndarray]
    parts: list[MeasuredPart]
    family: Family
    plan: Plan
    plan_file: Path
    identity: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What a run gives."""

    manifest: dict[str, Any]
    reused_shards: int = 0
    already_done: bool = False


def run_pack(config: PackConfig) -> Packed:
    out = Path(config.out)
    refuse_strangers(out)
    with engine(config) as running:
        family, datasets, sources, identity = _inputs(config, running)
        if claim(out, identity, overwrite=config.overwrite):
            return Packed(manifest=read_json(out / "manifest.json"), already_done=True)
        planned = _plan(config, running, family, datasets, sources, identity)
        jobs = _shard_jobs(config, planned)
        before = [finished(job) for job in jobs]
        todo = [job for job, note in zip(jobs, before, strict=True) if note is None]
        written = iter(
            running.run(shard_task, [(job, _processor_key(config)) for job in todo], title="render", unit="shard")
        )
        notes = [note if note is not None else next(written) for note in before]
        names = [dataset.name for dataset in datasets]
        manifest = commit(out, notes, planned.plan, planned.copies, names, family, config, identity)
    return Packed(manifest=manifest, reused_shards=len(jobs) - len(todo))


def run_plan(config: PackConfig) -> Planned:
    """Measure and plan only."""
    with engine(config) as running:
        family, datasets, sources, identity = _inputs(config, running)
        return _plan(config, running, family, datasets, sources, identity)


def write_plan_lengths(planned: Planned, folder: Path, *, keeps_work: bool) -> dict[str, int]:
    """The rows of all data sets with their exact lengths; see pipeline/measure/hints.py."""
    for dataset, source in zip(planned.datasets, planned.sources, strict=True):
        if not keeps_work and Path(source.file).with_name("media.bin").exists():
            raise UserError(
                f"--write-lengths: the media of {dataset.name} lie in the work folder; give --work, so that it stays"
            )
    measured: list[list[Path]] = [[] for _ in planned.datasets]
    for part in planned.parts:
        measured[part.dataset].append(part.path)
    parts = [
        list(zip(source.parts, paths, strict=True)) for source, paths in zip(planned.sources, measured, strict=True)
    ]
    return write_lengths(folder, planned.datasets, parts)


def _inputs(config: PackConfig, running: Engine) -> tuple[Family, list[Dataset], list[Source], dict[str, Any]]:
    """Read what there is, and say in one record what the output depends on."""
    datasets = read_meta(Path(config.meta), config.datasets)
    family = family_for(_processor_key(config))
    imported = config.work_dir / "imported"
    lines = running.run(lines_of, [(dataset, imported) for dataset in datasets], title="open", unit="file")
    sources = _scan(lines, running)
    identity = {
        "inputs": {
            dataset.name: dataset.described() | {"content": source.digest, "rows": source.num_rows}
            for dataset, source in zip(datasets, sources, strict=True)
        },
        "processor": family.fingerprint,
        "config": config.shaping("measure", "plan", "render"),
        "versions": versions(),
    }
    return family, datasets, sources, identity


def _scan(files: Sequence[Lines], running: Engine) -> list[Source]:
    """Number the rows of every file, many byte ranges at a time."""
    ranges = [part_ranges(lines) for lines in files]
    chunks = [(index, start) for index, pieces in enumerate(ranges) for start in range(0, len(pieces), SCAN_RANGES)]
    items = [(files[index], ranges[index][start : start + SCAN_RANGES]) for index, start in chunks]
    counts: list[list[Any]] = [[] for _ in files]
    for (index, _), scanned in zip(chunks, running.run(scan, items, title="scan", unit="chunk"), strict=True):
        counts[index] += scanned
    return [source_of(*arguments) for arguments in zip(files, ranges, counts, strict=True)]


def _plan(
    config: PackConfig,
    running: Engine,
    family: Family,
    datasets: list[Dataset],
    sources: list[Source],
    identity: dict[str, Any],
) -> Planned:
    copies = [
        copies_of_rows(source.num_rows, dataset.sample_ratio) for dataset, source in zip(datasets, sources, strict=True)
    ]
    parts = _measure(config, running, family, datasets, sources, copies)
    plan_file = config.work_dir / "plans" / f"{fingerprint(identity)}.arrow"
    if plan_file.exists() and not config.overwrite:
        plan = Plan(open_arrow(plan_file))
    else:
        plan = make_plan(parts, copies, [dataset.name for dataset in datasets], family, config)
        write_arrow(plan_file, plan.table)
    return Planned(
        datasets=datasets,
        sources=sources,
        copies=copies,
        parts=parts,
        family=family,
        plan=plan,
        plan_file=plan_file,
        identity=identity,
    )


def _measure(
    config: PackConfig,
    running: Engine,
    family: Family,
    datasets: list[Dataset],
    sources: list[Source],
    copies: list[np.ndarray],
) -> list[MeasuredPart]:
    """Tokenize and probe what the token store does not hold yet."""
    parts: list[MeasuredPart] = []
    todo: list[tuple[Any, ...]] = []
    for index, (dataset, source) in enumerate(zip(datasets, sources, strict=True)):
        made_of = fingerprint(
            dataset.described(),
            dataset.media_dir,
            source.digest,
            source.file,
            family.fingerprint,
            config.shaping("measure"),
            versions(),
        )
        for number, part in enumerate(source.parts):
            path = config.work_dir / "measured" / made_of / f"{number:06d}.arrow"
            parts.append(MeasuredPart(dataset=index, path=path))
            # A part with unreadable media is measured again on --overwrite: they may have been repaired since.
            if not path.exists() or (config.overwrite and has_media_trouble(path)):
                chosen = copies[index][part.first_row : part.first_row + part.num_rows] > 0
                todo.append((dataset, part, chosen, path, config.placeholders == "lenient", _processor_key(config)))
    running.run(measure_task, todo, title="measure")
    return parts


def measure_task(
    dataset: Dataset, part: Part, chosen: np.ndarray, path: Path, lenient: bool, key: ProcessorKey
) -> None:
    """Read, convert, tokenize and probe the chosen rows of a part into the token store."""
    family = family_for(key)
    numbers: list[int] = []
    results: list[Measured | Skip] = []
    waiting: list[Example] = []
    places: list[int] = []

    def flush(watch: Journal) -> None:
        measured = measure(waiting, family, lambda index: watch.at(str(numbers[places[index]])))
        for place, result in zip(places, measured, strict=True):
            results[place] = result
        waiting.clear()
        places.clear()

    with journal(path.parent / f"{path.stem}.journal") as watch:
        for row, line_number, line in rows(part):
            if not chosen[row - part.first_row]:
                continue
            parsed = parse_row(line, line_number)
            example = parsed if isinstance(parsed, Skip) else convert(parsed, dataset, lenient=lenient)
            if watch.is_poison(str(row)):
                example = Skip(reason="bad_media", detail=CRASHED)
            numbers.append(row)
            results.append(example)  # type: ignore[arg-type]  # an Example only until the next flush
            if isinstance(example, Example):
                waiting.append(example)
                places.append(len(results) - 1)
                if len(waiting) == BATCH:
                    flush(watch)
        flush(watch)
        write_measured(path, numbers, results)


def shard_task(job: ShardJob, key: ProcessorKey) -> dict[str, Any]:
    return write_shard(job, family_for(key), _open_plan(job.plan, Path(job.plan).stat().st_mtime_ns))


@lru_cache(maxsize=1)
def _open_plan(path: str, _mtime: int) -> Plan:
    """Once in a process: every shard's task needs it."""
    return Plan(open_arrow(Path(path)))


def _shard_jobs(config: PackConfig, planned: Planned) -> list[ShardJob]:
    out, done = Path(config.out), Path(config.out) / "work" / "done"
    parts_file = planned.plan_file.with_suffix(".parts.json")
    write_json(parts_file, [str(part.path) for part in planned.parts])
    starts = shard_starts(planned.plan, config.shard_mb << 20)
    return [
        ShardJob(
            number=number,
            first=first,
            last=last,
            plan=str(planned.plan_file),
            parts=str(parts_file),
            datasets=tuple(dataset.name for dataset in planned.datasets),
            resize=config.resize,
            fake_image=config.fake_image,
            align=config.align,
            out=str(out),
            done=str(done / f"{number:06d}.json"),
            fingerprint=fingerprint(planned.identity),
        )
        for number, (first, last) in enumerate(zip(starts, starts[1:], strict=False))
    ]


def _processor_key(config: PackConfig) -> ProcessorKey:
    return ProcessorKey(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ProcessorKey)})
