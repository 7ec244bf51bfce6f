"""smart_resize is transformers' own, to the pixel, for every size."""

import ast
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size as hf_budget
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as hf_image

from neatpack.pipeline.media.resize import (
    best_resolution,
    budget_resize,
    fitted,
    navit_resize,
    smart_resize_image,
    smart_resize_video,
)


def hf_function(module: str, name: str) -> Callable[..., Any]:
    """A function of the installed transformers by its source alone: its module needs torchvision, it does not."""
    spec = importlib.util.find_spec("transformers")
    assert spec
    assert spec.origin
    path = Path(spec.origin).parent.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    namespace: dict[str, Any] = {"math": math}
    exec(compile(ast.Module([function], []), str(path), "exec"), namespace)
    return namespace[name]


hf_video = hf_function("models.qwen3_vl.video_processing_qwen3_vl", "smart_resize")


def outcome(function: Callable[..., Any], *arguments: int) -> Any:
    """The size, or that there is none."""
    try:
        return function(*arguments)
    except ValueError:
        return ValueError


SIDE = st.one_of(st.integers(1, 300), st.integers(1, 20_000))
FACTOR = st.sampled_from([14, 16, 28, 32])
# Bounds as processors have them, as users set them, and none at all.
BOUNDS = st.one_of(
    st.sampled_from([(56 * 56, 14 * 14 * 4 * 1280), (3136, 12_845_056), (65_536, 16_777_216), (1, 10**12)]),
    st.integers(1, 10**6).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 10**7))),
)


@given(height=SIDE, width=SIDE, factor=FACTOR, bounds=BOUNDS)
@example(height=1, width=200, factor=28, bounds=(3136, 12_845_056))
@example(height=1, width=201, factor=28, bounds=(3136, 12_845_056))
@example(height=14, width=42, factor=28, bounds=(1, 10**12))  # halves: round to even
@example(height=1, width=1, factor=32, bounds=(1, 1))
@settings(max_examples=400)
def test_image(height: int, width: int, factor: int, bounds: tuple[int, int]) -> None:
    arguments = (height, width, factor, *bounds)
    assert outcome(smart_resize_image, *arguments) == outcome(hf_image, *arguments)


@given(frames=st.integers(2, 800), height=SIDE, width=SIDE, factor=FACTOR, bounds=BOUNDS)
@example(frames=3, height=64, width=64, factor=32, bounds=(1, 10**12))
@example(frames=5, height=64, width=64, factor=32, bounds=(1, 20_000))  # 5 frames count as 4, not 6
@example(frames=2, height=1, width=201, factor=28, bounds=(3136, 12_845_056))
@example(frames=2, height=10, width=175, factor=28, bounds=(1, 10**12))  # cut to 489, not rounded to 490
@example(frames=2, height=1, width=100, factor=28, bounds=(1, 10**12))  # blown up to 28 x 2800
@settings(max_examples=400)
def test_video(frames: int, height: int, width: int, factor: int, bounds: tuple[int, int]) -> None:
    arguments = (frames, height, width, 2, factor, *bounds)
    assert outcome(smart_resize_video, *arguments) == outcome(hf_video, *arguments)


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), temporal_factor=st.integers(1, 4))
@settings(max_examples=100)
def test_video_with_another_temporal_factor(height: int, width: int, temporal_factor: int) -> None:
    arguments = (16, height, width, temporal_factor, 32, 4096, 10**7)
    assert outcome(smart_resize_video, *arguments) == outcome(hf_video, *arguments)


def test_defaults_are_those_of_the_reference() -> None:
    assert smart_resize_image(640, 480) == hf_image(640, 480) == (644, 476)
    assert smart_resize_image(5000, 5000) == hf_image(5000, 5000) == (980, 980)
    assert smart_resize_image(1, 1) == hf_image(1, 1) == (56, 56)
    # The video's are Qwen3-VL's: blocks of 32, 128 x 128 to 16 * 16 * 2 * 2 * 2 * 6144 pixels a clip.
    assert smart_resize_video(4, 100, 100) == smart_resize_video(4, 100, 100, 2, 32, 16_384, 12_582_912) == (96, 96)
    assert smart_resize_video(768, 720, 1280) == (96, 160)


def test_a_clip_shorter_than_a_temporal_patch_has_a_size() -> None:
    with pytest.raises(ValueError, match="must be larger than temporal_factor"):
        hf_video(1, 640, 480)
    assert smart_resize_video(1, 640, 480) == smart_resize_video(2, 640, 480) == (640, 480)


@pytest.mark.parametrize(("height", "width"), [(1, 201), (201, 1), (10, 20_000)])
def test_too_long_pictures_are_refused_in_words(height: int, width: int) -> None:
    with pytest.raises(ValueError, match=rf"200:1 .*{width}x{height}"):
        smart_resize_image(height, width)


@given(height=SIDE, width=SIDE, patch=st.sampled_from([14, 16]), pooling=st.integers(1, 4), tokens=st.integers(1, 1120))
@example(height=1, width=20_000, patch=16, pooling=3, tokens=70)  # one row, of all blocks
@example(height=20_000, width=3, patch=16, pooling=3, tokens=280)
@example(height=1, width=1, patch=16, pooling=3, tokens=1120)
@example(height=10, width=10, patch=16, pooling=3, tokens=1)  # may round to nothing
@settings(max_examples=400)
def test_budget(height: int, width: int, patch: int, pooling: int, tokens: int) -> None:
    ours = outcome(budget_resize, height, width, patch * pooling, tokens)
    assert ours == outcome(hf_budget, height, width, patch, tokens * pooling**2, pooling)


def test_budgets_are_filled() -> None:
    assert budget_resize(640, 480) == hf_budget(640, 480, 16, 2520, 3) == (912, 672)
    assert budget_resize(16, 12) == (912, 672)
    assert budget_resize(10, 1000) == (48, 48 * 167)
    assert budget_resize(1, 1000, max_blocks=70) == (48, 48 * 70)


hf_navit = hf_function("models.kimi_k25.image_processing_kimi_k25", "navit_resize")


@given(height=SIDE, width=SIDE, merge=st.integers(1, 3), patches=st.integers(1, 20_000), side=st.integers(2, 600))
@example(height=20_000, width=3, merge=2, patches=16384, side=512)
@example(height=7169, width=7169, merge=2, patches=10**6, side=512)
@settings(max_examples=400)
def test_navit(height: int, width: int, merge: int, patches: int, side: int) -> None:
    assert navit_resize(height, width, 14, merge, patches, side) == hf_navit(height, width, 14, merge, patches, side)


def test_navit_never_enlarges_and_may_have_no_limit_on_a_side() -> None:
    assert navit_resize(100, 50) == ((100, 50), (112, 56))
    assert navit_resize(1, 14 * 1000) == ((1, 7168), (28, 7168))
    assert navit_resize(1, 14 * 1000, max_side=None) == ((1, 14000), (28, 14000))
    assert navit_resize(280, 280, max_patches=100) == ((140, 140), (140, 140))


RESOLUTIONS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]


@given(height=SIDE, width=SIDE, count=st.integers(1, 36))
@example(height=500, width=300, count=36)
@example(height=20_000, width=1, count=36)
@settings(max_examples=400)
def test_best_resolution(height: int, width: int, count: int) -> None:
    best = best_resolution(height, width, RESOLUTIONS[:count])
    assert best == select_best_resolution((height, width), RESOLUTIONS[:count])
    picture = np.empty((3, height, width), dtype=np.bool_)
    assert fitted(height, width, best) == get_patch_output_size(picture, best, "channels_first")
