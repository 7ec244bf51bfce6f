"""The loss as one mean over the target tokens of a step, whatever ranks and micro-steps they lie in."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from neatpack.format.layout import IGNORE


def num_items_in_batch(batches: Iterable[Mapping[str, Any]], group: Any = None) -> torch.Tensor:
    """Target tokens of the batches of a step, over all ranks: what the losses of transformers are divided by.

    Packs differ in how many tokens are trained on. A mean of means would weigh a token by its neighbours:

        for micro_steps in steps(loader, 4):
            items = num_items_in_batch(micro_steps)
            for batch in micro_steps:
                loss = model(**batch, num_items_in_batch=items).loss  # this batch's part of the step's mean
                (loss * world_size).backward()  # DDP and FSDP average gradients over the ranks, and parts are added up

    group: the ranks that train on other data, where those are not all (tensor or context parallelism).
    """
    counts = [(batch["labels"] != IGNORE).sum() for batch in batches]
    total = torch.stack(counts).sum()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(total, group=group)
    return total


def steps(batches: Iterable[Any], num_micro_steps: int) -> Iterator[list[Any]]:
    """Batches by optimizer step: [a b c d e] by 2 -> [a b] [c d] [e]."""
    remaining = iter(batches)
    while step := list(islice(remaining, num_micro_steps)):
        yield step
