"""What came out, or would: a summary that a person reads in ten seconds, whose figures add up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from neatpack.format.manifest import Counts, Manifest
from neatpack.storage.location import Location
from neatpack.storage.tables import column_sum, read_parquet

from ..ingest.meta import HUB
from ..plan.balance import step_imbalance
from ..plan.files import RANKS, Sums
from ..planned import Planned
from ..records import REASONS
from .composition import COPIES, read_composition
from .stats import ratio_taken
from .troubles import Tokens
from .words import counted, percent, size, times_taken

MOST_NAMED = 6  # data sets that a line names one by one
NOTABLE_COPIES = 0.1  # of the bytes of an output: from there on its copies are worth a word

Line = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A data set's part of an output."""

    name: str
    weight: float | None  # the share of tokens that was asked for
    ratio: float  # how often its rows are taken in an epoch
    tokens: int  # stored
    media_bytes: int
    repeated_media_bytes: int


def describe_output(out: Location, manifest: Manifest, *, reused_shards: int = 0) -> str:
    counts, pack_size = manifest.counts, manifest.identity.config["pack_size"]
    media = ("num_images", "num_videos", "num_audios")
    index = read_parquet(out / "index.parquet", columns=["tokens", "visual_tokens", *media, "fake_tokens"])
    num_bytes = sum(shard.bytes for shard in manifest.shards)
    shards = f"{counted(len(manifest.shards), 'shard')}, {size(num_bytes)}"
    if reused_shards:
        shards += f" ({reused_shards:,} finished by an earlier run)"
    visual = index["visual_tokens"].to_numpy()
    balance = {ranks: step_imbalance(visual, ranks) for ranks in RANKS}
    lines = _load_lines(len(index), column_sum(index["tokens"]), int(visual.sum(dtype=np.int64)), pack_size, balance)
    num_images, num_videos, num_audios = (column_sum(index[name]) for name in media)
    num_fakes = column_sum(pc.greater(index["fake_tokens"], 0))
    carry = "carries" if num_fakes == 1 else "carry"
    fakes = f"; {counted(num_fakes, 'pack')} without media {carry} a fake image" if num_fakes else ""
    sounds = f", {counted(num_audios, 'sound')}" if num_audios else ""
    pictures = f"{counted(num_images - num_fakes, 'image')}, {counted(num_videos, 'video')}"
    lines.insert(1, ("media", f"{pictures}{sounds}{fakes}"))
    lines += [(word, f"{counted(count, 'sample')}, to fit a pack") for word, count in counts.fitted.items()]
    lines += _unavoidable_lines(out, manifest)
    figures = read_parquet(out / "stats" / "datasets.parquet").to_pylist()
    columns = ("weight", "ratio", "tokens", "media_bytes", "repeated_media_bytes")
    shares = [Share(name=line["dataset"], **{name: line[name] for name in columns}) for line in figures]
    lines = [_sum_line(counts.rows, counts.packed, counts.skipped, "packed"),
             _format_line(manifest.identity.inputs), *lines, *_mixture_lines(shares),
             ("on disk", shards), *_copies_lines(shares, num_bytes)]  # fmt: skip
    tokens = Tokens(packed=sum(share.tokens for share in shares), skipped=counts.skipped_tokens)
    skips = _skips(counts.skipped, counts.samples, tokens, f"neatpack skipped {out}")
    return "\n".join([str(out), *_table(lines), *skips, *_warnings(manifest.warnings)])


def _unavoidable_lines(out: Location, manifest: Manifest) -> list[Line]:
    """Copies of rows that share packs: of those that are repeated, where there are too few packs."""
    if manifest.counts.samples == manifest.counts.rows:
        return []
    copies = next((each for each in read_composition(out, manifest) if each.kind == COPIES), None)
    if copies is None or not copies.together:
        return []
    words = f"{copies.together:,} of {counted(copies.pairs, 'pair')} of copies share a pack: there is no other place"
    return [("copies", words)]


def describe_plan(planned: Planned) -> str:
    """Of both outputs, where there are two."""
    both = [("plan", planned), *([("plan of the holdout", planned.holdout)] if planned.holdout else [])]
    return "\n".join(_describe_plan(title, each) for title, each in both)


def describe_verified(out: Location, manifest: Manifest) -> str:
    """What `verify` says of an output in which nothing is wrong."""
    counts = manifest.counts
    return (
        f"{out}: verified. {counted(counts.rows, 'input row')} accounted for, {counted(counts.packed, 'sample')} and "
        f"{counted(counts.tokens, 'token')} in {counted(counts.packs, 'pack')}, "
        f"{counted(len(manifest.shards), 'shard')}\n{_packed_share(counts)}"
    )


def _packed_share(counts: Counts) -> str:
    """What part of the samples was packed."""
    if not counts.samples:
        return "there were no samples to pack"
    if counts.packed == counts.samples:
        return "all of the samples were packed"
    reasons = ", ".join(f"{counts.skipped[reason]:,} {reason}" for reason in REASONS if reason in counts.skipped)
    skipped = counts.samples - counts.packed
    packed = percent(counts.packed, counts.samples)
    return f"{packed} of the samples were packed, {percent(skipped, counts.samples)} skipped: {reasons}"


def _describe_plan(title: str, planned: Planned) -> str:
    inputs, sums = planned.inputs, planned.sums
    counts = planned.skip_counts()
    for corpus in inputs.corpora:
        counts += Counter(corpus.num_left_out())
    num_bytes, num_packed = planned.num_bytes, planned.num_packed
    tokens, visual = (sum(getattr(each, name) for each in sums) for name in ("tokens", "visual_tokens"))
    shares = _planned_shares(planned)
    lines = [
        _sum_line(inputs.identity.num_rows, num_packed, counts, "to pack"),
        _format_line(inputs.identity.inputs),
        *_load_lines(planned.num_packs, tokens, visual, inputs.config.pack_size, _planned_balance(planned)),
        *_mixture_lines(shares),
        ("on disk", f"about {size(num_bytes)}"),
        *_copies_lines(shares, num_bytes),
    ]
    for word in ("truncated", "shrunk"):
        if count := sum(getattr(each, word) for each in sums):
            lines.append((word, f"{counted(count, 'sample')}, to fit a pack"))
    lost = sum(sums, Sums()).skipped_tokens
    skips = _skips(counts, num_packed + counts.total(), Tokens(packed=tokens, skipped=lost), "")
    return "\n".join([title, *_table(lines), *skips, *_warnings(planned.warnings)])


def _planned_balance(planned: Planned) -> dict[int, float]:
    """Over the steps of all plan files; none goes over the end of one, where group_size is a multiple of the ranks."""
    balance = {}
    for ranks in RANKS:
        found = [file.balance[str(ranks)] for file in planned.files]
        num_steps = sum(count for _, count in found)
        balance[ranks] = sum(total for total, _ in found) / num_steps if num_steps else 1.0
    return balance


def _planned_shares(planned: Planned) -> list[Share]:
    return [
        Share(
            name=corpus.name,
            weight=corpus.weight,
            ratio=ratio_taken(corpus, sums),
            **{name: getattr(sums, name) for name in ("tokens", "media_bytes", "repeated_media_bytes")},
        )
        for corpus, sums in zip(planned.inputs.corpora, planned.sums, strict=True)
    ]


def _sum_line(num_rows: int, num_packed: int, skipped: Mapping[str, int], packed: str) -> Line:
    """One sum: "338 = 308 rows + 30 repeats = 291 packed + 47 skipped". Every row has a line in the ledger at least."""
    num_skipped = sum(skipped.values())
    repeats = num_packed + num_skipped - num_rows
    samples = f"{num_packed + num_skipped:,} = {counted(num_rows, 'row')} + {counted(repeats, 'repeat')}"
    return "samples", f"{samples} = {num_packed:,} {packed} + {num_skipped:,} skipped"


def _load_lines(num_packs: int, tokens: int, visual: int, pack_size: int, balance: Mapping[int, float]) -> list[Line]:
    """Packs, fill and balance."""
    if not num_packs:
        return [("packs", "0")]
    share = visual / max(1, tokens)
    lines = [
        ("packs", f"{num_packs:,} of {pack_size:,} tokens, {tokens / (num_packs * pack_size):.2%} full"),
        ("tokens", f"{tokens:,}, {share:.0%} of them visual"),
    ]
    ranks = [number for number in balance if num_packs >= number]
    if visual and ranks:
        spread = ", ".join(f"{balance[number]:.3f} at {number} ranks" for number in ranks)
        lines.append(("balance", f"slowest rank / mean, visual tokens: {spread}"))
    return lines


def _mixture_lines(shares: Sequence[Share]) -> list[Line]:
    """Asked against packed, of the data sets for which something was asked: there may be dozens of others."""
    total = sum(share.tokens for share in shares)
    lines: list[Line] = []
    for share in (share for share in shares if share.weight is not None or share.ratio != 1):
        asked = f"{share.weight:.1%} asked, " if share.weight is not None else ""
        packed = f"{percent(share.tokens, total)} of tokens"
        lines.append(("" if lines else "mixture", f"{share.name} {asked}{packed}, {times_taken(share.ratio)}"))
    return lines


def _format_line(inputs: Mapping[str, Mapping[str, Any]]) -> Line:
    """How rows were read, for most data sets are not told how: "llava (coco, vg), document (web)"."""
    names: dict[str, list[str]] = {}
    for name, entry in inputs.items():
        source = entry.get("source", HUB)
        names.setdefault(entry["format"] if source == HUB else f"source {source}", []).append(name)
    told = [
        f"{format_} ({', '.join(of) if len(of) <= MOST_NAMED else counted(len(of), 'data set')})"
        for format_, of in names.items()
    ]
    return "read as", ", ".join(told)


def _copies_lines(shares: Sequence[Share], num_bytes: int) -> list[Line]:
    """Pixels that are on disk more than once, where they are many. Their bytes are told as shares: by the plan they are
    those of u8, whatever the codec."""
    all_bytes = max(num_bytes, sum(share.media_bytes for share in shares))
    if sum(share.repeated_media_bytes for share in shares) <= NOTABLE_COPIES * all_bytes:
        return []
    return [
        (
            "" if number else "repeats",
            f"{share.name}: media stored {share.ratio:.3g} times, "
            f"{share.repeated_media_bytes / share.media_bytes:.0%} of them copies",
        )
        for number, share in enumerate(share for share in shares if share.repeated_media_bytes)
    ]


def _skips(counts: Mapping[str, int], samples: int, tokens: Tokens, command: str) -> list[str]:
    """`command`: what lists the rows, once there is a ledger."""
    if not counts:
        return ["  nothing skipped"]
    total, lost = sum(counts.values()), tokens.without(())
    where = f"each of them: {command}" if command else "the ledger will name each row"
    shares = f"{total:,} of {counted(samples, 'sample')}, {percent(total, samples)}"
    if lost:
        measured = tokens.packed + lost
        shares += f", and {lost:,} of {counted(measured, 'measured token')}, {percent(lost, measured)}"
    lines = [f"  skipped   {shares}; {where}"]
    for reason in REASONS:
        if reason in counts:
            own = f" ({counted(tokens.skipped[reason], 'token')})" if tokens.skipped.get(reason) else ""
            lines.append(f"    {counts[reason]:>8,}  {reason}{own}: {REASONS[reason]}")
    return lines


def _warnings(warnings: Sequence[str]) -> list[str]:
    """About the data; they were logged, too, hours ago."""
    if not warnings:
        return []
    return [f"  warnings  {counted(len(warnings), 'warning')} about the data", *(f"    {each}" for each in warnings)]


def _table(lines: Sequence[Line]) -> list[str]:
    return [f"  {name:<9} {text}" for name, text in lines]
