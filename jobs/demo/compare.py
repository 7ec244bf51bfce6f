"""Compute how five ways to batch the demo's samples pad, drop and balance. Nothing is trained here.

    python jobs/demo/compare.py META OUT

padded batches   one sample per row; a batch is padded to its longest sample
guessed lengths  packs by characters / 3 and 500 tokens per image: NeMo Automodel without its precompute script
stored lengths   packs by stored text tokens and image sizes: NeMo Automodel with that script. It does not count the
                 chat template and the vision markers; its recipes fill packs to 90% for that reason, as done here
exact lengths    best-fit decreasing by the true length of every sample: TRL and ms-swift
neatpack         the finished output OUT

NeMo Automodel bins by estimate (`greedy_knapsack_vt_balanced`), tokenizes when a pack is loaded, and drops samples that
do not fit then (log level: debug). By default it shuffles the packs (DistributedSampler), as TRL and ms-swift do.
"""

import argparse
import logging
import os
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import pyarrow.parquet as pq

from neatpack import PackedShards, greedy_knapsack_vt_balanced, make_meta_dataset
from neatpack.format.manifest import Manifest
from neatpack.loaders.online.estimate import _estimate_sample_length
from neatpack.loaders.online.processor import family_of
from neatpack.loaders.online.processor_config import extract_image_config
from neatpack.loaders.online.tokenized import SampleError, measured_example
from neatpack.loaders.order import MIN_GROUPS
from neatpack.pipeline.plan import plan_bins
from neatpack.pipeline.plan.balance import step_imbalance
from neatpack.pipeline.step_cost import DEFAULT_COST, step_cost

PROCESSOR = Path(__file__).parent / "processor"
RANKS = (2, 4, 8)
NUM_SHUFFLES = 20  # one order of an epoch may be lucky
COPIES = 20  # enough packs to balance 8 ranks
PACKING_RATIO = 0.9  # `packing_ratio` of NeMo Automodel's recipes: headroom for estimates that are too short


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A readable sample: its exact lengths and two estimates of (tokens, visual tokens)."""

    tokens: int
    visual_tokens: int
    guessed: tuple[int, int]
    stored: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packs:
    """Loads of the packs or batches of an epoch: one array element each."""

    positions: np.ndarray  # that the model computes, padding included
    tokens: np.ndarray
    visual_tokens: np.ndarray
    squares: np.ndarray  # of the document lengths

    @property
    def cost(self) -> np.ndarray:
        """The modelled cost of a step of a 7B model."""
        model = step_cost(DEFAULT_COST)
        encoders = model.of_encoders(self.visual_tokens, np.zeros_like(self.visual_tokens))
        return model.of_packs(self.positions, encoders, self.squares)


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    name: str
    packs: int
    positions: int
    tokens: int
    dropped: int
    cost: tuple[float, ...]  # per RANKS: how far the slowest rank is above the mean, averaged over steps and orders
    visual: tuple[float, ...]  # the same in visual tokens

    @property
    def wasted(self) -> float:
        return (self.positions - self.tokens) / self.positions


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    num_samples: int
    ways: list[Way]  # of the demo's samples
    scaled: list[Way]  # of COPIES times as many samples of these lengths


def compare(meta: Path, out: Path) -> Comparison:
    samples, manifest = read_samples(meta), Manifest.read(out)
    pack_size = int(manifest.identity.config["pack_size"])
    batch_size = round(manifest.counts.packed / manifest.counts.packs)
    many = samples * COPIES
    planned = plan_bins(
        [sample.tokens for sample in many],
        [sample.visual_tokens for sample in many],
        capacity=pack_size,
        group_size=max(RANKS),
    )
    ours = pack("neatpack", many, [bin_.tolist() for bin_ in planned], pack_size, in_order=True)
    return Comparison(
        num_samples=len(samples),
        ways=[*other_ways(samples, pack_size, batch_size), read_output(out, manifest, pack_size)],
        scaled=[*other_ways(many, pack_size, batch_size), ours],
    )


def other_ways(samples: Sequence[Sample], pack_size: int, batch_size: int) -> list[Way]:
    guessed = bins_by_estimate([sample.guessed for sample in samples], pack_size)
    stored = bins_by_estimate([sample.stored for sample in samples], pack_size)
    exact = best_fit_decreasing([sample.tokens for sample in samples], pack_size)
    return [
        pad(samples, batch_size),
        pack("guessed lengths", samples, guessed, pack_size),
        pack("stored lengths", samples, stored, pack_size),
        pack("exact lengths", samples, exact, pack_size),
    ]


def read_samples(meta: Path) -> list[Sample]:
    family = family_of(str(PROCESSOR))
    image_config, samples = extract_image_config(family), []
    logger = logging.getLogger("neatpack")
    level = logger.level
    logger.setLevel(logging.ERROR)  # broken rows: the ledger names them
    try:
        examples = make_meta_dataset(str(meta))
    finally:
        logger.setLevel(level)
    for example in examples:
        try:
            exact = measured_example(example, family, needs_target=True)
        except SampleError:  # usable by none of the ways
            continue
        sizes = [[medium.height, medium.width] for medium in exact.media]
        hints = {"_text_tokens": count_text_tokens(example, family), "mm_inputs_meta": {"images_meta": sizes}}
        guessed, stored = (
            _estimate_sample_length(row, image_config, None, return_media_tokens=True)
            for row in (example, example | hints)
        )
        assert isinstance(guessed, tuple) and isinstance(stored, tuple)
        samples.append(Sample(tokens=exact.tokens, visual_tokens=exact.visual_tokens, guessed=guessed, stored=stored))
    return samples


def count_text_tokens(example: dict[str, Any], family: Any) -> int:
    """Tokens of the bare text, without what the chat template adds."""
    parts = [part for turn in example["conversation"] for part in turn["content"]]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return sum(len(family.chat.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)


def bins_by_estimate(estimates: Sequence[tuple[int, int]], pack_size: int) -> list[list[int]]:
    """The bins of NeMo Automodel: a sample loses one token to the shift, and a longer one gets a bin of its own."""
    capacity = int(pack_size * PACKING_RATIO)
    lengths = [min(max(tokens - 1, 0), capacity) for tokens, _ in estimates]
    return greedy_knapsack_vt_balanced(lengths, capacity, [visual for _, visual in estimates])


def best_fit_decreasing(lengths: Sequence[int], pack_size: int) -> list[list[int]]:
    """Put each sample, longest first, into the fullest bin with room for it."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, bin), ascending
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = bisect_left(rooms, (lengths[index], 0))
        room, number = rooms.pop(place) if place < len(rooms) else (pack_size, len(bins))
        if number == len(bins):
            bins.append([])
        bins[number].append(index)
        insort(rooms, (room - lengths[index], number))
    return bins


def pad(samples: Sequence[Sample], batch_size: int) -> Way:
    """Batches of as many samples as neatpack has in a pack."""
    epochs = []
    for order in shuffles(len(samples)):
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        longest = np.array([max(samples[index].tokens for index in batch) for batch in batches])
        rows = np.array([len(batch) for batch in batches])
        tokens = sums(batches, (sample.tokens for sample in samples))
        visual = sums(batches, (sample.visual_tokens for sample in samples))
        epochs.append(Packs(positions=rows * longest, tokens=tokens, visual_tokens=visual, squares=rows * longest**2))
    return way("padded batches", epochs, 0, tokens=sum(sample.tokens for sample in samples))


def pack(
    name: str, samples: Sequence[Sample], bins: Sequence[Sequence[int]], pack_size: int, *, in_order: bool = False
) -> Way:
    """Fill packs by exact length in the order of their bins, and drop what does not fit."""
    kept, dropped = [], 0
    for bin_ in bins:
        room, documents = pack_size, []
        for index in bin_:
            if samples[index].tokens > room:
                dropped += 1
                continue
            room -= samples[index].tokens
            documents.append(index)
        kept.append(documents)
    tokens, visual = [sample.tokens for sample in samples], [sample.visual_tokens for sample in samples]
    packs = Packs(
        positions=np.full(len(bins), pack_size),
        tokens=sums(kept, tokens),
        visual_tokens=sums(kept, visual),
        squares=sums(kept, (length**2 for length in tokens)),
    )
    epochs = [packs] if in_order else [take(packs, order) for order in shuffles(len(bins))]
    return way(name, epochs, dropped, tokens=int(packs.tokens.sum()))


def read_output(out: Path, manifest: Manifest, pack_size: int) -> Way:
    index = pq.read_table(out / "index.parquet", columns=["tokens", "visual_tokens", "squares"])
    tokens, visual, squares = (index[name].to_numpy() for name in ("tokens", "visual_tokens", "squares"))
    packs = Packs(positions=np.full(len(index), pack_size), tokens=tokens, visual_tokens=visual, squares=squares)
    orders = [PackedShards(str(out), rank=0, world_size=1, seed=seed).order() for seed in range(NUM_SHUFFLES)]
    dropped = manifest.counts.skipped.get("overlong", 0)
    return way("neatpack", [take(packs, order) for order in orders], dropped, tokens=int(tokens.sum()))


def way(name: str, epochs: Sequence[Packs], dropped: int, *, tokens: int) -> Way:
    """Averages over the epochs, which are the same packs in other orders, or other batches of the same samples."""
    return Way(
        name=name,
        packs=len(epochs[0].tokens),
        positions=round(float(np.mean([epoch.positions.sum() for epoch in epochs]))),
        tokens=tokens,
        dropped=dropped,
        cost=balance(epoch.cost for epoch in epochs),
        visual=balance(epoch.visual_tokens for epoch in epochs),
    )


def balance(loads: Iterable[np.ndarray]) -> tuple[float, ...]:
    ratios = [[step_imbalance(load, ranks) - 1 for ranks in RANKS] for load in loads]
    return tuple(np.mean(ratios, axis=0).tolist())


def take(packs: Packs, order: np.ndarray) -> Packs:
    names = ("positions", "tokens", "visual_tokens", "squares")
    return Packs(**{name: getattr(packs, name)[order] for name in names})


def sums(bins: Sequence[Sequence[int] | np.ndarray], values: Iterable[int]) -> np.ndarray:
    array = np.array([*values])
    return np.array([int(array[np.asarray(bin_, np.int64)].sum()) for bin_ in bins])


def shuffles(number: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).permutation(number) for seed in range(NUM_SHUFFLES)]


def table(found: Comparison) -> str:
    """The figures in at most 80 columns."""
    ours, scaled = found.ways[-1], found.scaled[-1]
    ranks = "".join(f"{f'{number} ranks':>9}" for number in RANKS)
    lines = [f"  {'':<15}{'tokens and padding':>22}{'padding':>12}{'samples dropped':>23}"]
    for each in found.ways:
        dropped = f"{each.dropped} of {found.num_samples}" if each.dropped else "0"
        lines.append(f"  {each.name:<15}{each.positions:>22,}{each.wasted:>12.1%}{dropped:>23}")
    lines += [
        "",
        f"  Balance of {found.num_samples * COPIES:,} samples of these lengths, {scaled.packs} packs of neatpack:",
        f"  {'slowest rank':<15}{'modelled cost':>27}{'visual tokens':>30}",
        f"  {'above mean by':<15}{ranks}   {ranks}",
    ]
    for each in found.scaled:
        lines.append(f"  {each.name:<15}{_loads(each)}")
    lines.append(f"  {'this output':<15}{_loads(ours)}")
    if any(ours.packs < MIN_GROUPS * number for number in RANKS):
        lines += [
            "  This output is too small to balance: where rows have copies (sample_ratio),",
            f"  an epoch keeps them apart, and needs {MIN_GROUPS} packs per rank. It has {ours.packs}.",
        ]
    return "\n".join(lines)


def _loads(each: Way) -> str:
    return "   ".join("".join(f"{f'{load:.1%}':>9}" for load in loads) for loads in (each.cost, each.visual))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("meta", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    print(table(compare(args.meta, args.out)))


if __name__ == "__main__":
    main()
