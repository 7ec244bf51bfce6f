"""What a processor says about sizes, as the configs that `estimate` takes.

A processor is one of Hugging Face (image_processor, video_processor) or a family of ours (image, video). Both name
their numbers alike, so one reader serves both. None: this processor does not resize by patches (LLaVA, CLIP), or
has no part for the medium; the estimate then falls back on a fixed number.
"""

from typing import Any

from ...pipeline.families.base import VideoRule
from ...pipeline.families.qwen2_vl import VIDEO_DEFAULTS, with_qwen_vl_utils
from .estimate import VIDEO_CFG


def extract_image_config(processor: Any) -> dict[str, Any] | None:
    """factor, patch_size, merge_size, min_pixels, max_pixels."""
    return _geometry(_part(processor, "image_processor", "image"))


def extract_video_config(processor: Any) -> dict[str, Any] | None:
    """As of images, and temporal_patch_size, per_frame, fps, min_frames, max_frames, and total_pixels, if any."""
    part = _part(processor, "video_processor", "video")
    geometry = _geometry(part)
    if geometry is None:
        return None
    counts = {
        key: _or(getattr(part, key, None), VIDEO_CFG[key])
        for key in ("temporal_patch_size", "min_frames", "max_frames")
    }
    config = geometry | counts | {"fps": getattr(part, "fps", None), "per_frame": _bounds_are_per_frame(part)}
    if (total := getattr(part, "total_pixels", None)) is not None:
        config["total_pixels"] = total
    # A rate that is set counts even where `do_sample_frames` is off: online, `fps: 1` on the processor is how one sets
    # it. Without one, processors of the Qwen2 kind are used as with qwen-vl-utils; a rule of ours has decided already.
    is_silent = config["fps"] is None and getattr(part, "num_frames", None) is None
    if is_silent and config["per_frame"] and not isinstance(part, VideoRule):
        total = int(0.9 * VIDEO_DEFAULTS["max_video_tokens"] * config["factor"] ** 2)
        config |= with_qwen_vl_utils(config) | {"total_pixels": total}
    return config


def _part(processor: Any, hf_name: str, our_name: str) -> Any:
    return _or(getattr(processor, hf_name, None), getattr(processor, our_name, None))


def _geometry(part: Any) -> dict[str, Any] | None:
    patch_size, merge_size = getattr(part, "patch_size", None), getattr(part, "merge_size", None)
    low, high = _pixel_bound(part, "min_pixels", "shortest_edge"), _pixel_bound(part, "max_pixels", "longest_edge")
    numbers = (patch_size, merge_size, low, high)
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return None
    return {
        "factor": patch_size * merge_size,  # type: ignore[operator]
        "patch_size": patch_size,
        "merge_size": merge_size,
        "min_pixels": low,
        "max_pixels": high,
    }


def _pixel_bound(part: Any, name: str, edge: str) -> Any:
    """The processor's own number, or that in its `size`, there also under the name of an edge; else its class's."""
    for holder in (part, type(part)):
        size: Any = getattr(holder, "size", None)
        inside = (size.get(name), size.get(edge)) if hasattr(size, "get") else ()
        found = next((bound for bound in (getattr(holder, name, None), *inside) if bound is not None), None)
        if found is not None:
            return found
    return None


def _bounds_are_per_frame(part: Any) -> bool:
    """Our rules say so; Hugging Face's only by the class: Qwen2VLVideoProcessor, which 2.5-VL uses as well."""
    declared = getattr(part, "bounds_cover_clip", None)
    return type(part).__name__.startswith("Qwen2") if declared is None else not declared


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
