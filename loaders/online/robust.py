"""Samples that fail are replaced by others: drawn by a seed, logged one by one, counted by kind of failure."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from neatpack.errors import ItemError, LoaderError, UserError

from ...pipeline.media.image import rgb_image
from ...pipeline.records import MediaRef

logger = logging.getLogger(__name__)


class Replacing(Dataset[Any]):
    """A dataset whose `load(index)` may fail. The replacements of a sample depend on (seed, its index) alone."""

    def __init__(self, size: int, max_retries: int, seed: int) -> None:
        if max_retries < 0:
            raise UserError(
                f"max_retries is {max_retries}; it must not be negative",
                code="loader-argument",
                argument="max_retries",
                got=max_retries,
            )
        self.size, self.max_retries, self.seed = size, max_retries, seed
        self.failures: Counter[str] = Counter()  # of this process: loader workers count their own

    def load(self, index: int) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> Any:
        if not -self.size <= idx < self.size:
            raise ItemError(f"sample {idx} of {self.size}", code="document-unknown", sample=idx, samples=self.size)
        last: Exception | None = None
        for index in self._candidates(idx % self.size):
            try:
                return self.load(index)
            except MemoryError:
                raise  # says nothing about the sample
            except Exception as error:  # whatever a foreign dataset raises: that is what this wrapper is for
                self.failures[type_of(error)] += 1
                logger.warning("sample %d: %s: %s; another one takes its place", index, type(error).__name__, error)
                last = error
        raise LoaderError(
            f"sample {idx} and {self.max_retries} replacements failed, the last with {type(last).__name__}: {last}; "
            "fix the data, or raise max_retries",
            code="sample-retries",
            sample=idx,
            retries=self.max_retries,
            error=type(last).__name__,
        ) from last

    def _candidates(self, idx: int) -> Iterator[int]:
        yield idx
        draw = random.Random(f"{self.seed}/{idx}")
        for _ in range(self.max_retries):
            yield draw.randrange(self.size)

    def robust_collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Wrap collate_fn so that on failure the entire batch is re-sampled and retried."""
        return make_robust_collate(self, collate_fn, self.max_retries, seed=self.seed)


class RobustDatasetWrapper(Replacing):
    """Any dataset; what fails in its __getitem__ is replaced.

    Pictures named by a path are opened here, so that a broken one fails here, in a worker, and not in the collater.
    """

    def __init__(self, dataset: Any, max_retries: int = 10, *, seed: int = 0, preload_media: bool = True) -> None:
        super().__init__(len(dataset), max_retries, seed)
        self.dataset, self.preload_media = dataset, preload_media

    def load(self, index: int) -> Any:
        example = self.dataset[index]
        return preloaded(example) if self.preload_media else example


def preloaded(example: Any) -> Any:
    """An example of the conversation format whose pictures are in memory, RGB and as displayed."""
    if not isinstance(example, Mapping) or not isinstance(example.get("conversation"), Sequence):
        return example
    turns = [
        {**turn, "content": [_loaded(part) for part in turn["content"]]}
        if isinstance(turn, Mapping) and isinstance(turn.get("content"), list)
        else turn
        for turn in example["conversation"]
    ]
    return {**example, "conversation": turns}


def _loaded(part: Any) -> Any:
    if isinstance(part, Mapping) and part.get("type") == "image" and isinstance(part.get("image"), str):
        return {**part, "image": rgb_image(MediaRef(kind="image", path=part["image"]))}
    return part


def make_robust_collate(
    dataset: Any, collate_fn: Callable[[list[Any]], Any], max_retries: int = 10, *, seed: int = 0
) -> "RobustCollate":
    """`collate_fn`, and on failure the entire batch drawn anew from `dataset`, up to max_retries times."""
    return RobustCollate(dataset, collate_fn, max_retries, seed)


class RobustCollate:
    """What make_robust_collate gives; a class and not a closure, so that spawned workers can have it."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any], max_retries: int, seed: int) -> None:
        self.dataset, self.collate_fn, self.max_retries, self.seed = dataset, collate_fn, max_retries, seed
        self.failures: Counter[str] = Counter()

    def __call__(self, batch: list[Any]) -> Any:
        last: Exception | None = None
        for _ in range(self.max_retries + 1):
            try:
                return self.collate_fn(batch)
            except MemoryError:
                raise
            except Exception as error:  # as above
                last = error
                draw = random.Random(f"{self.seed}/{self.failures.total()}")
                self.failures[type_of(error)] += 1
                logger.warning("a batch of %d: %s: %s; drawn anew", len(batch), type(error).__name__, error)
                batch = [self.dataset[draw.randrange(len(self.dataset))] for _ in batch]
        raise LoaderError(
            f"a batch and {self.max_retries} others could not be collated, the last for {type(last).__name__}: {last}",
            code="sample-retries",
            retries=self.max_retries,
            error=type(last).__name__,
        ) from last


def type_of(error: Exception) -> str:
    """A reason of the ledger's, where the error has one."""
    return getattr(error, "reason", None) or type(error).__name__
