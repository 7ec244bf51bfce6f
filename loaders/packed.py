"""neat_packed_vlm_collater: packs into one batch, with the attention mask that the model's kernel takes.

    sdpa                attention_mask is bool [B, 1, S, S], block-causal: transformers' own sdpa attention
    eager               the same as float32 to be added to the scores: transformers' own eager attention adds it as it
                        is, and of a bool mask that would make ones and zeros. bool_mask=True: bool all the same
    flex_attention      attention_mask is a BlockMask of the same: transformers' own flex attention
    flash_attention_2   attention_mask is int [B, S], 1, 2, … per document and 0 for padding: kernels that read document
                        numbers, such as transformers' flash attention with a patched `_get_unpad_data`
    (3, 4, kernels-community/flash-attn2 …: every name with "flash" in it is one)
    … and varlen_kwargs=True   no mask, but cu_seq_lens_q/k and max_length_q/k: transformers' flash attention as it is
    thd                 no mask, but cu_seqlens(_padded) and seq_lens(_padded): varlen kernels, context parallelism

Models with sliding-window layers (Gemma) take two masks: give `sliding_window`, and for sdpa, eager and flex
attention_mask is {"full_attention": …, "sliding_attention": …}, as transformers' forward takes it. In Gemma 4 the
tokens of a picture or of a frame see each other both ways where the model's config has
use_bidirectional_attention="vision" (`bidirectional_vision`): in the sliding layers only, and no further back than the
window. Both settings of a model are among the facts of the family that made the shards,
PackedShards(out).reader.manifest.family["facts"], if its config.json was there. Flash kernels get the window from the
model itself. bidirectional_vision is for sdpa and eager: flash attention cannot look ahead in a picture, and no
BlockMask of it is made here.

Models with layers beside attention that carry a state from token to token (linear attention and causal convolutions:
Qwen3.5, Qwen3-Next …) need more than any of these: no mask reaches such a layer, and a document would be told of those
before it. recurrent=True lays the packs of a batch end to end, as one row [1, B * S], and adds cu_seq_lens_q/k,
max_length_q/k and seq_idx [1, B * S], by which the kernels of flash-linear-attention and causal-conv1d keep documents
apart; without these kernels, `recurrent.run_by_document(model)` does. Packs of an output that says that it is for such
a model are refused without it.

Nothing is shifted here: that was done when the documents were rendered. `shift_labels` is `labels` once more: losses of
transformers take it as it is, and would shift `labels`.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import pad

from neatpack.errors import UserError
from neatpack.format.layout import IGNORE

from .arrays import empty
from .flex import document_block_mask
from .masks import block_causal_mask, sliding_mask
from .media import RECURRENT_KEY, concatenated_media, media_counts
from .pixels import cast_pixels

logger = logging.getLogger(__name__)

LONG = 16384  # tokens; a mask of more is warned of
NO_DOCUMENT = -1000  # fills up ragged rows of seq_lens, as THD batches of the online API have it


def neat_packed_vlm_collater(
    batch: Sequence[Mapping[str, Any]],
    padding_idx: int = 0,
    max_length: int | None = None,
    attn_implementation: str = "sdpa",
    *,
    materialize_4d_mask: bool = True,
    varlen_kwargs: bool = False,
    sliding_window: int | None = None,
    bidirectional_vision: bool | Literal["all"] = False,
    bool_mask: bool = False,
    pixel_dtype: torch.dtype | None = None,
    recurrent: bool = False,
) -> dict[str, Any]:
    """Packs as `PackedShards` gives them -> a batch.

    Packs of others need input_ids, labels and attention_mask (document numbers). Where they lack lengths or positions,
    the document numbers tell them.

    padding_idx          token id that fills packs up to a common length
    max_length           that length; None: the longest pack's. A fixed one spares torch.compile new shapes
    attn_implementation  see above
    materialize_4d_mask  False: sdpa, eager and flex get the document numbers [B, S] too, for code that builds its own
                         mask (flex.document_block_mask makes a BlockMask of them)
    varlen_kwargs        flash_attention_2 as transformers' own varlen path takes it
    sliding_window       tokens that a token of a sliding layer sees, itself included: text_config.sliding_window
    bidirectional_vision text_config.use_bidirectional_attention == "vision"; "all": in layers of full attention, too
                         (Gemma 3)
    bool_mask            eager gets a bool mask, for attention that is not transformers'
    pixel_dtype          of pixel_values and pixel_values_videos. None: as PackedShards was asked for them, and bf16 in
                         packs that are not its own
    recurrent            the model has layers that no mask reaches: one row, and what their kernels take
    """
    is_flash = "flash" in attn_implementation
    if attn_implementation not in ("sdpa", "eager", "flex_attention", "thd") and not is_flash:
        raise UserError(
            f"attn_implementation {attn_implementation!r} is unknown; expected sdpa, eager, flex_attention, thd or a "
            "flash attention (see loaders/packed.py)",
            code="model-unsupported",
            attn_implementation=attn_implementation,
        )
    has_4d_mask = attn_implementation in ("sdpa", "eager", "flex_attention") and materialize_4d_mask
    if bidirectional_vision and not (has_4d_mask and sliding_window and attn_implementation != "flex_attention"):
        raise UserError(
            f"bidirectional_vision with attn_implementation {attn_implementation!r}, materialize_4d_mask "
            f"{materialize_4d_mask}, sliding_window {sliding_window}: it needs a 4D mask (sdpa) and a sliding_window",
            code="model-unsupported",
            attn_implementation=attn_implementation,
            bidirectional_vision=True,
        )
    if recurrent and attn_implementation == "thd":
        raise UserError(
            "recurrent=True is of transformers' models, and thd of others'; leave one of them out",
            code="option-conflict",
            argument="recurrent",
            attn_implementation="thd",
        )
    if not batch:
        return {}
    _check_packs(batch, recurrent)
    batch = [_completed(pack) for pack in batch]
    longest = max(len(pack["input_ids"]) for pack in batch)
    length = max_length if max_length is not None else longest
    if longest > length:
        raise UserError(
            f"a pack of {longest} tokens does not fit max_length {length}; raise it to the pack size",
            code="overlong",
            tokens=longest,
            max_length=length,
        )

    def stacked(name: str, fill: int) -> torch.Tensor:
        # By numpy: two thirds of torch's time for a thousand tokens.
        rows = [pack[name].numpy() for pack in batch]
        # Positions are fractions in some families; everything else is whole.
        dtype = batch[0][name].dtype if rows[0].dtype.kind == "f" else torch.int64
        # [B, S], and [3, B, S] for three-axis positions
        made = empty((*rows[0].shape[:-1], len(rows), length), dtype)
        result = made.numpy()
        for number, row in enumerate(rows):
            result[..., number, : row.shape[-1]] = row
            result[..., number, row.shape[-1] :] = fill
        return made.flatten(-2)[..., None, :] if recurrent else made

    documents = stacked("attention_mask", 0)
    if recurrent:
        documents = _numbered_through(documents, length)
    labels = stacked("labels", IGNORE)
    result: dict[str, Any] = {
        "input_ids": stacked("input_ids", padding_idx),
        "labels": labels,
        "shift_labels": labels,
        "position_ids": stacked("position_ids", 0),
    }
    if all("mm_token_type_ids" in pack for pack in batch):  # samples of a foreign dataset may come without
        result["mm_token_type_ids"] = stacked("mm_token_type_ids", 0)
    if attn_implementation == "thd":
        result |= _thd(batch, length)
    elif is_flash and varlen_kwargs:
        pass
    elif not has_4d_mask:
        result["attention_mask"] = documents
    elif attn_implementation == "flex_attention":
        result["attention_mask"] = document_block_mask(documents)
        if sliding_window is not None:
            within = document_block_mask(documents, sliding_window)
            result["attention_mask"] = {"full_attention": result["attention_mask"], "sliding_attention": within}
    else:
        if documents.shape[-1] > LONG:
            _warn_of_large_masks()
        additive = attn_implementation == "eager" and not bool_mask
        types = result["mm_token_type_ids"] if bidirectional_vision else None
        if bidirectional_vision == "all":
            result["attention_mask"] = sliding_mask(documents, length, types, additive=additive)
        else:
            result["attention_mask"] = block_causal_mask(documents, additive=additive)
        if sliding_window is not None:
            sliding = sliding_mask(documents, sliding_window, types, additive=additive)
            result["attention_mask"] = {"full_attention": result["attention_mask"], "sliding_attention": sliding}
    if recurrent or (is_flash and varlen_kwargs):
        result |= _transformers_varlen(batch, length)
    if recurrent:
        result["seq_idx"] = _runs_numbered(result["cu_seq_lens_q"])
    result["_packed_seq_ids"] = documents
    if pixel_dtype is None and "pack" not in batch[0]:
        pixel_dtype = torch.bfloat16
    media = cast_pixels(concatenated_media(batch, pixel_dtype), pixel_dtype)
    return result | media | media_counts(batch)


@lru_cache(maxsize=1)
def _warn_of_large_masks() -> None:
    """Warn once per process."""
    logger.warning(
        "attention masks of more than %d x %d tokens take %.1f GB per pack or more (four times that for eager "
        "attention), and most of their cells are empty. Kernels that take document lengths need no mask: use "
        "attn_implementation flash_attention_2 (varlen), flex_attention or thd",
        LONG, LONG, LONG * LONG / 1e9,
    )  # fmt: skip


def _check_packs(batch: Sequence[Mapping[str, Any]], recurrent: bool) -> None:
    if (layers := batch[0].get(RECURRENT_KEY)) and not recurrent:
        raise UserError(
            f"these packs are for a model with layers of the kind {', '.join(layers)}: they carry a state on from "
            "document to document, whatever the attention mask says. Use PackedShards(out).collater(model), or "
            "recurrent=True here with a model that has the kernels for it (see loaders/packed.py)",
            code="model-layers",
            layers=list(layers),
        )
    if lacking := [name for name in ("input_ids", "labels", "attention_mask") if name not in batch[0]]:
        raise UserError(
            f"pack: {', '.join(lacking)} missing (got {', '.join(map(str, batch[0]))}). Give the collater whole packs. "
            "HF Trainer removes what the model's forward does not name: give it neatpack.IndexedPacks(out)",
            code="item-incomplete",
            missing=list(lacking),
        )


def _completed(pack: Mapping[str, Any]) -> Mapping[str, Any]:
    """A pack with lengths of documents and positions, by document numbers: [1, 1, 2, 0] -> [2, 1] and [0, 1, 0, 0]."""
    documents = pack["attention_mask"]
    if "seq_lens_padded" not in pack:
        lengths = documents.bincount()[1:]
        lengths = lengths[lengths > 0]
        pack = {"seq_lens": lengths, **pack, "seq_lens_padded": pack.get("seq_lens", lengths)}
    return pack if "position_ids" in pack else {**pack, "position_ids": positions_inside(documents[None])[0]}


def positions_inside(documents: torch.Tensor) -> torch.Tensor:
    """Where in its document each token is: [1, 1, 2, 0, 0] -> [0, 1, 0, 0, 1]; padding counts as a document."""
    here = torch.arange(documents.shape[-1], device=documents.device).expand(documents.shape)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return here - torch.where(begins, here, 0).cummax(-1).values


def _thd(batch: Sequence[Mapping[str, Any]], length: int) -> dict[str, Any]:
    """Real and padded lengths; what fills a row up counts as padding of its last document."""
    real = [pack["seq_lens"].long() for pack in batch]
    padded = [pack["seq_lens_padded"].long().clone() for pack in batch]
    for row in padded:
        row[-1] += length - int(row.sum())

    def ragged(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=NO_DOCUMENT)

    return {
        "qkv_format": "thd",
        "seq_lens": ragged(real),
        "seq_lens_padded": ragged(padded),
        "cu_seqlens": _cumulated(torch.cat(real)),
        "cu_seqlens_padded": _cumulated(torch.cat(padded)),
        "max_seqlen": int(torch.cat(padded).max()),
    }


def _transformers_varlen(batch: Sequence[Mapping[str, Any]], length: int) -> dict[str, Any]:
    """For the rows laid end to end, B * S tokens; what fills a row up is a document of its own."""
    lengths = []
    for pack in batch:
        padded = pack["seq_lens_padded"].long()
        rest = length - int(padded.sum())
        lengths += [padded] + ([torch.tensor([rest])] if rest else [])
    cumulated, longest = _cumulated(torch.cat(lengths)), int(torch.cat(lengths).max())
    return {
        "cu_seq_lens_q": cumulated,
        "cu_seq_lens_k": cumulated,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _numbered_through(documents: torch.Tensor, length: int) -> torch.Tensor:
    """Numbers of several rows, laid end to end in one: rows [1, 1, 2, 0] and [1, 2] of 4 -> [1, 1, 2, 0, 3, 4 …]."""
    rows = documents.view(-1, length)
    before = pad(rows.amax(-1).cumsum(0), (1, 0))[:-1, None]
    return torch.where(rows != 0, rows + before, 0).view(1, -1)


def _runs_numbered(cumulated: torch.Tensor) -> torch.Tensor:
    """[0, 3, 5] -> [[0, 0, 0, 1, 1]], int32: what causal-conv1d calls seq_idx."""
    lengths = np.diff(cumulated.numpy())
    return torch.from_numpy(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[None])


def _cumulated(lengths: torch.Tensor) -> torch.Tensor:
    """[3, 2] -> [0, 3, 5], int32 as kernels want it."""
    return pad(lengths.cumsum(0), (1, 0)).int()
