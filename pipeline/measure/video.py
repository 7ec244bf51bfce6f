"""Video containers: how many frames, when, and how large, by counting packets; no header is believed alone."""

import dataclasses
from dataclasses import dataclass

import av
import numpy as np

from pipeline.families.base import Family
from pipeline.families.geometry import VideoGeometry
from pipeline.measure.probe import MediaError, image_size, open_media
from pipeline.records import MeasuredMedia, MediaRef

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
    asked, geometry = ref.sampling, family.video
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
        if asked.fps is not None:
            geometry = dataclasses.replace(geometry, fps=asked.fps, num_frames=None, samples_frames=True)
        frames = window[family.spec.sample_frames(geometry, len(window), facts.fps)]
    return with_frames(ref, facts.height, facts.width, frames.tolist(), len(window), facts.fps, family)


def with_frames(
    ref: MediaRef, height: int, width: int, frames: list[int], total: int, fps: float, family: Family,
    geometry: VideoGeometry | None = None,
) -> MeasuredMedia:  # fmt: skip
    """A video of these frames; what does not fill a last temporal patch is filled with its last frame."""
    geometry = geometry or family.video
    try:
        new_height, new_width = family.spec.resize_video(geometry, len(frames), height, width)
    except ValueError as error:  # an aspect ratio that smart_resize refuses
        raise MediaError("bad_media", f"{ref.path}: {error}") from None
    grid = (-(-len(frames) // geometry.temporal_patch_size), new_height // geometry.patch_size,
            new_width // geometry.patch_size)  # fmt: skip
    return MeasuredMedia(
        ref=ref, height=height, width=width, grid=grid, frames=tuple(frames), total_frames=total, fps=fps
    )


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


def ffmpeg_trouble(ref: MediaRef, error: Exception) -> MediaError:
    """What FFmpeg says, without the name of the file object that PyAV adds: it has an address in it."""
    words = (getattr(error, "strerror", None) or str(error)).split(":")[0]
    return MediaError("bad_media", f"{ref.path}: {type(error).__name__}: {words}")


def _list_facts(ref: MediaRef) -> VideoFacts:
    """A list of pictures; they must be of one size."""
    sizes = {image_size(MediaRef(kind="image", path=path)) for path in ref.frames}
    if len(sizes) > 1:
        shown = ", ".join(f"{width}x{height}" for height, width in sorted(sizes))
        raise MediaError("bad_media", f"{ref.path}: the pictures of a video have several sizes: {shown}")
    ((height, width),) = sizes
    fps = ref.sampling.fps or UNKNOWN_FPS
    return VideoFacts(height=height, width=width, fps=fps, times=np.arange(len(ref.frames)) / fps)
