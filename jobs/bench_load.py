"""Reading packs: PackedShards against webdataset's own iterator and decoders, on the same shards.

python jobs/bench_load.py [OUT] [--repeats 7] [--check]

Without OUT it packs drawn pictures into packs of about 14 MB first. Both sides read all packs in turns, from the page
cache, in one process and on one core; ratios are of medians. `--check` exits 1 below 20x (views) or 5x (batch buffer).
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import json

import numpy as np
import torch
import webdataset as wds
from PIL import Image

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.loaders.pixels import restored

PROCESSOR = Path(__file__).parent / "demo" / "processor"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return bench(Path(args.out) if args.out else make_packs(Path(folder)), args.repeats, args.check)


def bench(out: Path, repeats: int, check: bool) -> int:
    urls = sorted(str(path) for path in (out / "shards").iterdir())
    dataset = PackedShards(out, pixels="uint8", shuffle=False)
    items = list(dataset)
    size = sum(item["pixel_values"].nbytes for item in items) / len(items)
    print(f"{len(items)} packs of {size / 1e6:.1f} MB of pixels; milliseconds per pack, one core\n")

    # Both sides end with every array of the pack at hand; the last byte is read, so that mapping alone does not count.
    def views() -> None:
        for item in dataset:
            item["pixel_values"][-1:].sum()

    def buffered() -> None:
        for item in dataset:
            neat_packed_vlm_collater([item], attn_implementation="flash_attention_2")

    def theirs() -> None:
        for sample in wds.WebDataset(urls, shardshuffle=False).decode():
            sample["pixel_values.npy"][-1:].sum()

    times = in_turns({"webdataset": theirs, "views": views, "buffered": buffered}, repeats)
    per_pack = {name: 1000 * value / len(items) for name, value in times.items()}
    print(f"  webdataset's iterator and decoders      {per_pack['webdataset']:8.2f}")
    ratios = {name: per_pack["webdataset"] / per_pack[name] for name in ("views", "buffered")}
    print(f"  PackedShards, views of the map          {per_pack['views']:8.2f}   {ratios['views']:6.1f}x")
    print(f"  PackedShards, copied into a batch       {per_pack['buffered']:8.2f}   {ratios['buffered']:6.1f}x")

    stored, how = items[0]["pixel_values"], dataset.stored["pixel_values"]
    result = restored(stored, how, torch.bfloat16)
    target = torch.empty_like(result)
    times = in_turns(
        {
            "restore": lambda: restored(stored, how, torch.bfloat16),
            "memcpy": lambda: target.copy_(result),
        },
        repeats * 3,
    )
    multiple = times["restore"] / times["memcpy"]
    print(f"\n  restored to bf16                        {1000 * times['restore']:8.2f}")
    print(
        f"  memcpy of the result                    {1000 * times['memcpy']:8.2f}   restore is {multiple:.1f} memcpys"
    )
    if check and (ratios["views"] < 20 or ratios["buffered"] < 5):
        print("\nbelow the targets: 20x as views, 5x copied into a batch", file=sys.stderr)
        return 1
    return 0


def in_turns(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def make_packs(folder: Path) -> Path:
    """96 noisy pictures of 0.8 megapixels, about six to a pack."""
    from neatpack.pipeline.config import PackConfig
    from neatpack.pipeline.run import run_pack

    rng = np.random.default_rng(0)
    rows = []
    for number in range(96):
        pixels = rng.integers(0, 256, (56, 56, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((896, 896), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
        turns = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "Noise. " * 20}]
        rows.append({"messages": turns, "images": [f"{number}.jpg"]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps({"noise": {"file_name": "rows.jsonl", "media_dir": "."}}))
    run_pack(PackConfig(meta=str(folder / "meta.json"), processor=str(PROCESSOR), out=str(folder / "out"),
                        pack_size=8192, max_pixels=1_000_000, engine="inline"))  # fmt: skip
    return folder / "out"


if __name__ == "__main__":
    raise SystemExit(main())
