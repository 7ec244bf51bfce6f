"""The driver of a job: meta JSON -> packed shards, stage by stage."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import PackConfig, UserError, fingerprint
from .families.base import ProcessorKey
from .families.registry import family_for
from .identity import Identity, own_code, versions
from .ingest.corpus import Corpus
from .ingest.imported import lines_of
from .ingest.lines import Lines, RangeCount, Source, part_ranges, scan, source_of
from .ingest.meta import read_meta
from .manifest import Manifest
from .measure.hints import write_lengths
from .measure.part import PartJob, measure_part
from .measure.store import MeasuredPart, has_media_trouble
from .plan.assign import Plan, make_plan, shard_starts
from .planned import Inputs, Planned
from .runtime.engine import Engine, engine
from .runtime.storage import write_json
from .runtime.tables import open_arrow, write_arrow
from .shard.commit import claim, commit, refuse_strangers
from .shard.writer import ShardJob, finished, shard_task

SCAN_RANGES = 64  # byte ranges in a scanning task: 256 MiB, a fraction of a second

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """What a run gives."""

    manifest: Manifest
    reused_shards: int = 0
    already_done: bool = False


def run_pack(config: PackConfig) -> Packed:
    refuse_strangers(Path(config.out))
    with engine(config.engine, config.num_workers) as running:
        inputs = _inputs(config, running)
        done = claim(inputs.out, inputs.identity, overwrite=config.overwrite)
        if done is not None:
            return Packed(manifest=done, already_done=True)
        planned = _plan(inputs, running)
        jobs = _shard_jobs(planned)
        notes = {job: note for job in jobs if (note := finished(job)) is not None}
        todo = [job for job in jobs if job not in notes]
        logger.info("shards: %d, of which %d were finished by an earlier run", len(jobs), len(notes))
        written = running.run(shard_task, [(job,) for job in todo], title="render", unit="shard")
        notes |= dict(zip(todo, written, strict=True))
        manifest = commit(planned, [notes[job] for job in jobs])
    counts = manifest.counts
    logger.info("%d samples in %d packs, %d tokens", counts.packed, counts.packs, counts.tokens)
    _log_skips("in all", counts.skipped)
    return Packed(manifest=manifest, reused_shards=len(jobs) - len(todo))


def run_plan(config: PackConfig) -> Planned:
    """Measure and plan only."""
    with engine(config.engine, config.num_workers) as running:
        return _plan(_inputs(config, running), running)


def write_plan_lengths(planned: Planned, folder: Path, *, keeps_work: bool) -> dict[str, int]:
    """The rows of all data sets with their exact lengths; see pipeline/measure/hints.py."""
    for corpus in planned.inputs.corpora:
        if not keeps_work and Path(corpus.source.file).with_name("media.bin").exists():
            raise UserError(
                f"--write-lengths: the media of {corpus.name} lie in the work folder; give --work, so that it stays"
            )
    return write_lengths(folder, planned.inputs.corpora, planned.parts)


def _inputs(config: PackConfig, running: Engine) -> Inputs:
    """Read what there is, and say in one record what the output depends on."""
    datasets = read_meta(Path(config.meta), config.datasets)
    family = family_for(_processor_key(config))
    imported = config.work_dir / "imported"
    lines = running.run(lines_of, [(dataset, imported) for dataset in datasets], title="open", unit="file")
    sources = _scan(lines, running)
    corpora = [Corpus.of(dataset, source) for dataset, source in zip(datasets, sources, strict=True)]
    for corpus in corpora:
        logger.info("%s: %d rows, %d sampled out", corpus.name, corpus.num_rows, corpus.num_sampled_out)
    identity = Identity(
        inputs={corpus.name: corpus.described() for corpus in corpora},
        processor=family.fingerprint,
        config=config.shaping("measure", "plan", "render"),
        versions=versions(),
        code=own_code(family.revision),
    )
    return Inputs(config=config, family=family, corpora=corpora, identity=identity)


def _scan(files: Sequence[Lines], running: Engine) -> list[Source]:
    """Number the rows of every file, many byte ranges at a time."""
    ranges = [part_ranges(lines) for lines in files]
    chunks = [(index, start) for index, pieces in enumerate(ranges) for start in range(0, len(pieces), SCAN_RANGES)]
    items = [(files[index], ranges[index][start : start + SCAN_RANGES]) for index, start in chunks]
    counts: list[list[RangeCount]] = [[] for _ in files]
    for (index, _), scanned in zip(chunks, running.run(scan, items, title="scan", unit="chunk"), strict=True):
        counts[index] += scanned
    return [source_of(*arguments) for arguments in zip(files, ranges, counts, strict=True)]


def _plan(inputs: Inputs, running: Engine) -> Planned:
    config = inputs.config
    parts = _measure(inputs, running)
    plan_file = config.work_dir / "plans" / f"{inputs.identity.fingerprint}.arrow"
    if plan_file.exists() and not config.overwrite:
        plan = Plan(open_arrow(plan_file))
        logger.info("plan: %d packs, made by an earlier run", plan.num_packs)
    else:
        plan = make_plan(inputs.corpora, parts, inputs.family, config)
        write_arrow(plan_file, plan.table)
        logger.info("plan: %d samples in %d packs", len(plan.packed), plan.num_packs)
    _log_skips("by the plan", plan.skip_counts())
    return Planned(inputs=inputs, parts=parts, plan=plan, plan_file=plan_file)


def _measure(inputs: Inputs, running: Engine) -> list[MeasuredPart]:
    """Tokenize and probe what the token store does not hold yet."""
    config = inputs.config
    parts: list[MeasuredPart] = []
    todo: list[PartJob] = []
    for index, corpus in enumerate(inputs.corpora):
        folder = config.work_dir / "measured" / _store_name(inputs, corpus)
        for number, part in enumerate(corpus.source.parts):
            measured = MeasuredPart(corpus=index, part=part, path=folder / f"{number:06d}.arrow")
            parts.append(measured)
            # A part with unreadable media is measured again on --overwrite: they may have been repaired since.
            if not measured.path.exists() or (config.overwrite and has_media_trouble(measured.path)):
                todo.append(
                    PartJob(
                        dataset=corpus.dataset,
                        part=part,
                        is_taken=corpus.is_taken(part),
                        lenient=config.placeholders == "lenient",
                        processor=_processor_key(config),
                        path=measured.path,
                    )
                )
    logger.info("parts: %d, of which %d are in the token store already", len(parts), len(parts) - len(todo))
    running.run(measure_part, [(job,) for job in todo], title="measure")
    return parts


def _store_name(inputs: Inputs, corpus: Corpus) -> str:
    """The folder of a corpus in the token store: the fingerprint of all that its measured rows are made of."""
    return fingerprint(
        corpus.dataset.described(),
        corpus.dataset.media_dir,
        corpus.source.digest,
        corpus.source.file,
        inputs.identity.processor,
        inputs.config.shaping("measure"),
        inputs.identity.versions,
        inputs.identity.code,
    )


def _shard_jobs(planned: Planned) -> list[ShardJob]:
    inputs, config = planned.inputs, planned.inputs.config
    parts_file = planned.plan_file.with_suffix(".parts.json")
    write_json(parts_file, [str(part.path) for part in planned.parts])
    starts = shard_starts(planned.plan, config.shard_mb << 20)
    return [
        ShardJob(
            number=number,
            first=first,
            last=last,
            plan=planned.plan_file,
            parts=parts_file,
            corpora=tuple(corpus.name for corpus in inputs.corpora),
            processor=_processor_key(config),
            resize=config.resize,
            fake_image=config.fake_image,
            align=config.align,
            out=inputs.out,
            done=inputs.out / "work" / "done" / f"{number:06d}.json",
            fingerprint=inputs.identity.fingerprint,
        )
        for number, (first, last) in enumerate(zip(starts, starts[1:], strict=False))
    ]


def _processor_key(config: PackConfig) -> ProcessorKey:
    return ProcessorKey(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ProcessorKey)})


def _log_skips(when: str, counts: Mapping[str, int]) -> None:
    if counts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        logger.info("skipped %s: %s", when, reasons)
