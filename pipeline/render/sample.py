"""Measured -> Sample: encode, label, position, shift. Each is done once, here."""

import numpy as np

from pipeline.families.base import Family
from pipeline.labels import labels_of, shifted, target_mask
from pipeline.mrope import IMAGE, TEXT
from pipeline.records import IGNORE, Measured, Sample
from pipeline.render.media import image_patches


def render_sample(measured: Measured, family: Family, resize: str) -> Sample:
    """One document. Raises MediaError where a medium cannot be decoded."""
    patches = [image_patches(medium, family.image, resize) for medium in measured.media]
    grids = [medium.grid for medium in measured.media]
    ids = expand(measured.ids, family.image_token_id, [family.image.tokens(grid) for grid in grids])
    types = token_types(ids, family)
    positions = family.positions(types, grids)
    inputs, labels = shifted(ids, labels_of(ids, target_mask(ids, family.markers)))
    assert len(inputs) == measured.tokens, f"planned {measured.tokens} tokens, rendered {len(inputs)}"
    return Sample(
        input_ids=inputs,
        labels=labels,
        position_ids=positions[..., :-1],
        mm_token_type_ids=types[:-1],
        pixel_values=_stacked(patches, family),
        image_grid_thw=np.array(grids, dtype=np.int64).reshape(-1, 3),
    )


def fake_image_sample(family: Family) -> Sample:
    """The smallest image as a document of its own, trained on nowhere: it makes the vision tower run in every step."""
    ids = family.fake_image_ids
    types = token_types(ids, family)
    grid = (1, family.image.merge_size, family.image.merge_size)
    return Sample(
        input_ids=ids,
        labels=np.full(len(ids), IGNORE, dtype=np.int32),
        position_ids=family.positions(types, [grid]),
        mm_token_type_ids=types,
        # Mid-grey: about zero once normalised.
        pixel_values=np.full((family.image.merge_size**2, family.image.patch_bytes), 128, dtype=np.uint8),
        image_grid_thw=np.array([grid], dtype=np.int64),
    )


def expand(ids: np.ndarray, placeholder: int, counts: list[int]) -> np.ndarray:
    """Each placeholder repeated: ids [1, 9, 2], placeholder 9, counts [3] -> [1, 9, 9, 9, 2]."""
    repeats = np.ones(len(ids), dtype=np.int64)
    repeats[ids == placeholder] = counts
    return np.repeat(ids, repeats)


def token_types(ids: np.ndarray, family: Family) -> np.ndarray:
    return np.where(ids == family.image_token_id, IMAGE, TEXT).astype(np.uint8)


def _stacked(patches: list[np.ndarray], family: Family) -> np.ndarray:
    empty = np.zeros((0, family.image.patch_bytes), dtype=np.uint8)
    return np.concatenate(patches) if patches else empty
