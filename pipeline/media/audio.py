"""Sound: decoded and resampled by FFmpeg. Counting its samples decodes it, too: no header tells them to the last one.

Encoders add a delay, containers trim it, resampling rounds: only counting is exact. A minute takes 0.1 to 0.2 seconds.
"""

from collections.abc import Iterator
from typing import Any

import av
import numpy as np

from ..records import MediaError, MediaRef
from .limits import limits
from .open import blamed, open_container


def decode_audio(ref: MediaRef, sampling_rate: int) -> np.ndarray:
    """The first audio stream as float32 samples at this rate, its channels averaged to one."""
    with blamed(ref):
        pieces = list(_resampled(_frames(ref), sampling_rate))
    samples = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)
    if not len(samples):
        raise MediaError("bad_media", f"{ref.path}: has no sound in it")
    return samples


def has_audio(ref: MediaRef) -> bool:
    """Whether a video has a sound track."""
    with open_container(ref) as (container, _):
        return bool(container.streams.audio)


def own_rate(ref: MediaRef) -> int:
    """The sampling rate that a file has."""
    with open_container(ref) as (container, _):
        return int(_stream(container, ref).rate)


def _stream(container: Any, ref: MediaRef) -> Any:
    if not container.streams.audio:
        raise MediaError("bad_media", f"{ref.path}: has no audio stream")
    return container.streams.audio[0]


def _frames(ref: MediaRef) -> Iterator[av.AudioFrame]:
    if isinstance(ref.held, tuple):
        samples, rate = ref.held
        channels = np.atleast_2d(np.asarray(samples, dtype=np.float32))
        # Held sounds are [samples] or [channels, samples]; a mean is taken here, so that one layout serves all.
        frame = av.AudioFrame.from_ndarray(channels.mean(axis=0, keepdims=True), format="fltp", layout="mono")
        frame.sample_rate = int(rate)
        yield frame
        return
    with open_container(ref) as (container, budget):
        _stream(container, ref).codec_context.thread_count = 1  # a task has one core
        seconds, granted = 0.0, 0
        for frame in container.decode(audio=0):
            yield frame
            seconds += frame.samples / frame.sample_rate
            limits().check("max_media_seconds", seconds, ref, "seconds and more")
            if seconds > granted + 60:
                granted += 60
                budget.extend(60)
            budget.check()


def _resampled(frames: Iterator[av.AudioFrame], rate: int) -> Iterator[np.ndarray]:
    """Channel by channel, and averaged only then: FFmpeg's own mix of two floats is louder than either."""
    resampler = None
    for frame in frames:
        frame.pts = None  # broken timestamps must not make FFmpeg fill or drop samples
        resampler = resampler or av.AudioResampler(format="fltp", layout=frame.layout, rate=rate)
        for resampled in resampler.resample(frame):
            yield resampled.to_ndarray().mean(axis=0, dtype=np.float32)
    if resampler is not None:
        for resampled in resampler.resample(None):
            yield resampled.to_ndarray().mean(axis=0, dtype=np.float32)
