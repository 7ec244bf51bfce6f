"""PackLoader: the batches of a rank, epoch after epoch, from any position."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from .stream import PackedShards

_OURS = ("batch_sampler", "drop_last", "sampler", "shuffle")  # settled by the packs' order


class PackLoader(DataLoader[Any]):
    """A DataLoader over `PackedShards` that counts what it gives out: made by `PackedShards.loader`.

    for batch in loader: one epoch, or what is left of it; the next time, the next epoch. `epoch` is that of the next
    batch, `len(loader)` the number of batches of a whole epoch. `state_dict()` is the position after the batches given
    out so far, one for all ranks, whatever the workers have read ahead; `load_state_dict` goes on there, with any
    number of ranks, workers and packs in a batch.
    """

    dataset: "PackedShards"

    def __init__(
        self,
        packs: "PackedShards",
        batch_size: int,
        num_workers: int,
        collate_fn: Callable[[list[dict[str, Any]]], Any],
        **options: Any,
    ) -> None:
        if ours := [name for name in _OURS if name in options]:
            raise ValueError(
                f"{', '.join(ours)}: the order is that of PackedShards; see its shuffle, seed and drop_last"
            )
        packs.batch_size = batch_size
        self._given = 0  # batches of this iteration
        super().__init__(packs, batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, **options)

    @property
    def epoch(self) -> int:
        return int(self.state_dict()["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """For loops that count epochs themselves; an epoch that was resumed goes on."""
        self.dataset.set_epoch(epoch)
        self._given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        packs = self.dataset
        if self._given and self._given * packs.batch_size >= packs.num_left:
            packs.advance()  # the consumer, which counts, stopped at the last batch and not after it
        packs.restart()
        self._given = 0
        for batch in super().__iter__():
            self._given += 1
            yield batch
        packs.advance()
        self._given = 0

    def state_dict(self) -> dict[str, Any]:
        return self.dataset.state_at(self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.dataset.load_state_dict(state)
        self._given = 0
