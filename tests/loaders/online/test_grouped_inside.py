"""What test_grouped.py proves by internals."""

import inspect
import math
from types import SimpleNamespace
from typing import Any

import pytest
from support.grouped import hf_processor

from neatpack.loaders.online import LengthGroupedSampler, _smart_resize_image, _smart_resize_video
from neatpack.loaders.online.estimate import _estimate_video_tokens
from neatpack.loaders.online.processor_config import extract_image_config, extract_video_config
from neatpack.pipeline.families.qwen2_vl import VIDEO_DEFAULTS, Qwen2Videos, with_qwen_vl_utils

IMAGE = {"factor": 28, "patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1_003_520}


# ---------------------------------------------------------------- the reference's signatures


def test_signatures_are_the_documented_ones() -> None:
    def defaults(function: Any) -> dict[str, Any]:
        return {
            name: p.default for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty
        }

    assert list(inspect.signature(LengthGroupedSampler).parameters)[0] == "dataset"
    assert defaults(LengthGroupedSampler) == {"seed": 42, "processor": None, "max_length": None, "batch_size": 1}
    assert defaults(_smart_resize_image) == {
        "factor": 28,
        "min_pixels": 56 * 56,
        "max_pixels": 14 * 14 * 4 * 1280,
    }
    assert defaults(_smart_resize_video) == {
        "temporal_factor": 2,
        "factor": 32,
        "min_pixels": 128 * 128,
        "max_pixels": 16 * 16 * 2 * 2 * 2 * 6144,
    }
    sampler = LengthGroupedSampler([], batch_size=0)
    assert (sampler.batch_size, sampler.epoch, sampler.lengths, sampler.sorted_indices) == (1, 0, [], [])
    assert (sampler._image_cfg, sampler._video_cfg) == (None, None)


# ---------------------------------------------------------------- processors


def test_hugging_face_processors() -> None:
    assert extract_image_config(hf_processor()) == IMAGE
    assert extract_video_config(hf_processor(min_frames=8)) == {
        "factor": 32,
        "patch_size": 16,
        "merge_size": 2,
        "min_pixels": 128 * 128,
        "max_pixels": 16 * 16 * 2 * 2 * 2 * 6144,
        "temporal_patch_size": 2,
        "fps": 2,
        "min_frames": 8,
        "max_frames": 768,
        "per_frame": False,
    }
    own = hf_processor()
    own.image_processor.min_pixels, own.image_processor.max_pixels = 4, 6000
    assert extract_image_config(own) == IMAGE | {"min_pixels": 4, "max_pixels": 6000}


def test_a_real_image_processor() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = SimpleNamespace(image_processor=Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=1_003_520))
    assert extract_image_config(processor) == IMAGE


def test_our_families(demo_family: Any) -> None:
    """The demo's processor is a Qwen2.5-VL: bounds of a frame, and the rate of qwen-vl-utils."""
    image, video = demo_family.image, demo_family.video
    assert extract_image_config(demo_family) == {
        "factor": image.factor,
        "patch_size": image.patch_size,
        "merge_size": image.merge_size,
        "min_pixels": image.min_pixels,
        "max_pixels": image.max_pixels,
    }
    config = extract_video_config(demo_family)
    assert config is not None
    assert (config["per_frame"], config["fps"]) == (not video.bounds_cover_clip, video.fps)
    assert config["temporal_patch_size"] == video.temporal_patch_size


def test_qwen2_bounds_are_of_a_frame() -> None:
    class Qwen2VLVideoProcessor(SimpleNamespace):
        pass

    processor = hf_processor()
    processor.video_processor = Qwen2VLVideoProcessor(**vars(processor.video_processor))
    config = extract_video_config(processor)
    assert config is not None
    assert config["per_frame"]


@pytest.mark.parametrize(
    "meta", [(100, 720, 1280, 25.0, 4.0), (15_000, 1080, 1920, 25.0, 600.0), (6, 64, 96, 25, 0.24)]
)
def test_estimate_of_a_processor_without_a_rate_is_what_the_family_takes(meta: tuple[float, ...]) -> None:
    """As with qwen-vl-utils: 2 frames a second, 128 to 768 tokens a pair, and a total."""

    class Qwen2VLVideoProcessor(SimpleNamespace):
        pass

    numbers = {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 3136,
        "max_pixels": 12_845_056,
    }
    theirs = extract_video_config(SimpleNamespace(video_processor=Qwen2VLVideoProcessor(**numbers)))
    rule = Qwen2Videos.of({**VIDEO_DEFAULTS, **numbers} | with_qwen_vl_utils(numbers))
    ours = extract_video_config(SimpleNamespace(video=rule))
    assert theirs is not None and ours is not None
    total, height, width, fps, _ = meta
    grid = rule.shape(len(rule.choose(int(total), fps, None)), int(height), int(width))[1]
    counted = math.prod(grid) // 4
    assert _estimate_video_tokens(meta, theirs) == _estimate_video_tokens(meta, ours) == counted


@pytest.mark.parametrize(
    "processor",
    [
        None,
        SimpleNamespace(),
        SimpleNamespace(image_processor=None, video_processor=None),
        SimpleNamespace(image_processor=SimpleNamespace(size={"height": 384, "width": 384})),  # LLaVA: no patches
        SimpleNamespace(image_processor=SimpleNamespace(patch_size=14, merge_size=2, size=384)),
    ],
    ids=["none", "empty", "no parts", "llava", "size is a number"],
)
def test_processors_that_say_nothing(processor: Any) -> None:
    assert extract_image_config(processor) is None
    assert extract_video_config(processor) is None
