"""PackLoader: the batches of a rank, epoch after epoch, from any position."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch.utils.data import DataLoader

from ..pipeline.errors import UserError
from .arguments import whole
from .pp_media import CollateForPP

logger = logging.getLogger(__name__)

_numbers = itertools.count(1)  # of loaders, in this process
NO_LOADER_OF_OURS = -1  # in place of such a number

_OURS = ("batch_sampler", "drop_last", "sampler", "shuffle")  # settled by the packs' order


class Packs(Protocol):
    """What the loader asks of `PackedShards`."""

    batch_size: int
    iterated_by: int  # the loader that began an iteration last

    @property
    def rank(self) -> int: ...
    @property
    def num_left(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...
    def advance(self) -> None: ...
    def restart(self) -> None: ...
    def prepare(self) -> None: ...
    def iterated_for(self, collate_fn: object) -> AbstractContextManager[None]: ...
    def state_at(self, num_batches: int) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class PackLoader(DataLoader[Any]):
    """A DataLoader over `PackedShards` that counts what it gives out: made by `PackedShards.loader`.

    for batch in loader: one epoch, or what is left of it; the next time, the next epoch. A loop that was left in the
    middle begins again where it began, and a warning says so. `epoch` is that of the next batch, `len(loader)` the
    number of batches of a whole epoch. `state_dict()` is the position after the batches given out so far, one for all
    ranks, whatever the workers have read ahead; `load_state_dict` goes on there, with any number of ranks, workers and
    packs in a batch.
    """

    def __init__(
        self,
        packs: Packs,
        batch_size: int,
        num_workers: int,
        collate_fn: Callable[[list[dict[str, Any]]], Any],
        **options: Any,
    ) -> None:
        if ours := [name for name in _OURS if name in options]:
            raise UserError(
                f"{', '.join(ours)}: the order is that of PackedShards; see its shuffle, seed and drop_last",
                code="loader-argument",
                argument=", ".join(ours),
            )
        if not options.get("in_order", True):
            raise UserError(
                "in_order=False: batches would come as workers finish them, and a state says only how many came: packs "
                "would be lost or come twice where it is loaded; leave it away",
                code="loader-argument",
                argument="in_order",
                got=False,
            )
        packs.batch_size = batch_size
        batch_size, num_workers = packs.batch_size, whole("num_workers", num_workers)
        self.packs = packs
        self._number = next(_numbers)
        self._given = 0  # batches of this iteration
        self._has_warned = False
        super().__init__(
            packs,  # type: ignore[arg-type]  # a Dataset, too
            batch_size=batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=isinstance(collate_fn, CollateForPP),  # stages of a pipeline take batches of one size
            **options,
        )

    @property
    def epoch(self) -> int:
        return int(self.state_dict()["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """For loops that count epochs themselves; an epoch that was resumed goes on."""
        self.packs.set_epoch(epoch)
        self._given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._refuse_another()
        self.packs.iterated_by = self._number
        num_left_out = self.packs.num_left % self.packs.batch_size if self.drop_last else 0
        if self._given and self._given * self.packs.batch_size >= self.packs.num_left - num_left_out:
            self.packs.advance()  # the consumer, which counts, stopped at the last batch and not after it
        elif self._given:
            self._warn_of_leaving()
        self.packs.restart()
        if self.drop_last:
            self._warn_of_last_batch()
        self.packs.prepare()
        self._given = 0
        with self.packs.iterated_for(self.collate_fn):  # workers are started in here
            batches = super().__iter__()
        for batch in batches:
            self._given += 1
            yield batch
        self.packs.advance()
        self._given = 0

    def _warn_of_leaving(self) -> None:
        """Once. Whoever leaves each epoch after so many batches would train on the same ones for ever."""
        if not self._has_warned and self.packs.rank == 0:
            self._has_warned = True
            logger.warning(
                "a loop over the packs was left after %d batches of epoch %d and begins again where it began: they "
                "come once more, as validation wants it, and training hardly does. "
                "loader.load_state_dict(loader.state_dict()) before the loop goes on behind them, "
                "loader.set_epoch(loader.epoch + 1) begins the next epoch", self._given, self.epoch,
            )  # fmt: skip

    def _warn_of_last_batch(self) -> None:
        if not len(self):
            raise UserError(
                f"{self.packs.num_left} packs for this rank: no batch of {self.batch_size}, which a pipeline needs. "
                "Choose a smaller batch_size, or pack into smaller packs (--pack-size)",
                code="batch-mismatch",
                packs=self.packs.num_left,
                batch_size=self.batch_size,
            )
        if (num_packs := self.packs.num_left % self.packs.batch_size) and self.packs.rank == 0:
            logger.warning(
                "epoch %d: %d packs of each rank fill no batch of %d and are left out", self.epoch, num_packs,
                self.batch_size,
            )  # fmt: skip

    def _refuse_another(self, *, counts: bool = False) -> None:
        """Packs have one position and one size of batches, which two loaders would take for their own."""
        remedy = "give each loader a PackedShards of its own"
        if self.packs.batch_size != self.batch_size:
            raise UserError(
                f"this loader has batches of {self.batch_size} packs, and another one was made of the same "
                f"PackedShards for {self.packs.batch_size}; {remedy}",
                code="loader-position",
                batch_size=self.batch_size,
                other=self.packs.batch_size,
            )
        if counts and self.packs.iterated_by != self._number:
            raise UserError(
                f"another loader of the same PackedShards began to read after this one had given out {self._given} "
                f"batches, and where this one is nobody knows; {remedy}",
                code="loader-position",
                batches=self._given,
            )

    def state_dict(self) -> dict[str, Any]:
        if self.packs.iterated_by == NO_LOADER_OF_OURS:
            raise UserError(
                "accelerate reads these packs by a loader of its own, and how far it is this one does not know: leave "
                "this one out of accelerator.prepare, or give that a DataLoader of neatpack.loaders.hf.IndexedPacks",
                code="trainer-unsupported",
                trainer="accelerate",
            )
        self._refuse_another(counts=self._given > 0)
        return self.packs.state_at(self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.packs.load_state_dict(state)
        self._given = 0
