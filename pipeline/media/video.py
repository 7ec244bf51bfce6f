"""Videos: how many frames there are, when and how large, by counting packets; and the frames that are wanted.

Headers alone are not trusted: containers may state a wrong duration, rate or number of frames.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..records import MeasuredMedia, MediaError, MediaRef
from .colors import check_frame, frame_to_rgb
from .cuts import FROM_START, Uncountable, Unseekable, can_have_cuts, cuts_of, frames_between, video_packets
from .image import decode_image, image_size
from .limits import limits
from .open import open_containers

UNKNOWN_FPS = 24.0  # of a list of pictures, or of a single frame: what transformers assumes
RATES = (1e-4, 1e6)  # frames per second; a header that states another rate is invalid
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
    with open_containers(ref) as (opened, budget):
        with opened() as container:
            if not container.streams.video:
                raise MediaError("bad_media", f"{ref.shown}: has no video stream", medium=ref.shown)
            stream = container.streams.video[0]
            header_rate = float(stream.average_rate or 0)
            size = f"{stream.codec_context.width}x{stream.codec_context.height}"
            num_pixels = stream.codec_context.width * stream.codec_context.height
            limits().check("max_image_pixels", num_pixels, ref, f"pixels in a frame ({size})")
            num_packets, times = 0, []
            for packet in video_packets(container):
                budget.check()
                num_packets += 1
                if packet.pts is not None:
                    times.append(float(packet.pts * packet.time_base))
        with opened() as container:
            first = next(container.decode(video=0), None) if num_packets else None
        if first is None:
            raise MediaError("bad_media", f"{ref.shown}: has no frames", medium=ref.shown)
        check_frame(first, ref)
        turned = first.rotation % 180 == 90
        height, width = (first.width, first.height) if turned else (first.height, first.width)
    fps = _rate(header_rate, times)
    if len(times) < num_packets:  # no timestamps: frames are as far apart as their rate says
        times = [number / fps for number in range(num_packets)]
    ascending = np.sort(np.array(times, dtype=np.float64))
    limits().check("max_media_seconds", ascending[-1] - ascending[0], ref, "seconds")
    return VideoFacts(height=height, width=width, fps=fps, times=ascending - ascending[0])


def _rate(header: float, times: Sequence[float]) -> float:
    header = header if RATES[0] <= header <= RATES[1] else 0.0
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
        raise MediaError(
            "bad_media", f"{ref.shown}: the pictures of a video have several sizes: {shown}", medium=ref.shown
        )
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
    for number, pixels in _listed(ref) if ref.frames else _decoded(medium):
        if number != left[0]:
            continue
        if pixels.shape[:2] != (medium.height, medium.width):
            was, now = f"{medium.width}x{medium.height}", f"{pixels.shape[1]}x{pixels.shape[0]}"
            raise MediaError(
                "bad_media", f"{ref.shown}: was {was} when measured, and frame {number} is {now}", medium=ref.shown
            )
        last = pixels
        while left and left[0] == number:
            yield pixels
            left.pop(0)
        if not left:
            return
    if last is None:
        raise MediaError(
            "bad_media", f"{ref.shown}: ends before frame {left[0]}, the first that was asked for", medium=ref.shown
        )
    for _ in left:
        yield last


def _decoded(medium: MeasuredMedia) -> Iterator[tuple[int, np.ndarray]]:
    """The wanted frames with their numbers: converting the others to RGB would be half the work."""
    wanted = sorted(set(medium.frames))
    with open_containers(medium.ref) as (opened, budget):
        budget.extend(wanted[-1] / (medium.fps or UNKNOWN_FPS))
        with opened() as container:
            cuts = cuts_of(container) if can_have_cuts(container) else FROM_START
        while True:
            try:
                with opened() as container:
                    for number, frame in frames_between(container, cuts, wanted):
                        budget.check()
                        if wanted and number == wanted[0]:
                            # FFmpeg counts the turn that the picture needs counterclockwise, as numpy does.
                            turned = np.rot90(frame_to_rgb(frame, medium.ref), round(frame.rotation / 90) % 4)
                            pixels = np.ascontiguousarray(turned)
                            with budget.paused():
                                yield wanted.pop(0), pixels
                return
            except Unseekable:
                cuts = replace(cuts, seeks=False) if cuts.seeks else FROM_START
            except Uncountable:
                cuts = FROM_START


def _listed(ref: MediaRef) -> Iterator[tuple[int, np.ndarray]]:
    for number, path in enumerate(ref.frames):
        yield number, decode_image(MediaRef(kind="image", path=path))
