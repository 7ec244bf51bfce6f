"""Benchmark of what looks into an output: report, inspect and diff on made-up ones. Exits 1 on a missed target.

python jobs/bench_view.py [--rows 1000000] [--keep DIR]

The outputs have the tables of real ones, planned by the real planner, and no shards.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.plan_data import mixed_samples
from neatpack.format.index import SCHEMA as INDEX_SCHEMA
from neatpack.format.manifest import (
    INDEX,
    MEDIA,
    PLAIN,
    Counts,
    Identity,
    Manifest,
    Pixels,
    ShardEntry,
    Shards,
    shard_name,
)
from neatpack.pipeline.plan import plan_bins
from neatpack.pipeline.shard.ledger import SCHEMA as LEDGER_SCHEMA
from neatpack.pipeline.shard.stats import DATASETS_SCHEMA, MEDIA_SCHEMA, pack_stats, shard_stats
from neatpack.pipeline.view.diff import difference
from neatpack.pipeline.view.inspect import inspected
from neatpack.pipeline.view.report.page import write_report
from neatpack.storage.files import sha256_of
from neatpack.storage.location import Location
from neatpack.storage.tables import write_parquet

PACK_SIZE, PER_SHARD, NUM_DATASETS = 16384, 64, 4
MAX_SECONDS, MAX_BYTES = 10.0, 5_000_000


def make_output(out: Path, num_rows: int, seed: int) -> Manifest:
    """Every 50th row is skipped."""
    tokens, visual = mixed_samples(num_rows, PACK_SIZE, 0)
    good = np.flatnonzero(np.arange(num_rows) % 50 != seed)
    bins = plan_bins(tokens[good], visual[good], capacity=PACK_SIZE, seed=seed)
    pack, position = np.full(num_rows, -1), np.full(num_rows, -1)
    for number, members in enumerate(bins):
        pack[good[members]], position[good[members]] = number, np.arange(len(members))
    names = [f"set-{number}" for number in range(NUM_DATASETS)]
    tables = {f"ledger/{number:05d}.parquet": ledger(name, part, tokens, visual, pack, position)
              for number, (name, part) in enumerate(zip(names, np.array_split(np.arange(num_rows), NUM_DATASETS),
                                                        strict=True))}  # fmt: skip
    index = make_index(tokens, visual, pack, len(bins))
    tables |= {INDEX: index, "stats/shards.parquet": shard_stats(index), MEDIA: make_media(names, visual)}
    tables["stats/packs.parquet"] = pack_stats(index, PACK_SIZE)
    lines = []
    for name, table in zip(names, list(tables.values())[:NUM_DATASETS], strict=True):
        is_packed = table["pack"].to_numpy() >= 0
        sums = {key: int(table[key].to_numpy().sum()) for key in ("tokens", "visual_tokens")}
        line = {"dataset": name, "rows": len(table), "samples": len(table), "packed": int(is_packed.sum()), **sums}
        blank = {field.name: 0 for field in DATASETS_SCHEMA if field.name not in line}
        lines.append(line | blank | {"ratio": 1.0, "weight": None, "bad_media": int((~is_packed).sum())})
    tables["stats/datasets.parquet"] = pa.Table.from_pylist(lines, schema=DATASETS_SCHEMA)
    for file, table in tables.items():
        write_parquet(out / file, table)
    return write_manifest(out, list(tables), tables, names, len(good), num_rows, seed)


def ledger(name: str, rows: np.ndarray, *columns: np.ndarray) -> pa.Table:
    tokens, visual, pack, position = (column[rows] for column in columns)
    is_packed = pack >= 0
    count = len(rows)
    values = {
        "dataset": pa.array([name]).take(pa.array(np.zeros(count, np.int32))),
        "row": np.arange(count),
        "repeat": np.zeros(count),
        "id": pa.array([""]).take(pa.array(np.zeros(count, np.int32))),
        "status": pa.array(["skipped", "packed"]).take(pa.array(is_packed.astype(np.int32))),
        "reason": pa.array(["bad_media", ""]).take(pa.array(is_packed.astype(np.int32))),
        "detail": pa.array(["a.jpg: cannot be decoded", ""]).take(pa.array(is_packed.astype(np.int32))),
        "pack": pack,
        "position": position,
        "tokens": np.where(is_packed, tokens, 0),
        "visual_tokens": np.where(is_packed, visual, 0),
    }
    return pa.table([pa.array(values[field.name]).cast(field.type) for field in LEDGER_SCHEMA], schema=LEDGER_SCHEMA)


def make_index(tokens: np.ndarray, visual: np.ndarray, pack: np.ndarray, num_packs: int) -> pa.Table:
    def per_pack(values: np.ndarray) -> np.ndarray:
        return np.bincount(pack[pack >= 0], weights=values[pack >= 0], minlength=num_packs).astype(np.int64)

    numbers = np.arange(num_packs)
    names = pa.array([shard_name(number) for number in range(-(-num_packs // PER_SHARD))])
    zeros = dict.fromkeys(INDEX_SCHEMA.names, np.zeros(num_packs, np.int64))
    values = zeros | {
        "pack": numbers, "shard": names.take(pa.array(numbers // PER_SHARD)), "bytes": per_pack(visual) * 2352,
        "tokens": per_pack(tokens), "visual_tokens": per_pack(visual), "squares": per_pack(tokens**2),
        "target_tokens": per_pack(tokens) // 9, "num_documents": per_pack(np.ones(len(tokens))),
        "num_images": per_pack(visual > 0), 
        "members": pa.array([[]], INDEX_SCHEMA.field("members").type).take(pa.array(np.zeros(num_packs, np.int32))),
    }  # fmt: skip
    return pa.table([pa.array(values[field.name]).cast(field.type) for field in INDEX_SCHEMA], schema=INDEX_SCHEMA)


def make_media(names: list[str], visual: np.ndarray) -> pa.Table:
    """A size of its own for every picture, which is the most that a table of sizes can have."""
    sides = np.sqrt(visual[visual > 0] * 784.0).astype(np.int64)
    count = len(sides)
    values = {"height": sides * 3 // 2, "width": sides * 2, "resized_height": sides, "resized_width": sides,
              "num_media": np.ones(count), "kind": pa.array(["image"]).take(pa.array(np.zeros(count, np.int32))),
              "dataset": pa.array(names).take(pa.array(np.arange(count) * len(names) // count))}  # fmt: skip
    return pa.table([pa.array(values[field.name]).cast(field.type) for field in MEDIA_SCHEMA], schema=MEDIA_SCHEMA)


def write_manifest(
    out: Path, files: list[str], tables: dict[str, pa.Table], names: list[str], packed: int, num_rows: int, seed: int
) -> Manifest:
    index, shards = tables[INDEX], tables["stats/shards.parquet"].to_pylist()
    config = {"pack_size": PACK_SIZE, "align": 1, "group_size": 512, "seed": seed, "split": "train"}
    described = {"format": "messages", "columns": {}, "tags": {}, "ignore_keys": [], "rows": num_rows // len(names)}
    identity = Identity(
        inputs={name: described for name in names}, processor="none", config=config, versions={}, code={}
    )
    sums = {name: int(index[name].to_numpy().sum()) for name in ("tokens", "visual_tokens", "target_tokens")}
    manifest = Manifest(
        fingerprint=identity.fingerprint,
        identity=identity,
        family={"name": "made up", "position_axes": 3, "position_dtype": "int32"},
        pixels=Pixels(codec=PLAIN, resize="torch", tables={}),
        counts=Counts(rows=num_rows, samples=num_rows, packed=packed, skipped={"bad_media": num_rows - packed},
                      skipped_tokens={},
                      fitted={}, packs=len(index), tokens=sums["tokens"], visual_tokens=sums["visual_tokens"],
                      target_tokens=sums["target_tokens"]),
        shards=Shards(ShardEntry(name=line["shard"], bytes=line["bytes"], sha256="0" * 64, num_packs=line["num_packs"],
                                first_pack=number * PER_SHARD) for number, line in enumerate(shards)),
        files={file: sha256_of(out / file) for file in files},
    )  # fmt: skip
    manifest.write(Location.parse(out))
    return manifest


def timed(what: str, job: Callable[[], object], missed: list[str]) -> object:
    start = time.perf_counter()
    result = job()
    seconds = time.perf_counter() - start
    print(f"{what:<8} {seconds:6.2f} s")
    if seconds > MAX_SECONDS:
        missed.append(f"{what}: {seconds:.1f} s, target <= {MAX_SECONDS}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Benchmark of report, inspect and diff; exits 1 on a missed target.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keep", help="keep the outputs there")
    args = parser.parse_args()
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="neatpack-bench-") as folder:
        first, second = (Path(args.keep or folder) / name for name in ("first", "second"))
        manifest = make_output(first, args.rows, 0)
        make_output(second, args.rows, 1)
        print(f"{args.rows:,} rows in {manifest.counts.packs:,} packs, {len(manifest.shards):,} shards")
        page = timed("report", lambda: write_report(Location.parse(first), manifest), missed)
        assert isinstance(page, Path)
        num_bytes = page.stat().st_size
        print(f"         {num_bytes / 1e6:6.2f} MB")
        if num_bytes > MAX_BYTES:
            missed.append(f"report: {num_bytes:,} bytes, target <= {MAX_BYTES:,}")
        timed("inspect", lambda: inspected(Location.parse(first), manifest), missed)
        timed("diff", lambda: difference(Location.parse(first), Location.parse(second)), missed)
    print("\n".join(f"MISSED {miss}" for miss in missed) or "all targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
