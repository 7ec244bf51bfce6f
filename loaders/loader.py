"""PackLoader: the batches of a rank, made ahead by threads, epoch after epoch, from any position."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Protocol

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pin

from neatpack.errors import UserError
from neatpack.format.output_files import in_advance

from .arguments import flag, whole
from .pp_media import CollateForPP

logger = logging.getLogger(__name__)

_numbers = itertools.count(1)  # of loaders, in this process


class NoDatasetError(UserError, AttributeError):
    """A loader that is asked for a dataset with items by index. An AttributeError, for code that only looks for one."""


class Packs(Protocol):
    """What the loader needs of `PackedShards`."""

    read_by: int

    @property
    def rank(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def num_left(self) -> int: ...
    def __len__(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...
    def start_next_epoch(self) -> None: ...
    def locate_packs(self) -> Iterator[Any]: ...
    def read_batch(self, located: list[Any], collate_fn: Callable[[list[dict[str, Any]]], Any]) -> Any: ...
    def state_after(self, num_packs: int) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class PackLoader:
    """Iterates over batches of `PackedShards`; made by `PackedShards.loader`.

    Each `for batch in loader` is one epoch, or what is left of it; the next loop is the next epoch. If a loop is left
    in the middle, the next one repeats that epoch and logs a warning. `epoch` is that of the next batch, and
    `len(loader)` the number of batches of a whole epoch.

    `state_dict()` is the position after the batches given out so far, the same on all ranks, whatever the threads have
    read ahead. `load_state_dict` goes on there, with any number of ranks, threads and packs per batch.
    """

    def __init__(
        self,
        packs: Packs,
        batch_size: int,
        num_workers: int,
        collate_fn: Callable[[list[dict[str, Any]]], Any],
        *,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
    ) -> None:
        self.packs, self.collate_fn = packs, collate_fn
        self.batch_size = whole("batch_size", batch_size, 1, "; for packs without batches, iterate PackedShards")
        self.num_workers = whole("num_workers", num_workers)
        self.pin_memory = flag("pin_memory", pin_memory)
        self.prefetch_factor = whole("prefetch_factor", prefetch_factor, 1)
        self.drop_last = isinstance(collate_fn, CollateForPP)  # stages of a pipeline take batches of one size
        self._number = next(_numbers)
        self._num_given = 0  # batches of this iteration
        self._has_warned = False

    @property
    def epoch(self) -> int:
        return int(self.state_dict()["epoch"])

    @property
    def dataset(self) -> Any:
        raise NoDatasetError(
            "this loader has no dataset to skip or shard batches of. For HF Trainer and accelerate, use "
            "IndexedPacks(out) as train_dataset; or set ignore_data_skip=True and load this loader's state",
            code="trainer-unsupported",
            trainer="accelerate",
            by="skip",
        )

    def __len__(self) -> int:
        return self._count_batches(len(self.packs))

    def _count_batches(self, num_packs: int) -> int:
        return num_packs // self.batch_size if self.drop_last else -(-num_packs // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, for loops that count epochs themselves; an epoch that was resumed goes on."""
        self.packs.set_epoch(epoch)
        self._num_given = 0

    def __iter__(self) -> Iterator[Any]:
        self.packs.read_by = self._number
        if self._num_given and self._num_given >= self._count_batches(self.packs.num_left):
            self.packs.start_next_epoch()  # the consumer, which counts, stopped at the last batch and not after it
        elif self._num_given:
            self._warn_of_repeating()
        self._num_given = 0
        if self.drop_last:
            self._check_last_batch()
        for batch in self._read_ahead(self._group(self.packs.locate_packs())):
            self._num_given += 1
            yield batch
        self.packs.start_next_epoch()
        self._num_given = 0

    def _group(self, packs: Iterator[Any]) -> Iterator[list[Any]]:
        while batch := list(itertools.islice(packs, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def _read_ahead(self, batches: Iterator[list[Any]]) -> Iterator[Any]:
        if not self.num_workers:
            return map(self._read_batch, batches)
        depth = self.num_workers * self.prefetch_factor
        return in_advance(self._read_batch, batches, depth, _start_threads(self.num_workers))

    def _read_batch(self, located: list[Any]) -> Any:
        batch = self.packs.read_batch(located, self.collate_fn)
        return pin(batch) if self.pin_memory and torch.cuda.is_available() else batch  # type: ignore[no-untyped-call]

    def _warn_of_repeating(self) -> None:
        """Warn once: a loop that is left in each epoch after so many batches trains on the same ones forever."""
        if not self._has_warned and self.packs.rank == 0:
            self._has_warned = True
            logger.warning(
                "a loop over the packs was left after %d batches of epoch %d and begins again where it began. That is "
                "right for validation. To continue after the last batch, call loader.load_state_dict("
                "loader.state_dict()); to begin the next epoch, loader.set_epoch(loader.epoch + 1)",
                self._num_given, self.packs.epoch,
            )  # fmt: skip

    def _check_last_batch(self) -> None:
        num_packs = self.packs.num_left
        if not len(self):
            raise UserError(
                f"{num_packs} packs for this rank: no batch of {self.batch_size}, which a pipeline needs. "
                "Choose a smaller batch_size, or pack into smaller packs (--pack-size)",
                code="batch-mismatch",
                packs=num_packs,
                batch_size=self.batch_size,
            )
        if (num_dropped := num_packs % self.batch_size) and self.packs.rank == 0:
            logger.warning("epoch %d: %d packs of each rank fill no batch of %d and are left out", self.packs.epoch,
                           num_dropped, self.batch_size)  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        if self._num_given and self.packs.read_by != self._number:
            raise UserError(
                f"another loader of the same PackedShards began to read after this one had given out {self._num_given} "
                "batches, so the position of this one is unknown; give each loader a PackedShards of its own",
                code="loader-position",
                batches=self._num_given,
            )
        return self.packs.state_after(self._num_given * self.batch_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.packs.load_state_dict(state)
        self._num_given = 0


def _start_threads(number: int) -> ThreadPoolExecutor:
    """Start threads that use one core each in torch.

    torch keeps a number per thread. A thread takes the number that any thread set last when it first asks for it, so
    each asks before it sets its own, and this thread sets its own back once all have begun.
    """
    before, all_begun = torch.get_num_threads(), Barrier(number + 1)

    def begin() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        all_begun.wait()

    pool = ThreadPoolExecutor(number, thread_name_prefix="neatpack-loader", initializer=begin)
    for _ in range(number):
        pool.submit(int)
    all_begun.wait()
    torch.set_num_threads(before)
    return pool
