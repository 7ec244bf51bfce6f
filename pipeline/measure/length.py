"""Example -> Measured: exact lengths from the real template, the real tokenizer and the media headers."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from neatpack.pipeline.families.base import Family
from neatpack.pipeline.labels import target_mask
from neatpack.pipeline.measure.media import measure_medium
from neatpack.pipeline.records import IMAGE, VIDEO, Example, Measured, MeasuredMedia, MediaError, Skip


def measure(
    examples: Sequence[Example], family: Family, before: Callable[[int], None] = lambda index: None
) -> list[Measured | Skip]:
    """Many at once: the tokenizer is fastest in batches. Media are probed first, so that bad rows are not tokenized.

    `before` is told the index of each example before its media are opened.
    """
    results: list[Measured | Skip | tuple[MeasuredMedia, ...]] = []
    for index, example in enumerate(examples):
        if example.media:
            before(index)
        results.append(_probe(example, family))
    good = [index for index, result in enumerate(results) if not isinstance(result, Skip)]
    media: list[tuple[MeasuredMedia, ...]] = [results[index] for index in good]  # type: ignore[misc]
    encoded = family.encode([examples[index] for index in good], media)
    for index, ids, found in zip(good, encoded, media, strict=True):
        results[index] = ids if isinstance(ids, Skip) else measured(ids, found, family)
    return results  # type: ignore[return-value]


def measured(ids: np.ndarray, media: tuple[MeasuredMedia, ...], family: Family) -> Measured:
    expansions = placed(ids, media, family)
    # Each placeholder gives way to its tokens, and the shift takes one: 10 ids, 1 image of 64 -> 10 - 1 + 64 - 1 = 72.
    tokens = len(ids) - len(expansions) + sum(len(expansion) for _, expansion in expansions) - 1
    types = [family.token_types(expansion) for _, expansion in expansions]
    if family.expands_itself:
        types = [family.token_types(ids)]
    return Measured(
        ids=ids,
        media=media,
        tokens=tokens,
        visual_tokens=sum(int(np.count_nonzero((kinds == IMAGE) | (kinds == VIDEO))) for kinds in types),
        media_bytes=sum(family.media_bytes(medium) for medium in media),
    )


def placed(ids: np.ndarray, media: tuple[MeasuredMedia, ...], family: Family) -> list[tuple[int, np.ndarray]]:
    """Where the placeholders are in `ids`, and the ids that each gives way to.

    Media of a kind come in their order; a template may put all images before all videos.
    """
    waiting: dict[str, Iterator[MeasuredMedia]] = {
        kind: iter([medium for medium in media if medium.ref.kind == kind]) for kind in family.takes
    }
    places = family.places(ids)
    result = [(place, family.expansion(next(waiting[kind]))) for place, kind in places]
    assert len(places) == (0 if family.expands_itself else len(media)), "template and media disagree"
    return result


def truncated(whole: Measured, limit: int, family: Family) -> Measured | None:
    """The longest beginning of at most `limit` tokens that ends outside a medium.

    None if it has no target left, or media that the family cannot take without the others.
    """
    places = placed(whole.ids, whole.media, family)
    if whole.media and family.expands_itself:
        return None  # where its media begin and end is not known
    expanded = np.ones(len(whole.ids), dtype=np.int64)
    for place, expansion in places:
        expanded[place] = len(expansion)
    # limit + 1 ids before the shift are `limit` after it.
    keep = int(np.searchsorted(np.cumsum(expanded), limit + 1, side="right"))
    kinds = dict(family.places(whole.ids))
    if keep in kinds:
        opening = family.marker_ids(kinds[keep])[0]
        if opening and whole.ids[max(0, keep - len(opening)) : keep].tolist() == opening:
            keep -= len(opening)  # opening markers without their medium
    ids = whole.ids[:keep]
    if not target_mask(ids, family.markers)[1:].any():
        return None
    counts = Counter(kind for place, kind in kinds.items() if place < keep)
    kept: list[MeasuredMedia] = []
    for medium in whole.media:
        if counts[medium.ref.kind]:
            counts[medium.ref.kind] -= 1
            kept.append(medium)
    if not family.stands_alone(kept):
        return None
    cut = measured(ids, tuple(kept), family)
    assert cut.tokens <= limit
    return cut


def shrunk(whole: Measured, level: int, family: Family) -> Measured | None:
    """The same conversation with smaller media, by the family's steps; None where this level changes nothing."""
    media = tuple(family.shrunk(medium, level) for medium in whole.media)
    return measured(whole.ids, media, family) if media != whole.media else None


def _probe(example: Example, family: Family) -> tuple[MeasuredMedia, ...] | Skip:
    for ref in example.media:
        if ref.kind not in family.takes:
            return Skip(reason=f"{ref.kind}_unsupported", detail=f"{family.name} does not take {ref.kind}s")
    num_images = sum(ref.kind == "image" for ref in example.media)
    try:
        return tuple(measure_medium(ref, family, num_images) for ref in example.media)
    except MediaError as error:
        return error.skip
