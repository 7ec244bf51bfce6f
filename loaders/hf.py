"""For HF Trainer and accelerate, which share out indices among processes themselves: packs by index."""

import logging
from collections import UserDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, RandomSampler, Sampler

from neatpack.errors import ItemError, UserError

from .arguments import whole
from .dataset import PackedShards
from .mix import Outputs
from .model_inputs import PackCollater
from .order import Order
from .ranks import Ranks, loaders_of_accelerate, refuse_dispatch

logger = logging.getLogger(__name__)

KEPT = 1 << 20  # an order of so many packs, 8 MB, is kept; of a longer one, a group is computed for each item


class Item(UserDict[str, Any]):
    """A pack. Not a dict: of dicts, HF Trainer takes out what the model's forward does not name."""


class IndexedPacks(Dataset[Item]):
    """Item i is the i-th pack of the epoch's order, over all ranks. Options are those of `PackedShards`.

        packs = IndexedPacks(out)
        Trainer(model, args, train_dataset=packs, data_collator=packs.collater(model))

    args.train_sampling_strategy="sequential" keeps the packs in the order that balances every step over the ranks, and
    shuffles it by (seed, epoch). By default Trainer draws packs at random: each once, but of any size in a step.
    accelerate.prepare(DataLoader(packs, …)) keeps the order, and tells the epoch by itself.
    """

    def __init__(
        self,
        out: Outputs,
        *,
        seed: int = 0,
        shuffle: bool = True,
        pixels: str = "bf16",
        check: str = "packs",
        cache: str | Path | None = None,
        cache_gb: float | None = None,
    ) -> None:
        self.packs = PackedShards(
            out, rank=0, world_size=1, seed=seed, shuffle=shuffle, pixels=pixels, check=check, cache=cache,
            cache_gb=cache_gb,
        )  # fmt: skip
        # Shared: workers that persist see a new epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._ordered = -1  # the epoch whose order this process has made
        self._order: Order | np.ndarray = np.empty(0, np.int64)
        self._seen: list[int] = []  # first and last index of this epoch in this process, and how often it fell
        self._has_warned = False

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """A sampler that draws at random has epochs of its own, and the order here must stay: accelerate tells the
        dataset the epoch in one process, but not when it resumes there, nor in several."""
        refuse_dispatch(self)
        self._epoch.fill_(0 if self._is_drawn_at_random() else whole("epoch", epoch))

    def _is_drawn_at_random(self) -> bool:
        samplers = [loader.batch_sampler for loader in loaders_of_accelerate() if loader.dataset is self]
        return any(isinstance(_innermost(sampler), RandomSampler) for sampler in samplers)

    def collater(self, model: torch.nn.Module | None = None, **options: Any) -> PackCollater:
        """As `PackedShards.collater`."""
        return self.packs.collater(model, **options)

    def __len__(self) -> int:
        return self.packs.mix.num_packs

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise ItemError(
                f"index {index}, but an epoch has {len(self)} packs",
                code="document-unknown",
                index=index,
                packs=len(self),
            )
        refuse_dispatch(self)  # here, too: accelerate tells a sampler that draws at random the epoch, and not us
        _refuse_collaters_of_others(self)
        if self._ordered != self.epoch:
            self.packs.set_epoch(self.epoch)
            order = self.packs.lazy_order()
            self._ordered, self._order, self._seen = self.epoch, order[:] if len(order) <= KEPT else order, []
        self._warn_of_random_order(index)
        return Item(self.packs.item(int(self._order[index : index + 1][0])))

    def _warn_of_random_order(self, index: int) -> None:
        """Once. In order, indices rise until an epoch is read again from where it began. They fall once before that,
        where accelerate fills up the last step with packs from the epoch's start."""
        first, last, num_falls = self._seen or (index, -1, 0)
        num_falls = 0 if index == first else num_falls + (index < last)
        self._seen = [first, index, num_falls]
        if num_falls > 1 and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "packs are drawn in random order: each comes once, but those of a step are of any size. For balanced "
                'steps, set train_sampling_strategy="sequential" (TrainingArguments) or shuffle=False (DataLoader); '
                "the order is shuffled by (seed, epoch) all the same"
            )


class PackSampler(Sampler[list[int]]):
    """Batches of this rank, as indices of `IndexedPacks`, for a DataLoader of your own.

        packs = IndexedPacks(out)
        loader = StatefulDataLoader(packs, batch_sampler=PackSampler(packs, 2), collate_fn=packs.collater(model))

    Iterating again gives the next epoch. The state is a position over all ranks, so it fits any number of them.
    torchdata's StatefulDataLoader saves it, and itself resumes only with as many workers as it had.
    """

    def __init__(
        self, packs: IndexedPacks, batch_size: int = 1, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        self.packs, self._ranks = packs, Ranks(rank, world_size)
        self.batch_size = whole("batch_size", batch_size, 1)
        self._epoch = self._position = self._num_given = 0  # packs given to this rank since the position

    def set_epoch(self, epoch: int) -> None:
        if whole("epoch", epoch) != self._epoch:
            self._epoch, self._position, self._num_given = epoch, 0, 0

    def __len__(self) -> int:
        return -(-(len(self.packs) // self._ranks.now()[1]) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        rank, world_size = self._ranks.now()
        self._num_given = 0
        self.packs.set_epoch(self._epoch)
        num_packs = (len(self.packs) - self._position) // world_size
        mine = range(self._position + rank, self._position + num_packs * world_size, world_size)
        for first in range(0, num_packs, self.batch_size):
            batch = list(mine[first : first + self.batch_size])
            self._num_given = first + len(batch)
            yield batch
        self._epoch, self._position, self._num_given = self._epoch + 1, 0, 0

    def state_dict(self) -> dict[str, Any]:
        position = self._position + self._num_given * self._ranks.now()[1]
        return {"epoch": self._epoch, "position": position, **self.packs.packs.describe_order()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.packs.packs.check_order(state)
        self._epoch, self._position = (whole(name, state.get(name)) for name in ("epoch", "position"))
        self._num_given = 0


def _refuse_collaters_of_others(packs: IndexedPacks) -> None:
    """HF Trainer has a collater where it is given none. Asked for each item, also in a worker: 7 us."""
    for loader in loaders_of_accelerate():
        collate_fn = getattr(loader, "collate_fn", None)
        collate_fn = getattr(collate_fn, "data_collator", collate_fn)  # inside what takes out columns
        of = getattr(collate_fn, "__module__", None) or ""
        if loader.dataset is packs and of.startswith(("transformers.", "torch.", "trl.")):
            name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
            raise UserError(
                f"packs are given to {name} of {of.partition('.')[0]}, which would stack what is to be laid end to "
                "end; give Trainer data_collator=packs.collater(model), or DataLoader collate_fn=packs.collater(model)",
                code="trainer-unsupported",
                collater=name,
            )


def _innermost(sampler: Any) -> Any:
    """The sampler of indices inside batch samplers, of which accelerate wraps one into another."""
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", None)
