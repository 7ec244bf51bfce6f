"""What the ledger advises about overlong rows: flags that help them, with their values, and none that just failed."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_verified, clip, picture, tiny_config

from neatpack.pipeline.config import UserError
from neatpack.pipeline.plan.assign import video_flags
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger

FLAGS = "--video-fps (now 2), --video-max-frames (now 768) or --video-max-pixels (now 50176)"


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    """A row of mostly video, one of mostly pictures, one of text; none fits 64 tokens. And a short one."""
    clip(tmp_path / "a.mp4", frames=100, rate=5, height=240, width=320)
    picture(tmp_path / "b.png", 300, 400)
    answer = {"role": "assistant", "content": "That."}
    words = " ".join(map(str, range(200)))
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "<video>What?"}, answer], "videos": ["a.mp4"]},
        {"messages": [{"role": "user", "content": "<image><image>What?"}, answer], "images": ["b.png", "b.png"]},
        {"messages": [{"role": "user", "content": words}, answer]},
        {"messages": [{"role": "user", "content": "What?"}, answer]},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "meta.json"
    path.write_text(json.dumps({"v": {"file_name": "rows.jsonl", "media_dir": "."}}))
    return path


def details(meta: Path, overlong: str, **more: Any) -> dict[int, str]:
    out = meta.parent / f"out-{overlong}-{len(more)}"
    run_pack(tiny_config(meta, out, overlong=overlong, pack_size=64, max_skipped=1.0, **more))
    lines = read_ledger(out, assert_verified(out)).to_pylist()
    return {line["row"]: line["detail"] for line in lines if line["reason"] == "overlong"}


def test_row_of_mostly_video_names_the_flags_of_videos_with_their_values(meta: Path) -> None:
    found = details(meta, "drop")
    assert FLAGS in found[0] and found[0].endswith("--pack-size")
    assert "truncate" not in found[0]
    assert "--video" not in found[1] + found[2]
    assert set(found) == {0, 1, 2}


def test_values_are_those_in_force(meta: Path) -> None:
    found = details(meta, "drop", video_fps=1.0, video_max_frames=16, video_max_pixels=20_000)
    assert "--video-fps (now 1), --video-max-frames (now 16) or --video-max-pixels (now 20000)" in found[0]


def test_following_the_advice_makes_the_row_fit(meta: Path) -> None:
    found = details(meta, "drop", video_fps=0.2, video_min_frames=2, video_max_frames=4, video_max_pixels=10_000)
    assert set(found) == {1, 2}


def test_truncate_is_not_advised_where_it_has_just_failed(meta: Path) -> None:
    found = details(meta, "truncate")
    assert set(found) == {0, 1, 2}
    assert not any("truncate" in detail for detail in found.values())
    assert FLAGS in found[0]
    for row in (1, 2):
        assert "--pack-size" in found[row] and found[row].endswith("--overlong shrink")


def test_shrink_is_not_advised_where_it_has_just_failed(meta: Path) -> None:
    found = details(meta, "shrink")
    assert 0 not in found, "a shrunk video fits"
    assert 2 in found
    assert not any("--overlong shrink" in detail for detail in found.values())


def test_refused_row_names_the_flags_of_videos(meta: Path) -> None:
    with pytest.raises(UserError) as raised:
        details(meta, "error")
    assert FLAGS in str(raised.value)


@pytest.mark.parametrize(
    ("sampling", "flags"),
    [
        ({"fps": None}, "--video-fps (now all)"),
        ({"fps": 0.5, "max_frames": None}, "--video-fps (now 0.5) or --video-max-frames (now no bound)"),
        ({"fps": None, "num_frames": 32, "max_frames": 8}, "--video-fps (now 32 frames) or --video-max-frames (now 8)"),
    ],
)
def test_flags_are_those_that_the_family_has(sampling: dict[str, Any], flags: str) -> None:
    assert video_flags(sampling) == flags
