"""Planning a run: its measured parts are dealt to partitions, each is planned by a task, and the driver keeps figures.

Numbers of packs: the whole groups of partition 0, those of partition 1, and so on; at last the packs that fill no whole
group, of all partitions, in a file of their own. So there are no gaps, and groups stay where loaders look for them.
"""

import dataclasses
import logging
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from neatpack.storage.location import Location

from .families.base import ProcessorKey
from .measure.store import MeasuredPart
from .plan.assign import Dealt, shares_of
from .plan.files import MENDED, PlanFile, read_list, write_list
from .plan.partition import dealt, kept, num_partitions
from .plan.tasks import MendJob, PartitionJob, cut_partition, join_rests, plan_partition, survey
from .planned import Inputs, Planned
from .runtime.engine import Engine
from .shard.mending import mend_task

logger = logging.getLogger(__name__)


def planned_of(inputs: Inputs, parts: Sequence[MeasuredPart], processor: ProcessorKey, running: Engine) -> Planned:
    """The plan of an output: that of an earlier run, mended as far as it came, or a new one."""
    config = inputs.config
    planned = Planned(
        inputs=inputs,
        parts=parts,
        partitions=_partitions(inputs, parts),
        folder=config.work_dir / "plans",
        files=(),
    )
    if config.overwrite:
        for path in planned.folder.glob(f"{inputs.identity.fingerprint}*"):
            path.unlink()
    if (files := read_list(planned.list_file)) is not None:
        planned = dataclasses.replace(planned, files=files)
        logger.info("plan: %d packs, made by an earlier run", planned.num_packs)
        return planned
    planned = dataclasses.replace(planned, files=_files(planned, processor, running))
    write_list(planned.list_file, planned.files)
    for path in planned.folder.glob(f"{inputs.identity.fingerprint}-*.rest.arrow"):
        path.unlink()  # they are joined now
    logger.info("plan: %d samples in %d packs", planned.num_packed, planned.num_packs)
    return planned


def _partitions(inputs: Inputs, parts: Sequence[MeasuredPart]) -> list[np.ndarray]:
    """Parts by partition: of their samples and order alone, so that the number of workers does not matter."""
    num_samples = sum(int(corpus.copies.sum(dtype=np.int64)) for corpus in inputs.corpora)
    number = num_partitions(num_samples, inputs.config.partition_samples)
    if number == 1:
        return [np.arange(len(parts))]
    ranges = ((inputs.corpora[part.corpus].copies, part.part) for part in parts)
    samples = [int(copies[part.first_row : part.first_row + part.num_rows].sum()) for copies, part in ranges]
    return dealt(np.array([part.corpus for part in parts]), np.array(samples), number)


def _files(planned: Planned, processor: ProcessorKey, running: Engine) -> list[PlanFile]:
    inputs, config = planned.inputs, planned.inputs.config
    name, number = inputs.identity.fingerprint, planned.num_partitions
    shares = shares_of(inputs.corpora)
    jobs = [
        PartitionJob(
            number=index,
            path=planned.folder / (f"{name}-{index:05d}.arrow" if number > 1 else f"{name}.arrow"),
            parts=planned.taken(index),
            corpora=shares,
            config=config,
            processor=processor,
            rest=planned.folder / f"{name}-{index:05d}.rest.arrow" if number > 1 else None,
        )
        for index in range(number)
    ]
    if number == 1:
        return running.run(plan_partition, [(job,) for job in jobs], title="plan", unit="partition")
    tokens = [0] * len(shares)
    if config.overlong_policy == "error" or any(share.weight is not None for share in shares):
        found = running.run(survey, [(job,) for job in jobs], title="survey", unit="partition")
        if refused := [each.refused for each in found if each.refused is not None]:
            raise min(refused, key=itemgetter(0))[1]
        tokens = np.sum([each.tokens for each in found], axis=0).tolist()
    everything = planned.all_taken
    jobs = [dataclasses.replace(job, parts=everything, dealt=Dealt(job.number, number, tokens)) for job in jobs]
    files = running.run(plan_partition, [(job,) for job in jobs], title="plan", unit="partition")
    return _numbered(planned, jobs, files, running)


def _numbered(planned: Planned, jobs: Sequence[PartitionJob], files: list[PlanFile], running: Engine) -> list[PlanFile]:
    """With the file of what fills no whole group, and without what --max-packs leaves out of all of them."""
    config, num_corpora = planned.inputs.config, len(planned.inputs.corpora)
    counts = kept(np.array([file.num_packs for file in files]), config.max_packs).tolist()
    short = [index for index, file in enumerate(files) if counts[index] < file.num_packs]
    items = [
        (jobs[index].path, _named(jobs[index].path, "cut"), index, num_corpora, config, counts[index])
        for index in short
    ]
    for index, file in zip(short, running.run(cut_partition, items, title="cut", unit="partition"), strict=True):
        files[index] = file
    path = planned.folder / f"{planned.inputs.identity.fingerprint}-rest.arrow"
    most = max(0, config.max_packs - sum(counts)) if config.max_packs else None
    rests = [job.rest for job in jobs]
    (rest,) = running.run(
        join_rests, [(rests, path, len(files), num_corpora, config, most)], title="join", unit="partition"
    )
    return [*files, rest]


def mended(
    planned: Planned,
    notes: Sequence[tuple[int, Location]],
    num_lost: int,
    changed_parts: Sequence[int],
    processor: ProcessorKey,
    running: Engine,
) -> Planned:
    """The plan without what shards have lost: `notes` of these shards, each with the index of its plan file."""
    files, firsts = planned.files, planned.first_packs
    # A lost row gives up one pack at most, which fills the hole, and empties another at most.
    last = max(0, planned.num_packs - 2 * num_lost - planned.inputs.config.group_size) if len(files) > 1 else 0
    involved = {index for index, _ in notes}
    involved |= {index for index in range(len(files)) if firsts[index + 1] > last or index == len(files) - 1}
    job = MendJob(
        files=files,
        folder=planned.folder,
        paths={index: _mended_path(planned, files[index]) for index in sorted(involved)},
        last=last,
        names=[corpus.name for corpus in planned.inputs.corpora],
        parts={index: planned.parts[index].path for index in changed_parts},
        config=planned.inputs.config,
        processor=processor,
    )
    (new,) = running.run(mend_task, [(job, notes)], title="mend", unit="plan")
    return dataclasses.replace(planned, files=[new.get(index, file) for index, file in enumerate(files)])


def keep(planned: Planned, before: Planned) -> None:
    """Make a mended plan the one that counts; what it takes the place of is removed."""
    write_list(planned.list_file, planned.files)
    names = {file.name for file in planned.files}
    for file in before.files:
        if file.name not in names:
            before.path(file).unlink(missing_ok=True)


def _mended_path(planned: Planned, file: PlanFile) -> Location:
    """A new name for every round: a run that is killed has the files of its list. a.arrow, a.mended-1.arrow, …"""
    stem, _, number = planned.path(file).stem.partition(MENDED)
    return planned.folder / f"{stem}{MENDED}{int(number or 0) + 1}.arrow"


def _named(path: Location, word: str) -> Location:
    return path.with_name(f"{path.stem}.{word}.arrow")
