"""Plans on disk: a file per partition, and what a run knows of it: sums, and where its shards are cut.

A plan file has one batch per shard and a last one of what is skipped, so that a shard's task reads what it needs and no
more. Its packs are numbered from 0; which numbers they have in the output is known when all files are there.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from neatpack.storage.files import read_json, write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import open_arrow, read_batch, write_arrow, write_batches

from ..codecs import AS_THEY_ARE, Shares
from .balance import step_ratios
from .cost import pack_seconds
from .table import TEXT, Plan, PlanLine, pack_bytes, shard_starts

RANKS = (8, 64, 512)  # data-parallel sizes that the balance is told for
MENDED = ".mended-"  # in the names of files that rows were lost of
OF_SKIPS = -1  # the batch of what is skipped


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """What a plan file has of one corpus."""

    packed: int = 0
    tokens: int = 0
    visual_tokens: int = 0
    tokens_once: int = 0  # without those of repetitions
    media_bytes: int = 0
    repeated_media_bytes: int = 0  # of which those of repetitions
    truncated: int = 0  # samples, to fit a pack
    shrunk: int = 0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)  # by reason
    skipped_tokens: dict[str, int] = dataclasses.field(default_factory=dict)  # likewise, of the rows that were measured

    def __add__(self, other: "Sums") -> "Sums":
        skipped, skipped_tokens = (
            {reason: mine.get(reason, 0) + theirs.get(reason, 0) for reason in {**mine, **theirs}}
            for mine, theirs in ((self.skipped, other.skipped), (self.skipped_tokens, other.skipped_tokens))
        )
        summed = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("skipped", "skipped_tokens")
        }
        return Sums(**summed, skipped=skipped, skipped_tokens=skipped_tokens)


class Cut(NamedTuple):
    """A shard of a plan file, as it is now."""

    first: int  # pack of the file
    num_packs: int
    num_lines: int
    digest: str  # of what its packs are made of
    seconds: float  # that rendering it takes, about


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanFile:
    """A plan on disk, in figures."""

    name: str  # beside the others
    number: int  # of the partition; what fills no group of a partition comes after all of them
    num_packs: int
    num_bytes: int  # about what its packs take on disk
    largest: int  # what one of them takes in memory, at most
    starts: tuple[int, ...]  # first pack of each shard as they were cut at first: see `write_plan`
    cuts: tuple[Cut, ...]
    corpora: tuple[Sums, ...]
    balance: dict[str, tuple[float, int]]  # by number of ranks: see `step_ratios`; their sum, and how many

    @property
    def is_mended(self) -> bool:
        return MENDED in self.name

    @property
    def num_packed(self) -> int:
        return sum(sums.packed for sums in self.corpora)

    def to_json(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"corpora": [dataclasses.asdict(sums) for sums in self.corpora]}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "PlanFile":
        return cls(
            **found
            | {
                "starts": tuple(found["starts"]),
                "cuts": tuple(Cut(*cut) for cut in found["cuts"]),
                "corpora": tuple(Sums(**sums) for sums in found["corpora"]),
                "balance": {ranks: (float(total), int(count)) for ranks, (total, count) in found["balance"].items()},
            }
        )


def write_plan(
    path: Location,
    number: int,
    plan: Plan,
    num_corpora: int,
    shard_bytes: int,
    starts: Sequence[int] = (),
    stored: Shares = AS_THEY_ARE,
) -> PlanFile:
    """Cut by bytes, or where shards were cut before: they stay there when a plan is mended, or all behind the first
    hole would change. A further pack goes into the last shard. `stored`: what is left of media on disk."""
    count = plan.num_packs
    first = list(starts) if starts else shard_starts(plan, shard_bytes, stored)[:-1]
    kept = [start for start in first if start < count]
    edges = plan.starts[[*kept, count]].tolist()  # in lines
    # All shards at once: one by one they would take 2.5 ms each, more than all else of planning.
    write_batches(path, plan.table, [*pairwise(edges), (edges[-1], len(plan.table))])
    visual, sizes = plan.per_pack("visual_tokens"), pack_bytes(plan)
    seconds = np.add.reduceat(pack_seconds(plan), kept) if kept else np.zeros(0)
    return PlanFile(
        name=path.name,
        number=number,
        num_packs=count,
        num_bytes=int(pack_bytes(plan, stored).sum()),
        largest=int(sizes.max(initial=0)),
        starts=tuple(first),
        cuts=tuple(
            Cut(first=start, num_packs=end - start, num_lines=lines, digest=digest, seconds=round(took, 3))
            for (start, end), lines, digest, took in zip(
                pairwise([*kept, count]), np.diff(edges).tolist(), plan.digests(kept), seconds.tolist(), strict=True
            )
        ),
        corpora=tuple(_sums(plan.packed, plan.table.slice(edges[-1]), num_corpora)),
        balance={str(ranks): _balance(visual, ranks) for ranks in RANKS},
    )


def read_plan(path: Location) -> Plan:
    return Plan(open_arrow(path))


def read_skipped(path: Location) -> pa.Table:
    """Lines in no pack."""
    return read_batch(path, OF_SKIPS)


def read_shard(path: Location, number: int, shift: int) -> Plan:
    """The packs of a shard of a plan file, under the numbers that they have in the output."""
    return Plan(read_batch(path, number)).shifted(shift)


def lines_of_pack(folder: Location, files: Sequence[PlanFile], number: int) -> list[PlanLine]:
    """Of one pack, by its number in the output; none where its file is not there any more."""
    for file, first in zip(files, first_packs(files), strict=False):
        for batch, cut in enumerate(file.cuts):
            if 0 <= number - first - cut.first < cut.num_packs:
                path = folder / file.name
                return read_shard(path, batch, first).lines_in_pack(number) if path.is_file() else []
    return []


def write_list(path: Location, files: Sequence[PlanFile]) -> None:
    """The files that are the plan; what is not in the list does not count."""
    with write_whole(path) as file:
        file.write(json.dumps([each.to_json() for each in files]).encode())  # on one line: json is ten times as fast


def read_list(path: Location) -> list[PlanFile] | None:
    """None: there is none yet."""
    return [PlanFile.from_json(file) for file in read_json(path)] if path.exists() else None


def write_paths(path: Location, parts: Sequence[Location]) -> None:
    """Where the measured parts of a run are, by index: a task looks up the few that it needs."""
    write_arrow(path, pa.table({"path": pa.array([part.uri for part in parts], TEXT)}))


def read_paths(path: Location, parts: Iterable[int]) -> dict[int, Location]:
    column = open_arrow(path)["path"]
    return {index: Location.parse(column[index].as_py()) for index in parts}


def first_packs(files: Sequence[PlanFile]) -> list[int]:
    """The number of the first pack of each file in the output, and of all packs at the end."""
    return [0, *np.cumsum([file.num_packs for file in files]).tolist()]


def _balance(visual: np.ndarray, ranks: int) -> tuple[float, int]:
    ratios = step_ratios(visual, ranks)
    return float(ratios.sum()), len(ratios)


def _sums(packed: pa.Table, skipped: pa.Table, num_corpora: int) -> Iterator[Sums]:
    """By corpus, each column looked at once: there may be hundreds of corpora."""
    dataset = packed["dataset"].to_numpy()
    tokens, visual, media, repeat, limit, shrink = (
        packed[name].to_numpy() for name in ("tokens", "visual_tokens", "media_bytes", "repeat", "limit", "shrink")
    )

    def summed(values: np.ndarray) -> list[int]:
        """float64 sums of integers are exact below 2**53."""
        return [int(value) for value in np.bincount(dataset, weights=values, minlength=num_corpora)]

    columns = {
        "packed": summed(np.ones(len(dataset))),
        "tokens": summed(tokens),
        "visual_tokens": summed(visual),
        "tokens_once": summed(np.where(_is_first(packed), tokens, 0)),
        "media_bytes": summed(media),
        "repeated_media_bytes": summed(np.where(repeat > 0, media, 0)),
        "truncated": summed(limit > 0),
        "shrunk": summed(shrink > 0),
    }
    reasons: list[dict[str, int]] = [{} for _ in range(num_corpora)]
    lost: list[dict[str, int]] = [{} for _ in range(num_corpora)]
    figures = [("row", "count"), ("tokens", "sum")]
    counted = skipped.group_by(["dataset", "reason"], use_threads=False).aggregate(figures)
    for line in counted.to_pylist():
        reasons[line["dataset"]][line["reason"]] = line["row_count"]
        if line["tokens_sum"]:
            lost[line["dataset"]][line["reason"]] = line["tokens_sum"]
    for corpus, (counts, tokens_lost) in enumerate(zip(reasons, lost, strict=True)):
        own = {name: values[corpus] for name, values in columns.items()}
        yield Sums(**own, skipped=counts, skipped_tokens=tokens_lost)


def _is_first(packed: pa.Table) -> np.ndarray:
    """Which lines are the first of their row. Of a row in two files there are two: hardly ever, and for an average."""
    if not (packed["repeat"].to_numpy() > 0).any():
        return np.ones(len(packed), dtype=np.bool_)
    place = packed["part"].to_numpy().astype(np.int64) << 32 | packed["line"].to_numpy()
    is_first = np.zeros(len(packed), dtype=np.bool_)
    is_first[np.unique(place, return_index=True)[1]] = True
    return is_first
