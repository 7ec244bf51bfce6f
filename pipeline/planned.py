"""What a run knows before it decodes a pixel: its inputs, and the plan made of them.

The nouns that the driver (run.py) hands from the planning half of a run to the writing half and to reports.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from neatpack.format.manifest import Identity
from neatpack.storage.location import Location

from .config import PackConfig
from .families.base import Family
from .ingest.corpus import Corpus
from .measure.store import MeasuredPart
from .plan.assign import Plan, TakenPart
from .plan.files import PlanFile, Sums, first_packs, read_plan


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inputs:
    """What a run starts from; `identity` says the same in one record of JSON."""

    config: PackConfig
    family: Family
    corpora: Sequence[Corpus]
    identity: Identity
    place: Location  # where the output is written: OUT, or beside a finished one that it takes the place of

    @property
    def out(self) -> Location:
        return Location.parse(self.config.out)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Planned:
    """What the first half of a run gives: figures of the plan, which itself stays on disk."""

    inputs: Inputs
    parts: Sequence[MeasuredPart]
    # Indices of the parts of each: it surveys them, and its ledger has their rows that are not taken. Rows that are
    # taken are dealt one by one.
    partitions: Sequence[np.ndarray]
    folder: Location  # of the plan files
    files: Sequence[PlanFile]  # as they are now: mended, where rows turned out unreadable
    warnings: tuple[str, ...] = ()  # about the data, for the manifest
    troubles: tuple[str, ...] = ()  # of `run_plan`: what would be lost, in words; none: no more than may be
    holdout: "Planned | None" = None  # the same for the rows that --holdout keeps, where there is one

    @property
    def num_partitions(self) -> int:
        return len(self.partitions)

    @property
    def is_mended(self) -> bool:
        return any(file.is_mended for file in self.files)

    def path(self, file: PlanFile) -> Location:
        return self.folder / file.name

    @property
    def list_file(self) -> Location:
        """Names the plan files that count."""
        return self.folder / f"{self.inputs.identity.fingerprint}.list.json"

    def taken(self, partition: int) -> list[TakenPart]:
        """The parts of a partition, and how often this output takes their rows."""
        corpora = self.inputs.corpora
        return [TakenPart.of(index, self.parts[index], corpora) for index in self.partitions[partition].tolist()]

    @property
    def all_taken(self) -> list[TakenPart]:
        """The parts of all partitions."""
        return [TakenPart.of(index, part, self.inputs.corpora) for index, part in enumerate(self.parts)]

    @property
    def plan(self) -> Plan:
        """All of it as one table, read from disk: to be looked at. A run does without."""
        plans = [
            read_plan(self.path(file)).shifted(first) for file, first in zip(self.files, self.first_packs, strict=False)
        ]
        skipped = [plan.table.slice(len(plan.packed)) for plan in plans]
        return Plan(pa.concat_tables([*(plan.packed for plan in plans), *skipped]).combine_chunks())

    @property
    def first_packs(self) -> list[int]:
        """Of each file, by the numbers of the output; and how many there are."""
        return first_packs(self.files)

    @property
    def num_packs(self) -> int:
        return sum(file.num_packs for file in self.files)

    @property
    def num_packed(self) -> int:
        return sum(file.num_packed for file in self.files)

    @property
    def num_bytes(self) -> int:
        """About what the packs take on disk."""
        return sum(file.num_bytes for file in self.files)

    @property
    def sums(self) -> list[Sums]:
        """By corpus."""
        return [sum((file.corpora[index] for file in self.files), Sums()) for index in range(len(self.inputs.corpora))]

    def skip_counts(self) -> Counter[str]:
        """Lines in no pack, by reason."""
        return sum((Counter(sums.skipped) for file in self.files for sums in file.corpora), Counter())
