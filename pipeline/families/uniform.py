"""What families share that do not resize as Qwen's do: frames taken evenly, and settings that they cannot follow."""

import copy
from typing import Any

import numpy as np

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey


def uniform_frames(
    total: int, fps: float, *, num_frames: int | None, asked_fps: float | None, max_frames: int = 0
) -> np.ndarray:
    """Evenly from the first frame on, by a number or else by a rate: 4 of 10 -> [0, 2, 5, 7]. Neither: all of them.

    As transformers' BaseVideoProcessor takes them, which refuses a video that is too short. Here a rate above the
    video's own takes every frame, and a number above it repeats some, so that all videos have that number.
    """
    if num_frames is None and asked_fps is not None:
        num_frames = min(max(1, int(total / fps * asked_fps)), total)
    elif num_frames is None:
        num_frames = total
    if max_frames:
        num_frames = min(num_frames, max_frames)
    return np.arange(num_frames) * total // num_frames


def configured(source: str, name: str, defaults: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A processor's config over the defaults of its class."""
    full = copy.deepcopy(defaults | {key: value for key, value in config.items() if value is not None})
    for switch in ("do_resize", "do_rescale", "do_normalize"):
        if not full.get(switch, True):
            raise UserError(f"--processor {source}: {switch} is false, which {name} does not support")
    return full


def refuse_settings(key: ProcessorKey, name: str, **reasons: str) -> None:
    """A setting that a family cannot follow is an error, and not left unheard."""
    for setting, reason in reasons.items():
        if getattr(key, setting):
            raise UserError(f"--{setting.replace('_', '-')} {getattr(key, setting)}: {name} {reason}; leave it out")
