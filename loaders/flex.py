"""Documents of packs as a BlockMask, for torch's flex_attention.

A BlockMask says which blocks of 128 queries see which blocks of 128 keys at all, and leaves the rest to a function of
single tokens. Both follow from the document numbers [B, S]. The blocks are told from where documents begin and end:
torch's create_block_mask compares all tokens with all, 2 GB for a pack of 32,768.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # torch's default


@dataclass(frozen=True)
class _Sees:
    """Whether token q of row b sees token k: as `masks.block_causal_mask` and `masks.sliding_mask` have it.

    A class and not a closure, so that loader workers can send it.
    """

    documents: torch.Tensor
    window: int | None

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        own = self.documents[b, q]
        seen = (own == self.documents[b, k]) & (own != 0) & (q >= k)
        return (seen if self.window is None else seen & (q - k < self.window)) | (q == k)


class DocumentMask(BlockMask):
    """A BlockMask that can be moved: torch's own leaves the tensors behind which its function has."""

    mask_mod: Any

    def to(self, device: torch.device | str) -> "DocumentMask":
        moved: Any = super().to(device)
        moved.__class__ = DocumentMask
        moved.mask_mod = replace(self.mask_mod, documents=self.mask_mod.documents.to(device))
        return moved  # type: ignore[no-any-return]


def document_block_mask(documents: torch.Tensor, window: int | None = None) -> DocumentMask:
    """Document numbers [B, S], 0 for padding -> who sees whom; `window`: a token sees so many at most, itself included.

    Documents [1 x 200, 2 x 56]: block 0 is partly seen by itself and by block 1, block 1 partly by itself.
    """
    length = documents.shape[-1]
    begins = np.arange(0, length, BLOCK)
    ends = np.minimum(begins + BLOCK, length)
    is_whole = ends - begins == BLOCK
    ahead = begins[:, None] - begins[None, :]  # of the key's block, as the query's sees it
    seen, full = [], []
    for row in documents.cpu().numpy():
        runs = np.concatenate([[0], np.cumsum(row[1:] != row[:-1])])  # 0, 1, 2 … by document; they never fall
        first, last = runs[begins], runs[ends - 1]
        # A block before this one is seen if its last document is this one's first, and no padding.
        joined = (first[:, None] == last[None, :]) & (row[begins] != 0)[:, None] & (ahead > 0)
        one = (first[:, None] == first[None, :]) & (last[:, None] == last[None, :]) & (first == last)[:, None]
        whole = joined & one & is_whole[:, None] & is_whole[None, :]
        if window is not None:
            joined = joined & (ahead - BLOCK + 1 < window)  # the first query and the last key
            whole = whole & (ahead + BLOCK - 1 < window)  # the last query and the first key
        full.append(whole)
        seen.append((joined & ~whole) | (ahead == 0))
    device = documents.device
    return DocumentMask.from_kv_blocks(
        *_listed(np.stack(seen), device),
        *_listed(np.stack(full), device),
        BLOCK_SIZE=BLOCK,
        mask_mod=_Sees(documents, window),
        seq_lengths=(length, length),
    )


def _listed(blocks: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, queries, keys] -> how many blocks each block of queries sees, and which, those first."""
    order = np.argsort(~blocks, axis=-1, kind="stable")
    counts, indices = (torch.from_numpy(array[:, None].astype(np.int32)) for array in (blocks.sum(-1), order))
    return counts.to(device), indices.to(device)
