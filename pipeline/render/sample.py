"""Measured -> Sample: encode, label, position, shift. Each is done once, here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from neatpack.pipeline.families.base import Arrays, Family
from neatpack.pipeline.labels import labels_of, shifted, target_mask
from neatpack.pipeline.measure.length import placed
from neatpack.pipeline.media.pixels import RESIZE
from neatpack.pipeline.records import IGNORE, Measured, Sample
from neatpack.pipeline.render.media import decoded


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """One document before the shift: what the online path hands out."""

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    mm_token_type_ids: np.ndarray
    media: Arrays


def render_whole(measured: Measured, family: Family, resize: str) -> Whole:
    """Raises MediaError where a medium cannot be decoded."""
    media = family.document_arrays(measured.ids, measured.media, partial(decoded, family=family), RESIZE[resize])
    ids = expand(measured.ids, placed(measured.ids, measured.media, family))
    types = family.token_types(ids)
    return Whole(
        input_ids=ids,
        labels=labels_of(ids, target_mask(ids, family.markers)),
        position_ids=family.positions(types, media, family.facts),
        mm_token_type_ids=types,
        media=media,
    )


def render_sample(measured: Measured, family: Family, resize: str) -> Sample:
    """One document of a pack. Raises MediaError where a medium cannot be decoded."""
    whole = render_whole(measured, family, resize)
    inputs, labels = shifted(whole.input_ids, whole.labels)
    assert len(inputs) == measured.tokens, f"planned {measured.tokens} tokens, rendered {len(inputs)}"
    return Sample(
        input_ids=inputs,
        labels=labels,
        position_ids=whole.position_ids[..., :-1],
        mm_token_type_ids=whole.mm_token_type_ids[:-1],
        media=whole.media,
    )


def fake_image_sample(family: Family) -> Sample:
    """The smallest image as a document of its own, trained on nowhere: it makes the vision tower run in every step."""
    ids, media = family.fake_image_ids, family.fake_image_arrays
    types = family.token_types(ids)
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
