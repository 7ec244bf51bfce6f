"""MediaRef -> MeasuredMedia: what a header says, and what the family's rules make of it."""

from collections.abc import Callable

import numpy as np

from neatpack.errors import UserError

from ..families.base import Family, ImageRule, MediaRule, SoundRule, VideoRule
from ..media.audio import count_samples, has_audio
from ..media.budget import Budget
from ..media.image import image_size, size_by_header
from ..media.limits import Limits, limits
from ..media.stamp import Stamped, stamped
from ..media.video import VideoFacts, video_facts
from ..records import NO_WISHES, MeasuredMedia, MediaError, MediaRef


def measure_medium(
    ref: MediaRef,
    family: Family,
    num_images: int = 1,
    bounds: Limits | None = None,
    before: Callable[[], None] = lambda: None,
) -> MeasuredMedia:
    """`num_images`: of the conversation; `bounds`: what `limits` gives, where many are measured; `before`: is called
    before a decoder sees the medium. Raises MediaError where it cannot be used."""
    found = stamped(ref)  # before it is read: if it changes meanwhile, that is noticed later
    rule = family.rules.get(ref.kind)
    if rule is not None and ref.wishes is not NO_WISHES and ref.wishes != NO_WISHES:
        rule = _wished(ref, rule, ref.wishes.given, family)
    if isinstance(rule, ImageRule):
        return _measure_image(ref, rule, num_images, found, bounds or limits(), before)
    before()
    if isinstance(rule, VideoRule):
        return _measure_video(ref, rule, found.stamp)
    if isinstance(rule, SoundRule):
        return _measure_sound(ref, rule, found.stamp)
    raise MediaError(f"{ref.kind}_unsupported", family.refusal(ref.kind), kind=ref.kind, family=family.name)


def _wished(ref: MediaRef, rule: MediaRule, asked: dict[str, int], family: Family) -> MediaRule:
    """The rule with what the row asks of this medium; what the family cannot follow is refused, and not ignored."""
    for name in asked:
        if name not in rule.wishes:
            known = ", ".join(rule.wishes) or "nothing"
            raise MediaError(
                "bad_row", f"{ref.shown}: {name}: {family.name} takes {known} of a single {ref.kind}; remove it"
            )
    return rule.wished(asked)


def _refusal(ref: MediaRef, error: ValueError) -> Exception:
    """A rule refuses a shape (an aspect ratio, say) by a ValueError. A UserError is not about the medium: about the
    processor, or what was asked for."""
    return error if isinstance(error, UserError) else MediaError("bad_media", f"{ref.shown}: {error}", medium=ref.shown)


def _measure_image(
    ref: MediaRef, rule: ImageRule, num_images: int, found: Stamped, bounds: Limits, before: Callable[[], None]
) -> MeasuredMedia:
    told = size_by_header(found.beginning, bounds) if found.size <= bounds.max_media_bytes else None
    if told is None:
        before()
        told = image_size(ref)
    height, width = told
    try:
        size, grid = rule.shape(height, width, num_images)
    except ValueError as error:
        raise _refusal(ref, error) from None
    return MeasuredMedia(ref=ref, height=height, width=width, size=size, grid=grid, stamp=found.stamp)


def _measure_video(ref: MediaRef, rule: VideoRule, stamp: str) -> MeasuredMedia:
    """Which frames are taken, by the processor's rules and the row's wishes, and the grid they give."""
    facts = video_facts(ref)
    window = _window(ref, facts)
    asked = ref.sampling
    try:
        with Budget(ref):
            frames = _chosen_frames(ref, rule, facts, window)
            size, grid = rule.shape(len(frames), facts.height, facts.width)
    except ValueError as error:
        raise _refusal(ref, error) from None
    num_samples = 0
    if rule.sound and not ref.frames and has_audio(ref):
        num_samples = _measure_sound(ref, rule.sound, stamp).num_samples
    return MeasuredMedia(
        ref=ref, height=facts.height, width=facts.width, size=size, grid=grid, frames=tuple(frames.tolist()),
        total_frames=len(window), fps=facts.fps, asked_fps=asked.fps or 0.0, num_samples=num_samples,
        stamp=stamp,
    )  # fmt: skip


def _chosen_frames(ref: MediaRef, rule: VideoRule, facts: VideoFacts, window: np.ndarray) -> np.ndarray:
    """The frames to take, ascending: as many as the row lists, or else no more than the rule makes of the window."""
    listed, total = ref.sampling.frame_indices, len(facts.times)
    if listed is None:
        return window if ref.frames else window[rule.choose(len(window), facts.fps, ref.sampling.fps)]
    if len(listed) > total:
        raise ValueError(f"frame_indices has {len(listed)} entries (expected at most {total}, as many as frames)")
    frames = np.array(listed)
    if not len(frames) or frames.min() < 0 or frames.max() >= total:
        raise ValueError(f"frame_indices outside its {total} frames")
    return frames


def _window(ref: MediaRef, facts: VideoFacts) -> np.ndarray:
    """The frames from which to choose: all, or those between the row's video_start and video_end."""
    start, end = ref.sampling.start, ref.sampling.end
    if start is None and end is None:
        return np.arange(len(facts.times))
    begin, stop = start or 0.0, np.inf if end is None else end
    window = np.flatnonzero((facts.times >= begin) & (facts.times < stop))
    if not len(window):
        length = facts.times[-1]
        raise MediaError(
            "bad_media",
            f"{ref.shown}: no frame from {begin} s to {stop} s; it ends at {length:.2f} s",
            medium=ref.shown,
        )
    return window


def _measure_sound(ref: MediaRef, rule: SoundRule, stamp: str) -> MeasuredMedia:
    num_samples = count_samples(ref, rule.sampling_rate)
    try:
        frames = rule.frames(num_samples)
    except ValueError as error:
        raise _refusal(ref, error) from None
    return MeasuredMedia(ref=ref, grid=(frames, 1, 1), num_samples=num_samples, stamp=stamp)
