"""Sound: decoded and resampled by FFmpeg. Counting its samples decodes it, too: no header tells them to the last one.

Encoders add a delay, containers trim it: only counting is exact. What resampling makes of a count is told without it.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
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
        raise MediaError("bad_media", f"{ref.shown}: has no sound in it", medium=ref.shown)
    return samples


def count_samples(ref: MediaRef, sampling_rate: int) -> int:
    """How many `decode_audio` gives."""
    total, kinds = 0, set()
    with blamed(ref):
        for frame in _frames(ref):
            total += frame.samples
            kinds.add((frame.sample_rate, frame.layout.name, frame.format.name))
    if len(kinds) != 1 or not total:  # FFmpeg may refuse a change on the way; and what is wrong is said there
        return len(decode_audio(ref, sampling_rate))
    ((rate, *_),) = kinds
    return resampled_length(total, rate, sampling_rate)


LONG = 1 << 14  # samples; more than any filter of the resampler reaches over
MOST_RATIO = 64  # of two rates up to which that is so: a filter has 32 samples at the lower one


def resampled_length(num_samples: int, rate: int, new_rate: int) -> int:
    """Samples that FFmpeg's resampler makes of so many, however they are cut into frames.

    Behind its beginning it does the same again and again: 441 samples at 44,100 Hz are 160 at 16,000. So a long sound
    is counted by a short one, and a multiple of those.
    """
    common = math.gcd(rate, new_rate)
    period, per_period = rate // common, new_rate // common
    times = max(0, num_samples - LONG) // period if rate <= MOST_RATIO * new_rate else 0
    return _counted(num_samples - times * period, rate, new_rate) + times * per_period


@lru_cache(maxsize=4096)
def _counted(num_samples: int, rate: int, new_rate: int) -> int:
    """By resampling silence."""
    frame = av.AudioFrame.from_ndarray(np.zeros((1, num_samples), np.float32), format="fltp", layout="mono")
    frame.sample_rate = rate
    return sum(map(len, _resampled(iter([frame]), new_rate)))


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
        raise MediaError("bad_media", f"{ref.shown}: has no audio stream", medium=ref.shown)
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
        _stream(container, ref)
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
