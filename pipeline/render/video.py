"""The frames of a video that are wanted: decoded in order and turned."""

from collections.abc import Iterator

import av
import numpy as np

from pipeline.measure.probe import ffmpeg_trouble, open_media
from pipeline.records import MeasuredMedia, MediaError, MediaRef
from pipeline.render.image import decode_image


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
    with open_media(ref) as file:
        try:
            with av.open(file, "r", metadata_errors="ignore") as container:
                container.streams.video[0].codec_context.thread_count = 1  # a task has one core
                for number, frame in enumerate(container.decode(video=0)):
                    if number not in wanted:
                        yield None
                        continue
                    # FFmpeg counts the turn that the picture needs counterclockwise, as numpy does.
                    pixels = frame.to_ndarray(format="rgb24")
                    yield np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90) % 4))
        except (av.FFmpegError, UnicodeDecodeError) as error:
            raise ffmpeg_trouble(ref, error) from None


def _listed(ref: MediaRef) -> Iterator[np.ndarray]:
    for path in ref.frames:
        yield decode_image(MediaRef(kind="image", path=path))
