"""Corpus: a data set as a run takes it: how to read its rows, where they are, and how often each is taken."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lines import Part, Source
from .meta import Dataset, copies_of_rows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    dataset: Dataset
    source: Source
    copies: NDArray[np.int32]  # of each row; 0: it is sampled out

    @classmethod
    def of(cls, dataset: Dataset, source: Source) -> "Corpus":
        return cls(dataset=dataset, source=source, copies=copies_of_rows(source.num_rows, dataset.sample_ratio))

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def num_rows(self) -> int:
        return len(self.copies)

    @property
    def num_sampled_out(self) -> int:
        return int(np.count_nonzero(self.copies == 0))

    def is_taken(self, part: Part) -> NDArray[np.bool_]:
        """Which rows of a part of the file are taken at all."""
        return self.copies[part.first_row : part.first_row + part.num_rows] > 0

    def described(self) -> dict[str, Any]:
        """The part of the identity that is about this corpus."""
        return self.dataset.described() | {"content": self.source.digest, "rows": self.source.num_rows}
