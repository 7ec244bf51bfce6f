"""Measured -> Sample: encode, label, position, shift. Each is done once, here."""

from collections.abc import Sequence

import numpy as np

from pipeline.families.base import Family
from pipeline.labels import labels_of, shifted, target_mask
from pipeline.mrope import IMAGE, TEXT, VIDEO
from pipeline.records import IGNORE, Measured, Sample
from pipeline.render.media import image_patches
from pipeline.render.video import video_patches


def render_sample(measured: Measured, family: Family, resize: str) -> Sample:
    """One document. Raises MediaError where a medium cannot be decoded."""
    images = [medium for medium in measured.media if medium.ref.kind == "image"]
    videos = [medium for medium in measured.media if medium.ref.kind == "video"]
    image_pixels = [image_patches(medium, family.image, resize) for medium in images]
    video_pixels = [video_patches(medium, family) for medium in videos]
    expansions = [family.expansion(medium) for medium in measured.media]
    ids = expand(measured.ids, family.is_media(measured.ids), expansions)
    types = token_types(ids, family)
    positions = family.positions(types, measured.media)
    inputs, labels = shifted(ids, labels_of(ids, target_mask(ids, family.markers)))
    assert len(inputs) == measured.tokens, f"planned {measured.tokens} tokens, rendered {len(inputs)}"
    return Sample(
        input_ids=inputs,
        labels=labels,
        position_ids=positions[..., :-1],
        mm_token_type_ids=types[:-1],
        pixel_values=_stacked(image_pixels, family.image.patch_bytes),
        image_grid_thw=_grids([medium.grid for medium in images]),
        pixel_values_videos=_stacked(video_pixels, video_patch_bytes(family)),
        video_grid_thw=_grids([medium.grid for medium in videos]),
        second_per_grid_ts=np.array([family.seconds_per_patch(medium) for medium in videos], dtype=np.float32),
    )


def fake_image_sample(family: Family) -> Sample:
    """The smallest image as a document of its own, trained on nowhere: it makes the vision tower run in every step."""
    ids = family.fake_image_ids
    types = token_types(ids, family)
    grid = (1, family.image.merge_size, family.image.merge_size)
    positions = family.spec.positions(types, [grid], [], [], merge_size=family.image.merge_size, tokens_per_second=None)
    return Sample(
        input_ids=ids,
        labels=np.full(len(ids), IGNORE, dtype=np.int32),
        position_ids=positions,
        mm_token_type_ids=types,
        # Mid-grey: about zero once normalised.
        pixel_values=np.full((family.image.merge_size**2, family.image.patch_bytes), 128, dtype=np.uint8),
        image_grid_thw=_grids([grid]),
        pixel_values_videos=_stacked([], video_patch_bytes(family)),
        video_grid_thw=_grids([]),
        second_per_grid_ts=np.zeros(0, dtype=np.float32),
    )


def expand(ids: np.ndarray, is_placeholder: np.ndarray, expansions: Sequence[np.ndarray]) -> np.ndarray:
    """Each placeholder gives way to its ids: [1, 9, 2], placeholder 9, [[5, 9, 9]] -> [1, 5, 9, 9, 2]."""
    pieces, start = [], 0
    for place, expansion in zip(np.flatnonzero(is_placeholder).tolist(), expansions, strict=True):
        pieces += [ids[start:place], expansion]
        start = place + 1
    return np.concatenate([*pieces, ids[start:]])


def token_types(ids: np.ndarray, family: Family) -> np.ndarray:
    types = np.full(len(ids), TEXT, dtype=np.uint8)
    types[ids == family.image_token_id] = IMAGE
    types[ids == family.video_token_id] = VIDEO
    return types


def video_patch_bytes(family: Family) -> int:
    return family.video.patch_bytes * family.video.temporal_patch_size


def _grids(grids: Sequence[tuple[int, int, int]]) -> np.ndarray:
    return np.array(grids, dtype=np.int64).reshape(-1, 3)


def _stacked(patches: Sequence[np.ndarray], patch_bytes: int) -> np.ndarray:
    return np.concatenate(patches) if patches else np.zeros((0, patch_bytes), dtype=np.uint8)
