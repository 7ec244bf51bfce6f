"""Measured -> Sample: decode, expand, label, position, shift. Each is done once, here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neatpack.format.layout import IGNORE

from ..families.base import Arrays, Family, ImageRule, MediaRule, SoundRule
from ..labels import labels_of, mask_spans, shifted, spans_mask
from ..measure.length import expansions, target_mask_of
from ..media.audio import decode_audio
from ..media.budget import shared_budget
from ..media.image import decode_image
from ..media.pixels import RESIZE
from ..media.video import wanted_frames
from ..records import Measured, MeasuredMedia, MediaError, Sample
from ..runtime.work import each_timed, timed


@dataclass(frozen=True, kw_only=True, slots=True)
class Expanded:
    """A document before labels, positions and shift: its media are arrays, and stand in its ids as they will."""

    ids: np.ndarray  # int32: every placeholder has given way to its tokens
    targets: np.ndarray  # int32 [n, 2]: which of them are trained on, as spans [start, stop)
    media: tuple[Arrays, ...]  # in pieces, for `Family.joined`; nothing: it has none


def expanded(measured: Measured, family: Family, resize: str) -> Expanded:
    """Raises MediaError where a medium cannot be decoded."""
    if not measured.media:
        return Expanded(ids=measured.ids, targets=measured.targets, media=())
    num_frames = sum([len(medium.ref.frames) for medium in measured.media])
    with timed("resizing"), shared_budget(num_frames):
        media = family.document_pieces(measured.ids, measured.media, decoded, RESIZE[resize])
    places = expansions(measured.ids, measured.media, family)
    # What a medium expands to is no target, also where its placeholder stands in trained text.
    targets = expand(target_mask_of(measured), [(place, np.zeros(len(tokens), bool)) for place, tokens in places])
    return Expanded(ids=expand(measured.ids, places), targets=mask_spans(targets), media=tuple(media))


def render_whole(measured: Measured, family: Family, resize: str) -> Sample:
    """A document before the shift. Raises MediaError where a medium cannot be decoded."""
    document = expanded(measured, family, resize)
    media = family.joined(document.media)
    types = family.chat.token_types(document.ids)
    return Sample(
        input_ids=document.ids,
        labels=labels_of(document.ids, spans_mask(document.targets, len(document.ids))),
        position_ids=family.positions(types, media, family.facts),
        mm_token_type_ids=types,
        media=media,
    )


def render_sample(measured: Measured, family: Family, resize: str) -> Sample:
    """A document of a pack: shifted. Raises MediaError where a medium cannot be decoded."""
    whole = render_whole(measured, family, resize)
    return Sample(**shifted(whole.per_token), media=whole.media)


def fake_image_sample(family: Family) -> Sample:
    """The smallest image as a document of its own, trained on nowhere: it makes the vision tower run in every step.

    It has no targets, so there is nothing to shift.
    """
    ids, media = family.fake_image_ids, family.fake_image_arrays
    types = family.chat.token_types(ids)
    return Sample(
        input_ids=ids,
        labels=np.full(len(ids), IGNORE, dtype=np.int32),
        position_ids=family.positions(types, media, family.facts),
        mm_token_type_ids=types,
        media=media,
    )


def expand(ids: np.ndarray, places: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
    """Each placeholder gives way to its ids: [1, 9, 2], 9 at place 1 to [5, 9, 9] -> [1, 5, 9, 9, 2]."""
    pieces, start = [], 0
    for place, expansion in places:
        pieces += [ids[start:place], expansion]
        start = place + 1
    return np.concatenate([*pieces, ids[start:]])


def decoded(medium: MeasuredMedia, rule: MediaRule) -> Any:
    """A medium opened as what the rule renders: a video may be asked for its sound."""
    if isinstance(rule, SoundRule):
        with timed("decoding"):
            samples = decode_audio(medium.ref, rule.sampling_rate)
        if len(samples) != medium.num_samples:
            raise MediaError(
                "bad_media", f"{medium.ref.shown}: had {medium.num_samples} samples when measured, now {len(samples)}"
            )
        return samples
    if not isinstance(rule, ImageRule):
        return each_timed("decoding", wanted_frames(medium))
    with timed("decoding"):
        pixels = decode_image(medium.ref)
    if pixels.shape[:2] != (medium.height, medium.width):
        was, now = f"{medium.width}x{medium.height}", f"{pixels.shape[1]}x{pixels.shape[0]}"
        raise MediaError(
            "bad_media", f"{medium.ref.shown}: was {was} when measured and is {now} now", medium=medium.ref.shown
        )
    return pixels
