"""Which rank this process reads for, asked when an iteration begins: a dataset may be older than its process group."""

import os
import sys
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from ..pipeline.errors import UserError
from .arguments import whole


class Ranks:
    """Rank and world size: as given, or when asked those of torch.distributed, of RANK and WORLD_SIZE, or 0 of 1."""

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        if rank is not None and world_size is not None:
            rank, world_size = whole("rank", rank), whole("world_size", world_size)
        if (rank is None) != (world_size is None) or (rank is not None and not 0 <= rank < (world_size or 0)):
            raise UserError(
                f"rank={rank}, world_size={world_size}: give both, with 0 <= rank < world_size, or neither",
                code="loader-argument",
                argument="rank",
                rank=rank,
                world_size=world_size,
            )
        self._given = None if rank is None or world_size is None else (rank, world_size)
        self._parents: tuple[int, int] | None = None

    def now(self) -> tuple[int, int]:
        if self._given:
            return self._given
        if self._parents and get_worker_info() is not None:
            return self._parents
        environment = _environment()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            group = torch.distributed.get_rank(), torch.distributed.get_world_size()
            if environment and environment != group:
                raise UserError(
                    f"torch.distributed says rank {group[0]} of {group[1]}, RANK and WORLD_SIZE say {environment[0]} "
                    f"of {environment[1]}; give PackedShards the rank and world_size that it reads for",
                    code="loader-argument",
                    argument="rank",
                    group=tuple(group),
                    environment=tuple(environment),
                )
            return group
        return environment or (0, 1)

    def __getstate__(self) -> dict[str, tuple[int, int] | None]:
        """A loader worker that is spawned has no process group: it gets the rank of the process that spawns it.

        A trainer that is spawned has a rank of its own, and asks for it.
        """
        return {"_given": self._given, "_parents": self.now()}


def cores_of_rank() -> int:
    """Those that this process may run on, shared with the other ranks of its node: at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun and accelerate set it
    return max(1, cores // max(1, int(local) if local.isdecimal() else 1))


def _environment() -> tuple[int, int] | None:
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    return (int(found[0]), int(found[1])) if all(map(str.isdigit, found)) else None


def loaders_of_accelerate() -> list[Any]:
    """What accelerate is iterating in this process."""
    if "accelerate" not in sys.modules:
        return []
    from accelerate.state import GradientState

    return [loader for loader in GradientState().dataloader_references if loader is not None]


def refuse_second_sharding(dataset: Dataset[object]) -> bool:
    """Whether accelerate iterates a dataset, by a loader of its own. Where it shares out what this rank reads among the
    ranks once more, most packs would be lost.

    HF Trainer and `accelerator.prepare` do that to every iterable dataset: they dispatch what process 0 reads, cut
    along axis 0, or let every process read all and keep its part. Both tell the dataset the epoch first.
    """
    own = _own(dataset)
    if own and _num_processes() > 1:
        raise UserError(
            "accelerate would share out the packs of this rank among all ranks once more. Give HF Trainer or "
            "accelerator.prepare the map-style dataset: neatpack.loaders.hf.IndexedPacks(out)",
            code="trainer-unsupported",
            trainer="accelerate",
            by="shards",
        )
    if any(map(_dispatches, own)):
        raise UserError(
            f"accelerate dispatches batches of iterable datasets: {_CUT} Instead of PackedShards, give it "
            "neatpack.loaders.hf.IndexedPacks(out)",
            code="trainer-unsupported",
            trainer="accelerate",
            by="dispatch",
        )
    return bool(own)


def refuse_skipping(dataset: Dataset[object], epoch: int, position: int) -> None:
    """Where accelerate skips the batches before a checkpoint, of a dataset that begins elsewhere.

    HF Trainer does, where its get_train_dataloader gives a loader of ours: nobody tells it the epoch then, and what is
    left of epoch 0 would come. After a state was loaded, the batches behind it would be skipped, too.
    """
    if any(type(loader).__name__ == "SkipDataLoader" for loader in _own(dataset)):
        told = "as a state says" if position else "and nobody has called set_epoch"
        raise UserError(
            "accelerate skips batches to resume (HF Trainer does, by skip_first_batches), and these packs begin at "
            f"epoch {epoch}, position {position}, {told}. Give HF Trainer neatpack.loaders.hf.IndexedPacks(out) as "
            "train_dataset, or ignore_data_skip=True and load the loader's state; in a loop of your own, call "
            "set_epoch, or load the state and skip nothing",
            code="trainer-unsupported",
            trainer="accelerate",
            by="skip",
            epoch=epoch,
            position=position,
        )


def _own(dataset: Dataset[object]) -> list[Any]:
    loaders = loaders_of_accelerate()
    return [loader for loader in loaders if dataset in (loader.dataset, getattr(loader.dataset, "dataset", None))]


def refuse_dispatch(dataset: Dataset[object]) -> None:
    """Of packs by index, with dispatch_batches=True."""
    if any(_dispatches(loader) for loader in loaders_of_accelerate() if loader.dataset is dataset):
        raise UserError(
            f"accelerate with dispatch_batches=True: {_CUT} Leave it away, or give dispatch_batches=False "
            "(DataLoaderConfiguration; accelerator_config of TrainingArguments): every rank then reads its own packs",
            code="trainer-unsupported",
            trainer="accelerate",
            by="dispatch_batches",
        )


# In one process, too, and without an error where a pack has no pixels: its positions are cut to one of their axes.
_CUT = (
    "it joins what process 0 reads for all, and cuts each tensor along axis 0. Packs have lengths of their own, axis 0 "
    "of positions and pixels is not that of the batch, and what is left of them is wrong."
)


def _dispatches(loader: Any) -> bool:
    return type(loader).__name__ == "DataLoaderDispatcher"


def _num_processes() -> int:
    from accelerate.state import PartialState

    return int(PartialState().num_processes)
