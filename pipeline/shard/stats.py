"""Figures of an output, for people and for parquet readers: per shard, per pack, per data set."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from neatpack.format.index import SCHEMA

from ..ingest.corpus import Corpus
from ..plan.files import Sums
from ..records import REASONS
from .note import DatasetSums, MediaSize, PackLine

DATASETS_SCHEMA = pa.schema(
    [
        ("dataset", pa.string()),
        *((key, pa.int64()) for key in ("rows", "samples", "packed", "tokens", "visual_tokens")),
        ("ratio", pa.float64()),  # how often rows are taken in an epoch
        ("weight", pa.float64()),  # the share of all tokens that was asked for; null: none was
        ("media_bytes", pa.int64()),  # by the plan
        ("repeated_media_bytes", pa.int64()),  # of which those of repetitions
        *((key, pa.int64()) for key in DatasetSums._fields[1:]),  # as they were rendered
        *((reason, pa.int64()) for reason in REASONS),
        ("skipped_tokens", pa.int64()),  # of the samples that were measured and are not packed
    ]
)
MEDIA_SCHEMA = pa.schema(
    [(key, pa.string() if key in ("dataset", "kind") else pa.int64()) for key in MediaSize._fields]
)

DOWNLOADS = pa.schema({"url": pa.string(), "bytes": pa.int64(), "sha256": pa.string()})  # columns of FETCHED
SHARDS, PACKS, DATASETS = (f"stats/{name}.parquet" for name in ("shards", "packs", "datasets"))

SUMMED = (
    "bytes", "tokens", "visual_tokens", "target_tokens", "num_documents", "num_images", "num_videos", "num_audios"
)  # fmt: skip
_OF_SUMS = ("packed", "tokens", "visual_tokens", "media_bytes", "repeated_media_bytes")
# Columns that are fields of a PackLine; the others are made from them.
_OF_PACK_LINE = [name for name in SCHEMA.names if name not in ("shard", "fake_tokens", "members")]


def make_index(shard: str, packs: Sequence[PackLine], members: Sequence[str], fake_tokens: int) -> pa.Table:
    """One line per pack of a shard: where it is and what is in it. `fake_tokens`: length of the fake image."""
    lines = []
    for pack in packs:
        places = zip(members, pack.members, strict=True)
        lines.append(
            {name: getattr(pack, name) for name in _OF_PACK_LINE}
            | {
                "shard": shard,
                "fake_tokens": fake_tokens if pack.fake_image else 0,
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


def merged(stats: pa.Table) -> pa.Table:
    """Where a row group of the index ends within a shard, that has two lines: their sum."""
    names = stats.column_names
    grouped = stats.group_by("shard", use_threads=False).aggregate([(name, "sum") for name in names if name != "shard"])
    grouped = grouped.rename_columns([name.removesuffix("_sum") for name in grouped.column_names])
    return grouped.select(names).sort_by("shard")


def pack_stats(index: pa.Table, pack_size: int) -> pa.Table:
    fill = pc.divide(pc.cast(index["tokens"], pa.float64()), float(pack_size))
    kept = index.drop_columns(["offset", "crc32", "members"])
    return kept.append_column("fill", fill)


def dataset_stats(
    corpora: Sequence[Corpus], planned: Sequence[Sums], rendered: Mapping[str, Mapping[str, int]]
) -> pa.Table:
    """Per corpus: rows in the file, samples packed (repetitions count), tokens, how often rows are taken, the bytes of
    their media, what its documents have (`rendered`), and skips by reason."""
    lines = []
    for corpus, sums in zip(corpora, planned, strict=True):
        skips = sums.skipped | corpus.num_left_out()
        samples = sums.packed + sum(skips.values())
        same = {name: getattr(sums, name) for name in _OF_SUMS}
        lines.append(
            {"dataset": corpus.name, "rows": corpus.num_rows, "samples": samples, **same}
            | {"ratio": ratio_taken(corpus, sums), "weight": corpus.weight}
            | {key: rendered.get(corpus.name, {}).get(key, 0) for key in DatasetSums._fields[1:]}
            | {reason: skips.get(reason, 0) for reason in REASONS}
            | {"skipped_tokens": sum(sums.skipped_tokens.values())}
        )
    return pa.Table.from_pylist(lines, schema=DATASETS_SCHEMA)


def media_stats(counts: Mapping[tuple[str | int, ...], int]) -> pa.Table:
    """One line per data set, kind and size before and after resizing, with how many media have it, in this order."""
    lines = [(*size, count) for size, count in sorted(counts.items())]
    columns = zip(*lines, strict=True) if lines else [()] * len(MEDIA_SCHEMA)
    return pa.table([pa.array(column, f.type) for column, f in zip(columns, MEDIA_SCHEMA, strict=True)], MEDIA_SCHEMA)


def ratio_taken(corpus: Corpus, sums: Sums) -> float:
    """How often rows are taken: the sample_ratio, or by a weight how many tokens come of one, on average."""
    if corpus.weight is None:
        ratio = corpus.dataset.sample_ratio
        return ratio if corpus.split == "train" else float(ratio > 0)
    return sums.tokens / sums.tokens_once if sums.tokens_once else 0.0
