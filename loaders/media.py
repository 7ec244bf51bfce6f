"""Media of several samples in one batch: arrays end to end, and how many each sample has; for all collaters."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from loaders.pixels import LEFT_KEYS

PIXEL_KEYS = ("pixel_values", "pixel_values_videos")
GRID_KEYS = ("image_grid_thw", "image_position_ids", "video_grid_thw", "second_per_grid_ts")


def concatenated_media(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Media arrays over the batch, in sample order; a kind that no sample has is absent, as models want it."""
    result: dict[str, Any] = {}
    for key in (*PIXEL_KEYS, *GRID_KEYS):
        arrays = [sample[key] for sample in samples if sample.get(key) is not None]
        if any(len(array) for array in arrays):
            result[key] = torch.cat([array for array in arrays if len(array)])
    if any(key in result for key in PIXEL_KEYS) and LEFT_KEYS[0] in samples[0]:
        result |= {key: samples[0][key] for key in LEFT_KEYS}
    return result


def media_counts(samples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """n_images_per_sample and n_videos_per_sample, each where any sample has one."""
    result = {}
    for name, count_key, grid_key in (
        ("n_images_per_sample", "n_images", "image_grid_thw"),
        ("n_videos_per_sample", "n_videos", "video_grid_thw"),
    ):
        counts = [_count(sample, count_key, grid_key) for sample in samples]
        if any(counts):
            result[name] = torch.tensor(counts, dtype=torch.long)
    return result


def _count(sample: Mapping[str, Any], count_key: str, grid_key: str) -> int:
    if count_key in sample:
        return int(sample[count_key])
    return len(sample[grid_key]) if sample.get(grid_key) is not None else 0
