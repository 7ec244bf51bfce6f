"""Kimi online, under pipeline parallelism: placeholders are expanded before the model, whose stages keep the length."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from neatpack.errors import UserError

from ...pipeline.families.base import Family
from ...pipeline.measure.length import expansions
from ...pipeline.render.sample import expand
from .tokenized import measured_example, tokenized_example


def expanded_example(example: Mapping[str, Any], family: Family, *, restore: bool = True) -> dict[str, Any]:
    """As `tokenized_example`, its image placeholders expanded by `_expand_image_tokens`; videos by the family."""
    measured, sample = measured_example(example, family), tokenized_example(example, family, restore=restore)
    kinds = dict(family.chat.places(measured.ids))
    placed = expansions(measured.ids, measured.media, family)
    ids = torch.from_numpy(expand(measured.ids, [(at, tokens) for at, tokens in placed if kinds[at] != "image"])).long()
    image, merge = family.chat.placeholder_ids["image"], int(family.facts["merge_size"])
    expanded, mask = _expand_image_tokens(ids, torch.ones_like(ids), sample["grid_thws"], image, (merge, merge))
    return sample | {"input_ids": expanded, "attention_mask": mask}


def _expand_image_tokens(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    grid_thws: torch.Tensor,
    media_token_id: int,
    merge_kernel_size: tuple[int, int] = (2, 2),
) -> tuple[torch.Tensor, torch.Tensor]:
    """One placeholder per image, [seq_len], to as many as its merged patches; the mask is lengthened with it.

    ids [1, 9, 2], one image of grid [1, 4, 4], token 9 -> [1, 9, 9, 9, 9, 2]. Frames of a chunk are pooled: t does not
    count. Any number of images, in their order.
    """
    places = (input_ids == media_token_id).nonzero().flatten().tolist()
    if len(places) != len(grid_thws):
        raise UserError(
            f"{len(places)} placeholders {media_token_id} in the ids but {len(grid_thws)} images in grid_thws; "
            "give one placeholder per image, not yet expanded",
            code="batch-mismatch",
            placeholders=len(places),
            images=len(grid_thws),
        )
    height, width = merge_kernel_size
    counts = [(h // height) * (w // width) for _, h, w in grid_thws.tolist()]

    def lengthened(row: torch.Tensor) -> torch.Tensor:
        values = row.cpu().numpy()
        repeated = [(at, np.full(count, values[at])) for at, count in zip(places, counts, strict=True)]
        return torch.from_numpy(expand(values, repeated)).to(row)

    return lengthened(input_ids), lengthened(attention_mask)
