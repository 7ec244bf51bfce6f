"""pad_collate_fn: unpacked samples, each a row of its own, padded to a common length."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from neatpack.errors import UserError
from neatpack.format.layout import IGNORE

from ...pipeline.families.base import Family
from ...pipeline.labels import shifted
from ..media import concatenated_media, media_counts
from ..pixels import cast_pixels
from .tokenized import PER_TOKEN, row

FILLED = ("input_ids", "attention_mask", "labels", "mm_token_type_ids")


def pad_collate_fn(
    examples: Sequence[dict[str, Any]],
    processor: Any,
    max_length: int | None = None,
    *,
    pixel_dtype: torch.dtype | None = torch.bfloat16,
) -> dict[str, Any]:
    """Tokenized samples (input_ids, attention_mask, labels; not yet shifted) -> a batch, shifted.

    Rows are padded to `max_length`, or to the longest sample; the shift then takes one token from each. pixel_dtype
    None: pixels as the samples have them.
    """
    return cast_pixels(shifted_batch(padded_batch(examples, processor, max_length, pixel_dtype)), pixel_dtype)


def padded_batch(
    examples: Sequence[dict[str, Any]],
    processor: Any,
    max_length: int | None = None,
    pixel_dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """Everything but the shift."""
    examples = [{name: row(value) if name in FILLED else value for name, value in each.items()} for each in examples]
    longest = max(len(example["input_ids"]) for example in examples)
    length = longest if max_length is None else max_length
    if longest > length:
        raise UserError(
            f"a sample of {longest} tokens does not fit max_length {length}; drop or truncate it before",
            code="overlong",
            tokens=longest,
            max_length=length,
        )
    fills = dict(zip(FILLED, (padding_id(processor), 0, IGNORE, 0), strict=True))
    rows = {
        name: torch.stack([pad(example[name], (0, length - len(example[name])), value=fill)
                           for example in examples])
        for name, fill in fills.items()
        if all(example.get(name) is not None for example in examples)
    }  # fmt: skip
    return rows | concatenated_media(examples, pixel_dtype) | media_counts(examples)


def shifted_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """Contiguous, which slices are not: losses of transformers take shift_labels by `view`."""
    cut = shifted({name: batch[name] for name in PER_TOKEN if name in batch})
    return batch | {name: values.contiguous() for name, values in cut.items()}


def padding_id(processor: Any) -> int:
    if isinstance(processor, Family):
        return processor.chat.padding_id
    tokenizer = getattr(processor, "tokenizer", processor)
    return getattr(tokenizer, "pad_token_id", None) or 0
