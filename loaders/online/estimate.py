"""Lengths guessed without tokenizer or media files, for the online path. The offline path never uses them.

Input is the conversation format of the online datasets: {"conversation": [{"role", "content"}], "_text_tokens",
"_media_tokens", "mm_inputs_meta": {"images_meta": [[height, width]], "videos_meta": [[frames, height, width, fps,
duration]]}}. Instead of its size, an entry may have its tokens: {"n_tokens": 77}. The configs are those of
`processor_config`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...pipeline.media.resize import MAX_ASPECT_RATIO, smart_resize_image, smart_resize_video

_smart_resize_image, _smart_resize_video = smart_resize_image, smart_resize_video  # as the online API calls them
CHARS_PER_TOKEN = 3
UNKNOWN_MEDIUM_TOKENS = 500

# Where no processor says otherwise: the geometry that the defaults of smart_resize are of, Qwen2-VL for images and
# Qwen3-VL for videos.
IMAGE_CFG = {"factor": 28, "patch_size": 14, "merge_size": 2, "min_pixels": 56 * 56, "max_pixels": 14 * 14 * 4 * 1280}
VIDEO_CFG = {
    "factor": 32,
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 128 * 128,
    "max_pixels": 16 * 16 * 2 * 2 * 2 * 6144,
    "fps": 2,
    "min_frames": 4,
    "max_frames": 768,
}


def _estimate_sample_length(
    example: Mapping[str, Any],
    image_cfg: Mapping[str, Any] | None = None,
    video_cfg: Mapping[str, Any] | None = None,
    return_media_tokens: bool = False,
) -> int | tuple[int, int]:
    """Text by `_text_tokens` or chars // 3; media by `_media_tokens`, their recorded sizes, or 500 each."""
    text_tokens = estimate_text_tokens(example)
    media_tokens = estimate_media_tokens(example, image_cfg, video_cfg)
    return (text_tokens + media_tokens, media_tokens) if return_media_tokens else text_tokens + media_tokens


def estimate_text_tokens(example: Mapping[str, Any]) -> int:
    if (precomputed := example.get("_text_tokens")) is not None:
        return int(precomputed)
    texts = (
        message["content"] for message in example.get("conversation", []) if isinstance(message.get("content"), str)
    )
    parts = (item.get("text", "") for item in content_parts(example) if item.get("type") == "text")
    return sum(map(len, (*texts, *parts))) // CHARS_PER_TOKEN


def estimate_media_tokens(
    example: Mapping[str, Any], image_cfg: Mapping[str, Any] | None, video_cfg: Mapping[str, Any] | None
) -> int:
    if (precomputed := example.get("_media_tokens")) is not None:
        return int(precomputed)
    sizes = example.get("mm_inputs_meta")
    metas = [meta for key in ("images_meta", "videos_meta") for meta in (sizes or {}).get(key) or []]
    is_counted = any(isinstance(meta, Mapping) for meta in metas)
    if sizes is None or (image_cfg is None and video_cfg is None and not is_counted):
        visual = sum(1 for item in content_parts(example) if item.get("type") in ("image", "video"))
        return UNKNOWN_MEDIUM_TOKENS * visual
    estimates: tuple[tuple[str, Any, Any], ...] = (
        ("images_meta", _estimate_image_tokens, image_cfg),
        ("videos_meta", _estimate_video_tokens, video_cfg),
    )
    return sum(
        estimate(meta, cfg or {})
        for key, estimate, cfg in estimates
        for meta in sizes.get(key) or []
        if isinstance(meta, Mapping) or (meta is not None and cfg is not None)
    )


def counted_tokens(meta: Mapping[str, Any]) -> int:
    """Of a medium whose tokens were counted and recorded."""
    return int(meta.get("n_tokens", UNKNOWN_MEDIUM_TOKENS))


def _estimate_image_tokens(img_meta: Sequence[float] | Mapping[str, Any], image_cfg: Mapping[str, Any]) -> int:
    """Tokens of an image of [height, width], or those that were counted: {"n_tokens": 77}."""
    if isinstance(img_meta, Mapping):
        return counted_tokens(img_meta)
    height, width = int(img_meta[0]), int(img_meta[1])
    if not _can_be_resized(height, width):
        return UNKNOWN_MEDIUM_TOKENS
    return _merged(1, *_resized_image(height, width, image_cfg), image_cfg)


def _estimate_video_tokens(vid_meta: Sequence[float] | Mapping[str, Any], video_cfg: Mapping[str, Any]) -> int:
    """Tokens of a video of [total_frames, height, width, fps, duration], sampled at the config's fps; or as counted.

    fps None: every frame is taken, up to max_frames. `per_frame`: the pixel bounds are of a frame (Qwen2, 2.5), not of
    the clip (Qwen3).
    """
    if isinstance(vid_meta, Mapping):
        return counted_tokens(vid_meta)
    frames, height, width = (int(number) for number in vid_meta[:3])
    fps, duration = float(vid_meta[3]), float(vid_meta[4])
    if frames == 0 and fps > 0:
        frames = int(duration * fps)
    if not _can_be_resized(height, width):
        return UNKNOWN_MEDIUM_TOKENS
    if video_cfg["fps"] is None:
        sampled = max(1, min(frames, video_cfg["max_frames"]))
    else:
        seconds = frames / fps if fps > 0 else duration
        sampled = min(frames, video_cfg["max_frames"], max(1, int(seconds * video_cfg["fps"])))
        sampled = max(video_cfg["min_frames"], sampled)
    per_patch = video_cfg["temporal_patch_size"]
    sampled += -sampled % per_patch
    if video_cfg.get("per_frame"):
        most = video_cfg["max_pixels"]
        if total := video_cfg.get("total_pixels"):
            most = max(min(most, total * per_patch // sampled), int(video_cfg["min_pixels"] * 1.05))
        size = _resized_image(height, width, {**video_cfg, "max_pixels": most})
    else:
        size = _smart_resize_video(
            sampled, height, width, per_patch, video_cfg["factor"], video_cfg["min_pixels"], video_cfg["max_pixels"]
        )
    return _merged(sampled // per_patch, *size, video_cfg)


def content_parts(example: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of every turn whose content is a list: {"type": "text" | "image" | "video" | "audio", …}."""
    for message in example.get("conversation", []):
        if isinstance(content := message.get("content"), list):
            yield from (item for item in content if isinstance(item, dict))


def _can_be_resized(height: int, width: int) -> bool:
    """A size no model takes (0 where probing failed, 1x5000) is found out when the medium is loaded, and only costs a
    guess here: one bad row must not end a run before it starts."""
    return min(height, width) > 0 and max(height, width) / min(height, width) <= MAX_ASPECT_RATIO


def _resized_image(height: int, width: int, cfg: Mapping[str, Any]) -> tuple[int, int]:
    return _smart_resize_image(height, width, cfg["factor"], cfg["min_pixels"], cfg["max_pixels"])


def _merged(frames: int, height: int, width: int, cfg: Mapping[str, Any]) -> int:
    return int(frames * (height // cfg["patch_size"]) * (width // cfg["patch_size"]) // cfg["merge_size"] ** 2)
