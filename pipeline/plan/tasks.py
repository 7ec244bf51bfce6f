"""The tasks of planning: each partition by itself, what fills no group of any of them together, and what is mended.

A task reads files and writes files; what travels back are figures (`PlanFile`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack.storage.location import Location
from neatpack.storage.tables import open_arrow, write_arrow

from ..codecs import stored_shares
from ..config import PackConfig, UserError
from ..families.base import ProcessorKey
from ..families.registry import family_for
from ..records import Skip
from .assign import (
    SCHEMA,
    Dealt,
    Key,
    Plan,
    Share,
    TakenPart,
    aligned,
    cut_off,
    fitted_lines,
    in_order,
    in_pack_order,
    make_plan,
    measured_again,
    tokens_of,
)
from .balance import balanced_order
from .files import PlanFile, first_packs, read_list, read_plan, write_list, write_plan
from .repair import repaired


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartitionJob:
    """What a partition is planned from, and where to."""

    number: int
    path: Location
    parts: Sequence[TakenPart]
    corpora: Sequence[Share]
    config: PackConfig
    processor: ProcessorKey
    rest: Location | None  # where packs go that fill no whole group; None: they stay
    dealt: Dealt | None = None  # of several partitions: which this is; then `parts` are those of all

    @property
    def note(self) -> Location:
        """Its figures, once it is planned."""
        return self.path.with_suffix(".json")


class Survey(NamedTuple):
    """What must be known of all partitions before the first is planned."""

    tokens: list[int]  # of each corpus
    refused: tuple[int, UserError] | None  # the first part with a row that --overlong error does not take


def survey(job: PartitionJob) -> Survey:
    """The task of a partition where there are weights, or where what is overlong is an error: the first is told."""
    family = family_for(job.processor)
    if job.config.overlong_policy != "error":
        return Survey(tokens_of(fitted_lines(job.parts, job.corpora, family, job.config), len(job.corpora)), None)
    tokens = np.zeros(len(job.corpora), dtype=np.int64)
    for part in job.parts:
        try:
            tokens += tokens_of(fitted_lines([part], job.corpora, family, job.config), len(job.corpora))
        except UserError as error:
            return Survey(tokens.tolist(), (part.index, error))
    return Survey(tokens.tolist(), None)


def plan_partition(job: PartitionJob) -> PlanFile:
    """The task of a partition: its plan on disk, and the figures of it. Those of an earlier run are taken."""
    if (done := read_list(job.note)) is not None:
        return done[0]
    plan = make_plan(job.parts, job.corpora, family_for(job.processor), job.config, job.dealt)
    if job.rest is not None:
        plan, rest = _without_rest(plan, job.config.group_size)
        write_arrow(job.rest, rest.table)
    file = write_plan(
        job.path,
        job.number,
        plan,
        len(job.corpora),
        job.config.shard_mb << 20,
        stored=stored_shares(job.config.pixels),
    )
    write_list(job.note, [file])
    return file


def _without_rest(plan: Plan, group_size: int) -> tuple[Plan, Plan]:
    """The packs that fill whole groups, with all that is skipped, and the others."""
    whole = plan.num_packs // group_size * group_size
    start, end = int(plan.starts[whole]), len(plan.packed)
    table = plan.table
    own = pa.concat_tables([table.slice(0, start), table.slice(end)])
    return Plan(own), Plan(table.slice(start, end - start)).shifted(-whole)


def join_rests(
    rests: Sequence[Location], path: Location, number: int, num_corpora: int, config: PackConfig, most: int | None
) -> PlanFile:
    """The task after the partitions: the packs that fill no whole group, of all of them, in a balanced order.

    `most`: so many packs at most; the rows of others are skipped.
    """
    tables, count = [SCHEMA.empty_table()], 0
    for rest in rests:
        plan = Plan(open_arrow(rest)).shifted(count)
        tables.append(plan.table)
        count += plan.num_packs
    joined = Plan(pa.concat_tables(tables).combine_chunks())
    lines = joined.table
    lengths = aligned(lines["tokens"].to_numpy().astype(np.int64), config.align)
    tokens, squares = (
        np.add.reduceat(values, joined.starts[:-1]) if count else values for values in (lengths, lengths**2)
    )
    visual, audio = joined.per_pack("visual_tokens"), joined.per_pack("audio_tokens")
    encoders = config.step_cost.of_encoders(visual, audio)
    loads = (encoders, config.step_cost.of_packs(tokens, encoders, squares), visual if audio.any() else None)
    place = np.empty(count, dtype=np.int64)
    place[balanced_order(*loads, group_size=config.group_size, seed=config.seed)] = np.arange(count)
    plan = in_pack_order(lines, place[lines["pack"].to_numpy()])
    return write_plan(
        path,
        number,
        plan if most is None else cut_off(plan, most),
        num_corpora,
        config.shard_mb << 20,
        stored=stored_shares(config.pixels),
    )


def cut_partition(
    path: Location, new: Location, number: int, num_corpora: int, config: PackConfig, most: int
) -> PlanFile:
    """The task of a partition of which --max-packs, over all of them, leaves so many packs only."""
    return write_plan(
        new,
        number,
        cut_off(read_plan(path), most),
        num_corpora,
        config.shard_mb << 20,
        stored=stored_shares(config.pixels),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MendJob:
    """Plan files with rows that were lost, or measured again."""

    files: Sequence[PlanFile]  # all of the plan, in their order
    folder: Location  # where they are
    paths: Mapping[int, Location]  # of the new ones, by index: those that are mended, and those with the last packs
    last: int  # packs from this number on may go elsewhere
    names: Sequence[str]  # of corpora
    parts: Mapping[int, Location]  # of the token store, by index: those with rows that were measured again
    config: PackConfig
    processor: ProcessorKey


def mend(
    job: MendJob, lost: Mapping[int, Mapping[Key, Skip]], changed: Mapping[int, Sequence[Key]]
) -> dict[int, PlanFile]:
    """New files in the place of old ones, by index, without the holes that rows leave. `lost`, `changed`: by file, too.

    Packs with holes and the last ones are looked at together, from all files; all others stay as they are. So the
    memory that it takes is that of one file, and of what is lost.
    """
    family = family_for(job.processor)
    firsts = np.array(first_packs(job.files))
    chosen = [_Chosen.of(job, index, {*lost.get(index, ()), *changed.get(index, ())}) for index in job.paths]
    whole = Plan(pa.concat_tables([each.lines for each in chosen]).combine_chunks())
    again = None
    if keys := [key for some in changed.values() for key in some]:
        where = np.sort(whole.places(set(keys)))
        again = where, measured_again(whole, where, job.names, job.parts, family, job.config)
    skips = {key: skip for some in lost.values() for key, skip in some.items()}
    mended = repaired(whole, skips, job.config, len(family.fake_image_ids), again).table
    pack = mended["pack"].to_numpy().astype(np.int64)
    ends = firsts[1:].copy()
    ends[-1] = max(ends[-1], pack.max(initial=-1) + 1)  # a further pack is in the last file
    place = np.where(pack < 0, mended["file"].to_numpy(), np.searchsorted(ends, pack, side="right"))
    written = {}
    for each in chosen:
        mine = mended.filter(pa.array(place == each.index)).drop_columns(["file"])
        plan = each.with_lines(mine)
        file = job.files[each.index]
        written[each.index] = write_plan(
            job.paths[each.index],
            file.number,
            plan,
            len(job.names),
            job.config.shard_mb << 20,
            file.starts,
            stored_shares(job.config.pixels),
        )
    return written


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Chosen:
    """The lines of a file that are looked at: of packs with holes, of the last ones, and what --max-packs left over."""

    index: int
    path: Location
    first: int  # number of its first pack
    is_chosen: np.ndarray

    @classmethod
    def of(cls, job: MendJob, index: int, keys: Collection[Key]) -> "_Chosen":
        path, first = job.folder / job.files[index].name, first_packs(job.files)[index]
        plan = read_plan(path)
        pack = plan.table["pack"].to_numpy()
        holed = np.unique(pack[plan.places(keys)])
        is_spilled = pc.equal(plan.table["reason"], "max_packs").to_numpy()
        return cls(index=index, path=path, first=first,
                   is_chosen=np.isin(pack, holed) | (pack >= max(0, job.last - first)) | is_spilled)  # fmt: skip

    @property
    def lines(self) -> pa.Table:
        """By their numbers in the output, and with the file that they are from."""
        chosen = Plan(read_plan(self.path).table.filter(pa.array(self.is_chosen))).shifted(self.first).table
        return chosen.append_column("file", pa.array(np.full(len(chosen), self.index), pa.int32()))

    def with_lines(self, lines: pa.Table) -> Plan:
        """The file with these in their place."""
        others = read_plan(self.path).table.filter(pa.array(~self.is_chosen))
        both = pa.concat_tables([others, Plan(lines).shifted(-self.first).table])
        return in_order(both, both["pack"].to_numpy().astype(np.int64))
