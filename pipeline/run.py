"""The driver of a job: meta JSON -> packed shards, stage by stage."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .config import PackConfig, UserError, fingerprint
from .families.base import Family, ProcessorKey
from .families.registry import family_for
from .identity import Identity, own_code, versions
from .ingest.convert import first_rows, resolved
from .ingest.corpus import Corpus, Split
from .ingest.holdout import held_out
from .ingest.imported import lines_of, num_files
from .ingest.lines import Lines, RangeCount, Source, joined, media_beside, part_ranges, scan, source_of
from .ingest.meta import Dataset, read_meta
from .ingest.written import SplitRows, write_split
from .labels import TrainOn
from .manifest import Manifest
from .measure.hints import write_lengths
from .measure.part import PartJob, measure_part
from .measure.store import MeasuredPart, check_media, has_media_trouble
from .media.limits import LIMITS, Limits
from .media.remote import DOWNLOADS
from .plan.assign import Key, Plan, make_plan, measured_again, reserved, shard_starts
from .plan.repair import repaired
from .planned import Inputs, Planned
from .runtime.engine import Engine, engine
from .runtime.lock import locked
from .runtime.storage import write_json
from .runtime.tables import open_arrow, write_arrow
from .shard.commit import claim, commit, refuse_old_holdout, refuse_strangers
from .shard.exchange import place_for, put_in_place
from .shard.note import CHANGED, LostRow
from .shard.troubles import troubles_of_output, troubles_of_plan
from .shard.writer import ShardJob, finished, shard_task

MAX_ROUNDS = 10  # of shards made again; one is enough, unless media change all the time
SCAN_RANGES = 64  # byte ranges in a scanning task: 256 MiB, a fraction of a second

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """What a run gives."""

    manifest: Manifest
    reused_shards: int = 0
    already_done: bool = False
    troubles: tuple[str, ...] = ()  # what was lost, in words; none: no more than --max-skipped allows
    holdout: "Packed | None" = None  # the same of OUT-holdout, where rows are held out


def run_pack(config: PackConfig) -> Packed:
    out, beside = Path(config.out), Path(config.for_holdout().out)
    refuse_strangers(out)
    if config.holdout:
        refuse_strangers(beside)
    else:
        refuse_old_holdout(out, beside)
    outs = [out, beside] if config.holdout else [out]
    in_use = [config.work_dir, *(each / "work" for each in outs)]
    with locked(in_use), engine(config.engine, config.num_workers, _environment(config)) as running:
        for each in outs:
            put_in_place(each)  # what a run that was killed at it left to do
        outputs = [
            dataclasses.replace(inputs, place=place_for(inputs.out, overwrite=config.overwrite))
            for inputs in _with_media(_inputs(config, running), running)
        ]
        done = claim({inputs.place: inputs.identity for inputs in outputs}, overwrite=config.overwrite)
        todo = _plan([inputs for inputs in outputs if inputs.place not in done], running)
        packed = {place: Packed(manifest=manifest, already_done=True) for place, manifest in done.items()}
        for planned in todo:
            packed[planned.inputs.out] = _render(planned, running)
            put_in_place(planned.inputs.out)
    for inputs in outputs:
        lost = troubles_of_output(inputs.out, inputs.corpora, config.max_skipped)
        packed[inputs.out] = dataclasses.replace(packed[inputs.out], troubles=lost)
    return dataclasses.replace(packed[out], holdout=packed.get(beside))


def run_plan(config: PackConfig) -> Planned:
    """Measure and plan only."""
    with (
        locked([config.work_dir]),
        engine(config.engine, config.num_workers, _environment(config)) as running,
    ):
        plans = _plan(_inputs(config, running), running)
    planned, *holdout = (dataclasses.replace(each, troubles=troubles_of_plan(each)) for each in plans)
    return dataclasses.replace(planned, holdout=holdout[0] if holdout else None)


def run_split(config: PackConfig) -> dict[str, int]:
    """The rows of the data sets, as they are, in OUT/train and OUT/holdout: those that `run_pack` holds out are there.

    The number of rows in each.
    """
    out = Path(config.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is there and is no empty directory; remove it, or give another")
    with engine(config.engine, config.num_workers) as running:
        data = _read(
            read_meta(Path(config.meta), config.datasets, strict=config.strict), config, out / "media", running
        )
    counts = write_split(out, data)
    for rewriting in list((out / "media").glob("*/rows.jsonl")):  # its rows are split; media beside it are needed
        rewriting.unlink()
        with contextlib.suppress(OSError):  # there are some
            os.removedirs(rewriting.parent)
    return counts


def _render(planned: Planned, running: Engine) -> Packed:
    """Decode, pack and write. Where rows turn out unreadable, the plan is mended and what changed is written again."""
    reused: int | None = None
    rounds = 0
    while True:
        jobs = _shard_jobs(planned)
        notes = {job: note for job in jobs if (note := finished(job)) is not None}
        todo = [job for job in jobs if job not in notes]
        if reused is None:
            reused = len(notes)
            logger.info("shards: %d, of which %d were finished by an earlier run", len(jobs), len(notes))
        written = running.run(shard_task, [(job,) for job in todo], title="render", unit="shard")
        notes |= dict(zip(todo, written, strict=True))
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
    manifest = commit(planned, [notes[job] for job in jobs])
    counts = manifest.counts
    logger.info("%d samples in %d packs, %d tokens", counts.packed, counts.packs, counts.tokens)
    _log_skips("in all", counts.skipped)
    return Packed(manifest=manifest, reused_shards=reused)


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


def write_plan_lengths(planned: Planned, folder: Path, *, keeps_work: bool) -> dict[str, int]:
    """The rows of all data sets with their exact lengths; see pipeline/measure/hints.py."""
    for corpus in planned.inputs.corpora:
        if not keeps_work and any(media_beside(file).exists() for file in corpus.source.files):
            raise UserError(
                f"--write-lengths: the media of {corpus.name} lie in the work folder; give --work, so that it stays"
            )
    return write_lengths(folder, planned.inputs.corpora, planned.parts)


def _inputs(config: PackConfig, running: Engine) -> list[Inputs]:
    """Read what there is, and say in one record per output what it depends on: OUT, and OUT-holdout if there is one."""
    datasets = read_meta(Path(config.meta), config.datasets, strict=config.strict)
    family = family_for(_processor_key(config))
    reserved(config, len(family.fake_image_ids))  # a pack that cannot hold it is refused before anything is measured
    data = _read(datasets, config, config.work_dir / "imported", running)
    outputs: dict[Split, PackConfig] = {"train": config}
    if config.holdout:
        outputs["holdout"] = config.for_holdout()
    return [_output(split, own, family, data) for split, own in outputs.items()]


def _output(split: Split, config: PackConfig, family: Family, data: Sequence[SplitRows]) -> Inputs:
    """What one output starts from."""
    corpora = [
        Corpus.of(dataset, source, split, is_held, repeat_at_load=config.repeat_at_load)
        for dataset, source, is_held in data
    ]
    for corpus in corpora:
        counts = ", ".join(f"{len(rows)} {reason.replace('_', ' ')}" for reason, rows in corpus.left_out().items())
        logger.info("%s: %d rows, %s", corpus.name, corpus.num_rows, counts)
    identity = Identity(
        inputs={corpus.name: corpus.described() for corpus in corpora},
        processor=family.fingerprint,
        config=config.shaping("measure", "plan", "render") | {"split": split},
        versions=versions(),
        code=own_code(family.revision),
    )
    return Inputs(config=config, family=family, corpora=corpora, identity=identity, place=Path(config.out))


def _read(datasets: Sequence[Dataset], config: PackConfig, imported: Path, running: Engine) -> list[SplitRows]:
    """Each data set with its numbered rows, and which of them are held out."""
    files = [
        (dataset, imported, number, config.parquet_media)
        for dataset in datasets
        for number in range(num_files(dataset))
    ]
    scanned = iter(_scan(running.run(lines_of, files, title="open", unit="file"), running))
    sources = [joined([next(scanned) for _ in range(num_files(dataset))]) for dataset in datasets]
    first = [first_rows(source.parts, config.max_row_bytes) for source in sources]
    datasets = [resolved(*each) for each in zip(datasets, first, strict=True)]
    held = [np.zeros(source.num_rows, dtype=np.bool_) for source in sources]
    if config.holdout:
        parts = [(index, part) for index, source in enumerate(sources) for part in source.parts]
        items = [(datasets[index], part, config.holdout, config.max_row_bytes) for index, part in parts]
        for (index, part), found in zip(parts, running.run(held_out, items, title="hold out"), strict=True):
            held[index][part.first_row : part.first_row + part.num_rows] = found
    return list(zip(datasets, sources, held, strict=True))


def _scan(files: Sequence[Lines], running: Engine) -> list[Source]:
    """Number the rows of every file, many byte ranges at a time."""
    ranges = [part_ranges(lines) for lines in files]
    chunks = [(index, start) for index, pieces in enumerate(ranges) for start in range(0, len(pieces), SCAN_RANGES)]
    items = [(files[index], ranges[index][start : start + SCAN_RANGES]) for index, start in chunks]
    counts: list[list[RangeCount]] = [[] for _ in files]
    for (index, _), scanned in zip(chunks, running.run(scan, items, title="scan", unit="chunk"), strict=True):
        counts[index] += scanned
    return [source_of(*arguments) for arguments in zip(files, ranges, counts, strict=True)]


def _plan(outputs: Sequence[Inputs], running: Engine) -> list[Planned]:
    """The rows of all outputs of a run are measured at once."""
    parts = _measure(outputs[0], running) if outputs else []
    return [_planned(inputs, parts) for inputs in outputs]


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


def _measure(inputs: Inputs, running: Engine) -> list[MeasuredPart]:
    """Tokenize and probe what the token store does not hold yet."""
    config = inputs.config
    parts: list[MeasuredPart] = []
    todo: list[MeasuredPart] = []
    for index, corpus in enumerate(inputs.corpora):
        folder = config.work_dir / "measured" / _store_name(inputs, corpus)
        for number, part in enumerate(corpus.source.parts):
            measured = MeasuredPart(corpus=index, part=part, path=folder / f"{number:06d}.arrow")
            parts.append(measured)
            # A part with unreadable media is measured again on --overwrite: they may have been repaired since.
            if not measured.path.exists() or (config.overwrite and has_media_trouble(measured.path)):
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
            processor=_processor_key(config),
            path=measured.path,
        )
        for measured in parts
    ]
    running.run(measure_part, [(job,) for job in jobs], title="measure")


def _with_media(outputs: Sequence[Inputs], running: Engine) -> list[Inputs]:
    """With what --check-media says of the media in their identities; what has changed is measured again before."""
    level = outputs[0].config.check_media
    if level == "none":
        return list(outputs)
    parts = _measure(outputs[0], running)
    checked = running.run(check_media, [(part.path, level) for part in parts], title="check media")
    stale = [part for part, (changed, _) in zip(parts, checked, strict=True) if changed]
    if stale:
        logger.warning("media of %d parts changed since they were measured; measuring them again", len(stale))
        _measure_parts(outputs[0], stale, running)
        checked = running.run(check_media, [(part.path, level) for part in parts], title="check media")
    digests: dict[str, list[str]] = {corpus.name: [] for corpus in outputs[0].corpora}
    for part, (_, digest) in zip(parts, checked, strict=True):
        digests[outputs[0].corpora[part.corpus].name].append(digest)
    with_media = []
    for inputs in outputs:
        told = {
            name: entry | {"media": fingerprint(level, *digests[name])}
            for name, entry in inputs.identity.inputs.items()
        }
        with_media.append(dataclasses.replace(inputs, identity=dataclasses.replace(inputs.identity, inputs=told)))
    return with_media


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


def _shard_jobs(planned: Planned) -> list[ShardJob]:
    inputs, config = planned.inputs, planned.inputs.config
    parts_file = planned.plan_file.with_suffix(".parts.json")
    write_json(parts_file, [str(part.path) for part in planned.parts])
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
            processor=_processor_key(config),
            resize=config.resize,
            fake_image=config.fake_image,
            align=config.align,
            out=inputs.place,
            done=inputs.place / "work" / "done" / f"{number:06d}.json",
            fingerprint=fingerprint(inputs.identity.fingerprint, planned.plan.digest(first, last)),
        )
        for number, (first, last) in enumerate(zip(starts, starts[1:], strict=False))
    ]


def _environment(config: PackConfig) -> dict[str, str]:
    """Of every task: media are opened far below what the config reaches."""
    return {
        DOWNLOADS: str(config.work_dir / "fetched") if config.allow_http else "",
        LIMITS: Limits.of(config).as_text(),
    }


def _processor_key(config: PackConfig) -> ProcessorKey:
    return ProcessorKey(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ProcessorKey)})


def _log_skips(when: str, counts: Mapping[str, int]) -> None:
    if counts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        logger.info("skipped %s: %s", when, reasons)
