"""Batches that torch.distributed.pipelining cuts between packs.

It cuts every tensor along axis 0. That is not the batch axis of positions [3, B, S], of borders of documents, or of
packs that lie in one row.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from neatpack.errors import UserError

# Borders of documents in rows laid end to end, and the key that tells how many documents a row has, where there is one.
_BORDERS = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "cu_seqlens_padded")
_ROW_LENGTHS = "seq_lens"


def get_kwargs_chunk_spec(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kwargs_chunk_spec of a torch schedule whose `step` gets these kwargs.

    Position ids of several axes, [3, B, S] or [4, B, S], are cut along axis 1, other tensors along axis 0. Without it
    torch cuts the axes of positions: one stage raises, and the other waits for it until the process group times out.
    Other values (use_cache, max_length_q) are the same in every microbatch.

    Args:
        kwargs: the keyword arguments of `step` with any batch of the loader.
    """
    return {name: _chunk_spec(name, value) for name, value in kwargs.items()}


def _chunk_spec(name: str, value: Any) -> Any:
    from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
    from torch.nn.attention.flex_attention import BlockMask

    if isinstance(value, Mapping):  # one mask for each kind of layer
        return get_kwargs_chunk_spec(value)
    if isinstance(value, torch.Tensor | BlockMask):
        return TensorChunkSpec(int(name == "position_ids" and len(value.shape) == 3))  # type: ignore[no-untyped-call]
    return _Replicate


def fold_row(batch: MutableMapping[str, Any], total: int, num_packs: int, n_microbatches: int) -> None:
    """Make n rows of one [1, total] in which packs of one length lie end to end, a row for each microbatch."""
    if num_packs % n_microbatches or total % n_microbatches:
        raise UserError(
            f"{num_packs} packs in one row of {total} tokens: no {n_microbatches} microbatches of one length can be "
            "made of them. Choose a batch_size that is a multiple of n_microbatches",
            code="batch-mismatch",
            packs=num_packs,
            n_microbatches=n_microbatches,
        )
    for name, value in batch.items():
        batch[name] = _folded(value, total, n_microbatches)
    if "seq_idx" in batch:
        batch["seq_idx"] = batch["seq_idx"] - batch["seq_idx"][:, :1]  # of each row from 0


def _folded(value: Any, total: int, num_rows: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _folded(mask, total, num_rows) for name, mask in value.items()}
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    length = total // num_rows
    if len(shape) == 4 and shape[-2:] == (total, total):  # no document sees another, so only the diagonal is needed
        blocks = [slice(start, start + length) for start in range(0, total, length)]
        return torch.cat([value[..., block, block] for block in blocks])
    return value.reshape(*shape[:-2], num_rows, length) if shape[-2:] == (1, total) else value


def cut_borders(batch: MutableMapping[str, Any], shape: Sequence[int], n_microbatches: int) -> None:
    """Make the borders of documents those of each microbatch, laid end to end and equally many, so that torch cuts
    them between microbatches: rows of [2, 1] and [3] tokens in two -> [0, 2, 3, 0, 3, 3].

    Those that fill up are documents without tokens. `shape` is that of the tokens, [B, S] or [total]. Raises ValueError
    where a document would be in two microbatches.
    """
    names = [name for name in _BORDERS if batch.get(name) is not None]
    if not names or n_microbatches == 1:
        return
    # Ends of microbatches by torch's own function: in rows, or in tokens if these are not in rows.
    ends = np.cumsum([len(part) for part in torch.arange(shape[0]).tensor_split(n_microbatches)])
    is_in_rows = len(shape) > 1
    for name in names:
        borders = batch[name]
        if _ROW_LENGTHS in batch and is_in_rows:
            documents = np.cumsum((batch[_ROW_LENGTHS] >= 0).sum(1).tolist())[ends - 1]
        else:
            wanted = ends * shape[1] if is_in_rows else ends
            documents = np.searchsorted(borders.numpy(), wanted)
            if documents[-1] >= len(borders) or not np.array_equal(borders.numpy()[documents], wanted):
                raise UserError(
                    f"{name} {borders.tolist()[:9]}: microbatches end at tokens {wanted.tolist()}, where documents do "
                    f"not (got {list(shape)} tokens). Fill up every row, and end its last document there",
                    code="batch-mismatch",
                    name=name,
                    borders=borders.tolist()[:9],
                    expected=wanted.tolist(),
                )
        batch[name] = _cut(borders, documents.tolist())


def _cut(borders: torch.Tensor, ends: Sequence[int]) -> torch.Tensor:
    """[0, 2, 3, 6] after documents 2 and 3 -> [0, 2, 3], [0, 3, 3]."""
    parts = [borders[start : end + 1] - borders[start] for start, end in zip([0, *ends], ends, strict=False)]
    longest = max(map(len, parts))
    return torch.cat([torch.nn.functional.pad(part, (0, longest - len(part)), value=int(part[-1])) for part in parts])
