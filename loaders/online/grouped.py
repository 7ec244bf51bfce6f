"""LengthGroupedSampler: samples of like length at the same position on every rank, for training without packing."""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler, Subset

from neatpack.errors import UserError

from .estimate import (
    UNKNOWN_MEDIUM_TOKENS,
    _estimate_image_tokens,
    _estimate_video_tokens,
    estimate_media_tokens,
    estimate_text_tokens,
)
from .processor import family_of
from .processor_config import extract_image_config, extract_video_config

logger = logging.getLogger(__name__)

HEADROOM = 512  # tokens over max_length that an estimate may be wrong by


def raw_samples(dataset: Any) -> Any:
    """The innermost data set behind `.dataset` and `.inner_dataset`: asking a wrapper would tokenize its samples.

    A Subset is followed by its indices. A wrapper of another length (packs) is not one of these samples: refused.
    """
    if isinstance(dataset, Subset):
        samples = raw_samples(dataset.dataset)
        return [samples[index] for index in dataset.indices]
    for name in ("dataset", "inner_dataset"):
        inner = getattr(dataset, name, None)
        if inner is None:
            continue
        if len(inner) != len(dataset):
            raise UserError(
                f"{type(dataset).__name__} has {len(dataset)} items, the data set inside it {len(inner)}: lengths "
                "cannot be told; group the samples before they are packed or filtered",
                code="lengths-invalid",
                dataset=type(dataset).__name__,
                got=len(dataset),
                expected=len(inner),
            )
        return raw_samples(inner)
    return dataset


class LengthGroupedSampler(Sampler[int]):
    """Indices by decreasing length, begun at another place in every epoch, which is the same on every rank.

    dataset     raw examples ({"conversation": …, "_text_tokens": …}), or wrappers around such a list
    seed        the same on every rank; seed + epoch fix the order
    processor   media of recorded size are then counted by its smart_resize
    max_length  what is clearly longer, by more than 512 tokens, never comes: logged, and counted in `num_overlong`.
                What is near it comes (lengths here are estimates), for the tokenizing step to cut or to replace
    batch_size  the DataLoader's: batches are cut from the sorted order, and none spans its longest and its shortest

    All ranks give as many indices as the one that has the fewest, so that none waits for others at the end of an epoch:
    where torch.distributed is initialized, every rank must make its sampler, or all wait. The shortest samples of the
    other ranks are left out, logged. Position n is of similar length on all ranks.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int = 42,
        processor: Any = None,
        max_length: int | None = None,
        batch_size: int = 1,
    ) -> None:
        self.seed = seed
        self.epoch = 0
        self.batch_size = max(1, batch_size)
        self.max_length = max_length
        processor = family_of(processor) if isinstance(processor, str) else processor
        self._image_cfg = self._extract_image_config(processor)
        self._video_cfg = self._extract_video_config(processor)
        self.lengths = self._compute_or_load_lengths(dataset)
        kept = [
            index for index, length in enumerate(self.lengths) if max_length is None or length <= max_length + HEADROOM
        ]
        self.num_overlong = len(self.lengths) - len(kept)
        if self.num_overlong:
            logger.warning(
                "%d of %d samples are left out: they seem longer than max_length %s by more than %d tokens",
                self.num_overlong, len(self.lengths), max_length, HEADROOM,
            )  # fmt: skip
        by_length = sorted(kept, key=lambda index: (-self.lengths[index], index))
        fewest = _fewest(len(by_length))
        if fewest < len(by_length):
            logger.warning(
                "the %d shortest of %d samples are left out: another rank has only %d",
                len(by_length) - fewest, len(by_length), fewest,
            )  # fmt: skip
        self.sorted_indices = by_length[:fewest]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sorted_indices)

    def __iter__(self) -> Iterator[int]:
        """The shortest batches first, as many as the draw says; then from the longest on.

        Sorted 0…9, batches of 4, one batch drawn: 6 7 8 9 | 0 1 2 3 | 4 5. Counted from the end, all batches are whole
        but the last, and that one (which drop_last leaves out) is another in every epoch.
        """
        # A share of the batches, not a number of samples: with 1000 samples here and 1001 there, both begin alike.
        share = random.Random(self.seed + self.epoch).random()
        moved = int(share * (len(self) // self.batch_size)) * self.batch_size
        start = len(self) - moved
        yield from self.sorted_indices[start:]
        yield from self.sorted_indices[:start]

    # Lengths

    def _compute_or_load_lengths(self, dataset: Any) -> list[int]:
        """Text and media tokens of every sample, without tokenizing or opening one."""
        samples = self._get_raw_samples(dataset)
        return [sum(self._estimate_tokens(samples[index])) for index in range(len(samples))]

    def _estimate_tokens(self, example: Mapping[str, Any]) -> tuple[int, int]:
        if "conversation" not in example and "_text_tokens" not in example:
            raise UserError(
                f"a sample with the keys {', '.join(map(str, example))} has no length; expected 'conversation' or "
                "'_text_tokens': give the raw examples, as make_meta_dataset returns them",
                code="lengths-invalid",
                keys=list(example),
            )
        return estimate_text_tokens(example), self._media_tokens(example)

    def _media_tokens(self, example: Mapping[str, Any]) -> int:
        sizes = example.get("mm_inputs_meta")
        knows_sizes = self._image_cfg is not None or self._video_cfg is not None
        if sizes is None or not knows_sizes or example.get("_media_tokens") is not None:
            return estimate_media_tokens(example, None, None)
        images = sizes.get("images_meta") if self._image_cfg is not None else None
        videos = sizes.get("videos_meta") if self._video_cfg is not None else None
        return sum(self._estimate_image_tokens(size) for size in images or () if size is not None) + sum(
            self._estimate_video_tokens(size) for size in videos or () if size is not None
        )

    def _estimate_image_tokens(self, img_meta: Sequence[float]) -> int:
        return UNKNOWN_MEDIUM_TOKENS if self._image_cfg is None else _estimate_image_tokens(img_meta, self._image_cfg)

    def _estimate_video_tokens(self, vid_meta: Sequence[float]) -> int:
        return UNKNOWN_MEDIUM_TOKENS if self._video_cfg is None else _estimate_video_tokens(vid_meta, self._video_cfg)

    _extract_image_config = staticmethod(extract_image_config)
    _extract_video_config = staticmethod(extract_video_config)
    _get_raw_samples = staticmethod(raw_samples)


def _fewest(count: int) -> int:
    """The smallest of the counts of all ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count
    counts = [count] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(counts, count)  # it knows which device the backend wants
    return min(counts)
