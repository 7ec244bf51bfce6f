"""Frames of videos to RGB, with the matrix and the range named, so that every version of PyAV gives the same pixels.

PyAV 16 and older ignore the matrix that a frame is tagged with, PyAV 17 and newer follow it. Named matrices give the
pixels of PyAV 18.1 from PyAV 14.2 on, except for the frames in `oldest_pyav`.
"""

from functools import cache
from typing import Any

import numpy as np

from ..records import MediaError, MediaRef

# FFmpeg's numbers of matrices (AVColorSpace) -> those that PyAV takes. Frames without a tag (2) are BT.601, as FFmpeg
# takes them; 0 and 3 are RGB and reserved, where the number changes nothing.
BT601, BT709 = 5, 1
MATRICES = {0: BT601, 1: BT709, 2: BT601, 3: BT601, 4: 4, 5: BT601, 6: BT601, 7: 7, 9: 9}
LIMITED, FULL = 1, 2  # AVColorRange


def frame_to_rgb(frame: Any, ref: MediaRef) -> np.ndarray:
    """Return the pixels of a decoded frame, uint8 [height, width, 3], not yet rotated.

    Raises:
        MediaError: The matrix is unsupported, or the installed PyAV is too old for this kind of frame.
    """
    check_frame(frame, ref)
    matrix = MATRICES[int(frame.colorspace)]
    is_full = int(frame.color_range) == FULL or frame.format.name.startswith("yuvj")
    converted = frame.reformat(
        format="rgb24",
        src_colorspace=matrix,
        # RGB has no matrix. PyAV 16 sets the source's only if the two differ.
        dst_colorspace=BT709 if matrix == BT601 else BT601,
        src_color_range=FULL if is_full else LIMITED,
        dst_color_range=FULL,
    )
    pixels: np.ndarray = converted.to_ndarray()
    return pixels


def check_frame(frame: Any, ref: MediaRef) -> None:
    """Raise MediaError if the frame cannot be converted to the pixels that every supported PyAV gives."""
    name = frame.format.name
    if int(frame.colorspace) not in MATRICES:
        raise MediaError(
            "bad_media",
            f"{ref.shown}: unsupported color matrix (got FFmpeg's number {int(frame.colorspace)}, expected BT.601, "
            "BT.709, SMPTE 240M, FCC or BT.2020 non-constant). Convert the video.",
        )
    needed = oldest_pyav(name, frame.height)
    if (installed := pyav_version()) < needed:
        major, minor = needed
        raise MediaError(
            "bad_media",
            f"{ref.shown}: PyAV {'.'.join(map(str, installed))} converts {name} of {frame.height} rows to other pixels "
            f"than newer versions (expected PyAV {major}.{minor} or newer). pip install 'av>={major}.{minor}'.",
        )


@cache
def oldest_pyav(pixel_format: str, height: int) -> tuple[int, int]:
    """Return the first PyAV (major, minor) whose pixels equal those of PyAV 18.1 for such frames.

    FFmpeg 8 (PyAV 16) changed the scaler that odd heights and rare subsamplings go through, and the one of more than
    8 bits changed with PyAV 17.
    """
    import av

    described = av.VideoFormat(pixel_format)
    if max(component.bits for component in described.components) > 8:
        return 17, 1
    is_plain = not height % 2 and (described.chroma_width(64), described.chroma_height(64)) in PLAIN
    return (14, 2) if is_plain else (16, 0)


PLAIN = {(64, 64), (32, 64), (32, 32), (16, 64)}  # chroma of 64 x 64 pixels: 4:4:4, 4:2:2, 4:2:0, 4:1:1


@cache
def pyav_version() -> tuple[int, int]:
    """Return the installed version of PyAV, (major, minor)."""
    import av

    major, minor, *_ = av.__version__.split(".")
    return int(major), int(minor)
