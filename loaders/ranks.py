"""Which rank this process reads for, asked when an iteration begins: a dataset may be older than its process group."""

import os
import sys
from typing import Any

import torch
from torch.utils.data import Dataset

from neatpack.errors import UserError

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

    def now(self) -> tuple[int, int]:
        if self._given:
            return self._given
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


def _environment() -> tuple[int, int] | None:
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    return (int(found[0]), int(found[1])) if all(map(str.isdigit, found)) else None


def loaders_of_accelerate() -> list[Any]:
    """What accelerate is iterating in this process."""
    if "accelerate" not in sys.modules:
        return []
    from accelerate.state import GradientState

    return [loader for loader in GradientState().dataloader_references if loader is not None]


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
