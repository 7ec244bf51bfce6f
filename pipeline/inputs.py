"""What a run starts from: the rows of its data sets, numbered, and all that shapes an output, in one record each."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from neatpack.format.manifest import Identity
from neatpack.pipeline.families.restore import pixels_for
from neatpack.storage.location import Location
from neatpack.storage.uris import redact_uri

from .config import PackConfig
from .families.base import Family
from .identity import own_code, versions
from .ingest.convert import first_rows, resolved
from .ingest.corpus import Corpus, Split
from .ingest.data_warnings import warn_of_data
from .ingest.holdout import held_out
from .ingest.imported import lines_of, num_files
from .ingest.lines import ByteRange, Lines, RangeCount, Source, joined, part_ranges, scan, source_of
from .ingest.meta import Dataset
from .ingest.written import SplitRows
from .plan.assign import reserved
from .planned import Inputs
from .runtime.calls import Call
from .runtime.engine import Engine
from .runtime.progress import READING

SCAN_RANGES = 32  # byte ranges that are scanned by one call: 128 MiB
# On one core, about: of a byte that is scanned; of a file that lies as it is, while one that is rewritten may take
# anything; of a row that is looked at for --holdout, against measuring it.
SCAN_SECONDS, OPEN_SECONDS, HOLD_SHARE = 6e-9, 5e-3, 0.05

logger = logging.getLogger(__name__)


def inputs_of(config: PackConfig, datasets: Sequence[Dataset], family: Family, running: Engine) -> list[Inputs]:
    """Read what there is, and say in one record per output what it depends on: OUT, and OUT-holdout if there is one."""
    config = dataclasses.replace(config, pixels=pixels_for(config.pixels, family))
    reserved(config, len(family.fake_image_ids))  # a pack that cannot hold it is refused before anything is measured
    data = read_rows(datasets, config, config.work_dir / "imported", running)
    outputs: dict[Split, PackConfig] = {"train": config}
    if config.holdout:
        outputs["holdout"] = config.for_holdout()
    return [output_of(split, own, family, data) for split, own in outputs.items()]


def output_of(split: Split, config: PackConfig, family: Family, data: Sequence[SplitRows]) -> Inputs:
    """What one output starts from."""
    corpora = [Corpus.of(dataset, source, split, is_held) for dataset, source, is_held in data]
    for corpus in corpora:
        counts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in corpus.num_left_out().items())
        logger.info("%s: %d rows, %s", corpus.name, corpus.num_rows, counts)
    identity = Identity(
        inputs={corpus.name: corpus.described() for corpus in corpora},
        processor=family.fingerprint,
        config=config.shaping("measure", "plan", "render") | {"split": split},
        versions=versions(),
        code=own_code(family.revision),
    )
    return Inputs(config=config, family=family, corpora=corpora, identity=identity, place=Location.parse(config.out))


def read_rows(datasets: Sequence[Dataset], config: PackConfig, imported: Location, running: Engine) -> list[SplitRows]:
    """Each data set with its numbered rows, and which of them are held out."""
    running.progress.enter(READING)
    files = [(dataset, number) for dataset in datasets for number in range(num_files(dataset))]
    calls = [
        Call(
            function=lines_of,
            arguments=(dataset, imported, number, config.parquet_media),
            seconds=OPEN_SECONDS if _lies_as_it_is(dataset, number) else 0.0,
            here=_lies_as_it_is(dataset, number),
            key=index,
        )
        for index, (dataset, number) in enumerate(files)
    ]
    scanned = iter(_scanned(calls, running))
    sources = []
    for dataset in datasets:
        own = [next(scanned) for _ in range(num_files(dataset))]
        for file in (file for file, source in zip(dataset.files, own, strict=False) if not source.num_rows):
            if len(own) > 1:  # of a data set without any row, the summary tells
                warn_of_data(logger, f"{dataset.name}: {redact_uri(file)} has no rows; is it whole?")
        sources.append(joined(own))
    first = [first_rows(source.parts, config.max_row_bytes) for source in sources]
    datasets = [resolved(*each) for each in zip(datasets, first, strict=True)]
    held = [np.zeros(source.num_rows, dtype=np.bool_) for source in sources]
    if config.holdout:
        parts = [(index, part) for index, source in enumerate(sources) for part in source.parts]
        items = [(datasets[index], part, config.holdout, config.max_row_bytes) for index, part in parts]
        seconds = [max(1e-3, HOLD_SHARE * part.seconds) for _, part in parts]
        all_found = running.run(held_out, items, title="hold out", seconds=seconds)
        for (index, part), found in zip(parts, all_found, strict=True):
            held[index][part.first_row : part.first_row + part.num_rows] = found
    return list(zip(datasets, sources, held, strict=True))


def _lies_as_it_is(dataset: Dataset, number: int) -> bool:
    """Whether a file of a data set is on a disk, and read where it is, without being rewritten first."""
    return not dataset.source and _is_local(dataset.files[number]) and dataset.files[number].endswith(".jsonl")


def _is_local(file: str) -> bool:
    return Location.parse(file).is_local


def _scanned(files: Sequence[Call], running: Engine) -> list[Source]:
    """What these calls open, its rows numbered: many byte ranges at a time, of a file as soon as it is open."""
    opened: dict[int, tuple[Lines, list[ByteRange]]] = {}
    counts: dict[tuple[int, int], list[RangeCount]] = {}

    def then(call: Call, result: Any) -> Iterator[Call]:
        if call.function is scan:
            counts[call.key] = result
            return
        opened[call.key] = result, part_ranges(result)
        ranges = opened[call.key][1]
        for start in range(0, len(ranges), SCAN_RANGES):
            chunk = ranges[start : start + SCAN_RANGES]
            seconds = SCAN_SECONDS * (chunk[-1][1] - chunk[0][0])
            here = _is_local(result.file)
            yield Call(function=scan, arguments=(result, chunk), seconds=seconds, here=here, key=(call.key, start))

    running.flow(files, then, title="read", unit="task")
    return [
        source_of(
            lines, ranges, [count for start in range(0, len(ranges), SCAN_RANGES) for count in counts[index, start]]
        )
        for index, (lines, ranges) in sorted(opened.items())
    ]
