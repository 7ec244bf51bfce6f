"""Processors in the form of transformers, for tests of length groups."""

from types import SimpleNamespace
from typing import Any


def hf_processor(**video: Any) -> Any:
    """As Hugging Face's: numbers on two parts, areas in `size` under the names of edges."""
    image = SimpleNamespace(patch_size=14, merge_size=2, size={"shortest_edge": 3136, "longest_edge": 1_003_520})
    numbers = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "fps": 2}
    size = {"shortest_edge": 128 * 128, "longest_edge": 16 * 16 * 2 * 2 * 2 * 6144}
    return SimpleNamespace(image_processor=image, video_processor=SimpleNamespace(**numbers, size=size, **video))
