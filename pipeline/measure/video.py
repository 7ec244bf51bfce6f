"""Video containers: how many frames, when, and how large, by counting packets; no header is believed alone."""

from dataclasses import dataclass

import av
import numpy as np

from pipeline.families.base import Family
from pipeline.measure.audio import decode_audio, feature_frames, has_audio
from pipeline.measure.probe import ffmpeg_trouble, image_size, open_media
from pipeline.records import MeasuredMedia, MediaError, MediaRef

UNKNOWN_FPS = 24.0  # of a list of pictures, or of a single frame: what transformers assumes
MAX_RATE_ERROR = 1.5  # a header's frame rate further off than this from the counted one is a lie


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFacts:
    height: int  # as displayed
    width: int
    fps: float
    times: np.ndarray  # float64 seconds of every frame from the first one, ascending


def measure_video(ref: MediaRef, family: Family) -> MeasuredMedia:
    """Which frames are taken, by the processor's rules and the row's wishes, and the grid they give."""
    facts = _list_facts(ref) if ref.frames else video_facts(ref)
    asked = ref.sampling
    window = np.arange(len(facts.times))
    if asked.start is not None or asked.end is not None:
        start, end = asked.start or 0.0, np.inf if asked.end is None else asked.end
        window = np.flatnonzero((facts.times >= start) & (facts.times < end))
        if not len(window):
            length = facts.times[-1]
            raise MediaError("bad_media", f"{ref.path}: no frame from {start} s to {end} s; it ends at {length:.2f} s")
    if asked.frame_indices is not None:
        frames = np.array(asked.frame_indices)
        if not len(frames) or frames.min() < 0 or frames.max() >= len(facts.times):
            raise MediaError("bad_media", f"{ref.path}: frame_indices outside its {len(facts.times)} frames")
    elif ref.frames:
        frames = window
    else:
        frames = window[family.sample_frames(len(window), facts.fps, asked.fps)]
    try:
        size, grid = family.video_shape(len(frames), facts.height, facts.width)
    except ValueError as error:  # an aspect ratio that smart_resize refuses
        raise MediaError("bad_media", f"{ref.path}: {error}") from None
    num_samples = 0
    if family.uses_audio_in_video and not ref.frames and has_audio(ref):
        num_samples = len(decode_audio(ref, family.sampling_rate))
        feature_frames(ref, num_samples, family)
    return MeasuredMedia(
        ref=ref, height=facts.height, width=facts.width, size=size, grid=grid, frames=tuple(frames.tolist()),
        total_frames=len(window), fps=facts.fps, asked_fps=asked.fps or 0.0, num_samples=num_samples,
    )  # fmt: skip


def video_facts(ref: MediaRef) -> VideoFacts:
    """One pass over the packets; only the first frame is decoded, for it alone tells how the picture is turned."""
    with open_media(ref) as file:
        try:
            with av.open(file, "r", metadata_errors="ignore") as container:
                if not container.streams.video:
                    raise MediaError("bad_media", f"{ref.path}: has no video stream")
                stream = container.streams.video[0]
                header_rate = float(stream.average_rate or 0)
                packets = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
                times = [float(p.pts * p.time_base) for p in packets if p.pts is not None]
                if not packets:
                    raise MediaError("bad_media", f"{ref.path}: has no frames")
            file.seek(0)
            with av.open(file, "r", metadata_errors="ignore") as container:
                first = next(container.decode(video=0), None)
                if first is None:
                    raise MediaError("bad_media", f"{ref.path}: has no frames")
                turned = first.rotation % 180 == 90
                height, width = (first.width, first.height) if turned else (first.height, first.width)
        except (av.FFmpegError, UnicodeDecodeError) as error:
            raise ffmpeg_trouble(ref, error) from None
    fps = _rate(header_rate, times)
    if len(times) < len(packets):  # no timestamps: frames are as far apart as their rate says
        times = [number / fps for number in range(len(packets))]
    ascending = np.sort(np.array(times, dtype=np.float64))
    return VideoFacts(height=height, width=width, fps=fps, times=ascending - ascending[0])


def _rate(header: float, times: list[float]) -> float:
    span = max(times) - min(times) if times else 0.0
    counted = (len(times) - 1) / span if span > 0 else 0.0
    if header and counted and not 1 / MAX_RATE_ERROR < header / counted < MAX_RATE_ERROR:
        return counted
    return header or counted or UNKNOWN_FPS


def _list_facts(ref: MediaRef) -> VideoFacts:
    """A list of pictures; they must be of one size."""
    sizes = {image_size(MediaRef(kind="image", path=path)) for path in ref.frames}
    if len(sizes) > 1:
        shown = ", ".join(f"{width}x{height}" for height, width in sorted(sizes))
        raise MediaError("bad_media", f"{ref.path}: the pictures of a video have several sizes: {shown}")
    ((height, width),) = sizes
    fps = ref.sampling.fps or UNKNOWN_FPS
    return VideoFacts(height=height, width=width, fps=fps, times=np.arange(len(ref.frames)) / fps)
