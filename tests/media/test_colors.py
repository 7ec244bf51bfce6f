"""Pixels of tagged videos: the same from every version of PyAV, or a named error."""

import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers import DEMO_PROCESSOR, SHARED, film
from support.errors import raises_media_error

from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.measure.media import measure_medium
from neatpack.pipeline.media import colors
from neatpack.pipeline.media.colors import oldest_pyav
from neatpack.pipeline.media.open import open_container
from neatpack.pipeline.media.video import video_facts, wanted_frames
from neatpack.pipeline.records import MeasuredMedia, MediaRef

HEIGHT, WIDTH, NUM_FRAMES = 64, 96, 3
# FFmpeg's numbers of matrices, and Kr and Kb of each.
WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 5: (0.299, 0.114), 6: (0.299, 0.114), 7: (0.212, 0.087),
           9: (0.2627, 0.0593), 2: (0.299, 0.114)}  # fmt: skip
UNSUPPORTED = (8, 10, 11, 14)  # YCgCo, BT.2020 constant, Y'D'zD'x, ICtCp
# Directories made by `pip install --target DIR av==…`, separated by colons: the clips below are then decoded by each.
OTHER_PYAVS = [Path(folder) for folder in os.environ.get("NEATPACK_TEST_PYAVS", "").split(":") if folder]


def encode(
    path: Path, *, matrix: int = 2, color_range: int = 0, codec: str = "libx264", pix_fmt: str = "yuv420p",
    height: int = HEIGHT,
) -> MediaRef:  # fmt: skip
    """Write planes of one value each, which no conversion touches before they are encoded."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options={"crf": "1"} if codec == "libx264" else {})
        stream.height, stream.width, stream.pix_fmt = height, WIDTH, pix_fmt
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, color_range
        for number in range(NUM_FRAMES):
            frame = av.VideoFrame(WIDTH, height, pix_fmt)
            scale = 4 if "10" in pix_fmt else 1
            for plane, value in zip(frame.planes, (120, 100, 170), strict=True):
                dtype = np.uint16 if scale == 4 else np.uint8
                plane.update(np.full(plane.buffer_size // np.dtype(dtype).itemsize, value * scale, dtype).tobytes())
            frame.pts, frame.time_base = number, Fraction(1, 10)
            frame.colorspace, frame.color_range = matrix, color_range
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return MediaRef(kind="video", path=str(path))


def first_pixels(ref: MediaRef) -> np.ndarray:
    facts = video_facts(ref)
    medium = MeasuredMedia(ref=ref, height=facts.height, width=facts.width, size=(1, 1), grid=(1, 1, 1), frames=(0,))
    return next(wanted_frames(medium))


def expected_rgb(y: float, u: float, v: float, matrix: int, is_full: bool) -> list[float]:
    """Y'CbCr to R'G'B', as the standards define it."""
    red, blue = WEIGHTS[matrix]
    luma, chroma = (y / 255, 255) if is_full else ((y - 16) / 219, 224)
    pb, pr = (u - 128) / chroma, (v - 128) / chroma
    r, b = luma + 2 * (1 - red) * pr, luma + 2 * (1 - blue) * pb
    return [255 * r, 255 * (luma - red * r - blue * b) / (1 - red - blue), 255 * b]


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("matrix", WEIGHTS)
def test_tagged_video_is_converted_by_its_matrix_and_range(tmp_path: Path, matrix: int, is_full: bool) -> None:
    ref = encode(tmp_path / "a.mp4", matrix=matrix, color_range=2 if is_full else 1)
    found = first_pixels(ref).mean(axis=(0, 1))
    assert found == pytest.approx(expected_rgb(120, 100, 170, matrix, is_full), abs=2.5)


def test_bt709_and_bt601_differ_by_more_than_the_tolerance() -> None:
    one, other = (np.array(expected_rgb(120, 100, 170, matrix, False)) for matrix in (1, 5))
    assert np.abs(one - other).max() > 8


def test_full_range_is_read_from_the_tag_of_vp9(tmp_path: Path) -> None:
    """H.264 says it by the pixel format, too; VP9 by the tag alone."""
    ref = encode(tmp_path / "a.webm", matrix=1, color_range=2, codec="libvpx-vp9")
    assert first_pixels(ref).mean(axis=(0, 1)) == pytest.approx(expected_rgb(120, 100, 170, 1, True), abs=2.5)


@pytest.mark.parametrize("matrix", UNSUPPORTED)
def test_unsupported_matrix_is_named(tmp_path: Path, matrix: int) -> None:
    ref = encode(tmp_path / "a.mp4", matrix=matrix, color_range=1)
    with raises_media_error("bad_media", ref.path, f" {matrix},", "BT.601"):
        measure_medium(ref, family_for(str(DEMO_PROCESSOR)))


@pytest.mark.parametrize(
    ("pixel_format", "height", "version"),
    [
        ("yuv420p", 64, (14, 2)),
        ("yuvj420p", 64, (14, 2)),
        ("yuv422p", 64, (14, 2)),
        ("yuv444p", 64, (14, 2)),
        ("bgr0", 64, (14, 2)),
        ("yuv420p", 63, (16, 0)),
        ("yuv410p", 64, (16, 0)),
        ("yuv440p", 64, (16, 0)),
        ("yuv420p10le", 64, (17, 1)),
        ("yuv422p10le", 64, (17, 1)),
        ("gray12le", 64, (17, 1)),
    ],
)
def test_oldest_pyav_is_known_for(pixel_format: str, height: int, version: tuple[int, int]) -> None:
    assert oldest_pyav(pixel_format, height) == version


@pytest.mark.parametrize(
    ("made", "installed", "needed"),
    [({"pix_fmt": "yuv420p10le"}, (17, 0), "av>=17.1"), ({"codec": "libvpx-vp9", "height": 63}, (15, 1), "av>=16.0")],
)
def test_video_that_an_old_pyav_would_convert_otherwise_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, str | int], installed: tuple[int, int], needed: str
) -> None:
    ref = encode(tmp_path / "a.mkv", **made)  # type: ignore[arg-type]
    assert len(video_facts(ref).times) == NUM_FRAMES
    monkeypatch.setattr(colors, "pyav_version", lambda: installed)
    with raises_media_error("bad_media", ref.path, f"pip install '{needed}'"):
        measure_medium(ref, family_for(str(DEMO_PROCESSOR)))


def test_every_stream_is_decoded_by_one_thread(tmp_path: Path) -> None:
    """Damaged streams decode differently with more than one."""
    ref = encode(tmp_path / "a.mp4")
    for each, num_streams in ((ref, 1), (MediaRef(kind="video", path=str(film(tmp_path / "b.mp4"))), 2)):
        with open_container(each) as (container, _):
            assert [stream.codec_context.thread_count for stream in container.streams] == [1] * num_streams


def test_damaged_video_gives_the_frames_of_one_thread(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"x264-params": "slices=4:keyint=12"})
        stream.height, stream.width, stream.pix_fmt = 240, 320, "yuv420p"
        noise = rng.integers(0, 255, (240, 320, 3), dtype=np.uint8)
        for number in range(40):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, number, axis=1) // 2 + np.uint8(number), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    content = bytearray(path.read_bytes())
    for place in rng.integers(5000, len(content) - 5000, 60):
        content[place] ^= 0x55
    path.write_bytes(content)

    def frames(threads: int) -> list[np.ndarray]:
        with av.open(str(path)) as container:
            container.streams.video[0].codec_context.thread_count = threads
            return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]

    one, four = frames(1), frames(4)
    assert not np.array_equal(one, four), "the damage shows"
    ref = MediaRef(kind="video", path=str(path))
    medium = MeasuredMedia(ref=ref, height=240, width=320, size=(1, 1), grid=(1, 1, 1), frames=tuple(range(40)))
    assert np.array_equal(list(wanted_frames(medium)), one)


def test_ten_bit_video_equals_pyav_own_conversion(tmp_path: Path) -> None:
    ref = encode(tmp_path / "a.mp4", pix_fmt="yuv420p10le", matrix=9, color_range=1)
    with av.open(ref.path) as container:
        own = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert np.array_equal(first_pixels(ref), own)


# ---------------------------------------------------------------- versions of PyAV

DIGESTS = """
import hashlib, json, sys
from neatpack.pipeline.media.video import video_facts, wanted_frames
from neatpack.pipeline.records import MeasuredMedia, MediaRef
found = {}
for path in json.loads(sys.argv[1]):
    ref = MediaRef(kind="video", path=path)
    facts = video_facts(ref)
    frames = tuple(range(0, len(facts.times), max(1, len(facts.times) // 4)))
    medium = MeasuredMedia(ref=ref, height=facts.height, width=facts.width, size=(1, 1), grid=(1, 1, 1), frames=frames)
    digest = hashlib.sha256()
    for pixels in wanted_frames(medium):
        digest.update(pixels.tobytes())
    found[path] = digest.hexdigest()
print(json.dumps(found))
"""


def digests(paths: list[str], pyav: Path | None = None) -> dict[str, str]:
    env = {**os.environ, **({"PYTHONPATH": str(pyav)} if pyav else {})}
    ran = subprocess.run([sys.executable, "-c", DIGESTS, json.dumps(paths)], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def eight_bit_clips(folder: Path) -> list[str]:
    made = [
        encode(folder / f"{codec}-{pix_fmt}-{matrix}-{color_range}.mkv", codec=codec, pix_fmt=pix_fmt, matrix=matrix,
               color_range=color_range).path
        for codec, pix_fmt in (("libx264", "yuv420p"), ("libx264", "yuv422p"), ("libx264", "yuv444p"),
                               ("libvpx-vp9", "yuv420p"))
        for matrix in (1, 2, 5, 6, 7, 9)
        for color_range in (0, 1, 2)
    ]  # fmt: skip
    real = [SHARED / "data/media" / name for name in REAL_CLIPS] if SHARED.is_dir() else []
    return made + [str(path) for path in real]


REAL_CLIPS = ("mllm_demo_data/1.mp4", "mllm_demo_data/3.mp4", "mllm_demo_data/4.mp4", "mllm_demo_data/2.avi",
              "mantis/video/oa4_launch.webm")  # fmt: skip


@pytest.mark.skipif(not OTHER_PYAVS, reason="NEATPACK_TEST_PYAVS names no other versions of PyAV")
@pytest.mark.parametrize("pyav", OTHER_PYAVS, ids=lambda folder: folder.name)
def test_eight_bit_pixels_are_the_same_by_every_version(pyav: Path, tmp_path: Path) -> None:
    paths = eight_bit_clips(tmp_path)
    assert digests(paths, pyav) == digests(paths)


@pytest.mark.parametrize("matrix", [1, 5, 6, 7, 9])
def test_eight_bit_pixels_equal_pyav_own_conversion(matrix: int, tmp_path: Path) -> None:
    """PyAV 17 and newer follow the tag by themselves."""
    for color_range in (0, 1, 2):
        ref = encode(tmp_path / f"{color_range}.mp4", matrix=matrix, color_range=color_range)
        with av.open(ref.path) as container:
            own = next(container.decode(video=0)).to_ndarray(format="rgb24")
        assert hashlib.sha256(first_pixels(ref)).digest() == hashlib.sha256(own).digest()
