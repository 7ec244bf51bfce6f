"""Models of transformers 5.22 that fail on packed media, made to take them: `mend(model)`, before it is wrapped.

    Gemma 4     its forward forgets num_frames_per_video on the way to the vision tower, which then fails or takes the
                frames of all videos for one: the features are made before, and handed over as mm_encoder_outputs
    GLM 4.xV    writes pictures and frames of videos by one token, and takes it for either where a batch has both: the
                features are made before, and put into the order of the text by mm_token_type_ids
    Kimi K2.5   cuts the pooled features of videos by grids that count all frames, and cannot pool chunks of 4 and of 2
                frames at once: chunks run one by one
    LLaVA-OneVision  takes the frames that pad a video in a batch for others: videos run one by one, each with its own

What cannot be mended from outside: Phi-4-multimodal projects sounds otherwise beside pictures (pack them apart).
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from ..pipeline.records import IMAGE, VIDEO


def mend(model: Any) -> Any:
    """The same model; one that needs no mending as it is."""
    kind = type(model).__name__
    if kind == "Gemma4ForConditionalGeneration":
        model.register_forward_pre_hook(_with_features, with_kwargs=True)
    elif kind in (
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Glm46VForConditionalGeneration",
    ):
        model.register_forward_pre_hook(_with_features_in_order, with_kwargs=True)
    elif kind == "LlavaOnevisionForConditionalGeneration":
        model.register_forward_pre_hook(_video_by_video, with_kwargs=True)
    elif kind == "Kimi_K25ForConditionalGeneration":
        model.model.get_video_features = partial(_chunk_by_chunk, model.model)
    return model


def _with_features(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    images = {name: kwargs.pop(name, None) for name in ("pixel_values", "image_position_ids")}
    names = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
    videos = {name: kwargs.pop(name, None) for name in names}
    features = dict(kwargs.pop("mm_encoder_outputs", None) or {})
    if images["pixel_values"] is not None:
        features["image"] = model.model.get_image_features(*images.values())
    if videos["pixel_values_videos"] is not None:
        features["video"] = model.model.get_video_features(*videos.values())
    return args, {**kwargs, "mm_encoder_outputs": features}


def _with_features_in_order(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    images, videos = kwargs.get("pixel_values"), kwargs.get("pixel_values_videos")
    if images is None or videos is None:
        return args, kwargs
    types = kwargs["mm_token_type_ids"]
    pieces = {
        IMAGE: model.model.get_image_features(images, kwargs["image_grid_thw"]),
        VIDEO: model.model.get_video_features(videos, kwargs["video_grid_thw"]),
    }
    features = {kind: torch.cat(list(found.pooler_output)) for kind, found in pieces.items()}
    visual = types[(types == IMAGE) | (types == VIDEO)]
    ordered = features[IMAGE].new_empty(len(visual), features[IMAGE].shape[-1])
    for kind, rows in features.items():
        ordered[visual == kind] = rows
    rest = {name: value for name, value in kwargs.items() if name not in ("pixel_values", "pixel_values_videos")}
    return args, {**rest, "mm_encoder_outputs": {"image": SimpleNamespace(pooler_output=[ordered])}}


def _video_by_video(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    videos, counts = kwargs.get("pixel_values_videos"), kwargs.get("num_frames")
    if videos is None or counts is None or len(set(counts.tolist())) == 1:
        return args, kwargs
    pieces = [
        model.model.get_video_features(video[None, :count]).pooler_output
        for video, count in zip(videos, counts.tolist(), strict=True)
    ]
    features = {"video": SimpleNamespace(pooler_output=torch.cat(pieces, dim=1))}
    if kwargs.get("pixel_values") is not None:
        features["image"] = model.model.get_image_features(
            kwargs["pixel_values"], kwargs["image_sizes"], batch_num_images=kwargs.get("batch_num_images")
        )
    rest = {name: value for name, value in kwargs.items() if name not in ("pixel_values", "pixel_values_videos")}
    return args, {**rest, "mm_encoder_outputs": features}


def _chunk_by_chunk(model: Any, pixel_values_videos: Any, video_grid_thw: Any, **_: Any) -> Any:
    pixels = pixel_values_videos.split(video_grid_thw.prod(1).tolist())
    pooled = [
        model.vision_tower(chunk, grid_thw=grid[None]).pooler_output
        for chunk, grid in zip(pixels, video_grid_thw, strict=True)
    ]
    return SimpleNamespace(pooler_output=[model.mm_projector(chunk).squeeze(1) for chunk in pooled])
