"""A pack as the collaters take it, from its arrays, whoever has read them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from neatpack.errors import UserError
from neatpack.format.layout import TOKEN_TYPES, MediaArray

from .media import LAYOUT_KEY, RECURRENT_KEY, document_numbers
from .pixels import RESTORE_KEY, STORED_KEY, Stored, restored

STACKED = ("input_ids", "labels", "position_ids", "mm_token_type_ids")
PIXELS = {"bf16": torch.bfloat16, "fp32": torch.float32, "uint8": None}  # as what pixels come; None: as stored


def pack_item(
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, Any],
    layout: Mapping[str, MediaArray],
    stored: Mapping[str, Stored],
    dtype: torch.dtype | None,
    recurrent_layers: Sequence[str] | None = None,
    *,
    for_collater: bool = False,
) -> dict[str, Any]:
    """Arrays and JSON of a pack -> its item; pixels restored as `dtype`, or left as they are stored (None).

    recurrent_layers: as the manifest has it of the family.
    for_collater: nobody but a collater of ours gets the item. It restores pixels itself, into the batch.

    Of the JSON, `pack`, `num_images`, `num_videos` and `num_audios` will do.
    Pixels as stored are a view of what was read for this item alone, until the collater copies them into the batch. The
    other arrays are small and copied, as the integers that torch wants; those of tokens are left to a collater of ours,
    who does it where he stacks them. numpy copies them: torch.tensor takes three times as long.
    """
    as_they_are = STACKED if for_collater else ()
    tensors = {
        name: torch.from_numpy(array if name in as_they_are else array.astype(_dtype(array)))
        for name, array in arrays.items()
        if name not in stored
    }
    pixels = {name: torch.from_numpy(arrays[name]) for name in stored}
    item: dict[str, Any] = {
        LAYOUT_KEY: layout,  # first, before what torch's own collate function would take: see `_refuse`
        "pack": header["pack"],
        **tensors,
        "attention_mask": document_numbers(tensors["seq_lens_padded"]),
        **{f"n_{kind}s": header[f"num_{kind}s"] for kind in TOKEN_TYPES},
    }
    if recurrent_layers:
        item[RECURRENT_KEY] = list(recurrent_layers)
    if for_collater:
        item[RESTORE_KEY] = dtype
    if dtype is None or for_collater:
        return item | pixels | {STORED_KEY: stored}
    return item | {name: restored(rows, stored[name], dtype) for name, rows in pixels.items()}


def _dtype(array: np.ndarray) -> type[np.float32 | np.int64]:
    return np.float32 if array.dtype.kind == "f" else np.int64


def _refuse(batch: Sequence[MediaArray], **_: Any) -> None:
    """What a DataLoader without a collate_fn comes to, in the layout of a pack. It would stack what is to be laid end
    to end, and leave document numbers for a mask."""
    raise UserError(
        "a DataLoader without a collate_fn would stack packs as they are; give it collate_fn=packs.collater(model), or "
        "use packs.loader(model=model) of PackedShards",
        code="trainer-unsupported",
        collater="default_collate",
    )


default_collate_fn_map[MediaArray] = _refuse
