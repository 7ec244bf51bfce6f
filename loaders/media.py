"""Media of several samples in one batch: arrays end to end, and how many each sample has; for all collaters."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from neatpack.errors import UserError
from neatpack.format.layout import TOKEN_TYPES, Delivery, Layout, MediaArray

from .arrays import concatenate
from .pixels import (
    PIXEL_KEYS,
    RESTORE_KEY,
    STORED_KEY,
    Stored,
    put_together,
    restored,
    restored_end_to_end,
    with_first,
)

RECURRENT_KEY = "recurrent_layers"  # in a pack for such a model: its kinds of layers that no attention mask reaches
LAYOUT_KEY = "media_layout"  # in a sample: {name: MediaArray}, as its family declares
# What a sample without a layout may have; rows end to end, as Qwen's processors give them.
MEDIA_KEYS = (
    "pixel_values", "image_grid_thw", "image_position_ids", "pixel_values_videos", "video_grid_thw",
    "second_per_grid_ts", "image_grid_hws", "image_sizes", "input_features", "feature_attention_mask",
)  # fmt: skip
_COUNTED_BY = {"image": "image_grid_thw", "video": "video_grid_thw", "audio": "input_features"}


@dataclass(frozen=True, kw_only=True)
class MediaOwners:
    """The layout of a batch's media and the samples that they belong to: what pipelines need and models do not take."""

    layout: Layout
    counts: Mapping[str, torch.Tensor]  # n_images_per_sample …
    arrays: Mapping[str, Any]
    num_samples: int


_owners: ContextVar[list[MediaOwners] | None] = ContextVar("owners", default=None)  # None: not asked for


def collate_with_owners(collate_fn: Callable[[Any], Any], samples: Any) -> tuple[Any, MediaOwners | None]:
    """Return a batch, and the owners of its media if one of neatpack's collaters made it."""
    found: list[MediaOwners] = []
    token = _owners.set(found)
    try:
        batch = collate_fn(samples)
    finally:
        _owners.reset(token)
    return batch, found[-1] if found else None


def concatenated_media(samples: Sequence[Mapping[str, Any]], pixel_dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Media arrays over the batch, in sample order; a kind that no sample has is absent, as models want it.

    pixel_dtype: of pixels that are floats, or become float32 here; None: as they are. Bytes stay bytes.
    """
    layout: Mapping[str, MediaArray] = samples[0].get(LAYOUT_KEY) or {}
    stored: Mapping[str, Stored] = samples[0].get(STORED_KEY, {})
    for sample in samples[1:]:
        _check_alike(sample, layout, stored)
    dtype: Any = samples[0].get(RESTORE_KEY)
    result: dict[str, Any] = {}
    for name in layout or MEDIA_KEYS:
        arrays = [sample[name] for sample in samples if sample.get(name) is not None and len(sample[name])]
        if not arrays:
            continue
        is_padded = name in layout and layout[name].deliver.per_medium
        how = stored.get(name) if dtype is not None else None
        # At once as what they are cast to: a table of rounded values gives the same bits as rounding float32.
        is_rounded = dtype == torch.float32 and name in PIXEL_KEYS
        restored_as: Any = (pixel_dtype or dtype) if is_rounded else dtype
        if how is not None and not is_padded and _are_of_one_shape(arrays):
            rows = restored_end_to_end(arrays, how, restored_as)
        else:  # what pads rows is zero, and not what a byte of zero stands for: they are restored before
            arrays = [array if how is None else restored(array, how, restored_as) for array in arrays]
            if is_padded:
                counts = [sample[layout[name].counts] for sample in samples]
                result |= _padded(name, layout[name].deliver, arrays, counts)
                continue
            is_cast = name in PIXEL_KEYS and arrays[0].is_floating_point()
            dtype_here = pixel_dtype if is_cast else None
            rows = concatenate(_of_one_shape(arrays), dtype_here, is_owned=RESTORE_KEY in samples[0])
        result[name] = rows[None] if name in layout and layout[name].deliver.batch_axis else rows
    stored = {key: value for key, value in stored.items() if key in result} if dtype is None else {}
    for name, array in layout.items():
        first = array.deliver.first
        if first and name in result and name not in stored:  # stored ones are joined when they are restored
            result[name] = with_first(result.pop(first), result[name])
    if (asked := _owners.get()) is not None:
        own = media_counts(samples)
        asked[:] = [MediaOwners(layout=layout, counts=own, arrays=result, num_samples=len(samples))]
    return result | ({STORED_KEY: stored} if stored else {})


def _check_alike(sample: Mapping[str, Any], layout: Mapping[str, MediaArray], stored: Mapping[str, Stored]) -> None:
    """That a sample is of the same processor as the first of its batch: it is restored as that is."""
    own: Mapping[str, Stored] = sample.get(STORED_KEY, {})
    if own is stored and sample.get(LAYOUT_KEY) is layout:
        return  # of one data set in this process: nearly all
    tables = [(how.table, own[name].table) for name, how in stored.items() if name in own]
    if (sample.get(LAYOUT_KEY) or {}) != layout or own.keys() != stored.keys() or not all(starmap(torch.equal, tables)):
        raise UserError(
            "a batch has packs of two processors, whose pixels stand for different values; give each a loader of its "
            "own, or pack them with one processor",
            code="mixture-invalid",
        )


def _padded(name: str, deliver: Delivery, arrays: list[Any], counts: list[Any]) -> dict[str, torch.Tensor]:
    """Rows of each medium as a line of [media, longest, …], and the mask that tells them from the padding; or as a
    picture of [media, channels, height, width].
    """
    if deliver.pictures:
        return {name: put_together(torch.cat(arrays), torch.cat([count for count in counts if len(count)]))}
    sizes = [number for count in counts if len(count) for number in count.reshape(len(count), -1).prod(1).tolist()]
    rows = list(torch.split(torch.cat(arrays), sizes))
    media = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=deliver.fill)
    if not deliver.mask:
        return {name: media}
    mask = torch.arange(media.shape[1])[None, :] < torch.tensor(sizes)[:, None]
    dtype = {"int64": torch.int64, "bool": torch.bool}[deliver.mask_dtype]
    return {name: media.movedim(1, -1) if deliver.transposed else media, deliver.mask: mask.to(dtype)}


def _of_one_shape(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    """Rows that were padded to the largest of their pack are padded to the largest of the batch."""
    if _are_of_one_shape(arrays):
        return arrays
    sides = torch.tensor([array.shape[1:] for array in arrays]).amax(0).tolist()
    return [
        pad(array, [n for side, has in zip(sides[::-1], array.shape[:0:-1], strict=True) for n in (0, side - has)])
        for array in arrays
    ]


def _are_of_one_shape(arrays: list[torch.Tensor]) -> bool:
    return len({array.shape[1:] for array in arrays}) == 1


def document_numbers(lengths: torch.Tensor) -> torch.Tensor:
    """Lengths [3, 2] -> [1, 1, 1, 2, 2]. By numpy: torch's threads wait for each other over small arrays."""
    each = lengths.numpy()
    return torch.from_numpy(np.arange(1, len(each) + 1).repeat(each))


def media_counts(samples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """n_images_per_sample, n_videos_per_sample, n_audios_per_sample: each where any sample has one."""
    result = {}
    for kind in TOKEN_TYPES:
        counts = [num_media(sample, kind) for sample in samples]
        if any(counts):
            result[f"n_{kind}s_per_sample"] = torch.tensor(counts, dtype=torch.long)
    return result


def num_media(sample: Mapping[str, Any], kind: str) -> int:
    """As the sample says, else by its grids."""
    if f"n_{kind}s" in sample:
        return int(sample[f"n_{kind}s"])
    rows = sample.get(_COUNTED_BY[kind])
    return len(rows) if rows is not None else 0
