"""What came out, or would: a summary that a person reads in ten seconds."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..manifest import Manifest
from ..plan.assign import pack_bytes
from ..planned import Planned
from ..records import REASONS
from ..runtime.tables import column_sum
from .stats import step_imbalance


def describe_output(out: Path, manifest: Manifest, *, reused_shards: int = 0) -> str:
    counts, pack_size = manifest.counts, manifest.identity.config["pack_size"]
    media = ("num_images", "num_videos", "num_audios")
    index = pq.read_table(out / "index.parquet", columns=["tokens", "visual_tokens", *media, "fake_tokens"])
    size = sum(shard.bytes for shard in manifest.shards)
    shards = f"{len(manifest.shards):,} shards, {_bytes(size)}"
    if reused_shards:
        shards += f" ({reused_shards:,} finished by an earlier run)"
    lines = _load_lines(index["tokens"].to_numpy(), index["visual_tokens"].to_numpy(), pack_size)
    num_images, num_videos, num_audios = (column_sum(index[name]) for name in media)
    num_fakes = column_sum(pc.greater(index["fake_tokens"], 0))
    fakes = f"; {num_fakes:,} packs without media carry a fake image" if num_fakes else ""
    sounds = f", {num_audios:,} sounds" if num_audios else ""
    lines.insert(1, ("media", f"{num_images - num_fakes:,} images, {num_videos:,} videos{sounds}{fakes}"))
    lines += [(word, f"{count:,} samples, to fit a pack") for word, count in counts.fitted.items()]
    lines = [("rows", f"{counts.rows:,} read, {counts.packed:,} samples packed"), *lines, ("on disk", shards)]
    return "\n".join([str(out), *_table(lines), *_skips(counts.skipped, counts.samples)])


def describe_plan(planned: Planned) -> str:
    """Of both outputs, where there are two."""
    both = [("plan", planned), *([("plan of the holdout", planned.holdout)] if planned.holdout else [])]
    return "\n".join(_describe_plan(title, each) for title, each in both)


def _describe_plan(title: str, planned: Planned) -> str:
    plan, inputs = planned.plan, planned.inputs
    counts = Counter(plan.skip_counts())
    for corpus in inputs.corpora:
        counts += Counter({reason: len(rows) for reason, rows in corpus.left_out().items()})
    size = int(pack_bytes(plan).sum())
    lines = [
        ("rows", f"{inputs.identity.num_rows:,} read, {len(plan.packed):,} samples to pack"),
        *_load_lines(plan.per_pack("tokens"), plan.per_pack("visual_tokens"), inputs.config.pack_size),
        ("on disk", f"about {_bytes(size)}"),
    ]
    for word, column in (("truncated", "limit"), ("shrunk", "shrink")):
        if count := int((plan.packed[column].to_numpy() > 0).sum()):
            lines.append((word, f"{count:,} samples, to fit a pack"))
    return "\n".join([title, *_table(lines), *_skips(counts, len(plan.packed) + counts.total())])


def _load_lines(tokens: np.ndarray, visual: np.ndarray, pack_size: int) -> list[tuple[str, str]]:
    """Packs, fill and balance."""
    num_packs = len(tokens)
    if not num_packs:
        return [("packs", "0")]
    share = visual.sum() / max(1, tokens.sum())
    lines = [
        ("packs", f"{num_packs:,} of {pack_size:,} tokens, {tokens.sum() / (num_packs * pack_size):.2%} full"),
        ("tokens", f"{tokens.sum():,}, {share:.0%} of them visual"),
    ]
    ranks = [size for size in (8, 64, 512) if num_packs >= size]
    if visual.any() and ranks:
        spread = ", ".join(f"{step_imbalance(visual, size):.3f} at {size} ranks" for size in ranks)
        lines.append(("balance", f"slowest rank / mean, visual tokens: {spread}"))
    return lines


def _skips(counts: Mapping[str, int], samples: int) -> list[str]:
    if not counts:
        return ["  nothing skipped"]
    total = sum(counts.values())
    lines = [f"  skipped   {total:,} of {samples:,}; the ledger names each row"]
    for reason in REASONS:
        if reason in counts:
            lines.append(f"    {counts[reason]:>8,}  {reason}: {REASONS[reason]}")
    return lines


def _table(lines: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:<9} {text}" for name, text in lines]


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
