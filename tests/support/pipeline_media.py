"""Flat media of pipeline stages, for test_pp_media.py and test_pp_media_inside.py."""

import torch


def flat(grids, width: int = 1):
    """Patches of images end to end; each row holds the number of its image."""
    grid = torch.tensor(grids, dtype=torch.int64).reshape(len(grids), -1 if len(grids) else 3)
    owner = torch.arange(len(grids)).repeat_interleave(grid.prod(1))
    return owner.to(torch.float32)[:, None].repeat(1, width), grid


def lists(chunks):
    return [chunk.flatten().tolist() for chunk in chunks]


# --- errors

COUNTS = "n_images_per_sample"


# --- the wrapper


def identity(samples):
    return samples
