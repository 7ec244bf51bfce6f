"""The whole planner: lengths and media tokens in, packs in training order out."""

import numpy as np
from numpy.typing import ArrayLike

from ..step_cost import DEFAULT_COST, PRESETS, StepCost
from .balance import balanced_order
from .knapsack import Ints, Samples, as_ints, bin_sums, check_lengths, members, refuse
from .packing import pack


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
) -> list[Ints]:
    """Sample indices of each pack (ascending), packs in final order; each index exactly once.

    lengths            tokens of each sample, text and media
    visual_tokens      how many of them are of images and videos (VT)
    capacity           tokens a pack can hold
    group_size         packs that are alike in load; balanced for data-parallel sizes that divide it
    max_visual_tokens  VT a pack can hold (default: no limit of its own)
    text_reserve       tokens kept free in a pack without any VT, for a fake image
    audio_tokens       how many are of sounds, which are encoders' work as VT are (default: none)
    cost               what the model spends on tokens, on encoders and on long documents
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
) -> Ints:
    """The same the other way round, and without an object per pack: the pack of each sample."""
    visual = as_ints("visual_tokens", visual_tokens)
    audio = np.zeros_like(visual) if audio_tokens is None else as_ints("audio_tokens", audio_tokens)
    if len(audio) != len(visual):
        raise ValueError(f"{len(visual)} visual_tokens but {len(audio)} audio_tokens; give one of each per sample")
    refuse(audio < 0, audio, "audio tokens; give 0 or more")
    samples = Samples(
        lengths=as_ints("lengths", lengths),
        visual_tokens=visual,
        encoder=cost.of_encoders(visual, audio),
        capacity=capacity,
        max_visual_tokens=max_visual_tokens,
        text_reserve=text_reserve,
    )
    check(samples, group_size)
    if not len(samples.lengths):
        return np.zeros(0, dtype=np.int64)
    bin_of = pack(samples)
    num_bins = int(bin_of.max()) + 1
    tokens, encoder, squares = (
        bin_sums(bin_of, values, num_bins) for values in (samples.lengths, samples.encoder, samples.lengths**2)
    )
    order = balanced_order(encoder, cost.of_packs(tokens, encoder, squares), group_size=group_size, seed=seed)
    place = np.empty(num_bins, dtype=np.int64)
    place[order] = np.arange(num_bins)
    return place[bin_of]


def check(samples: Samples, group_size: int) -> None:
    """Refuse what cannot be packed."""
    lengths, visual_tokens, reserve = samples.lengths, samples.visual_tokens, samples.text_reserve
    if len(lengths) != len(visual_tokens):
        raise ValueError(f"{len(lengths)} lengths but {len(visual_tokens)} visual_tokens; give one of each per sample")
    check_lengths(lengths, samples.capacity)
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1 pack, got {group_size}")
    if not 0 <= reserve < samples.capacity:
        raise ValueError(f"text_reserve must be 0 or more and below the capacity {samples.capacity}, got {reserve}")
    too_long = ~samples.is_visual & (lengths > samples.capacity - reserve)
    refuse(too_long, lengths, f"text tokens, but a pack keeps {reserve} of {samples.capacity} free for a fake image")
    refuse(visual_tokens < 0, visual_tokens, "visual tokens; give 0 or more")
    if samples.max_visual_tokens is not None:
        if samples.max_visual_tokens < 1:
            raise ValueError(f"max_visual_tokens must be at least 1 or None, got {samples.max_visual_tokens}")
        above = visual_tokens > samples.max_visual_tokens
        refuse(above, visual_tokens, f"visual tokens, but a pack may hold {samples.max_visual_tokens}; leave it out")
