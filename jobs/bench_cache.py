"""Reading packs of a remote output: by range, and through a cache on this node's disk, cold and warm.

python jobs/bench_cache.py OUT [--repeats 5]

OUT is a URI that pyarrow knows (s3://bucket/packed). All ways read every pack in a shuffled order and copy it into a
batch, in turns; the figures are medians. The cache is a temporary folder, emptied before each cold reading.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.bench_load import report
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

    ways = {"by range": lambda: read(ranged), "cache, cold": cold, "cache, warm": lambda: read(cached)}
    report(ways, num_packs, repeats)


if __name__ == "__main__":
    main()
