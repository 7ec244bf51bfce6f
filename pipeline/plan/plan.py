"""The whole planner: lengths and media tokens in, packs in training order out."""

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from neatpack.errors import UserError
from neatpack.format.groups import nested_sizes

from ..step_cost import DEFAULT_COST, PRESETS, StepCost
from .balance import balanced_order
from .knapsack import Ints, Samples, as_ints, bin_sums, check_lengths, members, refuse, stable_order
from .mixing import draw_phases, mix_lengths, section_block, separate
from .packing import pack, pack_in_sections


def plan_bins(
    lengths: ArrayLike,
    visual_tokens: ArrayLike,
    *,
    capacity: int,
    group_size: int = 512,
    seed: int = 0,
    max_visual_tokens: int | None = None,
    text_reserve: int = 0,
    audio_tokens: ArrayLike | None = None,
    cost: StepCost = PRESETS[DEFAULT_COST],
    rows: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> list[Ints]:
    """Return the sample indices of each pack (ascending), packs in final order; each index exactly once.

    What shares a pack depends on lengths, media tokens and the seed: samples that are alike are exchanged at random, so
    the order in which they are given does not matter. Samples of one row or group are in different packs where there is
    another place, and spread over the order: of three samples, about one in each third.

    lengths            tokens of each sample, text and media
    visual_tokens      how many of them are of images and videos (VT)
    capacity           tokens a pack can hold
    group_size         packs that are alike in load; balanced for data-parallel sizes that divide it
    max_visual_tokens  VT a pack can hold (default: no limit of its own)
    text_reserve       tokens kept free in a pack without any VT, for a fake image
    audio_tokens       how many are of sounds, which are encoders' work as VT are (default: none)
    cost               what the model spends on tokens, on encoders and on long documents
    rows               a number for each sample; copies of one row have the same (default: there are no copies)
    groups             likewise for samples that are about the same thing, an image, say; all of a row are in one group
    """
    return members(
        plan_packs(
            lengths,
            visual_tokens,
            capacity=capacity,
            group_size=group_size,
            seed=seed,
            max_visual_tokens=max_visual_tokens,
            text_reserve=text_reserve,
            audio_tokens=audio_tokens,
            cost=cost,
            rows=rows,
            groups=groups,
        )
    )


def plan_packs(
    lengths: ArrayLike,
    visual_tokens: ArrayLike,
    *,
    capacity: int,
    group_size: int,
    seed: int,
    max_visual_tokens: int | None,
    text_reserve: int,
    audio_tokens: ArrayLike | None = None,
    cost: StepCost = PRESETS[DEFAULT_COST],
    rows: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Ints:
    """Return the same the other way round, and without an object per pack: the pack of each sample."""
    visual = as_ints("visual_tokens", visual_tokens)
    audio = np.zeros_like(visual) if audio_tokens is None else as_ints("audio_tokens", audio_tokens)
    if len(audio) != len(visual):
        raise UserError(
            f"{len(visual)} visual_tokens but {len(audio)} audio_tokens; give one of each per sample",
            code="lengths-invalid",
            name="audio_tokens",
            got=len(audio),
            expected=len(visual),
        )
    refuse(audio < 0, "audio_tokens", audio, "audio tokens; give 0 or more")
    samples = Samples(
        lengths=as_ints("lengths", lengths),
        visual_tokens=visual,
        encoder=cost.of_encoders(visual, audio),
        capacity=capacity,
        max_visual_tokens=max_visual_tokens,
        text_reserve=text_reserve,
    )
    check(samples, group_size)
    num_samples = len(samples.lengths)
    if not num_samples:
        return np.zeros(0, dtype=np.int64)
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, num_samples])))
    shuffled = _sort_by_size(samples, random.permutation(num_samples))
    samples = samples.take(shuffled)
    kin = draw_phases(_labels("rows", rows, shuffled), _labels("groups", groups, shuffled), num_samples, random)
    place = np.empty(num_samples, dtype=np.int64)
    if kin is None:
        bin_of = pack(samples)
        edges = np.array([0, int(bin_of.max()) + 1])
        bin_of = mix_lengths(bin_of, edges, samples, random)
        place[shuffled] = _order(bin_of, samples, cost, group_size, seed, edges)[bin_of]
        return place
    bin_of, edges = pack_in_sections(samples, kin, nested_sizes(group_size), random)
    bin_of = mix_lengths(bin_of, edges, samples, random)
    ordered = _order(bin_of, samples, cost, group_size, seed, edges)[bin_of]
    place[shuffled] = separate(ordered, samples, kin, random)
    return place


def _sort_by_size(samples: Samples, shuffled: Ints) -> Ints:
    """Return the samples, longest first, and those that are alike in the order given."""
    size_and_kind = 4 * samples.sizes() + 2 * samples.is_visual + (samples.encoder > 0)
    return shuffled[stable_order(-size_and_kind[shuffled])]


def _labels(name: str, values: ArrayLike | None, shuffled: Ints) -> Ints | None:
    if values is None:
        return None
    labels = as_ints(name, values)
    if len(labels) != len(shuffled):
        raise UserError(
            f"{len(shuffled)} lengths but {len(labels)} {name}; give one of each per sample",
            code="lengths-invalid",
            name=name,
            got=len(labels),
            expected=len(shuffled),
        )
    return labels[shuffled]


def _order(bin_of: Ints, samples: Samples, cost: StepCost, group_size: int, seed: int, edges: Ints) -> Ints:
    """Return the place of each bin in the order: sections one after the other, each balanced in itself, then what fills
    no whole block of theirs. `edges`: first bin of each section."""
    num_bins = int(edges[-1])
    tokens, encoder, squares, visual = (
        bin_sums(bin_of, values, num_bins)
        for values in (samples.lengths, samples.encoder, samples.lengths**2, samples.visual_tokens)
    )
    block = group_size if len(edges) == 2 else section_block(num_bins, len(edges) - 1, nested_sizes(group_size))
    has_audio = (encoder != cost.of_encoders(visual, 0 * visual)).any()
    costs = cost.of_packs(tokens, encoder, squares)

    def order_balanced(bins: Ints) -> Ints:
        of_bins = visual[bins] if has_audio else None
        return bins[balanced_order(encoder[bins], costs[bins], of_bins, group_size=block, seed=seed)]

    order, rest = [], []
    for first, last in pairwise(edges.tolist()):
        own = order_balanced(np.arange(first, last))
        whole = len(own) if len(edges) == 2 else len(own) // block * block
        order.append(own[:whole])
        rest.append(own[whole:])
    left = np.concatenate(rest)
    if len(left):
        order.append(order_balanced(left))
    place = np.empty(num_bins, dtype=np.int64)
    place[np.concatenate(order)] = np.arange(num_bins)
    return place


def check(samples: Samples, group_size: int) -> None:
    """Refuse what cannot be packed."""
    lengths, visual_tokens, reserve = samples.lengths, samples.visual_tokens, samples.text_reserve
    if len(lengths) != len(visual_tokens):
        raise UserError(
            f"{len(lengths)} lengths but {len(visual_tokens)} visual_tokens; give one of each per sample",
            code="lengths-invalid",
            name="visual_tokens",
            got=len(visual_tokens),
            expected=len(lengths),
        )
    check_lengths(lengths, samples.capacity)
    if group_size < 1:
        raise UserError(
            f"group_size must be at least 1 pack, got {group_size}",
            code="lengths-invalid",
            name="group_size",
            got=group_size,
        )
    if not 0 <= reserve < samples.capacity:
        raise UserError(
            f"text_reserve must be 0 or more and below the capacity {samples.capacity}, got {reserve}",
            code="lengths-invalid",
            name="text_reserve",
            got=reserve,
        )
    too_long = ~samples.is_visual & (lengths > samples.capacity - reserve)
    refuse(
        too_long,
        "lengths",
        lengths,
        f"text tokens, but a pack keeps {reserve} of {samples.capacity} free for a fake image",
    )
    refuse(visual_tokens < 0, "visual_tokens", visual_tokens, "visual tokens; give 0 or more")
    if samples.max_visual_tokens is not None:
        if samples.max_visual_tokens < 1:
            raise UserError(
                f"max_visual_tokens must be at least 1 or None, got {samples.max_visual_tokens}",
                code="lengths-invalid",
                name="max_visual_tokens",
                got=samples.max_visual_tokens,
            )
        above = visual_tokens > samples.max_visual_tokens
        refuse(
            above,
            "visual_tokens",
            visual_tokens,
            f"visual tokens, but a pack may hold {samples.max_visual_tokens}; leave it out",
        )
