"""What a run starts from: the rows of its data sets, numbered, and all that shapes an output, in one record each."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .config import PackConfig
from .families.base import Family
from .identity import Identity, own_code, versions
from .ingest.convert import first_rows, resolved
from .ingest.corpus import Corpus, Split
from .ingest.holdout import held_out
from .ingest.imported import lines_of, num_files
from .ingest.lines import Lines, RangeCount, Source, joined, part_ranges, scan, source_of
from .ingest.meta import Dataset
from .ingest.written import SplitRows
from .plan.assign import reserved
from .planned import Inputs
from .runtime.engine import Engine
from .runtime.progress import READING

SCAN_RANGES = 64  # byte ranges in a scanning task: 256 MiB, a fraction of a second

logger = logging.getLogger(__name__)


def inputs_of(config: PackConfig, datasets: Sequence[Dataset], family: Family, running: Engine) -> list[Inputs]:
    """Read what there is, and say in one record per output what it depends on: OUT, and OUT-holdout if there is one."""
    reserved(config, len(family.fake_image_ids))  # a pack that cannot hold it is refused before anything is measured
    data = read_rows(datasets, config, config.work_dir / "imported", running)
    outputs: dict[Split, PackConfig] = {"train": config}
    if config.holdout:
        outputs["holdout"] = config.for_holdout()
    return [output_of(split, own, family, data) for split, own in outputs.items()]


def output_of(split: Split, config: PackConfig, family: Family, data: Sequence[SplitRows]) -> Inputs:
    """What one output starts from."""
    corpora = [
        Corpus.of(dataset, source, split, is_held, repeat_at_load=config.repeat_at_load)
        for dataset, source, is_held in data
    ]
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
    return Inputs(config=config, family=family, corpora=corpora, identity=identity, place=Path(config.out))


def read_rows(datasets: Sequence[Dataset], config: PackConfig, imported: Path, running: Engine) -> list[SplitRows]:
    """Each data set with its numbered rows, and which of them are held out."""
    running.progress.enter(READING)
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
