"""Example -> Measured: exact lengths from the real template, the real tokenizer and the media headers."""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from neatpack.format.layout import AUDIO, IMAGE, VIDEO, Form
from neatpack.storage.clients import NoAnswer

from ..families.base import Family, MediaRule
from ..families.tokens import TextRefused
from ..labels import AS_USUAL, TrainOn, mask_spans, spans_mask
from ..media.budget import Budget, shared_budget
from ..media.limits import Limits, limits
from ..media.store_failures import store_failures
from ..records import Example, Measured, MeasuredMedia, MediaError, MediaRef, Skip
from ..runtime.work import timed
from .media import measure_medium
from .targets import asked_loss, target_spans, without_reasoning

LONG = 300  # turns, parts, tools and calls of a row that is encoded by itself
LONG_TEXT = 1 << 20  # and characters: a tokenizer that tiktoken does not stand for takes 10 us and 250 bytes for each
MAX_TOKENS = (1 << 31) - 1  # of a row: the token store counts them by 32 bits


def measure(
    examples: Sequence[Example],
    family: Family,
    before: Callable[[int], None] = lambda index: None,
    train_on: TrainOn = AS_USUAL,
    needs_target: bool = True,
) -> list[Measured | Skip]:
    """Many at once: the tokenizer is fastest in batches. Media are probed first, so that bad rows are not tokenized.

    `before` is told the index of an example before a decoder sees its media, which most pictures are measured without.
    What has nothing to train on is a Skip, unless it is not meant for that (`needs_target`): then nothing of it is.
    """
    if train_on.reasoning == "drop":
        examples = [without_reasoning(example, family.chat) for example in examples]
    results: dict[int, Measured | Skip] = {}
    media: dict[int, tuple[MeasuredMedia, ...]] = {}
    bounds = limits()
    with timed("probing media"):
        for index, example in enumerate(examples):
            refs = example.media
            probed = _probe(refs, family, bounds, partial(before, index)) if refs else ()
            if isinstance(probed, Skip):
                results[index] = probed
            else:
                media[index] = probed
    with timed("tokenizing"):
        encoded = _encoded(examples, media, family, before)
    for (index, found), ids in zip(media.items(), encoded, strict=True):
        measured = ids if isinstance(ids, Skip) else _measured(ids, found, examples[index], family, train_on)
        if isinstance(measured, Skip) and measured.reason == "no_target" and not needs_target:
            assert not isinstance(ids, Skip)
            measured = with_lengths(ids, np.zeros((0, 2), np.int32), found, family, _form(examples[index]))
        if isinstance(measured, Measured) and measured.tokens > MAX_TOKENS:
            measured = _overlong(f"{measured.tokens} tokens", bounds, MAX_TOKENS)
        results[index] = measured
    return [results[index] for index in range(len(examples))]


def _encoded(
    examples: Sequence[Example],
    media: Mapping[int, tuple[MeasuredMedia, ...]],
    family: Family,
    before: Callable[[int], None],
) -> list[np.ndarray | Skip]:
    """The ids of the examples with these media. Long ones are encoded alone and within a budget: some templates look
    at all turns for each, and 4,000 turns take Gemma 4's a minute, as 8 MB of text take its tokenizer."""
    long = {index for index in media if _is_long(examples[index])}
    short = [index for index in media if index not in long]
    ids: dict[int, np.ndarray | Skip] = dict(
        zip(
            short,
            family.chat.encode([examples[index] for index in short], [media[index] for index in short]),
            strict=True,
        )
    )
    for index in long:
        before(index)
        try:
            with Budget(MediaRef(kind="image", path="")):
                (ids[index],) = _too_long(examples[index], family) or family.chat.encode(
                    [examples[index]], [media[index]]
                )
        except TextRefused as error:
            ids[index] = Skip(reason="bad_row", detail=str(error))
        except MediaError as error:
            ids[index] = Skip(reason="bad_row", detail=f"the conversation{error.skip.detail}")
    return [ids[index] for index in media]


def _is_long(example: Example) -> bool:
    """Whether it has many turns, parts, tools and calls, over which templates loop, or much text."""
    num_pieces = len(example.tools) + sum([1 + len(turn.parts) + len(turn.tool_calls) for turn in example.turns])
    return num_pieces > LONG or _num_characters(example) > LONG_TEXT


def _too_long(example: Example, family: Family) -> list[np.ndarray | Skip]:
    """A skip where the text alone, piece by piece, has more tokens than are measured; else nothing."""
    most, tokens = limits().max_row_tokens, 0
    for text in [part.strip() for turn in example.turns for part in turn.parts if isinstance(part, str)]:
        for start in range(0, len(text) if len(text) > LONG_TEXT else 0, LONG_TEXT):
            tokens += len(family.chat.encoder.bare(text[start : start + LONG_TEXT]))
            if tokens > most:
                return [_overlong(f"at least {tokens} tokens by its text", limits(), min(tokens, MAX_TOKENS))]
    return []


def _num_characters(example: Example) -> int:
    """Of its texts, and of its tools and calls as JSON."""
    texts = sum(
        [len(part) for turn in example.turns for part in (*turn.parts, turn.reasoning) if isinstance(part, str)]
    )
    json_of = [*example.tools, *[call for turn in example.turns for call in turn.tool_calls]]
    return texts + (len(json.dumps(json_of, default=str)) if json_of else 0)


def _measured(
    ids: np.ndarray, media: tuple[MeasuredMedia, ...], example: Example, family: Family, train_on: TrainOn
) -> Measured | Skip:
    if skip := _not_written(ids, media, family):
        return skip
    targets = target_spans(ids, example, family.chat, train_on)
    if isinstance(targets, Skip):
        whole = with_lengths(ids, np.zeros((0, 2), np.int32), media, family)
        return replace(
            targets, tokens=min(whole.tokens, MAX_TOKENS), visual_tokens=min(whole.visual_tokens, MAX_TOKENS)
        )
    return with_lengths(ids, targets, media, family, _form(example), asked_loss(example))


def _form(example: Example) -> Form:
    return "document" if example.is_document else "chat"


def _not_written(ids: np.ndarray, media: Sequence[MeasuredMedia], family: Family) -> Skip | None:
    """Media that the chat template left out: some write those of user turns only."""
    if family.chat.expands_media or not media:
        return None
    written, given = [kind for _, kind in family.chat.places(ids)], [medium.ref.kind for medium in media]
    if written == given:  # most
        return None
    for kind in set(given):
        count = given.count(kind)
        if written.count(kind) != count:
            return Skip(
                reason="bad_row",
                detail=f"the chat template of {os.path.basename(family.source)} writes {written.count(kind)} of "
                f"{count} {kind}s: it may take them in user turns only",
                fields={"kind": kind, "got": written.count(kind), "expected": count},
            )
    return None


def with_lengths(
    ids: np.ndarray,
    targets: np.ndarray,
    media: tuple[MeasuredMedia, ...],
    family: Family,
    form: Form = "chat",
    loss: str = "",
) -> Measured:
    """Ids with one placeholder per medium (or, in family default, expanded already), and what they come to.

    targets: which of the ids are trained on, as spans. form and loss: of the example.
    """
    if not media:
        return Measured(
            ids=ids,
            targets=targets,
            media=(),
            tokens=len(ids) - 1,
            visual_tokens=0,
            media_bytes=0,
            form=form,
            loss=loss,
        )
    counts = _plain_counts(media, family) or _counts(ids, media, family)
    media_bytes, picture_bytes = family.stored_bytes(media)
    # Each placeholder gives way to its tokens, and the shift takes one: 10 ids, 1 image of 64 -> 10 - 1 + 64 - 1 = 72.
    return Measured(
        ids=ids,
        targets=targets,
        media=media,
        tokens=len(ids) + counts.more - 1,
        visual_tokens=counts.visual,
        audio_tokens=counts.audio,
        media_bytes=media_bytes,
        picture_bytes=picture_bytes,
        form=form,
        loss=loss,
    )


class _Counts(NamedTuple):
    """What media add to a text that has a placeholder for each."""

    more: int  # tokens beyond the placeholders
    visual: int  # tokens of pictures and videos
    audio: int


def _plain_counts(media: Sequence[MeasuredMedia], family: Family) -> _Counts | None:
    """Where each is nothing but its kind's placeholder, again and again: as most are, and without writing them down."""
    visual = audio = 0
    for medium in media:
        rule = family.rules[medium.ref.kind]
        if family.chat.expands_media or type(rule).expansion is not MediaRule.expansion:
            return None
        if rule.kind == "audio":
            audio += rule.tokens(medium)
        else:
            visual += rule.tokens(medium)
    return _Counts(more=visual + audio - len(media), visual=visual, audio=audio)


def _counts(ids: np.ndarray, media: Sequence[MeasuredMedia], family: Family) -> _Counts:
    placed = expansions(ids, media, family)
    pieces = [expansion for _, expansion in placed] or [ids]  # what has tokens of media in it
    types = family.chat.token_types(np.concatenate(pieces) if len(pieces) > 1 else pieces[0])
    return _Counts(
        more=sum(len(expansion) for _, expansion in placed) - len(placed),
        visual=int(np.count_nonzero((types == IMAGE) | (types == VIDEO))),
        audio=int(np.count_nonzero(types == AUDIO)),
    )


def target_mask_of(measured: Measured) -> np.ndarray:
    """Which of its ids are trained on."""
    return spans_mask(measured.targets, len(measured.ids))


def expansions(ids: np.ndarray, media: Sequence[MeasuredMedia], family: Family) -> list[tuple[int, np.ndarray]]:
    """Where the placeholders are in `ids`, and the ids that each gives way to; none where ids are expanded already."""
    places = family.chat.places(ids)
    assert len(places) in (0, len(media)), "template and media disagree"
    ordered = family.in_text_order(ids, media)
    return [(place, family.expansion(medium)) for (place, _), medium in zip(places, ordered, strict=False)]


def truncated(whole: Measured, limit: int, family: Family) -> Measured | None:
    """The longest beginning of at most `limit` tokens that ends outside a medium.

    None if it has no target left, or media that the family cannot take without the others.
    """
    placed = expansions(whole.ids, whole.media, family)
    if len(placed) < len(whole.media):
        return None  # expanded already: where its media begin and end is not known
    expanded = np.ones(len(whole.ids), dtype=np.int64)
    for place, expansion in placed:
        expanded[place] = len(expansion)
    # limit + 1 ids before the shift are `limit` after it.
    keep = int(np.searchsorted(np.cumsum(expanded), limit + 1, side="right"))
    kinds = dict(family.chat.places(whole.ids))
    if keep in kinds:
        opening = family.chat.marker_ids(kinds[keep])[0]
        if opening and whole.ids[max(0, keep - len(opening)) : keep].tolist() == opening:
            keep -= len(opening)  # opening markers without their medium
    targets = target_mask_of(whole)[:keep]
    if not targets[1:].any():
        return None
    counts = Counter(kind for place, kind in kinds.items() if place < keep)
    kept: list[MeasuredMedia] = []
    for medium in whole.media:
        if counts[medium.ref.kind]:
            counts[medium.ref.kind] -= 1
            kept.append(medium)
    for kind, rule in family.rules.items():
        if not rule.can_be_all([medium for medium in kept if medium.ref.kind == kind]):
            return None
    cut = with_lengths(whole.ids[:keep], mask_spans(targets), tuple(kept), family, form=whole.form, loss=whole.loss)
    assert cut.tokens <= limit
    return cut


def shrunk(whole: Measured, level: int, family: Family) -> Measured | None:
    """The same conversation with smaller media, by the family's steps; None where this level changes nothing."""
    media = tuple(family.rules[medium.ref.kind].smaller(medium, level) for medium in whole.media)
    if media == whole.media:
        return None
    return with_lengths(whole.ids, whole.targets, media, family, form=whole.form, loss=whole.loss)


def _probe(
    refs: Sequence[MediaRef], family: Family, bounds: Limits, before: Callable[[], None]
) -> tuple[MeasuredMedia, ...] | Skip:
    for ref in refs:  # before any file is opened
        if ref.kind not in family.rules:
            return Skip(
                reason=f"{ref.kind}_unsupported",
                detail=family.refusal(ref.kind),
                fields={"kind": ref.kind, "family": family.name},
            )
    num_images = [ref.kind for ref in refs].count("image")
    found: list[MeasuredMedia] = []
    tokens = 0
    try:
        with shared_budget(sum([len(ref.frames) for ref in refs])):
            for ref in refs:
                found.append(measure_medium(ref, family, num_images, bounds, before))
                tokens += family.rules[ref.kind].least_tokens(found[-1])
                if tokens > bounds.max_row_tokens:
                    what = f"at least {tokens} tokens by {len(found)} of {len(refs)} media"
                    return _overlong(what, bounds, min(tokens, MAX_TOKENS))
    except MediaError as error:
        return error.skip
    except NoAnswer as error:
        return store_failures.lose_medium(error)
    return tuple(found)


def _overlong(what: str, bounds: Limits, tokens: int) -> Skip:
    detail = f"{what}; rows are measured up to {bounds.max_row_tokens}"
    return Skip(reason="overlong", detail=detail, tokens=tokens, fields={"got": tokens, "most": bounds.max_row_tokens})
