"""The demo's samples batched in four ways, computed: what is wasted on padding, what is lost, how even the ranks are.

    python jobs/demo/compare.py META OUT

padded        one sample a row, a batch padded to its longest sample
on the fly    packed while training, by lengths that are guessed: a third of the characters, 500 tokens a picture
precomputed   the same, by lengths that a script wrote before: exact for the bare text and the pictures, without what
              the chat template adds
neatpack      the finished output OUT

The two in the middle follow the documented algorithm: bins by the estimate, in `greedy_knapsack_vt_balanced`; then,
pack by pack, samples are tokenized, and one for which no room is left is dropped. There the exact lengths decide.
"""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import pyarrow.parquet as pq

from neatpack import PackedShards, greedy_knapsack_vt_balanced, make_meta_dataset
from neatpack.loaders.online.estimate import _estimate_sample_length
from neatpack.loaders.online.processor import family_of
from neatpack.loaders.online.processor_config import extract_image_config
from neatpack.loaders.online.tokenized import SampleError, measured_example
from neatpack.pipeline.manifest import Manifest
from neatpack.pipeline.plan.balance import step_imbalance
from neatpack.pipeline.shard.words import counted

PROCESSOR = Path(__file__).parent / "processor"
RANKS = (2, 4)  # the demo has 20 packs: steps of more ranks would be few
SHUFFLES = 20  # orders of an epoch, by seed: one alone may be lucky


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A sample that can be read."""

    tokens: int  # exact
    visual_tokens: int
    guessed: tuple[int, int]  # the same, as estimated without any hint
    precomputed: tuple[int, int]  # and with those of a precompute step


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    name: str
    positions: int  # that the model computes
    tokens: int  # of which of samples
    samples: int
    lost: int
    balance: tuple[float, ...]  # of visual tokens, for each of RANKS: the fullest rank against the mean, over the steps

    @property
    def wasted(self) -> float:
        return (self.positions - self.tokens) / self.positions


def compare(meta: Path, out: Path) -> list[Way]:
    samples = read_samples(meta)
    manifest = Manifest.read(out)
    pack_size = int(manifest.identity.config["pack_size"])
    return [
        padded(samples, batch_size=round(manifest.counts.packed / manifest.counts.packs)),
        packed("on the fly", samples, [sample.guessed for sample in samples], pack_size),
        packed("precomputed", samples, [sample.precomputed for sample in samples], pack_size),
        of_neatpack(out, manifest, pack_size, len(samples)),
    ]


def read_samples(meta: Path) -> list[Sample]:
    family = family_of(str(PROCESSOR))
    image_config, samples = extract_image_config(family), []
    logger = logging.getLogger("neatpack")
    level = logger.level
    logger.setLevel(logging.ERROR)  # rows that are no conversations: the ledger names them
    try:
        examples = make_meta_dataset(str(meta))
    finally:
        logger.setLevel(level)
    for example in examples:
        try:
            exact = measured_example(example, family, needs_target=True)
        except SampleError:  # in nobody's batch
            continue
        sizes = [[medium.height, medium.width] for medium in exact.media]
        hints = {"_text_tokens": text_tokens(example, family), "mm_inputs_meta": {"images_meta": sizes}}
        guessed, precomputed = (
            _estimate_sample_length(told, image_config, None, return_media_tokens=True)
            for told in (example, example | hints)
        )
        assert isinstance(guessed, tuple) and isinstance(precomputed, tuple)
        samples.append(
            Sample(tokens=exact.tokens, visual_tokens=exact.visual_tokens, guessed=guessed, precomputed=precomputed)
        )
    return samples


def text_tokens(example: dict[str, Any], family: Any) -> int:
    """Of the bare text, without what the chat template writes around it."""
    parts = [part for turn in example["conversation"] for part in turn["content"]]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return sum(len(family.chat.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)


def padded(samples: Sequence[Sample], batch_size: int) -> Way:
    """As many samples in a batch as neatpack has in a pack."""
    positions, balances = [], []
    for order in shuffles(len(samples)):
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        positions.append(sum(len(batch) * max(samples[index].tokens for index in batch) for batch in batches))
        visual = [sum(samples[index].visual_tokens for index in batch) for batch in batches]
        balances.append(imbalances(np.array(visual)))
    return Way(
        name="padded",
        positions=round(float(np.mean(positions))),
        tokens=sum(sample.tokens for sample in samples),
        samples=len(samples),
        lost=0,
        balance=means(balances),
    )


def packed(name: str, samples: Sequence[Sample], estimates: Sequence[tuple[int, int]], pack_size: int) -> Way:
    lengths = [min(length, pack_size) for length, _ in estimates]  # a longer one has a pack of its own
    bins = greedy_knapsack_vt_balanced(lengths, pack_size, [visual for _, visual in estimates])
    tokens, visual, lost = 0, [], 0
    for bin_ in bins:
        room, seen = pack_size, 0
        for sample in (samples[index] for index in bin_):
            if sample.tokens > room:
                lost += 1
                continue
            room -= sample.tokens
            seen += sample.visual_tokens
        tokens += pack_size - room
        visual.append(seen)
    balances = [imbalances(np.array(visual)[order]) for order in shuffles(len(bins))]
    return Way(
        name=name,
        positions=len(bins) * pack_size,
        tokens=tokens,
        samples=len(samples),
        lost=lost,
        balance=means(balances),
    )


def of_neatpack(out: Path, manifest: Manifest, pack_size: int, num_samples: int) -> Way:
    index = pq.read_table(out / "index.parquet", columns=["tokens", "visual_tokens"])
    visual = index["visual_tokens"].to_numpy()
    orders = [PackedShards(str(out), rank=0, world_size=1, seed=seed).order() for seed in range(SHUFFLES)]
    return Way(
        name="neatpack",
        positions=len(index) * pack_size,
        tokens=int(index["tokens"].to_numpy().sum()),
        samples=num_samples,
        lost=manifest.counts.skipped.get("overlong", 0),
        balance=means([imbalances(visual[order]) for order in orders]),
    )


def imbalances(visual: np.ndarray) -> tuple[float, ...]:
    return tuple(step_imbalance(visual, ranks) for ranks in RANKS)


def means(balances: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(np.mean(balances, axis=0).tolist())


def shuffles(number: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).permutation(number) for seed in range(SHUFFLES)]


def table(ways: Sequence[Way]) -> str:
    titles = "".join(f"{f'fullest of {ranks} ranks':>21}" for ranks in RANKS)
    lines = [f"  {'':<12}{'positions':>10}{'wasted':>8}{'samples lost':>15}{titles}"]
    for way in ways:
        lost, over = f"{way.lost} of {way.samples}", "".join(f"{f'{b - 1:.1%} over mean':>21}" for b in way.balance)
        lines.append(f"  {way.name:<12}{way.positions:>10,}{way.wasted:>8.1%}{lost:>15}{over}")
    return "\n".join(lines)


def meaning(ways: Sequence[Way]) -> str:
    """What the figures say, in words."""
    padded, on_the_fly, precomputed, ours = ways
    return (
        f"  positions: what the model computes in an epoch. Padded takes {padded.positions / ours.positions:.1f} times "
        f"as many as neatpack, on the fly {on_the_fly.positions / ours.positions:.1f} times.\n"
        "  lost: a guess too long leaves packs empty; one too short drops what does not fit, in every epoch: "
        f"{counted(precomputed.lost, 'sample')}, {precomputed.lost / precomputed.samples:.0%}.\n"
        "  fullest rank: the visual tokens of the rank that the others wait for, on average over shuffles. These are "
        "few packs: jobs/bench_plan.py does it with many.\n"
        "  One picture cannot be decoded, which the other ways would find out in training; neatpack left its row out."
    )


if __name__ == "__main__":
    found = compare(Path(sys.argv[1]), Path(sys.argv[2]))
    print(table(found))
    print(meaning(found))
