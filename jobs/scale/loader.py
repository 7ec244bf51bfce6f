"""What a loader costs where there are many packs: opening, memory, the order of an epoch, the first pack, requests.

python jobs/scale/loader.py [--packs 1000000 10000000] [--packs-per-shard 64] [--json FILE]

The outputs are made up: a manifest and an index of so many packs with sound numbers in it, and shards that are holes in
the file system, as large as the index says. Each figure is of a process of its own, in which torch was imported before;
memory is what it has more than then (PSS: pages that processes share count in part), at the end and at its most.
Requests are those of a small real output, read from a store on loopback.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pyarrow as pa

from jobs.fuzzing.output import make
from neatpack import PackedShards
from neatpack.format.index import SCHEMA, write_loader_index
from neatpack.format.layout import MediaArray
from neatpack.format.manifest import (
    INDEX,
    LOADER_INDEX,
    PLAIN,
    SOURCES,
    Counts,
    Identity,
    Manifest,
    Pixels,
    ShardEntry,
    Shards,
    shard_name,
)
from neatpack.format.members import BLOCK, END, member_names
from neatpack.storage.files import sha256_of
from neatpack.storage.location import Location

ROOT = Path(__file__).resolve().parents[2]
PACK_SIZE, GROUP_SIZE, PER_TABLE = 16384, 512, 1 << 16
MEDIA = {
    "pixel_values": MediaArray(kinds=("image",), dtype="uint8", row=(1176,), counts="image_grid_thw"),
    "image_grid_thw": MediaArray(kinds=("image",), dtype="int64", row=(3,)),
}

# One process: what it costs is printed as JSON. Garbage of its imports must not hide what comes after them.
PROCESS = """
import gc, json, sys, time
import torch
sys.path.insert(0, sys.argv[1])
import neatpack.loaders

def memory():
    gc.collect()
    found = dict(line.split(":", 1) for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
    return int(found["Pss"].split()[0]) / 1000

def resident(key):
    return int(open("/proc/self/status").read().split(key)[1].split()[0]) / 1000

def begin():
    open("/proc/self/clear_refs", "w").write("5")  # the most that was resident is counted from here on
    return resident("VmRSS:")

what, out, check = sys.argv[2:5]
before, resident_before = memory(), begin()
start, cpu = time.perf_counter(), time.process_time()
packs = neatpack.loaders.PackedShards(out, rank=0, world_size=64, check=check)
told = {"open_s": time.perf_counter() - start, "open_cpu_s": time.process_time() - cpu, "open_mb": memory() - before}
told["open_peak_mb"] = resident("VmHWM:") - resident_before
resident_before = begin()
start = time.perf_counter()
if what == "order":
    order = packs.lazy_order()
    told["order_s"] = time.perf_counter() - start
    told["order_mb"], told["order_peak_mb"] = memory() - before, resident("VmHWM:") - resident_before
    start = time.perf_counter()
    told["whole_order_packs"] = len(order[:])
    told["whole_order_s"] = time.perf_counter() - start
else:
    packs.reader.counts(packs.reader.num_packs // 2)
    told["first_place_ms"] = 1000 * (time.perf_counter() - start)
print(json.dumps(told))
"""


def measure(num_packs: Sequence[int], *, packs_per_shard: int = 64) -> list[dict[str, Any]]:
    """Of outputs of so many packs: seconds, megabytes (10^6 bytes) and requests."""
    requests = requests_per_pack()
    lines = []
    for number in num_packs:
        with tempfile.TemporaryDirectory() as folder:
            make_output(Path(folder), number, packs_per_shard)
            told: dict[str, Any] = {"packs": number, "shards": -(-number // packs_per_shard)}
            told |= {"index_bytes_per_pack": (Path(folder) / LOADER_INDEX).stat().st_size / number}
            told |= in_process("order", folder, "none")
            told |= {key: value for key, value in in_process("place", folder, "none").items() if "place" in key}
            for check in ("packs", "sizes"):  # what the default looks at, and with the sizes of all shards
                opened = in_process("place", folder, check)
                told |= {f"{check}_{key}": opened[key] for key in ("open_s", "open_cpu_s", "open_mb")}
            lines.append(told | requests)
    return lines


def in_process(what: str, out: str, check: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", PROCESS, str(ROOT), what, out, check], check=True, text=True,
                          stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


# Outputs that are made up


def make_output(out: Path, num_packs: int, packs_per_shard: int, seed: int = 0) -> Manifest:
    """Manifest, index and shards without content."""
    media = {name: dataclasses.asdict(array) for name, array in MEDIA.items()}
    family = {"name": "made up", "position_axes": 3, "position_dtype": "int32", "media": media}
    members = member_names(MEDIA)
    shards: list[ShardEntry] = []
    write_loader_index(out, index_tables(num_packs, packs_per_shard, members, shards, seed))
    for name in (INDEX, SOURCES):
        (out / name).touch()  # nobody reads them here
    (out / "shards").mkdir()
    for shard in shards:
        with open(out / "shards" / shard.name, "wb") as file:
            file.truncate(shard.bytes)
    config = {"pack_size": PACK_SIZE, "align": 1, "group_size": GROUP_SIZE}
    identity = Identity(inputs={}, processor="", config=config, versions={}, code={})
    manifest = Manifest(
        fingerprint=identity.fingerprint,
        identity=identity,
        family=family,
        pixels=Pixels(codec=PLAIN, resize="torch", tables={}),
        counts=Counts(rows=0, samples=0, packed=0, skipped={}, skipped_tokens={}, fitted={},
                      packs=num_packs, tokens=0, visual_tokens=0,
                      target_tokens=0),
        shards=Shards(shards),
        files={name: sha256_of(out / name) for name in (INDEX, LOADER_INDEX, SOURCES)},
    )  # fmt: skip
    manifest.write(Location.parse(out))
    return manifest


def index_tables(
    num_packs: int, packs_per_shard: int, members: Sequence[str], shards: list[ShardEntry], seed: int
) -> Iterator[pa.Table]:
    """The index piece by piece, each of whole shards, which are added to `shards`."""
    random = np.random.default_rng(seed)
    per_table = max(1, PER_TABLE // packs_per_shard) * packs_per_shard
    for first in range(0, num_packs, per_table):
        count = min(per_table, num_packs - first)
        tokens = random.integers(PACK_SIZE // 2, PACK_SIZE + 1, count)
        visual = (tokens * random.random(count)).astype(np.int64)
        sizes = np.stack([128 + tokens * (at + 1) for at in range(len(members))], axis=1)
        padded = BLOCK + sizes + -sizes % BLOCK
        length, numbers = padded.sum(axis=1), np.arange(first, first + count) // packs_per_shard
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = np.cumsum(length)
        offset = ends - length
        offset -= np.repeat(offset[starts], np.diff([*starts.tolist(), count]))
        sums = np.add.reduceat(length, starts).tolist()
        counts = np.diff([*starts.tolist(), count]).tolist()
        for at, (size, num) in enumerate(zip(sums, counts, strict=True), len(shards)):
            shards.append(ShardEntry(name=shard_name(at), bytes=size + END, sha256="0" * 64, num_packs=num,
                                     first_pack=at * packs_per_shard))  # fmt: skip
        places = pa.StructArray.from_arrays(
            [pa.DictionaryArray.from_arrays(np.tile(np.arange(len(members)), count), list(members)).cast(pa.string()),
             pa.array(np.zeros(sizes.size, np.int64)), pa.array(sizes.reshape(-1))], ["name", "offset", "size"],
        )  # fmt: skip
        columns: dict[str, np.ndarray] = {
            name: np.zeros(count, np.int64) for name in SCHEMA.names if name not in ("shard", "members")
        }
        columns |= {"pack": np.arange(first, first + count), "offset": offset, "bytes": length, "tokens": tokens,
                    "visual_tokens": visual, "crc32": np.arange(count)}  # fmt: skip
        names = pa.DictionaryArray.from_arrays(
            numbers - numbers[0], [shard_name(at) for at in range(numbers[0], numbers[-1] + 1)]
        )
        lists = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * len(members), places)
        arrays = {"shard": names.cast(pa.string()), "members": lists}
        yield pa.table([arrays.get(field.name, pa.array(columns[field.name], field.type)) if field.name in columns
                        else arrays[field.name] for field in SCHEMA], schema=SCHEMA)  # fmt: skip


# Requests


def requests_per_pack() -> dict[str, float]:
    """Requests to a store, by pack, of what reads all packs of a small output by range, twice."""
    serving = import_module("object_store").serving  # of the tests
    with tempfile.TemporaryDirectory() as folder, serving(make(Path(folder))) as store:
        packs = PackedShards(store.uri(""), rank=0, world_size=1)
        told: dict[str, float] = {"requests_to_open": len(store.requests)}
        for name in ("first_epoch", "next_epoch"):
            store.requests.clear()
            num_packs = sum(1 for _ in packs)
            told |= {f"requests_per_pack_{name}": len(store.requests) / num_packs,
                     f"of_them_heads_{name}": store.num("HEAD", "") / num_packs}  # fmt: skip
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--packs-per-shard", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = measure(args.packs, packs_per_shard=args.packs_per_shard)
    for name in lines[0]:
        print(f"{name:24}", *(f"{line[name]:>14,.3f}" for line in lines))
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
