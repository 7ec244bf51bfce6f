"""Corpus: a data set as an output takes it: how to read its rows, where they are, and how often each is taken."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .lines import Part, Source
from .meta import Dataset, copies_of_rows

Split = Literal["train", "holdout"]  # the two outputs of a run with --holdout; without, "train" is all


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TakenRows:
    """How often an output takes the rows of a part, and why it leaves the others out. It travels to tasks: numbers that
    are all the same are one number, others have a byte each."""

    first_row: int
    num_rows: int
    copies: NDArray[np.integer[Any]]  # of each row, or one for all; 0: left out
    is_other: NDArray[np.bool_]  # likewise: rows of the other split
    split: Split

    @classmethod
    def of(cls, first_row: int, copies: NDArray[np.int32], is_other: NDArray[np.bool_], split: Split) -> "TakenRows":
        most = int(copies.max(initial=0))
        return cls(
            first_row=first_row,
            num_rows=len(copies),
            copies=_one_for_all(copies.astype(np.min_scalar_type(most))),
            is_other=_one_for_all(is_other),
            split=split,
        )

    def copies_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows by their numbers in the data set."""
        own = self.copies if len(self.copies) == 1 else self.copies[rows - self.first_row]
        return np.broadcast_to(own, len(rows)).astype(np.int64)

    @property
    def num_samples(self) -> int:
        return int(np.broadcast_to(self.copies, self.num_rows).sum(dtype=np.int64))

    def left_out(self) -> dict[str, NDArray[np.int64]]:
        """Numbers in the data set of rows that are not looked at, by reason."""
        other = "held_out" if self.split == "train" else "not_held_out"
        copies, is_other = (np.broadcast_to(values, self.num_rows) for values in (self.copies, self.is_other))
        found = {"sampled_out": ~is_other & (copies == 0), other: is_other}
        return {reason: self.first_row + np.flatnonzero(rows) for reason, rows in found.items()}


def _one_for_all(values: NDArray[Any]) -> NDArray[Any]:
    """[1, 1, 1] -> [1]; others as they are."""
    return values[:1] if len(values) > 1 and (values == values[0]).all() else values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    dataset: Dataset
    source: Source
    split: Split
    is_held: NDArray[np.bool_]  # which rows belong to the split "holdout"
    copies: NDArray[np.int32]  # of each row, in this split; 0: `left_out` says why
    is_measured: NDArray[np.bool_]  # rows that either split takes

    @classmethod
    def of(cls, dataset: Dataset, source: Source, split: Split, is_held: NDArray[np.bool_]) -> "Corpus":
        """Rows that are held out come once, unless the sample_ratio is 0. It is drawn among the others, so that they
        are those that a data set without the rows held out would give."""
        trained = np.zeros(len(is_held), dtype=np.int32)
        trained[~is_held] = copies_of_rows(int(np.count_nonzero(~is_held)), dataset.sample_ratio)
        held = (is_held & (dataset.sample_ratio > 0)).astype(np.int32)
        return cls(
            dataset=dataset,
            source=source,
            split=split,
            is_held=is_held,
            copies=trained if split == "train" else held,
            is_measured=trained + held > 0,
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

    def taken(self, first_row: int, num_rows: int) -> TakenRows:
        """Of some rows, one after the other."""
        inside = slice(first_row, first_row + num_rows)
        is_held = self.is_held[inside]
        is_other = is_held if self.split == "train" else ~is_held
        return TakenRows.of(first_row, self.copies[inside], is_other, self.split)

    def left_out(self) -> dict[str, NDArray[np.int64]]:
        """Rows that are not looked at for this split, by reason."""
        return self.taken(0, self.num_rows).left_out()

    def num_left_out(self) -> dict[str, int]:
        """How many they are, without their numbers."""
        is_held, is_absent = np.count_nonzero(self.is_held), self.copies == 0
        if self.split == "train":
            sampled_out = np.count_nonzero(is_absent) - np.count_nonzero(is_absent & self.is_held)
            return {"sampled_out": int(sampled_out), "held_out": int(is_held)}
        sampled_out = np.count_nonzero(is_absent & self.is_held)
        return {"sampled_out": int(sampled_out), "not_held_out": self.num_rows - int(is_held)}

    def is_taken(self, part: Part) -> NDArray[np.bool_]:
        """Which rows of a part of the file are taken at all."""
        return self.is_measured[part.first_row : part.first_row + part.num_rows]

    def described(self) -> dict[str, Any]:
        """The part of the identity that is about this corpus."""
        return self.dataset.described() | {"content": self.source.digest, "rows": self.source.num_rows}
