"""What a run knows before it decodes a pixel: its inputs, and the plan made of them.

The nouns that the driver (run.py) hands from the planning half of a run to the writing half and to reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .config import PackConfig
from .families.base import Family
from .identity import Identity
from .ingest.corpus import Corpus
from .measure.store import MeasuredPart
from .plan.assign import Plan
from .runtime.storage import Place, place


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inputs:
    """What a run starts from; `identity` says the same in one record of JSON."""

    config: PackConfig
    family: Family
    corpora: Sequence[Corpus]
    identity: Identity
    place: Place  # where the output is written: OUT, or beside a finished one that it takes the place of

    @property
    def out(self) -> Place:
        return place(self.config.out)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Planned:
    """What the first half of a run gives."""

    inputs: Inputs
    parts: Sequence[MeasuredPart]
    plan: Plan  # mended, where rows turned out unreadable
    plan_file: Place  # the plan as it was made
    shards: tuple[int, ...]  # of that plan: the first pack of each shard, and the number of packs
    troubles: tuple[str, ...] = ()  # of `run_plan`: what would be lost, in words; none: no more than may be
    holdout: "Planned | None" = None  # the same for the rows that --holdout keeps, where there is one

    @property
    def mended_file(self) -> Place:
        return self.plan_file.with_suffix(".mended.arrow")

    @property
    def shard_starts(self) -> list[int]:
        """Shards stay where they were cut when the plan is mended, or all behind the first hole would change."""
        count = self.plan.num_packs
        return [*(first for first in self.shards[:-1] if first < count), count] if count else [0]
