"""Gemma 4's empty thought in batches that were tokenized without it."""

from typing import Any

import torch
from torch.nn.functional import pad

from neatpack.format.layout import IGNORE

from ...pipeline.families.gemma4 import EMPTY_THOUGHT, MODEL_TURN
from .padded import padding_id

_GEMMA4_MODEL_TURN, _GEMMA4_THINKING_PREFIX = MODEL_TURN, EMPTY_THOUGHT


def _inject_thinking_prefix_tokens(batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """<|channel>thought\\n<channel|> behind every <|turn>model\\n, unless it is there already; changed in place.

    Further tensors of integers, [B, length], get zeros in those places; [any other number, length] at their end.
    """
    ids = batch["input_ids"]
    header, prefix = _header_and_prefix(tokenizer)
    places = [[end for end in _ends_of(row, header) if not _follows(row, prefix, end)] for row in ids.tolist()]
    longest = max((len(row) for row in places), default=0) * len(prefix)
    if not longest:
        return batch
    fills = {"input_ids": padding_id(tokenizer)}
    inserted = {"input_ids": torch.tensor(prefix), "attention_mask": torch.ones(len(prefix), dtype=torch.long)}
    for name, values in batch.items():
        if not isinstance(values, torch.Tensor) or values.ndim != 2 or values.is_floating_point():
            continue
        if values.shape[1] != ids.shape[1]:
            continue
        if len(values) != len(ids):
            batch[name] = pad(values, (0, longest))
            continue
        what = inserted.get(name, torch.zeros(len(prefix), dtype=torch.long)).to(values)
        rows = []
        for row, ends in zip(values, places, strict=True):
            pieces = torch.tensor_split(row, ends)
            joined = torch.cat([part for piece in pieces[:-1] for part in (piece, what)] + [pieces[-1]])
            rows.append(pad(joined, (0, longest - len(ends) * len(prefix)), value=fills.get(name, 0)))
        batch[name] = torch.stack(rows)
    return batch


def cut_to(batch: dict[str, Any], length: int) -> dict[str, Any]:
    """Per-token tensors back to a length: what an insertion has pushed beyond it is padding."""
    whole = batch["input_ids"].shape
    return {
        name: values[:, :length] if isinstance(values, torch.Tensor) and values.shape == whole else values
        for name, values in batch.items()
    }


def without_prefix_labels(batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A shifted batch whose labels leave the empty thoughts out: the label of a token is one place before it."""
    header, prefix = _header_and_prefix(tokenizer)
    labels = batch["labels"].clone()
    for number, row in enumerate(batch["input_ids"].tolist()):
        for end in _ends_of(row, header):
            if _follows(row, prefix, end):
                labels[number, end - 1 : end - 1 + len(prefix)] = IGNORE
    return batch | {"labels": labels}


def _header_and_prefix(tokenizer: Any) -> tuple[list[int], list[int]]:
    header, prefix = (
        list(tokenizer.encode(text, add_special_tokens=False)) for text in (_GEMMA4_MODEL_TURN, _GEMMA4_THINKING_PREFIX)
    )
    return header, prefix


def _ends_of(ids: list[int], header: list[int]) -> list[int]:
    return [at + len(header) for at in range(len(ids)) if _follows(ids, header, at)]


def _follows(ids: list[int], what: list[int], at: int) -> bool:
    return ids[at : at + len(what)] == what
