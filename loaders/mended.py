"""Models of transformers 5.22 that fail on packed media, made to take them: `mend(model)`, before it is wrapped.

Gemma 4     its forward forgets num_frames_per_video on the way to the vision tower, which then fails or takes the
            frames of all videos for one: the features are made before, and handed over as mm_encoder_outputs
GLM 4.xV    writes pictures and frames of videos by one token, and takes it for either where a batch has both: the
            features are made before, and put into the order of the text by mm_token_type_ids
Kimi K2.5   cuts the pooled features of videos by grids that count all frames, and cannot pool chunks of 4 and of 2
            frames at once: chunks run one by one
LLaVA-OneVision  takes the frames that pad a video in a batch for others: videos run one by one, each with its own
Phi-4-multimodal projects all sounds of a batch by the weights for speech beside pictures as soon as there is a
            picture in it: those of a document without pictures are projected as speech, as if it were alone. Its
            vision tower looks back only (is_causal) where no picture of a batch has white padding, and both ways, as
            it was trained, where one has: it looks both ways
"""

import logging
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from neatpack.format.layout import IMAGE, VIDEO

logger = logging.getLogger(__name__)


def mend(model: Any) -> Any:
    """The same model; one that needs no mending, or has it, as it is."""
    if not is_unmended(model):
        return model
    if (kind := type(model).__name__) == KIMI:
        model.model.get_video_features = partial(_chunk_by_chunk, model.model)
        return model
    if kind == PHI4:
        for module in model.modules():
            if type(module).__name__ == "Phi4MultimodalVisionAttention":
                module.is_causal = False
    model.register_forward_pre_hook(BEFORE[kind], with_kwargs=True)
    return model


def is_unmended(model: Any) -> bool:
    if (kind := type(model).__name__) == KIMI:
        return "get_video_features" not in vars(model.model)
    return kind in BEFORE and BEFORE[kind] not in model._forward_pre_hooks.values()


def warn_if_unmended(model: Any) -> None:
    """For whoever makes batches for a model."""
    if is_unmended(model):
        logger.warning(
            "%s of transformers 5.22 fails on some packs of media, or trains on other features than those of each "
            "document alone: neatpack.loaders.mended.mend(model), before it is wrapped",
            type(model).__name__,
        )


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


def _sounds_by_document(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Media are embedded here, and handed over as inputs_embeds. A document begins where its positions do."""
    names = ("image_pixel_values", "image_sizes", "image_attention_mask")
    images = {name: kwargs.get(name) for name in names}
    names = ("audio_input_features", "audio_embed_sizes", "audio_attention_mask")
    sounds = {name: kwargs.get(name) for name in names}
    ids, sizes = kwargs.get("input_ids"), sounds["audio_embed_sizes"]
    if ids is None or images["image_pixel_values"] is None or sizes is None:
        return args, kwargs
    embed = model.model.embed_tokens_extend
    is_image, is_sound = ids == embed.image_token_id, ids == embed.audio_token_id
    if not (is_image.any() and is_sound.any()):
        return args, kwargs
    embeds = model.model.embed_tokens(ids)
    by_token = _beside_pictures(is_image, kwargs.get("position_ids"))[is_sound]  # of each token of sounds
    by_sound = by_token[sizes.cumsum(0) - sizes]
    embedded = embed.image_embed(ids, embeds, **images)
    for mode, beside in (("speech", False), ("vision", True)):
        mine = by_sound == beside
        if not mine.any():
            continue
        chosen = {name: value if value is None else value[mine] for name, value in sounds.items()}
        places = torch.zeros_like(is_sound)
        places[is_sound] = by_token == beside
        others_hidden = ids.masked_fill(is_sound & ~places, -1)
        heard = embed.audio_embed(others_hidden, embeds, **chosen, audio_projection_mode=mode)
        embedded = torch.where(places[..., None], heard, embedded)
    rest = {name: value for name, value in kwargs.items() if name not in {*images, *sounds, "input_ids"}}
    return args, {**rest, "inputs_embeds": embedded}


def _beside_pictures(is_image: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """Which tokens are in a document that has a picture: positions 0, 1, 0, 1, the last one a picture's -> the last
    two. Without positions, a row is a document."""
    begins = torch.zeros_like(is_image) if positions is None else (positions == 0).expand_as(is_image).clone()
    begins[:, 0] = True
    documents = begins.flatten().cumsum(0) - 1
    with_picture = torch.zeros(int(documents[-1]) + 1, dtype=torch.bool, device=documents.device)
    with_picture[documents[is_image.flatten()]] = True
    return with_picture[documents].view_as(is_image)


KIMI, PHI4 = "Kimi_K25ForConditionalGeneration", "Phi4MultimodalForCausalLM"
BEFORE: dict[str, Callable[..., Any]] = {  # by class: what changes the arguments that it is called with
    "Gemma4ForConditionalGeneration": _with_features,
    "Glm4vForConditionalGeneration": _with_features_in_order,
    "Glm4vMoeForConditionalGeneration": _with_features_in_order,
    "Glm46VForConditionalGeneration": _with_features_in_order,
    "LlavaOnevisionForConditionalGeneration": _video_by_video,
    PHI4: _sounds_by_document,
}
