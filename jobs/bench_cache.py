"""Reading packs of a remote output: by range, and through a cache on this node's disk, cold and warm.

python jobs/bench_cache.py OUT [--repeats 5]

OUT is a URI that pyarrow knows (s3://bucket/packed). All ways read every pack in a shuffled order and copy it into a
batch, in turns; the figures are medians, on the clock, for most of it is waiting. The cache is a temporary folder,
emptied before each cold reading.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neatpack import PackedShards, neat_packed_vlm_collater


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench(args.out, Path(folder), args.repeats)


def bench(out: str, folder: Path, repeats: int) -> None:
    ranged = PackedShards(out, pixels="uint8")
    shards = ranged.reader.manifest.shards
    size = sum(shard.bytes for shard in shards)
    cached = PackedShards(out, pixels="uint8", cache=folder, cache_gb=size / 1e9 + 1)
    num_packs = len(cached)
    print(f"{num_packs} packs of {size / num_packs / 1e6:.1f} MB in {len(shards)} shards\n")

    def read(packs: PackedShards) -> None:
        for item in packs:
            neat_packed_vlm_collater([item], attn_implementation="flash_attention_2")

    def cold() -> None:
        for shard in folder.glob("*.tar"):
            shard.unlink()
        read(cached)

    ways: dict[str, Callable[[], None]] = {
        "by range": lambda: read(ranged),
        "cache, cold": cold,
        "cache, warm": lambda: read(cached),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - start) / num_packs)
    for name, own in times.items():
        print(f"{name:12} {1000 * statistics.median(own):10.2f} ms per pack")


if __name__ == "__main__":
    main()
