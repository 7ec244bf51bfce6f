"""The stages of a run after its inputs are read: measure, plan, render."""

import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .config import PackConfig, UserError, fingerprint
from .families.base import ProcessorKey
from .families.registry import family_for
from .ingest.corpus import Corpus
from .labels import TrainOn
from .manifest import Manifest
from .measure.part import PartJob, measure_part
from .measure.store import MeasuredPart, check_media, has_media_trouble
from .media.limits import LIMITS, Limits
from .media.remote import DOWNLOADS
from .plan.assign import Key, Plan, make_plan, measured_again, shard_starts
from .plan.repair import repaired
from .planned import Inputs, Planned
from .runtime.engine import Call, Engine
from .runtime.progress import CHECKING, COMMITTING, MEASURING, PLANNING, RENDERING, RENDERING_AGAIN
from .runtime.storage import remove, sizes_in, text_of, write_json
from .runtime.tables import open_arrow, write_arrow
from .shard.commit import commit
from .shard.note import CHANGED, LostRow
from .shard.pieces import FOLDER as PIECES, write_shards
from .shard.writer import ShardJob, finished, shard_task

PART_SECONDS = 3e-3  # that a part takes to measure beside its rows: files that are opened, written and synced
MAX_ROUNDS = 10  # of shards made again; one is enough, unless media change all the time

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """An output that is complete."""

    manifest: Manifest
    reused_shards: int  # finished by an earlier run


def with_media(outputs: Sequence[Inputs], running: Engine) -> list[Inputs]:
    """With what --check-media says of the media in their identities; what has changed is measured again before."""
    level = outputs[0].config.check_media
    if level == "none":
        return list(outputs)
    parts = _measure(outputs[0], running)
    running.progress.enter(CHECKING)
    # By byte range: how ranges are cut into parts must not show in an identity.
    ranges = [list(own) for _, own in itertools.groupby(parts, lambda part: (part.corpus, part.part.byte_range))]
    items = [([part.path for part in own], level) for own in ranges]
    checked = running.run(check_media, items, title="check media", unit="range")
    stale = [part for own, (changed, _) in zip(ranges, checked, strict=True) if changed for part in own]
    if stale:
        logger.warning("media of %d parts changed since they were measured; measuring them again", len(stale))
        _measure_parts(outputs[0], stale, running)
        running.progress.enter(CHECKING)
        checked = running.run(check_media, items, title="check media", unit="range")
    digests: dict[str, list[str]] = {corpus.name: [] for corpus in outputs[0].corpora}
    for own, (_, digest) in zip(ranges, checked, strict=True):
        digests[outputs[0].corpora[own[0].corpus].name].append(digest)
    with_media = []
    for inputs in outputs:
        told = {
            name: entry | {"media": fingerprint(level, *digests[name])}
            for name, entry in inputs.identity.inputs.items()
        }
        with_media.append(dataclasses.replace(inputs, identity=dataclasses.replace(inputs.identity, inputs=told)))
    return with_media


def _measure(inputs: Inputs, running: Engine) -> list[MeasuredPart]:
    """Tokenize and probe what the token store does not hold yet."""
    config = inputs.config
    parts: list[MeasuredPart] = []
    todo: list[MeasuredPart] = []
    for index, corpus in enumerate(inputs.corpora):
        folder = config.work_dir / "measured" / _store_name(inputs, corpus)
        there = sizes_in(folder)
        for part in corpus.source.parts:
            # By what it holds, so that no version that cuts otherwise takes it for another part.
            name = f"{part.first_row:09d}-{part.start:012d}-{part.end:012d}.arrow"
            measured = MeasuredPart(corpus=index, part=part, path=folder / name)
            parts.append(measured)
            # A part with unreadable media is measured again on --overwrite: they may have been repaired since.
            if measured.path.name not in there or (config.overwrite and has_media_trouble(measured.path)):
                todo.append(measured)
    logger.info("parts: %d, of which %d are in the token store already", len(parts), len(parts) - len(todo))
    _measure_parts(inputs, todo, running)
    return parts


def _measure_parts(inputs: Inputs, parts: Sequence[MeasuredPart], running: Engine) -> None:
    """Into the token store, whether they are there already or not."""
    config = inputs.config
    jobs = [
        PartJob(
            dataset=inputs.corpora[measured.corpus].dataset,
            part=measured.part,
            is_taken=inputs.corpora[measured.corpus].is_taken(measured.part),
            max_row_bytes=config.max_row_bytes,
            lenient=config.placeholders == "lenient",
            train_on=TrainOn(turns=config.train_on, reasoning=config.reasoning),
            processor=processor_key(config),
            path=measured.path,
        )
        for measured in parts
    ]
    running.progress.enter(MEASURING, rows=sum(int(job.is_taken.sum()) for job in jobs))
    shares = [float(job.is_taken.mean()) if job.part.num_rows else 0.0 for job in jobs]
    seconds = [PART_SECONDS + share * job.part.seconds for share, job in zip(shares, jobs, strict=True)]
    running.run(measure_part, [(job,) for job in jobs], title="measure", seconds=seconds)


def _store_name(inputs: Inputs, corpus: Corpus) -> str:
    """The folder of a corpus in the token store: the fingerprint of all that its measured rows are made of.

    --holdout says which rows are measured, unless all are. With a weight they are, whichever it is.
    """
    described = corpus.dataset.described()
    return fingerprint(
        {key: value for key, value in described.items() if key != "weight"},
        corpus.dataset.media_dirs,
        corpus.source.digest,
        *corpus.source.files,
        inputs.identity.processor,
        inputs.config.shaping("measure"),
        0 if corpus.is_measured.all() else inputs.config.holdout,
        inputs.identity.versions,
        inputs.identity.code,
    )


def plan_all(outputs: Sequence[Inputs], running: Engine) -> list[Planned]:
    """The rows of all outputs of a run are measured at once."""
    if not outputs:
        return []
    parts = _measure(outputs[0], running)
    running.progress.enter(PLANNING)
    plans = [_planned(inputs, parts) for inputs in outputs]
    running.progress.set_skipped(sum((Counter(planned.plan.skip_counts()) for planned in plans), Counter()))
    return plans


def _planned(inputs: Inputs, parts: Sequence[MeasuredPart]) -> Planned:
    config = inputs.config
    plan_file = config.work_dir / "plans" / f"{inputs.identity.fingerprint}.arrow"
    if config.overwrite:
        for file in plan_file.parent.glob(f"{plan_file.stem}.*"):
            file.unlink()
    if plan_file.exists():
        plan = Plan(open_arrow(plan_file))
        logger.info("plan: %d packs, made by an earlier run", plan.num_packs)
    else:
        plan = make_plan(inputs.corpora, parts, inputs.family, config)
        write_arrow(plan_file, plan.table)
        logger.info("plan: %d samples in %d packs", len(plan.packed), plan.num_packs)
    _log_skips("by the plan", plan.skip_counts())
    planned = Planned(
        inputs=inputs,
        parts=parts,
        plan=plan,
        plan_file=plan_file,
        shards=tuple(shard_starts(plan, config.shard_mb << 20)),
    )
    if planned.mended_file.exists():
        return dataclasses.replace(planned, plan=Plan(open_arrow(planned.mended_file)))
    return planned


def render(planned: Planned, running: Engine) -> Rendered:
    """Decode, pack and write. Where rows turn out unreadable, the plan is mended and what changed is written again."""
    reused: int | None = None
    rounds = 0
    while True:
        jobs = shard_jobs(planned)
        notes = {job: note for job in jobs if (note := finished(job)) is not None}
        todo = [job for job in jobs if job not in notes]
        if reused is None:
            reused = len(notes)
            logger.info("shards: %d, of which %d were finished by an earlier run", len(jobs), len(notes))
        starts = planned.plan.starts
        num_rows = sum(int(starts[job.last] - starts[job.first]) for job in todo)
        running.progress.enter(RENDERING_AGAIN if rounds else RENDERING, rows=num_rows)
        notes |= write_shards(todo, planned.plan, shard_task, running)
        lost = {(row.dataset, row.row, row.repeat): row for note in notes.values() for row in note.lost}
        if not lost:
            break
        for job, note in notes.items():
            if note.lost:
                job.done.unlink(missing_ok=True)  # whatever the plan will say, this shard is to be made again
        rounds += 1
        if rounds > MAX_ROUNDS:
            raise UserError(f"media change while they are packed, {len(lost)} the last time; pack a copy of them")
        planned = _mended(planned, lost, running)
    running.progress.enter(COMMITTING)
    remove(planned.inputs.place / "work" / PIECES)
    manifest = commit(planned, [notes[job] for job in jobs])
    counts = manifest.counts
    logger.info("%d samples in %d packs, %d tokens", counts.packed, counts.packs, counts.tokens)
    _log_skips("in all", counts.skipped)
    return Rendered(manifest=manifest, reused_shards=reused)


def _mended(planned: Planned, lost: Mapping[Key, LostRow], running: Engine) -> Planned:
    """A new plan, in the place of the old one: a run that is killed goes on with it."""
    inputs, config, family = planned.inputs, planned.inputs.config, planned.inputs.family
    unreadable = {key: row.skip for key, row in lost.items() if row.reason != CHANGED}
    changed = lost.keys() - unreadable.keys()
    again = None
    if changed:
        logger.warning("%d rows have media that changed since they were measured; measuring them again", len(changed))
        where = planned.plan.places(changed)
        stale = np.unique(planned.plan.table["part"].to_numpy()[where]).tolist()
        _measure_parts(inputs, [planned.parts[part] for part in stale], running)
        again = where, measured_again(planned.plan, where, inputs.corpora, planned.parts, family, config)
    plan = repaired(planned.plan, unreadable, config, len(family.fake_image_ids), again)
    write_arrow(planned.mended_file, plan.table)
    logger.info("%d rows turned out unreadable; packs that changed are written again", len(unreadable))
    return dataclasses.replace(planned, plan=plan)


def shard_jobs(planned: Planned) -> list[ShardJob]:
    inputs, config = planned.inputs, planned.inputs.config
    parts_file = planned.plan_file.with_suffix(".parts.json")
    write_json(parts_file, [text_of(part.path) for part in planned.parts])
    plan_file = planned.mended_file if planned.mended_file.exists() else planned.plan_file
    starts = planned.shard_starts
    return [
        ShardJob(
            number=number,
            first=first,
            last=last,
            plan=plan_file,
            parts=parts_file,
            corpora=tuple(corpus.name for corpus in inputs.corpora),
            processor=processor_key(config),
            resize=config.resize,
            fake_image=config.fake_image,
            align=config.align,
            out=inputs.place,
            done=inputs.place / "work" / "done" / f"{number:06d}.json",
            fingerprint=fingerprint(inputs.identity.fingerprint, planned.plan.digest(first, last)),
        )
        for number, (first, last) in enumerate(zip(starts, starts[1:], strict=False))
    ]


def task_environment(config: PackConfig) -> dict[str, str]:
    """Of every task: media are opened far below what the config reaches."""
    return {
        DOWNLOADS: text_of(config.work_dir / "fetched") if config.allow_http else "",
        LIMITS: Limits.of(config).as_text(),
    }


def warming(config: PackConfig) -> Call:
    """What every worker does first: import this module, and what tasks need with it, and load the processor."""
    return Call(function=_ready, arguments=(processor_key(config),))


def _ready(processor: ProcessorKey) -> None:
    family_for(processor)


def processor_key(config: PackConfig) -> ProcessorKey:
    return ProcessorKey(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ProcessorKey)})


def _log_skips(when: str, counts: Mapping[str, int]) -> None:
    if counts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        logger.info("skipped %s: %s", when, reasons)
