"""Processors without a rate: frames and sizes are those of qwen-vl-utils, from the same arithmetic and the package."""

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import DEMO_PROCESSOR, SHARED, clip, torchvision_environment
from hypothesis import given, settings, strategies as st

from neatpack.format.manifest import Manifest
from neatpack.loaders.online.tokenized import tokenized_example
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.qwen2_vl import IMAGE_DEFAULTS, VIDEO_DEFAULTS, Qwen2Videos, with_qwen_vl_utils
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.measure.media import measure_medium
from neatpack.pipeline.media.video import video_facts
from neatpack.pipeline.records import MediaError, MediaRef

FPS, FRAME_FACTOR, FPS_MIN_FRAMES, FPS_MAX_FRAMES = 2.0, 2, 4, 768
VIDEO_MIN_TOKEN_NUM, VIDEO_MAX_TOKEN_NUM, MODEL_SEQ_LEN, MAX_RATIO = 128, 768, 128_000, 200
FACTOR = 28  # image_patch_size 14 * SPATIAL_MERGE_SIZE 2
# Where `pip install --target DIR qwen-vl-utils requests` has put it, if it is not installed.
PACKAGE = os.environ.get("NEATPACK_TEST_QWEN_VL_UTILS", "")


def smart_nframes(total_frames: int, video_fps: float) -> int:
    """qwen_vl_utils/vision_process.py 0.0.14, without arguments of the user."""
    min_frames = math.ceil(FPS_MIN_FRAMES / FRAME_FACTOR) * FRAME_FACTOR
    max_frames = math.floor(min(FPS_MAX_FRAMES, total_frames) / FRAME_FACTOR) * FRAME_FACTOR
    nframes = min(min(max(total_frames / video_fps * FPS, min_frames), max_frames), total_frames)
    nframes = math.floor(nframes / FRAME_FACTOR) * FRAME_FACTOR
    if not (FRAME_FACTOR <= nframes <= total_frames):
        raise ValueError(f"nframes should in interval [{FRAME_FACTOR}, {total_frames}], but got {nframes}.")
    return nframes


def frame_size(nframes: int, height: int, width: int) -> tuple[int, int]:
    """The sizes in `fetch_video`, and its smart_resize."""
    min_pixels = VIDEO_MIN_TOKEN_NUM * FACTOR * FACTOR
    total_pixels = MODEL_SEQ_LEN * FACTOR * FACTOR * 0.9
    limit = min(VIDEO_MAX_TOKEN_NUM * FACTOR * FACTOR, total_pixels / nframes * FRAME_FACTOR)
    max_pixels = max(limit, int(min_pixels * 1.05))
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise ValueError("absolute aspect ratio")
    rows, columns = (max(FACTOR, round(side / FACTOR) * FACTOR) for side in (height, width))
    if rows * columns > max_pixels:
        beta = math.sqrt((height * width) / max_pixels)
        rows, columns = (math.floor(side / beta / FACTOR) * FACTOR for side in (height, width))
    elif rows * columns < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        rows, columns = (math.ceil(side * beta / FACTOR) * FACTOR for side in (height, width))
    return rows, columns


def published_rule() -> Qwen2Videos:
    """Of the published Qwen2-VL and 2.5-VL: their preprocessor_config.json has no rate, and wide bounds."""
    config = {**VIDEO_DEFAULTS, **IMAGE_DEFAULTS, "min_pixels": 3136, "max_pixels": 12_845_056, "spans_clip": True}
    return Qwen2Videos.of(config | with_qwen_vl_utils(config))


def ours(rule: Any, total: int, fps: float, height: int, width: int) -> tuple[list[int], tuple[int, int]]:
    frames = rule.choose(total, fps, None)
    return frames.tolist(), rule.shape(len(frames), height, width)[0]


def reference(total: int, fps: float, height: int, width: int) -> tuple[list[int], tuple[int, int]]:
    count = smart_nframes(total, fps)
    return torch.linspace(0, total - 1, count).round().long().tolist(), frame_size(count, height, width)


@settings(max_examples=500)
@given(
    total=st.integers(2, 200_000), fps=st.floats(0.5, 240), height=st.integers(20, 4320), width=st.integers(20, 4320)
)
def test_frames_and_sizes_are_those_of_qwen_vl_utils(total: int, fps: float, height: int, width: int) -> None:
    if max(height, width) / min(height, width) > MAX_RATIO:
        return
    assert ours(published_rule(), total, fps, height, width) == reference(total, fps, height, width)


@pytest.mark.parametrize(
    ("total", "fps", "height", "width", "frames", "size"),
    [
        (10, 5.0, 64, 96, 4, (280, 392)),  # enlarged to 128 tokens a pair
        (2, 25.0, 720, 1280, 2, (560, 1008)),  # 720 of 768 tokens
        (3, 25.0, 720, 1280, 2, (560, 1008)),
        (7, 25.0, 360, 640, 4, (364, 644)),
        (25 * 60, 25.0, 1080, 1920, 120, (560, 1008)),
        (25 * 600, 25.0, 1080, 1920, 768, (336, 644)),  # 10 minutes' frames share 115,200 tokens
    ],
)
def test_frames_and_size_of(
    total: int, fps: float, height: int, width: int, frames: int, size: tuple[int, int]
) -> None:
    found = ours(published_rule(), total, fps, height, width)
    assert (len(found[0]), found[1]) == (frames, size)
    assert found == reference(total, fps, height, width)


def test_one_frame_is_taken_where_qwen_vl_utils_raises() -> None:
    assert ours(published_rule(), 1, 25.0, 360, 640)[0] == [0]


def test_narrower_bounds_of_the_processor_hold() -> None:
    """The demo's processor takes at most 50,176 pixels, fewer than 128 tokens; it would resize the frames again."""
    demo = family_for(str(DEMO_PROCESSOR)).video
    assert (demo.fps, demo.min_pixels, demo.max_pixels) == (2.0, 3136, 50_176)


def real_clips() -> list[MediaRef]:
    kinds = (".mp4", ".webm", ".avi", ".mov", ".ts")
    return [MediaRef(kind="video", path=str(path)) for path in sorted((SHARED / "data").rglob("*"))
            if path.suffix in kinds]  # fmt: skip


def facts_of_real_clips() -> list[tuple[int, float, int, int]]:
    found = []
    for ref in real_clips():
        try:
            facts = video_facts(ref)
        except MediaError:  # those that are broken on purpose
            continue
        found.append((len(facts.times), facts.fps, facts.height, facts.width))
    return found


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real videos and processors) is not here")
@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl"])
def test_real_clips_are_taken_as_by_qwen_vl_utils(name: str) -> None:
    rule = family_for(str(SHARED / "processors" / name)).video
    found = facts_of_real_clips()
    assert len(found) >= 17
    for facts in found:
        if facts[0] > 1:
            assert ours(rule, *facts) == reference(*facts), facts


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real videos and processors) is not here")
def test_real_clips_fit_a_pack_of_default_size() -> None:
    """With every frame, most of them do not."""
    longest = {}
    for rate in (0.0, math.inf):
        rule = family_for(ProcessorKey(processor=str(SHARED / "processors/qwen2.5-vl"), video_fps=rate)).video
        grids = [rule.shape(len(rule.choose(total, fps, None)), height, width)[1]
                 for total, fps, height, width in facts_of_real_clips()]  # fmt: skip
        longest[rate] = max(math.prod(grid) // 4 for grid in grids)
    assert longest[0.0] < PackConfig().pack_size < longest[math.inf]


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real videos) is not here")
def test_real_clips_equal_the_package() -> None:
    facts = facts_of_real_clips() + [(25 * 600, 25.0, 1080, 1920), (10, 5.0, 64, 96), (3, 25.0, 720, 1280)]
    env = torchvision_environment()
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env["PYTHONPATH"], PACKAGE]))
    script = str(Path(__file__).with_name("qwen_vl_utils_sizes.py"))
    ran = subprocess.run([sys.executable, script, json.dumps(facts)], env=env, capture_output=True, text=True)
    if ran.returncode in (3, 4):
        pytest.skip("torchvision or qwen-vl-utils is not installed here")
    assert ran.returncode == 0, ran.stderr
    for each, expected in zip(facts, json.loads(ran.stdout), strict=True):
        frames, size = ours(published_rule(), *each)
        if expected is None:
            assert each[0] == 1, each
        else:
            assert [len(frames), frames, list(size)] == expected, each


# ---------------------------------------------------------------- flags, rows, online, manifest


def sampling(**chosen: Any) -> dict[str, Any]:
    found: dict[str, Any] = family_for(ProcessorKey(processor=str(DEMO_PROCESSOR), **chosen)).described()
    sampled: dict[str, Any] = found["video_sampling"]
    return sampled


def test_manifest_has_what_chooses_frames(tmp_path: Path) -> None:
    assert sampling() == {
        "fps": 2.0, "num_frames": None, "min_frames": 4, "max_frames": 768, "min_pixels": 3136, "max_pixels": 50_176,
        "total_pixels": 90_316_800,
    }  # fmt: skip
    assert sampling(video_fps=math.inf)["fps"] is None
    assert sampling(video_fps=math.inf)["total_pixels"] is None
    assert sampling(video_fps=1.0, video_max_frames=16)["max_frames"] == 16


@pytest.mark.parametrize(
    ("configured", "frames"),
    [({}, 20), ({"fps": 1}, 10), ({"num_frames": 8}, 8), ({"fps": None, "num_frames": None}, 20)],
)
def test_rate_or_number_of_a_processor_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, configured: dict[str, Any], frames: int
) -> None:
    """A film of 10 seconds: 2 a second only where the config has neither; that is logged."""
    folder = shutil.copytree(DEMO_PROCESSOR, tmp_path / "processor")
    own = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "video_preprocessor_config.json").write_text(json.dumps(own | configured))
    with caplog.at_level(logging.INFO):
        rule = load_family(ProcessorKey(processor=str(folder))).video
    assert rule is not None and len(rule.choose(250, 25.0, None)) == frames
    assert ("sampled as by qwen-vl-utils" in caplog.text) == (frames == 20)


def test_lower_rate_never_takes_more_tokens() -> None:
    """A rate of the user replaces that of qwen-vl-utils, and not its bounds of the sizes."""
    if not SHARED.is_dir():
        pytest.skip("../shared (real processors) is not here")
    processor = str(SHARED / "processors/qwen2.5-vl")
    tokens = []
    for rate in (0.0, 2.0, 1.0, 0.5):
        rule = family_for(ProcessorKey(processor=processor, video_fps=rate)).video
        grid = rule.shape(len(rule.choose(250, 25.0, None)), 1080, 1920)[1]
        tokens.append(math.prod(grid) // 4)
    assert tokens == [10 * 720, 10 * 720, 5 * 720, 2 * 720]


def test_every_frame_is_taken_on_request() -> None:
    rule = family_for(ProcessorKey(processor=str(DEMO_PROCESSOR), video_fps=math.inf)).video
    assert rule.choose(300, 25.0, None).tolist() == list(range(300))


@pytest.mark.parametrize(
    "name",
    ["gemma4", "glm4v", "internvl", "kimi_k25", "llava_onevision", "qwen2_5_omni", "qwen3_omni", "qwen3_vl", "smolvlm"],
)
def test_every_family_takes_every_frame_on_request(name: str, tmp_path: Path) -> None:
    processor = str(import_module(f"processors.{name}").make(tmp_path / "processor"))
    rule = load_family(ProcessorKey(processor=processor, video_fps=math.inf)).video
    assert rule is not None
    assert rule.choose(300, 30.0, None).tolist() == list(range(300))


def test_online_samples_take_the_same_frames(tmp_path: Path) -> None:
    ref = clip(tmp_path / "a.mp4", frames=60, rate=10)
    family = family_for(str(DEMO_PROCESSOR))
    medium = measure_medium(ref, family)
    assert len(medium.frames) == 12, "6 seconds at 2 a second"
    turns = [{"role": "user", "content": [{"type": "video", "video": ref.path}]}, {"role": "assistant", "content": "."}]
    online = tokenized_example({"conversation": turns}, family)
    assert online["video_grid_thw"].tolist() == [list(medium.grid)]
    assert np.isclose(float(online["second_per_grid_ts"][0]), 1.0)


def test_command_line_takes_all_frames_and_says_so_in_the_manifest(tmp_path: Path) -> None:
    clip(tmp_path / "a.mp4", frames=20, rate=10)
    turns = [{"role": "user", "content": "<video>What?"}, {"role": "assistant", "content": "That."}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": turns, "videos": ["a.mp4"]}) + "\n")
    (tmp_path / "meta.json").write_text(json.dumps({"v": {"file_name": "rows.jsonl", "media_dir": "."}}))
    tokens = {}
    for name, more in {"default": [], "all": ["--video-fps", "all"]}.items():
        out = tmp_path / name
        flags = {"meta": tmp_path / "meta.json", "out": out, "processor": DEMO_PROCESSOR, "engine": "inline"}
        given = [str(text) for key, value in flags.items() for text in (f"--{key}", value)]
        command = [str(Path(sys.executable).with_name("neatpack")), "pack", "-v", *given, "--pack-size", "2048", *more]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert ("sampled as by qwen-vl-utils" in ran.stderr) == (not more)
        manifest = Manifest.read(out)
        tokens[name] = manifest.counts.visual_tokens
        assert manifest.identity.config["video_fps"] == ("all" if more else 0.0)
        assert manifest.family["video_sampling"]["fps"] == (None if more else 2.0)
    assert tokens["all"] == 5 * tokens["default"], "20 frames, and 4"
