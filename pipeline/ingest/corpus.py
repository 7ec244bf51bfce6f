"""Corpus: a data set as an output takes it: how to read its rows, where they are, and how often each is taken."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .lines import Part, Source
from .meta import Dataset, copies_of_rows

Split = Literal["train", "holdout"]  # the two outputs of a run with --holdout; without, "train" is all


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    dataset: Dataset
    source: Source
    split: Split
    is_held: NDArray[np.bool_]  # which rows belong to the split "holdout"
    copies: NDArray[np.int32]  # of each row, in this split; 0: `left_out` says why
    is_measured: NDArray[np.bool_]  # rows that either split takes
    times_at_load: float = 1.0  # how often its packs come in an epoch, where rows that are repeated are stored once

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        source: Source,
        split: Split,
        is_held: NDArray[np.bool_],
        *,
        repeat_at_load: bool = False,
    ) -> "Corpus":
        """Rows that are held out come once, unless the sample_ratio is 0. It is drawn among the others, so that they
        are those that a data set without the rows held out would give."""
        times = max(1.0, dataset.sample_ratio) if repeat_at_load and split == "train" else 1.0
        trained = np.zeros(len(is_held), dtype=np.int32)
        trained[~is_held] = copies_of_rows(int(np.count_nonzero(~is_held)), dataset.sample_ratio / times)
        held = (is_held & (dataset.sample_ratio > 0)).astype(np.int32)
        return cls(
            dataset=dataset,
            source=source,
            split=split,
            is_held=is_held,
            copies=trained if split == "train" else held,
            is_measured=trained + held > 0,
            times_at_load=times,
        )

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def weight(self) -> float | None:
        """The share of all tokens that is asked for, in place of copies: see pipeline/plan/mixture.py. What is held out
        comes once all the same."""
        return self.dataset.weight if self.split == "train" else None

    @property
    def num_rows(self) -> int:
        return len(self.copies)

    def left_out(self) -> dict[str, NDArray[np.int64]]:
        """Rows that are not looked at for this split, by reason."""
        is_other, reason = (self.is_held, "held_out") if self.split == "train" else (~self.is_held, "not_held_out")
        return {"sampled_out": np.flatnonzero(~is_other & (self.copies == 0)), reason: np.flatnonzero(is_other)}

    def is_taken(self, part: Part) -> NDArray[np.bool_]:
        """Which rows of a part of the file are taken at all."""
        return self.is_measured[part.first_row : part.first_row + part.num_rows]

    def described(self) -> dict[str, Any]:
        """The part of the identity that is about this corpus."""
        return self.dataset.described() | {"content": self.source.digest, "rows": self.source.num_rows}
