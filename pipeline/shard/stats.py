"""Figures of an output, for people and for parquet readers: per shard, per pack, per data set."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..ingest.corpus import Corpus
from ..plan.assign import Plan
from ..records import REASONS
from ..runtime.tables import column_sum
from .index import SCHEMA
from .ledger import reason_counts
from .note import DatasetSums, MediaSize, ShardNote

DATASETS_SCHEMA = pa.schema(
    [
        ("dataset", pa.string()),
        *((key, pa.int64()) for key in ("rows", "samples", "packed", "tokens", "visual_tokens")),
        ("ratio", pa.float64()),  # how often rows are taken in an epoch
        ("times", pa.float64()),  # of which by the loader, which repeats packs
        ("weight", pa.float64()),  # the share of all tokens that was asked for; null: none was
        ("media_bytes", pa.int64()),  # by the plan
        ("repeated_media_bytes", pa.int64()),  # of which those of repetitions
        *((key, pa.int64()) for key in DatasetSums._fields[1:]),  # as they were rendered
        *((reason, pa.int64()) for reason in REASONS),
    ]
)
MEDIA_SCHEMA = pa.schema(
    [(key, pa.string() if key in ("dataset", "kind") else pa.int64()) for key in MediaSize._fields]
)

SUMMED = (
    "bytes", "tokens", "visual_tokens", "target_tokens", "num_documents", "num_images", "num_videos", "num_audios"
)  # fmt: skip
# Columns that are fields of a PackLine; the others are made from them.
_OF_PACK_LINE = [name for name in SCHEMA.names if name not in ("shard", "fake_tokens", "times", "members")]


def make_index(
    notes: Sequence[ShardNote], members: Sequence[str], fake_tokens: int, times: NDArray[np.float64]
) -> pa.Table:
    """One line per pack: where it is and what is in it. `fake_tokens`: length of the fake image; `times`: by pack."""
    lines = []
    for note in notes:
        for pack in note.packs:
            places = zip(members, pack.members, strict=True)
            lines.append(
                {name: getattr(pack, name) for name in _OF_PACK_LINE}
                | {
                    "shard": note.shard,
                    "fake_tokens": fake_tokens if pack.fake_image else 0,
                    "times": times[pack.pack],
                    "members": [{"name": name, "offset": offset, "size": size} for name, (offset, size) in places],
                }
            )
    return pa.Table.from_pylist(lines, schema=SCHEMA)


def shard_stats(index: pa.Table) -> pa.Table:
    """By shard, in their order: Arrow's groups come in that of hashes."""
    sums = [("pack", "count"), *((name, "sum") for name in SUMMED)]
    grouped = index.drop_columns(["members"]).group_by("shard", use_threads=False).aggregate(sums)
    names = {"pack_count": "num_packs"} | {f"{name}_sum": name for name in SUMMED}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).sort_by("shard")


def pack_stats(index: pa.Table, pack_size: int) -> pa.Table:
    fill = pc.divide(pc.cast(index["tokens"], pa.float64()), float(pack_size))
    kept = index.drop_columns(["offset", "crc32", "members"])
    return kept.append_column("fill", fill)


def dataset_stats(
    corpora: Sequence[Corpus], ledgers: Sequence[pa.Table], plan: Plan, notes: Sequence[ShardNote]
) -> pa.Table:
    """Per corpus: rows in the file, samples packed (repetitions count), tokens, how often rows are taken, the bytes of
    their media, what its documents have, and skips by reason."""
    sums: dict[str, Counter[str]] = {corpus.name: Counter() for corpus in corpora}
    for note in notes:
        for each in note.sums:
            sums[each.dataset].update({key: getattr(each, key) for key in DatasetSums._fields[1:]})
    lines = []
    for index, (corpus, ledger) in enumerate(zip(corpora, ledgers, strict=True)):
        skips = reason_counts(ledger)
        packed = ledger.filter(pc.equal(ledger["status"], "packed"))
        planned = plan.packed.filter(pc.equal(plan.packed["dataset"], index))
        tokens = {key: column_sum(packed[key]) for key in ("tokens", "visual_tokens")}
        lines.append(
            {"dataset": corpus.name, "rows": corpus.num_rows, "samples": len(ledger), "packed": len(packed), **tokens}
            | {"ratio": ratio_taken(corpus, planned), "times": times_at_load(planned), "weight": corpus.weight}
            | media_bytes(planned)
            | {key: sums[corpus.name][key] for key in DatasetSums._fields[1:]}
            | {reason: skips.get(reason, 0) for reason in REASONS}
        )
    return pa.Table.from_pylist(lines, schema=DATASETS_SCHEMA)


def media_stats(notes: Sequence[ShardNote]) -> pa.Table:
    """One line per data set, kind and size before and after resizing, with how many media have it, in this order."""
    counts: Counter[tuple[str | int, ...]] = Counter()
    for note in notes:
        for size in note.sizes:
            counts[size[:-1]] += size.num_media
    lines = [(*size, count) for size, count in sorted(counts.items())]
    columns = zip(*lines, strict=True) if lines else [()] * len(MEDIA_SCHEMA)
    return pa.table([pa.array(column, f.type) for column, f in zip(columns, MEDIA_SCHEMA, strict=True)], MEDIA_SCHEMA)


def ratio_taken(corpus: Corpus, packed: pa.Table) -> float:
    """How often rows are taken: the sample_ratio, or by a weight how many tokens come of one, on average.

    `packed`: lines of its packed samples, with row and tokens.
    """
    if corpus.weight is None:
        ratio = corpus.dataset.sample_ratio
        return ratio if corpus.split == "train" else float(ratio > 0)
    tokens = packed["tokens"].to_numpy()
    _, firsts = np.unique(packed["row"].to_numpy(), return_index=True)
    return float(tokens.sum() / tokens[firsts].sum()) * times_at_load(packed) if len(tokens) else 0.0


def times_at_load(packed: pa.Table) -> float:
    """How often the loader gives the packs of a corpus, all of them equally often; lines of its packed samples."""
    return float(packed["times"][0].as_py()) if len(packed) else 1.0


def media_bytes(planned: pa.Table) -> dict[str, int]:
    """What media take on disk, and how much of it only because rows come more than once; lines of a plan."""
    again = planned.filter(pc.greater(planned["repeat"], 0))
    return {"media_bytes": column_sum(planned["media_bytes"]), "repeated_media_bytes": column_sum(again["media_bytes"])}
