"""MediaRef -> MeasuredMedia: what a header says, and what the family's rules make of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from neatpack.pipeline.families.base import Family
from neatpack.pipeline.media.audio import decode_audio, has_audio
from neatpack.pipeline.media.image import image_size
from neatpack.pipeline.media.video import video_facts
from neatpack.pipeline.records import MeasuredMedia, MediaError, MediaRef


def measure_medium(ref: MediaRef, family: Family, num_images: int = 1) -> MeasuredMedia:
    """`num_images`: of the conversation. Raises MediaError where the medium cannot be used."""
    if ref.kind == "video":
        return measure_video(ref, family)
    if ref.kind == "audio":
        return measure_audio(ref, family)
    return measure_image(ref, family, num_images)


@contextmanager
def _naming(ref: MediaRef) -> Iterator[None]:
    """A family's rules refuse a shape by a ValueError (an aspect ratio, say); here it gets the name of the medium."""
    try:
        yield
    except ValueError as error:
        raise MediaError("bad_media", f"{ref.path}: {error}") from None


def measure_image(ref: MediaRef, family: Family, num_images: int = 1) -> MeasuredMedia:
    height, width = image_size(ref)
    with _naming(ref):
        size, grid = family.image_shape(height, width, num_images)
    return MeasuredMedia(ref=ref, height=height, width=width, size=size, grid=grid)


def measure_video(ref: MediaRef, family: Family) -> MeasuredMedia:
    """Which frames are taken, by the processor's rules and the row's wishes, and the grid they give."""
    facts = video_facts(ref)
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
    with _naming(ref):
        size, grid = family.video_shape(len(frames), facts.height, facts.width)
    num_samples = 0
    if family.uses_audio_in_video and not ref.frames and has_audio(ref):
        num_samples, _ = _sound(ref, family)
    return MeasuredMedia(
        ref=ref, height=facts.height, width=facts.width, size=size, grid=grid, frames=tuple(frames.tolist()),
        total_frames=len(window), fps=facts.fps, asked_fps=asked.fps or 0.0, num_samples=num_samples,
    )  # fmt: skip


def measure_audio(ref: MediaRef, family: Family) -> MeasuredMedia:
    num_samples, feature_frames = _sound(ref, family)
    return MeasuredMedia(ref=ref, grid=(feature_frames, 1, 1), num_samples=num_samples)


def _sound(ref: MediaRef, family: Family) -> tuple[int, int]:
    """Samples at the family's rate, and feature frames."""
    num_samples = len(decode_audio(ref, family.sampling_rate))
    with _naming(ref):
        return num_samples, family.audio_frames(num_samples)
