"""Tokenized samples laid end to end: each shifted, with positions, as one pack."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from neatpack.errors import UserError
from neatpack.format.layout import TOKEN_TYPES

from ...pipeline.labels import shifted
from ...pipeline.plan.assign import aligned
from ...pipeline.render.pack import end_to_end
from ..arrays import concatenate
from ..media import LAYOUT_KEY, MEDIA_KEYS, document_numbers, num_media
from ..pixels import RESTORE_KEY, STORED_KEY, restored_end_to_end
from .tokenized import PER_TOKEN, row


def _shift_sample(sample: dict[str, Any], has_mrope: bool = False) -> dict[str, Any]:
    """The autoregressive shift of one sample, before it is laid behind others.

    has_mrope: its positions are kept; without, they will be counted. Rows [1, L], as HF processors give them, are [L]
    then.
    """
    kept = [name for name in PER_TOKEN if has(sample, name) and (has_mrope or name != "position_ids")]
    rest = {name: value for name, value in sample.items() if name not in PER_TOKEN}
    rows = {name: sample[name] if name == "position_ids" else row(sample[name]) for name in kept}
    return rest | shifted(rows)


def _compute_mrope_position_ids(sample: dict[str, Any], get_rope_index: Callable[..., Any]) -> torch.Tensor | None:
    """[3, L] by a model's own `get_rope_index`, which gets what its signature names; None where it gives no three axes.

    One that takes **kwargs alone (a wrapper of somebody's) gets all that the sample has.
    """
    takes = inspect.signature(get_rope_index).parameters
    known = _rope_arguments(sample, get_rope_index)
    if "input_ids" in takes:
        known = {name: value for name, value in known.items() if name in takes}
    elif any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        known = {name: value for name, value in known.items() if value is not None}
    else:
        return None
    types = known.get("mm_token_type_ids")
    if types is not None and not types.any() and any(num_media(sample, kind) for kind in TOKEN_TYPES):
        raise UserError(
            "a sample with media, but without mm_token_type_ids, and get_rope_index is of no model whose config names "
            "the tokens of media; give model.get_rope_index itself, or samples with mm_token_type_ids",
            code="item-incomplete",
            key="mm_token_type_ids",
        )
    with torch.no_grad():
        found = get_rope_index(**known)
    positions = found[0] if isinstance(found, tuple) else found
    return positions[:, 0] if positions is not None and positions.ndim == 3 else None


def _rope_arguments(sample: Mapping[str, Any], get_rope_index: Callable[..., Any]) -> dict[str, Any]:
    """All that models ask for, by their names for it; None where the sample has none of it."""

    def media(name: str) -> Any:
        return sample[name] if has(sample, name) and len(sample[name]) else None

    # Qwen3-Omni's processor, and its samples here, have other names for seconds and lengths than its get_rope_index.
    seconds = media("second_per_grid_ts") if has(sample, "second_per_grid_ts") else media("video_second_per_grid")
    heard = media("audio_feature_lengths")
    if heard is None and (mask := media("feature_attention_mask")) is not None:
        heard = mask.sum(-1)
    return {
        "input_ids": row(sample["input_ids"])[None],
        "attention_mask": row(sample["attention_mask"])[None] if has(sample, "attention_mask") else None,
        "mm_token_type_ids": token_types(sample, get_rope_index)[None],
        "image_grid_thw": media("image_grid_thw"),
        "video_grid_thw": media("video_grid_thw"),
        "second_per_grid_ts": seconds,
        "second_per_grids": seconds,
        "audio_seqlens": heard,
    }


def token_types(sample: Mapping[str, Any], get_rope_index: Callable[..., Any]) -> torch.Tensor:
    """Those of the sample, else by the tokens of media in the config of the model that get_rope_index is of."""
    if has(sample, "mm_token_type_ids"):
        return row(sample["mm_token_type_ids"])
    while isinstance(get_rope_index, partial):
        get_rope_index = get_rope_index.func
    config = getattr(getattr(get_rope_index, "__self__", None), "config", None)
    ids = row(sample["input_ids"])
    types = torch.zeros_like(ids)
    for kind, number in TOKEN_TYPES.items():
        if (token := getattr(config, f"{kind}_token_id", None)) is not None:
            types[ids == token] = number
    return types


def _build_packed_vlm_sample(
    samples: list[dict[str, Any]], pack_size: int, padding_idx: int, has_mrope: bool = False, *, align: int = 1
) -> dict[str, Any]:
    """Shifted samples end to end, as `PackedShards` gives a pack: attention_mask 1, 2, … by document.

    has_mrope: positions are those of the samples; otherwise, and where a sample has none, they count from 0. What a
    foreign sample does not tell (token types, numbers of media) is zero, or counted by its grids. Media that no sample
    has are None.
    """
    lengths = [aligned(len(sample["input_ids"]), align) for sample in samples]
    if sum(lengths) > pack_size:
        raise UserError(
            f"samples of {lengths} tokens are {sum(lengths)} in all; a pack holds {pack_size}",
            code="pack-size",
            tokens=sum(lengths),
            pack_size=pack_size,
        )
    documents = [
        {
            "input_ids": row(sample["input_ids"]),
            "labels": row(sample["labels"]),
            "mm_token_type_ids": row(sample["mm_token_type_ids"])
            if has(sample, "mm_token_type_ids")
            else torch.zeros(len(sample["input_ids"]), dtype=torch.long),
            "position_ids": positions,
        }
        for sample, positions in zip(samples, _positions(samples, has_mrope), strict=True)
    ]
    joined = end_to_end(
        [{k: v.numpy() for k, v in each.items()} for each in documents], padding_id=padding_idx, align=align
    )
    pack: dict[str, Any] = {name: torch.from_numpy(array) for name, array in joined.items()}
    pack["attention_mask"] = document_numbers(pack["seq_lens_padded"])
    layout = samples[0].get(LAYOUT_KEY)
    dtype: Any = samples[0].get(RESTORE_KEY)
    stored = samples[0].get(STORED_KEY, {}) if dtype is not None else {}
    pack |= dict.fromkeys(MEDIA_KEYS)
    for name in layout or MEDIA_KEYS:
        arrays = [sample[name] for sample in samples if has(sample, name)]
        if arrays and name in stored:
            pack[name] = restored_end_to_end(arrays, stored[name], dtype)
        elif arrays:
            pack[name] = concatenate(arrays)
    counts = {f"n_{kind}s": sum(num_media(sample, kind) for sample in samples) for kind in TOKEN_TYPES}
    return pack | counts | ({LAYOUT_KEY: layout} if layout else {})


def _positions(samples: Sequence[Mapping[str, Any]], has_mrope: bool) -> list[torch.Tensor]:
    """[L] each, or [3, L] as soon as one has three axes."""
    positions = [
        torch.as_tensor(sample["position_ids"])
        if has_mrope and has(sample, "position_ids")
        else torch.arange(len(sample["input_ids"]))
        for sample in samples
    ]
    if all(each.ndim == 1 for each in positions):
        return positions
    return [each if each.ndim == 2 else each.expand(3, -1) for each in positions]


def has(sample: Mapping[str, Any], name: str) -> bool:
    return sample.get(name) is not None
