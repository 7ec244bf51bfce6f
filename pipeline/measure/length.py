"""Example -> Measured: exact lengths from the real template, the real tokenizer and the media headers."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.families.base import Family
from pipeline.labels import target_mask
from pipeline.measure.probe import MediaError, image_size
from pipeline.measure.video import measure_video, with_frames
from pipeline.records import Example, Measured, MeasuredMedia, MediaRef, Skip


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
    for index, ids in zip(good, family.encode([examples[index] for index in good]), strict=True):
        media = results[index]
        assert isinstance(media, tuple)
        assert np.count_nonzero(family.is_media(ids)) == len(media), "template and media disagree"
        results[index] = measured(ids, media, family)
    return results  # type: ignore[return-value]


def measured(ids: np.ndarray, media: tuple[MeasuredMedia, ...], family: Family) -> Measured:
    expansions = [family.expansion(medium) for medium in media]
    # Each placeholder gives way to its tokens, and the shift takes one: 10 ids, 1 image of 64 -> 10 - 1 + 64 - 1 = 72.
    return Measured(
        ids=ids,
        media=media,
        tokens=len(ids) - len(media) + sum(map(len, expansions)) - 1,
        visual_tokens=sum(int(np.count_nonzero(family.is_media(expansion))) for expansion in expansions),
        media_bytes=sum(family.media_bytes(medium) for medium in media),
    )


def truncated(whole: Measured, limit: int, family: Family) -> Measured | None:
    """The longest beginning of at most `limit` tokens that ends outside a medium; None if it has no target left."""
    is_media = family.is_media(whole.ids)
    expanded = np.ones(len(whole.ids), dtype=np.int64)
    expanded[is_media] = [len(family.expansion(medium)) for medium in whole.media]
    # limit + 1 ids before the shift are `limit` after it.
    keep = int(np.searchsorted(np.cumsum(expanded), limit + 1, side="right"))
    if 0 < keep < len(whole.ids) and is_media[keep] and whole.ids[keep - 1] == family.vision_marker_ids[0]:
        keep -= 1  # an opening marker without its medium
    ids = whole.ids[:keep]
    if not target_mask(ids, family.markers)[1:].any():
        return None
    cut = measured(ids, whole.media[: int(np.count_nonzero(is_media[:keep]))], family)
    assert cut.tokens <= limit
    return cut


def shrunk(whole: Measured, level: int, family: Family) -> Measured | None:
    """The same conversation with smaller media; None where this level changes nothing any more.

    Each level halves the area of every picture (not below the processor's min_pixels) and the frames of every video
    (not below 4, evenly thinned); once a video has 4, its area is halved instead.
    """
    media = tuple(_shrunk_medium(medium, level, family) for medium in whole.media)
    return measured(whole.ids, media, family) if media != whole.media else None


def _shrunk_medium(medium: MeasuredMedia, level: int, family: Family) -> MeasuredMedia:
    if medium.ref.kind == "image":
        area = family.image.resized(medium.height, medium.width)
        smaller = dataclasses.replace(family.image, max_pixels=max(family.image.min_pixels, area[0] * area[1] >> level))
        return dataclasses.replace(medium, grid=smaller.grid(medium.height, medium.width))
    halvings = max(0, min(level, (max(len(medium.frames), 4) // 4).bit_length() - 1))
    kept = max(min(4, len(medium.frames)), len(medium.frames) >> halvings)
    chosen = np.linspace(0, len(medium.frames) - 1, kept).round().astype(int)
    t, h, w = medium.grid
    # The bounds are of a frame in Qwen2-VL and of the clip in Qwen3-VL; in both, fewer pixels per frame than now.
    pixels = h * w * family.video.patch_size**2 >> (level - halvings)
    frames_in_bound = kept if family.spec.video_bounds_cover_clip else 1
    geometry = dataclasses.replace(
        family.video,
        min_pixels=min(family.video.min_pixels, pixels * frames_in_bound),
        max_pixels=max(family.video.factor**2, pixels) * frames_in_bound,
    )
    frames = [medium.frames[index] for index in chosen.tolist()]
    return with_frames(
        medium.ref, medium.height, medium.width, frames, medium.total_frames, medium.fps, family, geometry
    )


def _probe(example: Example, family: Family) -> tuple[MeasuredMedia, ...] | Skip:
    for ref in example.media:
        if ref.kind not in family.spec.takes:
            return Skip(reason=f"{ref.kind}_unsupported", detail=f"{family.spec.name} does not take {ref.kind}s")
    try:
        return tuple(
            measure_video(ref, family) if ref.kind == "video" else measure_image(ref, family) for ref in example.media
        )
    except MediaError as error:
        return error.skip


def measure_image(ref: MediaRef, family: Family) -> MeasuredMedia:
    height, width = image_size(ref)
    try:
        grid = family.image.grid(height, width)
    except ValueError as error:  # an aspect ratio that smart_resize refuses
        raise MediaError("bad_media", f"{ref.path}: {error}") from None
    return MeasuredMedia(ref=ref, height=height, width=width, grid=grid)
