"""Media decoded: pictures as displayed in RGB, the frames of a video that are wanted, the samples of a sound."""

from typing import Any

from neatpack.pipeline.families.base import Family
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.media.image import decode_image
from neatpack.pipeline.media.video import wanted_frames
from neatpack.pipeline.records import MeasuredMedia, MediaError, MediaKind


def decoded(medium: MeasuredMedia, kind: MediaKind, family: Family) -> Any:
    """A medium opened as what the family wants of it: a video may be asked for its sound."""
    if kind == "video":
        return wanted_frames(medium)
    if kind == "audio":
        samples = decode_audio(medium.ref, family.sampling_rate)
        if len(samples) != medium.num_samples:
            raise MediaError(
                "bad_media", f"{medium.ref.path}: had {medium.num_samples} samples when measured, now {len(samples)}"
            )
        return samples
    pixels = decode_image(medium.ref)
    if pixels.shape[:2] != (medium.height, medium.width):
        was, now = f"{medium.width}x{medium.height}", f"{pixels.shape[1]}x{pixels.shape[0]}"
        raise MediaError("bad_media", f"{medium.ref.path}: was {was} when measured and is {now} now")
    return pixels
