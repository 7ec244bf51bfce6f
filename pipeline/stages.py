"""The stages of a run after its inputs are read: measure, plan, render."""

import dataclasses
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neatpack.format.manifest import Manifest, fingerprint
from neatpack.storage.location import Location

from .config import PackConfig, UserError
from .families.base import ProcessorKey
from .families.kept import kept_encoder
from .families.registry import family_for
from .ingest.convert import first_rows, judge_rows
from .ingest.corpus import Corpus
from .ingest.lines import Part
from .ingest.unread import RowFacts
from .labels import TrainOn
from .measure.part import PartJob, facts_beside, measure_part, read_facts
from .measure.store import MeasuredPart, check_media, has_media_trouble
from .media.limits import LIMITS, Limits
from .media.remote import ALLOWED_HOSTS, DOWNLOADS
from .plan.files import write_paths
from .planned import Inputs, Planned
from .planning import keep, mended, planned_of
from .runtime.calls import Call
from .runtime.engine import Engine
from .runtime.progress import CHECKING, COMMITTING, MEASURING, PLANNING, RENDERING, RENDERING_AGAIN
from .shard.commit import commit
from .shard.note import ShardDone, note_path
from .shard.pieces import pieces_folder, write_shards
from .shard.writer import ShardJob, finished_shards

PART_SECONDS = 3e-3  # that a part takes to measure beside its rows: files that are opened, written and synced
NOTES = 1024  # of shards, that a task reads: a tenth of a second
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
    parts = _measure(outputs[0], running, judges=False)  # planning does
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


def _measure(inputs: Inputs, running: Engine, *, judges: bool) -> list[MeasuredPart]:
    """Tokenize and probe what the token store does not hold yet. `judges`: raises UserError where rows are not as the
    meta JSON says."""
    config = inputs.config
    facts: dict[Location, RowFacts] = {}
    parts: list[MeasuredPart] = []
    todo: list[MeasuredPart] = []
    for index, corpus in enumerate(inputs.corpora):
        folder = config.work_dir / "measured" / _store_name(inputs, corpus)
        there = folder.sizes()
        for part in corpus.source.parts:
            measured = MeasuredPart(corpus=index, part=part, path=folder / f"{_part_name(corpus, part)}.arrow")
            parts.append(measured)
            # A part with unreadable media is measured again on --overwrite: they may have been repaired since.
            if measured.path.name not in there or (config.overwrite and has_media_trouble(measured.path)):
                todo.append(measured)
            elif judges and (beside := facts_beside(measured.path)).name in there:
                facts[measured.path] = read_facts(beside)
    logger.info("parts: %d, of which %d are in the token store already", len(parts), len(parts) - len(todo))
    for measured, found in zip(todo, _measure_parts(inputs, todo, running), strict=True):
        facts[measured.path] = found
    for index, corpus in enumerate(inputs.corpora if judges else ()):
        whole = RowFacts.of_all(facts.get(each.path, RowFacts()) for each in parts if each.corpus == index)
        if whole:
            judge_rows(corpus.dataset, first_rows(corpus.source.parts, config.max_row_bytes), whole)
    return parts


def _measure_parts(inputs: Inputs, parts: Sequence[MeasuredPart], running: Engine) -> Sequence[RowFacts]:
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
    return running.run(measure_part, [(job,) for job in jobs], title="measure", seconds=seconds, journaled=True)


def _store_name(inputs: Inputs, corpus: Corpus) -> str:
    """The folder of a corpus in the token store: the fingerprint of how its rows are measured.

    Not of what they are, which the names of its parts tell: rows that are added, or taken otherwise, are measured, and
    the others are there.
    """
    how = {key: value for key, value in corpus.dataset.described().items() if key not in ("weight", "sample_ratio")}
    return fingerprint(
        how,
        corpus.dataset.media_dirs,
        corpus.dataset.bounds,
        len(corpus.dataset.files) > 1,  # then what is wrong with a line names the file
        inputs.identity.processor,
        inputs.config.shaping("measure"),
        inputs.config.max_row_tokens,
        inputs.identity.versions,
        inputs.identity.code,
    )


def _part_name(corpus: Corpus, part: Part) -> str:
    """Of its file in the token store: where its rows are, what they are, and which of them are measured."""
    is_taken = corpus.is_taken(part)
    taken = "" if is_taken.all() else hashlib.sha256(np.packbits(is_taken).tobytes()).hexdigest()
    what = fingerprint(part.file, part.origin, part.digest, part.num_rows, part.first_line, taken)
    return f"{part.first_row:09d}-{part.start:012d}-{part.end:012d}-{what}"


def plan_all(outputs: Sequence[Inputs], running: Engine, *, judges: bool = True) -> list[Planned]:
    """The rows of all outputs of a run are measured at once. `judges`: raises UserError where rows are not as the meta
    JSON says."""
    if not outputs:
        return []
    parts = _measure(outputs[0], running, judges=judges)
    running.progress.enter(PLANNING)
    plans = [planned_of(inputs, parts, processor_key(inputs.config), running) for inputs in outputs]
    for planned in plans:
        _log_skips("by the plan", planned.skip_counts())
    running.progress.set_skipped(sum((planned.skip_counts() for planned in plans), Counter()))
    return plans


def render(planned: Planned, running: Engine) -> Rendered:
    """Decode, pack and write. Where rows turn out unreadable, the plan is mended and what changed is written again."""
    reused: int | None = None
    rounds = 0
    while True:
        jobs = shard_jobs(planned)
        done = _finished(planned.inputs.place, jobs, running)
        todo = [job for job in jobs if job.number not in done]
        if reused is None:
            reused = len(done)
            logger.info("shards: %d, of which %d were finished by an earlier run", len(jobs), len(done))
        num_lines = [cut.num_lines for file in planned.files for cut in file.cuts]
        num_rows = sum(num_lines[job.number] for job in todo)
        running.progress.enter(RENDERING_AGAIN if rounds else RENDERING, rows=num_rows)
        largest = max((file.largest for file in planned.files), default=0)
        done |= write_shards(todo, largest, running)
        holed = [job for job in jobs if done[job.number].num_lost]
        if not holed:
            break
        rounds += 1
        if rounds > MAX_ROUNDS:
            num_lost = sum(done[job.number].num_lost for job in holed)
            raise UserError(
                f"media change while they are packed, {num_lost} the last time; pack a copy of them",
                code="data-changed",
                media=num_lost,
            )
        planned = _mended(planned, holed, done, running)
    running.progress.enter(COMMITTING)
    pieces_folder(planned.inputs.place).remove()
    entries = [done[job.number].entry for job in jobs]
    manifest = commit(planned, entries, processor_key(planned.inputs.config), running)
    counts = manifest.counts
    logger.info("%d samples in %d packs, %d tokens", counts.packed, counts.packs, counts.tokens)
    _log_skips("in all", counts.skipped)
    return Rendered(manifest=manifest, reused_shards=reused)


def _finished(out: Location, jobs: Sequence[ShardJob], running: Engine) -> dict[int, ShardDone]:
    """What earlier runs finished, by number. Tasks look, each for many."""
    if not note_path(out, 0).parent.is_dir():
        return {}
    shards = [(job.number, job.fingerprint) for job in jobs]
    chunks = [(out, shards[start : start + NOTES]) for start in range(0, len(shards), NOTES)]
    found = running.run(finished_shards, chunks, title="look", unit="chunk")
    return {number: done for some in found for number, done in some.items()}


def _mended(planned: Planned, holed: Sequence[ShardJob], done: Mapping[int, ShardDone], running: Engine) -> Planned:
    """A new plan, in the place of the old one: a run that is killed goes on with it. `holed`: shards that lost rows."""
    found = [done[job.number] for job in holed]
    num_lost, num_changed = sum(each.num_lost for each in found), sum(each.num_changed for each in found)
    changed_parts = sorted({part for each in found for part in each.changed_parts})
    if num_changed:
        logger.warning("%d rows have media that changed since they were measured; measuring them again", num_changed)
        _measure_parts(planned.inputs, [planned.parts[part] for part in changed_parts], running)
    files = {planned.path(file): index for index, file in enumerate(planned.files)}
    notes = [(files[job.plan], job.done) for job in holed]
    new = mended(planned, notes, num_lost, changed_parts, processor_key(planned.inputs.config), running)
    for job in holed:
        job.done.unlink(missing_ok=True)  # whatever the plan says now, this shard is to be made again
    keep(new, planned)
    logger.info("%d rows turned out unreadable; packs that changed are written again", num_lost - num_changed)
    return new


def shard_jobs(planned: Planned) -> list[ShardJob]:
    inputs, config = planned.inputs, planned.inputs.config
    parts_file = planned.folder / f"{inputs.identity.fingerprint}.parts.arrow"
    write_paths(parts_file, [part.path for part in planned.parts])
    names, key = tuple(corpus.name for corpus in inputs.corpora), processor_key(config)
    identity = inputs.identity.fingerprint
    jobs: list[ShardJob] = []
    for file, shift in zip(planned.files, planned.first_packs, strict=False):
        path = planned.path(file)
        for batch, cut in enumerate(file.cuts):
            first = shift + cut.first
            jobs.append(
                ShardJob(
                    number=len(jobs),
                    first=first,
                    last=first + cut.num_packs,
                    plan=path,
                    batch=batch,
                    shift=shift,
                    parts=parts_file,
                    corpora=names,
                    processor=key,
                    resize=config.resize,
                    pixels=config.pixels,
                    fake_image=config.fake_image,
                    align=config.align,
                    out=inputs.place,
                    fingerprint=f"{identity} {first} {cut.digest}",
                    seconds=cut.seconds,
                )
            )
    return jobs


def task_environment(config: PackConfig) -> dict[str, str]:
    """Of every task: media are opened far below what the config reaches."""
    return {
        DOWNLOADS: (config.work_dir / "fetched").uri if config.allow_http else "",
        ALLOWED_HOSTS: " ".join(config.allow_hosts),
        LIMITS: Limits.of(config).as_text(),
    }


def warming(config: PackConfig) -> Call:
    """What every worker does first: import this module, and what tasks need with it, and load the processor whole."""
    return Call(function=_ready, arguments=(processor_key(config), config.work_dir / "tokenizers"))


def _ready(processor: ProcessorKey, proofs: Location) -> None:
    chat = family_for(processor).chat
    chat.encoder = kept_encoder(chat.tokenizer, proofs)


def processor_key(config: PackConfig) -> ProcessorKey:
    return ProcessorKey(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ProcessorKey)})


def _log_skips(when: str, counts: Mapping[str, int]) -> None:
    if counts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        logger.info("skipped %s: %s", when, reasons)
