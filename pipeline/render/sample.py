"""Measured -> Sample: decode, expand, label, position, shift. Each is done once, here."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..families.base import Family, ImageRule, MediaRule, SoundRule
from ..labels import labels_of, shifted
from ..measure.length import expansions, target_mask_of
from ..media.audio import decode_audio
from ..media.image import decode_image
from ..media.pixels import RESIZE
from ..media.video import wanted_frames
from ..records import IGNORE, Measured, MeasuredMedia, MediaError, Sample
from ..runtime.work import each_timed, timed


def render_whole(measured: Measured, family: Family, resize: str) -> Sample:
    """A document before the shift. Raises MediaError where a medium cannot be decoded."""
    with timed("resizing"):
        media = family.document_arrays(measured.ids, measured.media, decoded, RESIZE[resize])
    places = expansions(measured.ids, measured.media, family)
    ids = expand(measured.ids, places)
    # What a medium expands to is no target, also where its placeholder stands in trained text.
    targets = expand(target_mask_of(measured), [(place, np.zeros(len(tokens), bool)) for place, tokens in places])
    types = family.chat.token_types(ids)
    return Sample(
        input_ids=ids,
        labels=labels_of(ids, targets),
        position_ids=family.positions(types, media, family.facts),
        mm_token_type_ids=types,
        media=media,
    )


def render_sample(measured: Measured, family: Family, resize: str) -> Sample:
    """A document of a pack: shifted. Raises MediaError where a medium cannot be decoded."""
    whole = render_whole(measured, family, resize)
    sample = Sample(**shifted(whole.per_token), media=whole.media)
    rendered = len(sample.input_ids)
    assert rendered == measured.tokens, f"planned {measured.tokens} tokens, rendered {rendered}"
    return sample


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
                "bad_media", f"{medium.ref.path}: had {medium.num_samples} samples when measured, now {len(samples)}"
            )
        return samples
    if not isinstance(rule, ImageRule):
        return each_timed("decoding", wanted_frames(medium))
    with timed("decoding"):
        pixels = decode_image(medium.ref)
    if pixels.shape[:2] != (medium.height, medium.width):
        was, now = f"{medium.width}x{medium.height}", f"{pixels.shape[1]}x{pixels.shape[0]}"
        raise MediaError("bad_media", f"{medium.ref.path}: was {was} when measured and is {now} now")
    return pixels
