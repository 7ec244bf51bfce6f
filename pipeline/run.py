"""The driver of a job: meta JSON -> packed shards.

What it imports itself is light: a wrong meta JSON or processor is told before torch and transformers are imported
(pipeline/inputs.py, pipeline/stages.py), and all of that before Ray starts.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neatpack.format.manifest import Manifest
from neatpack.storage.location import Location
from neatpack.storage.lock import lock_folders

from .config import DataLossError, PackConfig, UserError, with_absolute_paths
from .families.hub import check_processor
from .finished import FILE as FINISHED, Seen, finished, leave_record, seen_by
from .ingest.data_warnings import collect_warnings
from .ingest.meta import Dataset, read_meta
from .runtime.calls import Call
from .runtime.engine import Engine, engine
from .runtime.progress import FILE as TIMING, LOADING, SPLITTING, Progress

if TYPE_CHECKING:
    from .planned import Inputs, Planned

REPORT = "report.html"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """What a run gives."""

    manifest: Manifest
    reused_shards: int = 0
    already_done: bool = False
    summary: str = ""  # what the command prints of it
    troubles: tuple[str, ...] = ()  # what was lost, in words; none: no more than --max-skipped allows
    holdout: "Packed | None" = None  # the same of OUT-holdout, where rows are held out


def run_pack(config: PackConfig, progress: Progress | None = None) -> Packed:
    """Run the job. `progress` is told how far it is.

    Raises:
        UserError: The config or the data are not what they should be.
        DataLossError: By the plan, more is skipped than `max_skipped` allows. Nothing is rendered, unless `keep_going`.
    """
    config = with_absolute_paths(config)
    with collect_warnings() as warnings, _begun(config, progress) as (progress, datasets):
        out, beside = Location.parse(config.out), Location.parse(config.for_holdout().out)
        outs = {out: config, beside: config.for_holdout()} if config.holdout else {out: config}
        seen = {each: seen_by(own, datasets) for each, own in outs.items()}
        packed = _finished(config, seen) or _packed(config, datasets, seen, warnings, progress)
    return dataclasses.replace(packed[out], holdout=packed.get(beside))


Views = Mapping[Location, Seen | None]  # by output: what a run saw before it began, if that is all that counts


def _finished(config: PackConfig, seen: Views) -> dict[Location, Packed] | None:
    """The outputs of a run, if all of them are finished, and were made from what was seen now.

    Nothing heavy is imported for it, and no data are read.
    """
    from .shard.exchange import is_alone

    another = (
        not config.holdout and Location.parse(config.for_holdout().out).exists()
    )  # it may have rows of this output
    if config.overwrite or another or not all((out / FINISHED).exists() and (out / REPORT).is_file() for out in seen):
        return None
    found: dict[Location, Packed] = {}
    with lock_folders(_in_use(config, seen)):
        for out, own in seen.items():
            if own is None or not is_alone(out) or (done := finished(out, own)) is None:
                return None
            manifest, record = done
            troubles = tuple(record.troubles)
            found[out] = Packed(manifest=manifest, already_done=True, summary=record.summary, troubles=troubles)
    for out in found:
        logger.info("%s is finished, and what it was made from has not changed", out)
    return found


def _packed(
    config: PackConfig, datasets: list[Dataset], seen: Views, warnings: list[str], progress: Progress
) -> dict[Location, Packed]:
    """The outputs of a run, made as far as they are not there."""
    from .families.registry import family_for
    from .inputs import inputs_of
    from .shard.commit import claim, refuse_old_holdout, refuse_strangers, release
    from .shard.exchange import place_for, put_in_place
    from .shard.summary import describe_plan
    from .shard.troubles import NOT_RENDERED, troubles_of_plan
    from .stages import plan_all, processor_key, task_environment, warming, with_media

    for out in seen:
        refuse_strangers(out)
    if not config.holdout:
        refuse_old_holdout(Location.parse(config.out), Location.parse(config.for_holdout().out))
    family, warm = family_for(processor_key(config)), warming(config)
    env = task_environment(config)
    with (
        lock_folders(_in_use(config, seen)),
        engine(config.engine, config.num_workers, env, progress, warm) as running,
    ):
        _prove(config, warm)
        for out in seen:
            put_in_place(out)  # what a run that was killed at it left to do
        outputs = [
            dataclasses.replace(inputs, place=place_for(inputs.out, overwrite=config.overwrite))
            for inputs in with_media(inputs_of(config, datasets, family, running), running)
        ]
        done = claim({inputs.place: inputs.identity for inputs in outputs}, overwrite=config.overwrite)
        claimed = [inputs for inputs in outputs if inputs.place not in done]
        try:
            plans = plan_all(claimed, running)
        except UserError:
            release({inputs.out: inputs.place for inputs in claimed})
            raise
        plans = [dataclasses.replace(planned, warnings=tuple(warnings)) for planned in plans]
        troubles = {
            str(planned.inputs.out): found
            for planned in ([] if config.keep_going else plans)
            if (found := troubles_of_plan(planned, NOT_RENDERED))
        }
        if not troubles:
            return _rendered(config, outputs, done, plans, seen, running)
        release({inputs.out: inputs.place for inputs in claimed})
    # Here, where the engine has ended: it is no failure of the engine's.
    holdout = plans[1] if len(plans) > 1 else None
    raise DataLossError(describe_plan(dataclasses.replace(plans[0], holdout=holdout)), troubles)


def _rendered(
    config: PackConfig,
    outputs: "Sequence[Inputs]",
    done: Mapping[Location, Manifest],
    plans: "Sequence[Planned]",
    seen: Views,
    running: Engine,
) -> dict[Location, Packed]:
    """All outputs of a run, those that are planned rendered and the others (`done`) as they are, with reports."""
    from .shard.exchange import put_in_place
    from .shard.sources import write_sources
    from .shard.summary import describe_output
    from .shard.troubles import troubles_of_output
    from .stages import render
    from .view.report.page import FILE as REPORT, add_report

    packed = {place: Packed(manifest=manifest, already_done=True) for place, manifest in done.items()}
    for planned in plans:
        rendered = render(planned, running)
        packed[planned.inputs.out] = Packed(manifest=rendered.manifest, reused_shards=rendered.reused_shards)
        put_in_place(planned.inputs.out)
    for planned in plans:
        reused = packed[planned.inputs.out].reused_shards
        running.progress.write(planned.inputs.out / TIMING, engine=config.engine, reused_shards=reused)
    for inputs in outputs:
        if inputs.place in done and not (inputs.out / REPORT).is_file():
            write_sources(inputs.out, inputs.out, inputs.corpora, inputs.config)  # the report reads these files
    running.run(add_report, [(out, packed[out].manifest) for out in seen], title="report", unit="page")
    for inputs in outputs:
        out, manifest = inputs.out, packed[inputs.out].manifest
        lost = troubles_of_output(out, manifest, inputs.corpora, config)
        kept = summary = describe_output(out, manifest)
        if reused := packed[out].reused_shards:  # a word of this run, which the next one does not say again
            summary = describe_output(out, manifest, reused_shards=reused)
        packed[out] = dataclasses.replace(packed[out], summary=summary, troubles=lost)
        leave_record(out, seen[out], manifest, kept, lost)
    return packed


def _prove(config: PackConfig, warm: Call) -> None:
    """While workers import what they need: what is proved about the tokenizer is there when they come to it."""
    if config.engine == "ray":
        warm.function(*warm.arguments)


def _in_use(config: PackConfig, outs: Iterable[Location]) -> list[Location]:
    """Folders that one run at a time may have."""
    return [config.work_dir, *(out / "work" for out in outs)]


def run_plan(config: PackConfig, progress: Progress | None = None) -> "Planned":
    """Measure and plan only."""
    config = with_absolute_paths(config)
    with collect_warnings() as warnings, _begun(config, progress) as (progress, datasets):
        from .families.registry import family_for
        from .inputs import inputs_of
        from .shard.troubles import troubles_of_plan
        from .stages import plan_all, processor_key, task_environment, warming

        family, warm = family_for(processor_key(config)), warming(config)
        env = task_environment(config)
        with lock_folders([config.work_dir]), engine(config.engine, config.num_workers, env, progress, warm) as running:
            _prove(config, warm)
            plans = plan_all(inputs_of(config, datasets, family, running), running)
        planned, *holdout = (
            dataclasses.replace(each, troubles=troubles_of_plan(each), warnings=tuple(warnings)) for each in plans
        )
    return dataclasses.replace(planned, holdout=holdout[0] if holdout else None)


def run_split(config: PackConfig, progress: Progress | None = None) -> dict[str, int]:
    """The rows of the data sets, as they are, in OUT/train and OUT/holdout: those that `run_pack` holds out are there.

    The number of rows in each.
    """
    config = with_absolute_paths(config)
    out = Location.parse(config.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"--out {out}: is there and is no empty directory; remove it, or give another",
            code="out-not-empty",
            out=str(out),
        )
    with _begun(config, progress) as (progress, datasets):
        from .ingest.written import write_split
        from .inputs import read_rows
        from .media.limits import LIMITS, Limits

        env = {LIMITS: Limits.of(config).as_text()}
        with engine(config.engine, config.num_workers, env, progress) as running:
            data = read_rows(datasets, config, out / "media", running)
        progress.enter(SPLITTING)
        counts = write_split(out, data)
        rewritten = [file for file, *_ in (out / "media").files() if file.name == "rows.jsonl"]
        for rewriting in rewritten:  # its rows are split; media beside it are needed
            rewriting.unlink()
            if rewriting.is_local:
                with contextlib.suppress(OSError):  # there are some
                    os.removedirs(rewriting.parent)
    return counts


def write_plan_lengths(planned: "Planned", folder: Location, *, keeps_work: bool) -> dict[str, int]:
    """The rows of all data sets with their exact lengths; see pipeline/measure/hints.py."""
    from .ingest.lines import media_beside
    from .measure.hints import write_lengths

    for corpus in planned.inputs.corpora:
        if not keeps_work and any(media_beside(file).exists() for file in corpus.source.files):
            raise UserError(
                f"--write-lengths: the media of {corpus.name} lie in the work folder; give --work, so that it stays",
                code="option-missing",
                option="work",
                dataset=corpus.name,
            )
    return write_lengths(folder, planned.inputs.corpora, planned.parts)


@contextlib.contextmanager
def _begun(config: PackConfig, progress: Progress | None) -> Iterator[tuple[Progress, list[Dataset]]]:
    """The progress of a run, from its start to its end, and its data sets; what is wrong with its flags is told."""
    progress = progress or Progress()
    progress.enter(LOADING)
    datasets = read_meta(
        Location.parse(config.meta),
        config.datasets,
        allow_unknown=config.allow_unknown_keys,
        media_prefixes=config.media_prefixes,
    )
    if config.processor:
        check_processor(config.processor)
    yield progress, datasets
    progress.end()
