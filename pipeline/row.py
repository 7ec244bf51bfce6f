"""One row through all stages, by the functions that pack all rows, and without an output: to be looked at."""

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neatpack.format.members import Pack
from neatpack.storage.location import Location
from neatpack.storage.lock import lock_folders

from .config import PackConfig, UserError
from .families.base import Family
from .families.registry import family_for
from .ingest.lines import Part, Row, rows
from .ingest.meta import read_meta
from .inputs import output_of, read_rows
from .measure.store import read_measured
from .plan.files import read_plan
from .records import MeasuredMedia, Skip
from .runtime.engine import engine
from .shard.ledger import folders_of, without_folders
from .shard.note import CHANGED
from .shard.writer import first_pack
from .stages import plan_all, processor_key, shard_jobs, task_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPack:
    """What one row gives: a pack of one document, or a reason why not."""

    family: Family
    row: Row
    part: Part
    id: str
    detail: str  # of what was truncated or shrunk
    pack: Pack | None = None
    skip: Skip | None = None
    media: tuple[MeasuredMedia, ...] = ()  # as they were measured


def pack_row(config: PackConfig, dataset: str, row: int, folder: Path) -> RowPack:
    """One row as a pack of its own. Neither sample_ratio nor --holdout keeps it out.

    `folder` is for what is measured; files that are no JSONL are rewritten there, or in config.work, if that is given.
    """
    with contextlib.ExitStack() as stack:
        if config.work:
            stack.enter_context(lock_folders([config.work_dir]))
        running = stack.enter_context(engine("inline", env=task_environment(config)))
        prefixes = config.media_prefixes
        (found,) = read_meta(
            Location.parse(config.meta), (dataset,), allow_unknown=config.allow_unknown_keys, media_prefixes=prefixes
        )
        own = dataclasses.replace(config, out=str(folder / "out"), work=str(folder), holdout=0.0, max_packs=0)
        family = family_for(processor_key(config))
        imported = (config.work_dir if config.work else Location.parse(folder)) / "imported"
        ((found, source, is_held),) = read_rows([found], own, imported, running)
        if not 0 <= row < source.num_rows:
            raise UserError(
                f"--row {dataset}:{row}: {dataset} has {source.num_rows} rows, numbered from 0",
                code="dataset-unknown",
                dataset=dataset,
                row=row,
                rows=source.num_rows,
            )
        (part,) = (part for part in source.parts if part.first_row <= row < part.first_row + part.num_rows)
        inputs = output_of("train", own, family, [(dataclasses.replace(found, weight=None), source, is_held)])
        is_row = np.arange(source.num_rows) == row
        corpus = dataclasses.replace(
            inputs.corpora[0],
            source=dataclasses.replace(source, parts=(part,)),
            copies=is_row.astype(np.int32),
            is_measured=is_row,
        )
        (planned,) = plan_all([dataclasses.replace(inputs, corpora=[corpus])], running, judges=False)
        (line,) = read_plan(planned.path(planned.files[0])).table.to_pylist()
        result = RowPack(family=family, row=next(each for each in rows(part) if each.number == row), part=part,
                         id=line["id"], detail=line["detail"])  # fmt: skip

        def told(reason: str, detail: str) -> Skip:
            return Skip(reason=reason, detail=without_folders(detail, folders_of(corpus)))

        if line["reason"]:
            return dataclasses.replace(result, skip=told(line["reason"], line["detail"]))
        # A fake image is a document of its own, and not of this row.
        job = dataclasses.replace(shard_jobs(planned)[0], fake_image=False)
        ((pack, lost),) = running.run(first_pack, [(job,)], title="render", unit="row")
        if pack is None:
            if lost[0].reason == CHANGED:
                raise UserError(
                    f"{dataset} row {row}: its media change while they are read; show it again, or a copy",
                    code="data-changed",
                    dataset=dataset,
                    row=row,
                )
            return dataclasses.replace(result, skip=told(lost[0].reason, lost[0].detail))
        measured = read_measured(planned.parts[0].path, line["line"])
        return dataclasses.replace(result, pack=pack, media=measured.media if measured else ())
