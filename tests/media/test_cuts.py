"""Frames in the middle of a video are those that decoding from its start gives, and what lies before is not decoded."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers import SHARED
from hypothesis import given, strategies as st

from neatpack.pipeline.media import cuts, video
from neatpack.pipeline.media.cuts import FROM_START, Cuts, Unseekable, _runs, can_have_cuts, cuts_of, frames_between
from neatpack.pipeline.media.open import open_container
from neatpack.pipeline.media.video import video_facts, wanted_frames
from neatpack.pipeline.records import MeasuredMedia, MediaRef

NUM_FRAMES = 60
X264 = "keyint=12:min-keyint=12:scenecut=0:b-adapt=0"
X265 = "keyint=12:min-keyint=12:scenecut=0:log-level=none"
# Container, encoder, its options, and the packets that are cuts; key frames come every 12 frames.
MADE = {
    "mpeg4.mp4": ("mpeg4", {"g": "12"}, [0, 12, 24, 36, 48]),
    "mpeg4-b.mkv": ("mpeg4", {"g": "12", "bf": "2"}, None),
    "h264.mp4": ("libx264", {"g": "12", "bf": "2", "sc_threshold": "0"}, [0, 12, 24, 36, 48]),
    "h264.mkv": ("libx264", {"g": "12", "bf": "2", "sc_threshold": "0"}, [0, 12, 24, 36, 48]),
    "h264-b.mp4": ("libx264", {"x264-params": f"{X264}:bframes=2:b-pyramid=none"}, [0, 12, 24, 36, 48]),
    "h264-pyramid.mkv": ("libx264", {"x264-params": f"{X264}:bframes=5:b-pyramid=normal"}, [0, 12, 24, 36, 48]),
    "h264-open.mkv": ("libx264", {"g": "12", "bf": "2", "x264-params": "open-gop=1:scenecut=0"}, [0]),
    "h264-refresh.mp4": ("libx264", {"g": "12", "x264-params": "intra-refresh=1:bframes=0"}, [0]),
    "h264.ts": ("libx264", {"g": "12"}, [0]),
    "hevc.mp4": ("libx265", {"x265-params": f"{X265}:open-gop=0"}, [0, 12, 24, 36, 48]),
    "hevc-open.mp4": ("libx265", {"x265-params": f"{X265}:open-gop=1"}, [0]),
    "vp9.webm": ("libvpx-vp9", {"g": "12", "cpu-used": "8", "deadline": "realtime"}, None),
    "vp8.webm": ("libvpx", {"g": "12"}, [0]),
    "mjpeg.avi": ("mjpeg", {}, list(range(60))),
    "mjpeg.mkv": ("mjpeg", {}, list(range(60))),
    "mpeg4.avi": ("mpeg4", {"g": "12"}, [0]),
    "h264-uneven.mp4": ("libx264", {"x264-params": f"{X264}:bframes=2"}, [0, 12, 24, 36, 48]),
    "h264-uneven.mkv": ("libx264", {"x264-params": f"{X264}:bframes=2"}, [0, 12, 24, 36, 48]),
    "h264-late.mp4": ("libx264", {"x264-params": f"{X264}:bframes=2"}, [0, 12, 24, 36, 48]),
}  # fmt: skip
# When frames are shown, in twelfths of a second: at no even rate, or from the third second on, which mp4 says by an
# edit list, as it does of B-frames.
SHOWN = {"uneven": lambda number: number + number**2 // 40, "late": lambda number: number + 36}


def encode(path: Path, codec: str, options: dict[str, str]) -> MediaRef:
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=12, options=options)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        noise = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        for number in range(NUM_FRAMES):
            pixels = np.roll(noise, number, axis=1) // 2 + np.uint8(2 * number)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            shown = next((shown for kind, shown in SHOWN.items() if kind in path.name), int)
            frame.pts, frame.time_base = shown(number), Fraction(1, 12)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return MediaRef(kind="video", path=str(path))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaRef]:
    folder = tmp_path_factory.mktemp("made")
    return {name: encode(folder / name, codec, options) for name, (codec, options, _) in MADE.items()}


def from_start(ref: MediaRef, wanted: set[int]) -> dict[int, np.ndarray]:
    """As FFmpeg itself decodes it."""
    with av.open(ref.path, metadata_errors="ignore") as container:
        container.streams.video[0].codec_context.thread_count = 1
        until = islice(enumerate(container.decode(video=0)), max(wanted) + 1)
        frames = (each for each in until if each[0] in wanted)
        return {n: np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90) % 4) for n, frame in frames}


def taken(ref: MediaRef, *wanted: int) -> list[np.ndarray]:
    facts = video_facts(ref)
    medium = MeasuredMedia(
        ref=ref, height=facts.height, width=facts.width, size=(1, 1), grid=(1, 1, 1), frames=wanted, fps=facts.fps
    )
    return list(wanted_frames(medium))


def assert_same(ref: MediaRef, choices: list[tuple[int, ...]]) -> None:
    whole = from_start(ref, {number for wanted in choices for number in wanted})
    for wanted in choices:
        found = taken(ref, *wanted)
        assert len(found) == len(wanted)
        for number, pixels in zip(wanted, found, strict=True):
            assert np.array_equal(pixels, whole[number]), (ref.path, number)


def choices(num_frames: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    some = [tuple(np.sort(rng.integers(0, num_frames, size)).tolist()) for size in (1, 1, 2, 3, 8)]
    return [*some, (0,), (num_frames - 1,), (0, num_frames - 1), tuple(range(num_frames))]


@pytest.mark.parametrize("name", MADE)
def test_frames_are_those_of_decoding_from_the_start(name: str, made: dict[str, MediaRef]) -> None:
    assert_same(made[name], choices(NUM_FRAMES))


@pytest.mark.parametrize("name", MADE)
def test_frames_behind_a_seek_are_the_same(
    name: str, made: dict[str, MediaRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts, "FAR", 0)
    assert_same(made[name], [*choices(NUM_FRAMES), (59,), (13, 50), (30, 31)])


class Counting:
    """A container that counts the packets that are read of it, and seeks elsewhere, if asked to."""

    def __init__(self, container: Any, elsewhere: int | None = None) -> None:
        self.container, self.streams, self.elsewhere, self.num_packets = container, container.streams, elsewhere, 0

    def demux(self, video: int) -> Iterator[Any]:
        for packet in self.container.demux(video=video):
            self.num_packets += bool(packet.size)
            yield packet

    def seek(self, offset: int, stream: Any) -> None:
        self.container.seek(offset if self.elsewhere is None else self.elsewhere, stream=stream)


SEEKING = ["h264.mp4", "h264.mkv", "h264-uneven.mkv", "h264-late.mp4", "hevc.mp4", "vp9.webm", "mpeg4.mp4"]


@pytest.mark.parametrize("name", SEEKING)
def test_what_lies_before_is_not_read(name: str, made: dict[str, MediaRef], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "FAR", 0)
    with open_container(made[name]) as (container, _):
        told = cuts_of(container)
    assert told.packets[-1] > 0
    for seeks, expected in ((True, NUM_FRAMES - int(told.packets[-1])), (False, NUM_FRAMES)):
        with open_container(made[name]) as (container, _):
            counting: Any = Counting(container)
            numbers = [number for number, _ in frames_between(counting, replace(told, seeks=seeks), [59])]
        assert numbers[-1] == 59 and counting.num_packets == expected


def test_a_seek_that_leads_elsewhere_is_none(made: dict[str, MediaRef], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "FAR", 0)
    with open_container(made["h264.mp4"]) as (container, _):
        told = cuts_of(container)
    with open_container(made["h264.mp4"]) as (container, _), pytest.raises(Unseekable):
        list(frames_between(Counting(container, int(told.shown[-1])), told, [30]))
    with open_container(made["h264.mp4"]) as (container, _):  # before it is good enough
        found = [number for number, _ in frames_between(Counting(container, 0), told, [30])]
        assert found[0] == 24 and 30 in found
    swapped = told.times.copy()
    swapped[[50, 51]] = swapped[[51, 50]]
    for at, wrong in ((30, told.times + 1), (50, swapped)):
        with open_container(made["h264.mp4"]) as (container, _), pytest.raises(Unseekable):
            list(frames_between(container, replace(told, times=wrong), [at]))
        monkeypatch.setattr(video, "cuts_of", lambda _, wrong=wrong: replace(told, times=wrong))
        assert_same(made["h264.mp4"], [(at,), (3, 30, 50)])


@pytest.mark.parametrize("name", [name for name, (*_, cuts) in MADE.items() if cuts is not None])
def test_cuts(name: str, made: dict[str, MediaRef]) -> None:
    """Where key frames begin anew there are cuts, and elsewhere there is none but the start."""
    with open_container(made[name]) as (container, _):
        found = cuts_of(container) if can_have_cuts(container) else FROM_START
    assert found.packets.tolist() == MADE[name][2]


def test_only_what_is_needed_is_decoded(made: dict[str, MediaRef]) -> None:
    for name, wanted, expected in [
        ("h264.mp4", [40], range(36, 48)),
        ("h264.mp4", [13, 40], [*range(12, 24), *range(36, 48)]),
        ("h264-b.mp4", [40], referred(made["h264-b.mp4"], 36, 48) | {40}),
        (
            "h264-b.mp4",
            [13, 40],
            {13, 40, *(n for run in ((12, 24), (36, 48)) for n in referred(made["h264-b.mp4"], *run))},
        ),
        ("mjpeg.avi", [7, 59], [7, 59]),
        ("h264.ts", [40], range(60)),
    ]:
        with open_container(made[name]) as (container, _):
            cuts = cuts_of(container) if can_have_cuts(container) else FROM_START
        with open_container(made[name]) as (container, _):
            assert [number for number, _ in frames_between(container, cuts, wanted)] == sorted(expected)


def referred(ref: MediaRef, start: int, end: int) -> set[int]:
    """Frames that others refer to: with two B-frames between others, all but those."""
    with av.open(ref.path) as container:
        kinds = [frame.pict_type for frame in container.decode(video=0)]
    found = {number for number in range(start, end) if kinds[number] != av.video.frame.PictureType.B}
    assert len(found) <= 6, "most are B-frames"
    return found


@given(cuts=st.sets(st.integers(1, 50)), wanted=st.lists(st.integers(0, 60), min_size=1))
def test_runs_hold_what_is_wanted_and_begin_at_cuts(cuts: set[int], wanted: list[int]) -> None:
    runs = _runs(np.array(sorted({0, *cuts})), wanted)
    spans = [range(start, 99 if end is None else end) for start, end in runs]
    assert all(any(number in span for span in spans) for number in wanted)
    assert all(span.start in {0, *cuts} and any(number in span for number in wanted) for span in spans)
    assert all(one.stop < other.start for one, other in zip(spans, spans[1:], strict=False)), "neighbours are one"


def test_where_frames_are_not_what_packets_say_the_start_decides(
    made: dict[str, MediaRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(container: Any) -> Cuts:
        told = cuts_of(container)
        return Cuts(packets=told.packets, shown=told.shown + 1)

    monkeypatch.setattr(video, "cuts_of", wrong)
    assert_same(made["h264.mp4"], [(3, 30), (30, 50)])


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real videos) is not here")
@pytest.mark.parametrize("far", [0, cuts.FAR])
def test_real_videos(far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "FAR", far)
    kinds = (".mp4", ".webm", ".avi", ".mov", ".ts")
    found = [path for path in sorted((SHARED / "data").rglob("*")) if path.suffix in kinds and path.name not in BROKEN]
    refs = [MediaRef(kind="video", path=str(path)) for path in found]
    assert len(refs) > 15
    for ref in refs:
        num_frames = len(video_facts(ref).times) - 2  # some end a frame before their packets do
        assert_same(ref, choices(max(1, num_frames))[3:4])


BROKEN = {"Mpeg4.mp4", "corrupted.mp4", "sample_audio_only.mp4", "zero_byte.webm"}
