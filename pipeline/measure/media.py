"""MediaRef -> MeasuredMedia: what a header says, and what the family's rules make of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ..errors import UserError
from ..families.base import Family, ImageRule, MediaRule, SoundRule, VideoRule
from ..media.audio import count_samples, has_audio
from ..media.image import image_size
from ..media.stamp import stamp_of
from ..media.video import VideoFacts, video_facts
from ..records import MeasuredMedia, MediaError, MediaRef


def measure_medium(ref: MediaRef, family: Family, num_images: int = 1) -> MeasuredMedia:
    """`num_images`: of the conversation. Raises MediaError where the medium cannot be used."""
    stamp = stamp_of(ref)  # before it is read: if it changes meanwhile, that is noticed later
    return replace(_measured(ref, family, num_images), stamp=stamp)


def _measured(ref: MediaRef, family: Family, num_images: int) -> MeasuredMedia:
    rule = family.rules.get(ref.kind)
    if rule is not None and (asked := ref.wishes.given):
        rule = _wished(ref, rule, asked, family)
    if isinstance(rule, ImageRule):
        return _measure_image(ref, rule, num_images)
    if isinstance(rule, VideoRule):
        return _measure_video(ref, rule)
    if isinstance(rule, SoundRule):
        return _measure_sound(ref, rule)
    raise MediaError(f"{ref.kind}_unsupported", family.refusal(ref.kind))


def _wished(ref: MediaRef, rule: MediaRule, asked: dict[str, int], family: Family) -> MediaRule:
    """The rule with what the row asks of this medium; what the family cannot follow is refused, and not ignored."""
    for name in asked:
        if name not in rule.wishes:
            known = ", ".join(rule.wishes) or "nothing"
            raise MediaError(
                "bad_row", f"{ref.path}: {name}: {family.name} takes {known} of a single {ref.kind}; remove it"
            )
    return rule.wished(asked)


@contextmanager
def _refusals_of(ref: MediaRef) -> Iterator[None]:
    """Around what a rule says of a medium: it refuses a shape (an aspect ratio, say) by a ValueError."""
    try:
        yield
    except UserError:  # not of the medium: of the processor, or of what was asked for
        raise
    except ValueError as error:
        raise MediaError("bad_media", f"{ref.path}: {error}") from None


def _measure_image(ref: MediaRef, rule: ImageRule, num_images: int) -> MeasuredMedia:
    height, width = image_size(ref)
    with _refusals_of(ref):
        size, grid = rule.shape(height, width, num_images)
    return MeasuredMedia(ref=ref, height=height, width=width, size=size, grid=grid)


def _measure_video(ref: MediaRef, rule: VideoRule) -> MeasuredMedia:
    """Which frames are taken, by the processor's rules and the row's wishes, and the grid they give."""
    facts = video_facts(ref)
    window = _window(ref, facts)
    asked = ref.sampling
    if asked.frame_indices is not None:
        frames = np.array(asked.frame_indices)
        if not len(frames) or frames.min() < 0 or frames.max() >= len(facts.times):
            raise MediaError("bad_media", f"{ref.path}: frame_indices outside its {len(facts.times)} frames")
    elif ref.frames:
        frames = window
    else:
        with _refusals_of(ref):
            frames = window[rule.choose(len(window), facts.fps, asked.fps)]
    with _refusals_of(ref):
        size, grid = rule.shape(len(frames), facts.height, facts.width)
    num_samples = 0
    if rule.sound and not ref.frames and has_audio(ref):
        num_samples = _measure_sound(ref, rule.sound).num_samples
    return MeasuredMedia(
        ref=ref, height=facts.height, width=facts.width, size=size, grid=grid, frames=tuple(frames.tolist()),
        total_frames=len(window), fps=facts.fps, asked_fps=asked.fps or 0.0, num_samples=num_samples,
    )  # fmt: skip


def _window(ref: MediaRef, facts: VideoFacts) -> np.ndarray:
    """The frames from which to choose: all, or those between the row's video_start and video_end."""
    start, end = ref.sampling.start, ref.sampling.end
    if start is None and end is None:
        return np.arange(len(facts.times))
    begin, stop = start or 0.0, np.inf if end is None else end
    window = np.flatnonzero((facts.times >= begin) & (facts.times < stop))
    if not len(window):
        length = facts.times[-1]
        raise MediaError("bad_media", f"{ref.path}: no frame from {begin} s to {stop} s; it ends at {length:.2f} s")
    return window


def _measure_sound(ref: MediaRef, rule: SoundRule) -> MeasuredMedia:
    num_samples = count_samples(ref, rule.sampling_rate)
    with _refusals_of(ref):
        frames = rule.frames(num_samples)
    return MeasuredMedia(ref=ref, grid=(frames, 1, 1), num_samples=num_samples)
