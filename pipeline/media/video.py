"""Videos: how many frames there are, when and how large, by counting packets; and the frames that are wanted.

Headers alone are not trusted: containers may state a wrong duration, rate or number of frames.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..records import MeasuredMedia, MediaError, MediaRef
from .image import decode_image, image_size
from .limits import limits
from .open import open_container

UNKNOWN_FPS = 24.0  # of a list of pictures, or of a single frame: what transformers assumes
MAX_RATE_ERROR = 1.5  # a header's frame rate further off than this from the counted one is wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFacts:
    height: int  # as displayed
    width: int
    fps: float
    times: np.ndarray  # float64 seconds of every frame from the first one, ascending


def video_facts(ref: MediaRef) -> VideoFacts:
    """One pass over the packets; only the first frame is decoded, for it alone tells how the picture is turned."""
    if ref.frames:
        return _facts_of_pictures(ref)
    with open_container(ref) as container:
        if not container.streams.video:
            raise MediaError("bad_media", f"{ref.path}: has no video stream")
        stream = container.streams.video[0]
        header_rate = float(stream.average_rate or 0)
        size = stream.codec_context
        limits().check(
            "max_image_pixels", size.width * size.height, ref, f"pixels in a frame ({size.width}x{size.height})"
        )
        num_packets, times = 0, []
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                num_packets += 1
                if packet.pts is not None:
                    times.append(float(packet.pts * packet.time_base))
    if not num_packets:
        raise MediaError("bad_media", f"{ref.path}: has no frames")
    with open_container(ref) as container:
        first = next(container.decode(video=0), None)
        if first is None:
            raise MediaError("bad_media", f"{ref.path}: has no frames")
        turned = first.rotation % 180 == 90
        height, width = (first.width, first.height) if turned else (first.height, first.width)
    fps = _rate(header_rate, times)
    if len(times) < num_packets:  # no timestamps: frames are as far apart as their rate says
        times = [number / fps for number in range(num_packets)]
    ascending = np.sort(np.array(times, dtype=np.float64))
    limits().check("max_media_seconds", ascending[-1] - ascending[0], ref, "seconds")
    return VideoFacts(height=height, width=width, fps=fps, times=ascending - ascending[0])


def _rate(header: float, times: Sequence[float]) -> float:
    span = max(times) - min(times) if times else 0.0
    counted = (len(times) - 1) / span if span > 0 else 0.0
    if header and counted and not 1 / MAX_RATE_ERROR < header / counted < MAX_RATE_ERROR:
        return counted
    return header or counted or UNKNOWN_FPS


def _facts_of_pictures(ref: MediaRef) -> VideoFacts:
    """A list of pictures; they must be of one size."""
    sizes = {image_size(MediaRef(kind="image", path=path)) for path in ref.frames}
    if len(sizes) > 1:
        shown = ", ".join(f"{width}x{height}" for height, width in sorted(sizes))
        raise MediaError("bad_media", f"{ref.path}: the pictures of a video have several sizes: {shown}")
    ((height, width),) = sizes
    fps = ref.sampling.fps or UNKNOWN_FPS
    return VideoFacts(height=height, width=width, fps=fps, times=np.arange(len(ref.frames)) / fps)


def wanted_frames(medium: MeasuredMedia) -> Iterator[np.ndarray]:
    """The frames to take, RGB and as displayed, in their order. A frame that is asked for twice comes twice.

    Some files end a frame or two before their packets do (packed B-frames): the last frame stands in for those.
    """
    ref = medium.ref
    last = None
    left = list(medium.frames)
    for number, pixels in enumerate(_listed(ref) if ref.frames else _decoded(ref, set(left))):
        if pixels is None or number < left[0]:
            continue
        if pixels.shape[:2] != (medium.height, medium.width):
            was, now = f"{medium.width}x{medium.height}", f"{pixels.shape[1]}x{pixels.shape[0]}"
            raise MediaError("bad_media", f"{ref.path}: was {was} when measured, and frame {number} is {now}")
        last = pixels
        while left and left[0] == number:
            yield pixels
            left.pop(0)
        if not left:
            return
    if last is None:
        raise MediaError("bad_media", f"{ref.path}: ends before frame {left[0]}, the first that was asked for")
    for _ in left:
        yield last


def _decoded(ref: MediaRef, wanted: set[int]) -> Iterator[np.ndarray | None]:
    """Every frame in order, as None where nobody asks for it: converting to RGB is half the work."""
    with open_container(ref) as container:
        container.streams.video[0].codec_context.thread_count = 1  # a task has one core
        for number, frame in enumerate(container.decode(video=0)):
            if number not in wanted:
                yield None
                continue
            # FFmpeg counts the turn that the picture needs counterclockwise, as numpy does.
            pixels = frame.to_ndarray(format="rgb24")
            yield np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90) % 4))


def _listed(ref: MediaRef) -> Iterator[np.ndarray]:
    for path in ref.frames:
        yield decode_image(MediaRef(kind="image", path=path))
