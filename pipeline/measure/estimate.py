"""Lengths guessed without tokenizer or media files, for the online path. The offline path never uses them.

Input is the conversation format of the online datasets: {"conversation": [{"role", "content"}], "_text_tokens",
"mm_inputs_meta": {"images_meta": [[height, width]], "videos_meta": [[frames, height, width, fps, duration]]}}.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.resize import smart_resize_image, smart_resize_video

CHARS_PER_TOKEN = 3
UNKNOWN_MEDIUM_TOKENS = 500


def estimate_sample_length(
    example: Mapping[str, Any],
    image_cfg: Mapping[str, Any] | None = None,
    video_cfg: Mapping[str, Any] | None = None,
    return_media_tokens: bool = False,
) -> int | tuple[int, int]:
    """Text by `_text_tokens` or chars // 3; media by their recorded sizes, or 500 each."""
    text_tokens = estimate_text_tokens(example)
    media_tokens = estimate_media_tokens(example, image_cfg, video_cfg)
    return (text_tokens + media_tokens, media_tokens) if return_media_tokens else text_tokens + media_tokens


def estimate_text_tokens(example: Mapping[str, Any]) -> int:
    if (precomputed := example.get("_text_tokens")) is not None:
        return int(precomputed)
    texts = (
        message["content"] for message in example.get("conversation", []) if isinstance(message.get("content"), str)
    )
    parts = (item.get("text", "") for item in _parts(example) if item.get("type") == "text")
    return sum(map(len, (*texts, *parts))) // CHARS_PER_TOKEN


def estimate_media_tokens(
    example: Mapping[str, Any], image_cfg: Mapping[str, Any] | None, video_cfg: Mapping[str, Any] | None
) -> int:
    sizes = example.get("mm_inputs_meta")
    if sizes is None or (image_cfg is None and video_cfg is None):
        return UNKNOWN_MEDIUM_TOKENS * sum(1 for item in _parts(example) if item.get("type") in ("image", "video"))
    total = 0
    if image_cfg is not None:
        total += sum(
            estimate_image_tokens(size, image_cfg) for size in sizes.get("images_meta") or [] if size is not None
        )
    if video_cfg is not None:
        total += sum(
            estimate_video_tokens(size, video_cfg) for size in sizes.get("videos_meta") or [] if size is not None
        )
    return total


def estimate_image_tokens(img_meta: Sequence[float], image_cfg: Mapping[str, Any]) -> int:
    """Tokens of an image of [height, width]."""
    height, width = smart_resize_image(
        int(img_meta[0]), int(img_meta[1]), image_cfg["factor"], image_cfg["min_pixels"], image_cfg["max_pixels"]
    )
    return _merged(1, height, width, image_cfg)


def estimate_video_tokens(vid_meta: Sequence[float], video_cfg: Mapping[str, Any]) -> int:
    """Tokens of a video of [total_frames, height, width, fps, duration], sampled at the config's fps."""
    frames, height, width = (int(number) for number in vid_meta[:3])
    fps, duration = float(vid_meta[3]), float(vid_meta[4])
    if frames == 0 and fps > 0:
        frames = int(duration * fps)
    seconds = frames / fps if fps > 0 else duration
    sampled = min(frames, video_cfg["max_frames"], max(1, int(seconds * video_cfg["fps"])))
    sampled = max(video_cfg["min_frames"], sampled)
    per_patch = video_cfg["temporal_patch_size"]
    sampled += -sampled % per_patch
    new_height, new_width = smart_resize_video(
        sampled, height, width, per_patch, video_cfg["factor"], video_cfg["min_pixels"], video_cfg["max_pixels"]
    )
    return _merged(sampled // per_patch, new_height, new_width, video_cfg)


def _merged(frames: int, height: int, width: int, cfg: Mapping[str, Any]) -> int:
    return frames * (height // cfg["patch_size"]) * (width // cfg["patch_size"]) // cfg["merge_size"] ** 2


def _parts(example: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for message in example.get("conversation", []):
        if isinstance(content := message.get("content"), list):
            yield from (item for item in content if isinstance(item, dict))
