"""Videos measured without decoding: real containers, written here, whose headers are missing or lie."""

import math
from functools import cache

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR, SHARED, clip, picture, tiny_config
from hypothesis import given, strategies as st
from support.errors import raises_media_error

from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import chosen_family, family_for, processor_files
from neatpack.pipeline.measure.length import shrunk, with_lengths
from neatpack.pipeline.measure.media import measure_medium
from neatpack.pipeline.media.video import video_facts, wanted_frames
from neatpack.pipeline.records import MediaRef, Sampling

FAMILIES = ("qwen2_vl", "qwen3_vl")


def family(name="qwen3_vl", **more):
    return family_for(ProcessorKey(processor=str(DEMO_PROCESSOR), family=name, **more))


@cache
def demo_files():
    """For families that nobody else asks for, and that need not be kept."""
    return processor_files(str(DEMO_PROCESSOR))


def brightness(ref, sampling=None, **more):
    """Which frames are taken, seen in the pixels: frame n is as bright as 20 n."""
    asked = MediaRef(kind="video", path=ref.path, sampling=sampling or Sampling())
    medium = measure_medium(asked, family(**more))
    seen = [round(float(frame[:, -8:].mean()) / 20) for frame in wanted_frames(medium)]
    assert seen == list(medium.frames)
    return seen


def test_facts(tmp_path):
    facts = video_facts(clip(tmp_path / "a.mp4"))
    assert (facts.height, facts.width, facts.fps, len(facts.times)) == (64, 96, 5.0, 10)
    assert facts.times.tolist() == pytest.approx([n / 5 for n in range(10)])


@pytest.mark.parametrize("name", ["a.webm", "a.mkv", "a.ts", "a.avi"])
def test_containers_that_do_not_count_their_frames(tmp_path, name):
    codec = "libvpx" if name.endswith("webm") else "mpeg4"
    facts = video_facts(clip(tmp_path / name, codec=codec))
    assert len(facts.times) == 10
    assert facts.times[0] == 0, "counted from the first frame, wherever the container starts"
    assert facts.fps == pytest.approx(5, rel=0.01)


def test_frames_that_are_not_evenly_spaced(tmp_path):
    ref = clip(tmp_path / "a.mkv", times=[0, 0.1, 0.2, 0.3, 2.0, 2.1, 2.2, 4.0, 4.1, 4.2])
    facts = video_facts(ref)
    assert facts.times.tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 2.0, 2.1, 2.2, 4.0, 4.1, 4.2], abs=0.002)
    assert brightness(ref, Sampling(start=1.9, end=3.0, fps=100)) == [4, 5, 6], "by time, not by number"


def test_a_turned_video(tmp_path):
    ref = clip(tmp_path / "a.mp4", rotation=-90)
    medium = measure_medium(ref, family())
    assert (medium.height, medium.width) == (96, 64)
    frame = next(wanted_frames(medium))
    assert frame.shape == (96, 64, 3)
    # turned clockwise to be shown, the bar on the left is on top
    assert frame[:12, :, 0].mean() > 150 > frame[-12:, :, 0].mean()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_video_of_one_frame(tmp_path, name):
    medium = measure_medium(clip(tmp_path / "a.mp4", frames=1), family(name, video_fps=2.0))
    assert medium.frames == (0,)
    assert medium.grid[0] == 1
    patches = family(name, video_fps=2.0).video.render(wanted_frames(medium), medium, None)["pixel_values_videos"]
    halves = patches.reshape(len(patches), 3, 2, -1)
    assert np.array_equal(halves[:, :, 0], halves[:, :, 1]), "the frame is repeated in its temporal patch"


def test_what_rows_ask_for(tmp_path):
    ref = clip(tmp_path / "a.mp4")  # 2 seconds, 5 frames each
    assert brightness(ref) == [0, 3, 6, 9]  # 2 fps of 2 s
    assert brightness(ref, Sampling(frame_indices=(1, 1, 7))) == [1, 1, 7]
    assert brightness(ref, Sampling(fps=4)) == [0, 1, 3, 4, 5, 6, 8, 9]
    assert brightness(ref, Sampling(start=1.0)) == [5, 6, 8, 9]
    assert brightness(ref, Sampling(start=0.4, end=1.0, fps=5)) == [2, 3, 4]
    assert brightness(ref, name="qwen2_vl") == [0, 3, 6, 9], "as qwen-vl-utils where no rate is configured"
    assert brightness(ref, name="qwen2_vl", video_fps=math.inf) == list(range(10))
    assert brightness(ref, name="qwen2_vl", video_fps=2.0) == [0, 2, 5, 7]
    assert brightness(ref, video_max_frames=3, video_min_frames=1) == [0, 4, 9]


def test_a_list_of_pictures_is_a_video(tmp_path):
    paths = tuple(str(picture(tmp_path / f"{n}.png", 60, 80, seed=n)) for n in range(5))
    medium = measure_medium(MediaRef(kind="video", path=paths[0], frames=paths, sampling=Sampling(fps=2)), family())
    assert (medium.frames, medium.fps, medium.grid[0]) == ((0, 1, 2, 3, 4), 2, 3)
    assert len(list(wanted_frames(medium))) == 5
    picture(tmp_path / "4.png", 61, 80)
    with raises_media_error("bad_media", paths[0], "80x60, 80x61"):
        measure_medium(MediaRef(kind="video", path=paths[0], frames=paths), family())


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (Sampling(frame_indices=(3, 10)), ("frame_indices", "10 frames")),
        (Sampling(start=5.0), ("5.0 s", "1.80 s")),
    ],
)
def test_wishes_that_cannot_be_met(tmp_path, sampling, named):
    ref = clip(tmp_path / "a.mp4")
    with raises_media_error("bad_media", ref.path, *named):
        measure_medium(MediaRef(kind="video", path=ref.path, sampling=sampling), family())


@given(total=st.integers(1, 3000), fps=st.floats(1, 120), wanted=st.floats(0.1, 30), cap=st.integers(4, 800))
def test_sampled_frames_exist_and_ascend(total, fps, wanted, cap):
    for name in ("qwen2_vl", "qwen3_vl"):
        key = ProcessorKey(processor=str(DEMO_PROCESSOR), family=name, video_fps=wanted, video_max_frames=cap)
        frames = chosen_family(key, demo_files()).video.choose(total, fps, None)
        assert 1 <= len(frames) <= min(total, max(cap, 4))
        assert frames[0] == 0 and frames[-1] < total
        assert (np.diff(frames) > 0).all()
        if name == "qwen2_vl" and total > 1:
            assert len(frames) % 2 == 0


def test_34_frames_of_which_14(tmp_path):
    """transformers' own step gives a fifteenth index, 34, which does not exist."""
    frames = family("qwen2_vl", video_fps=1.0).video.choose(34, 34 / 14, None)
    assert len(frames) == 14 and frames[-1] < 34


@pytest.mark.parametrize("name", FAMILIES)
def test_shrinking_takes_frames_first_and_pixels_then(tmp_path, name):
    chosen = family(name, video_fps=10.0, video_max_pixels=10_000_000)
    medium = measure_medium(clip(tmp_path / "a.mp4", frames=40, rate=10, height=200, width=300), chosen)
    assert len(medium.frames) == 40
    before, after = chosen.chat.marker_ids("video")
    ids = np.array([5, *before, chosen.chat.placeholder_ids["video"], *after], dtype=np.int32)
    whole = with_lengths(ids, np.array([[0, len(ids)]], dtype=np.int32), (medium,), chosen)
    frames, tokens = [], [whole.tokens]
    for level in range(1, 8):
        smaller = shrunk(whole, level, chosen)
        frames.append(len(smaller.media[0].frames))
        tokens.append(smaller.tokens)
        assert list(smaller.media[0].frames) == sorted(set(smaller.media[0].frames))
    assert frames == [20, 10, 5, 5, 5, 5, 5]
    assert tokens == sorted(tokens, reverse=True) and tokens[4] < tokens[3], "then the pictures"


def test_every_frame_of_a_pack_is_trained_on_once(tmp_path):
    """Through the whole pipeline, with pictures and videos in one conversation: verify proves grids and positions."""
    import json

    from neatpack.format.manifest import Manifest
    from neatpack.pipeline.run import run_pack
    from neatpack.pipeline.shard.verify import verify_ledger, verify_shard

    clip(tmp_path / "a.mp4")
    picture(tmp_path / "b.png", 60, 80)
    turns = [{"role": "user", "content": "<video>And<image>?<video>"}, {"role": "assistant", "content": "Yes."}]
    video = {"path": "a.mp4", "fps": 5, "video_start": 0.5}
    rows = [{"messages": turns, "videos": ["a.mp4", video], "images": "b.png"}, {"messages": turns[1:]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "meta.json").write_text(json.dumps({"v": {"file_name": "rows.jsonl", "media_dir": "."}}))
    for name in FAMILIES:
        out = tmp_path / name
        run_pack(tiny_config(tmp_path / "meta.json", out, family=name, pack_size=1024))
        manifest = Manifest.read(out)
        assert verify_ledger(out, manifest) + verify_shard(out, manifest, 0) == []
        assert manifest.counts.packed == 2


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real videos) is not here")
@pytest.mark.parametrize(("file", "frames"), [("mantis/video/oa4_launch.webm", 194), ("mllm_demo_data/2.avi", 270)])
def test_real_files(file, frames):
    assert len(video_facts(MediaRef(kind="video", path=str(SHARED / "data/media" / file))).times) == frames
