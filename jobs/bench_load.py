"""Reading packs: PackedShards against webdataset's own iterator and decoders, and against LitData, on the same packs.

python jobs/bench_load.py [OUT] [--tokens 1024] [--packs 2000] [--repeats 5] [--busy] [--check]

Without OUT it packs twice first: drawn pictures into packs of about 14 MB, and text into packs of --tokens tokens. All
contenders read all packs in turns, from the page cache; figures are medians per pack, as CPU time (of all threads and
processes) and on the clock. Torch keeps its threads, as in training. --busy lets two processes spin beside them.

--check exits 1 if, by CPU time, PackedShards as read is below 5x of webdataset, if a batch of pictures takes more than
2.5 times its memcpy (it is read, and copied once more), if one of text takes more than a quarter of webdataset's time
to read it, or if it is slower than LitData. Packs are compared with their checksums in the first pass over them, which
is not timed.
"""

import argparse
import gc
import hashlib
import json
import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.loaders.media import LAYOUT_KEY, document_numbers
from neatpack.loaders.pixels import STORED_KEY, restored
from neatpack.loaders.reader import ShardReader
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.records import TOKEN_TYPES
from neatpack.pipeline.run import run_pack

try:
    import litdata
except ImportError as error:
    litdata, NO_LITDATA = None, str(error)

PROCESSOR = Path(__file__).parent / "demo" / "processor"
WORDS = ("apple", "anchor", "basket", "bridge", "candle", "castle", "desert", "dragon", "engine", "feather", "forest")
NUM_WORKERS = 2
SPINNING = "spinning"
Item = dict[str, Any]


class Cost(NamedTuple):
    """Seconds of one pass over all packs."""

    cpu: float
    clock: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--packs", type=int, default=2000, help="of text, about")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outs = [Path(args.out)] if args.out else [pictures(folder / "a"), text(folder / "b", args.tokens, args.packs)]
        with competition(2 if args.busy else 0):
            missed = [line for out in outs for line in bench(out, folder / f"lit-{out.parent.name}", args.repeats)]
    if args.check and missed:
        print("\nbelow the targets:", *missed, sep="\n  ", file=sys.stderr)
        return 1
    return 0


def bench(out: Path, lit_folder: Path, repeats: int) -> list[str]:
    """Prints a section; the targets that were missed."""
    dataset = PackedShards(out, pixels="uint8", shuffle=False)
    items = [dataset.pack(number) for number in dataset.reader.packs[:100].tolist()]
    size = statistics.mean(item["pixel_values"].nbytes for item in items)
    tokens = statistics.mean(len(item["input_ids"]) for item in items)
    print(f"\n{len(dataset):,} packs of {tokens:,.0f} tokens and {size / 1e6:.3f} MB of pixels")
    is_text = size < 1e6
    missed = bench_one_process(out, dataset, items[0], is_text, repeats)
    missed += bench_workers(dataset, items[0], lit_folder, repeats)
    if not is_text:
        bench_restoring(dataset, items[0], repeats)
    return [f"{'text' if is_text else 'pictures'}: {line}" for line in missed]


def bench_one_process(out: Path, dataset: PackedShards, item: Item, is_text: bool, repeats: int) -> list[str]:
    urls = sorted(str(path) for path in (out / "shards").iterdir())
    source = collated([item])
    target = {name: torch.empty_like(source[name]) for name in tensors_of(source)}

    # Both sides end with every array of the pack at hand; the last byte is read, so that mapping alone does not count.
    def theirs() -> None:
        for sample in wds.WebDataset(urls, shardshuffle=False).decode():
            sample["pixel_values.npy"][-1:].sum()

    def read() -> None:
        for item in dataset:
            item["pixel_values"][-1:].numpy().sum()

    def batches() -> None:
        for item in dataset:
            collated([item])

    def copied() -> None:
        for _ in range(len(dataset)):
            for name, tensor in target.items():
                tensor.copy_(source[name])

    contenders = {
        "webdataset's iterator and decoders": theirs,
        "PackedShards, read": read,
        "PackedShards, copied into a batch": batches,
        "the limit: memcpy of a batch": copied,
    }
    print("\n  one process")
    first, as_read, as_batches, memcpy = report(contenders, len(dataset), repeats)
    missed = [] if first.cpu >= 5 * as_read.cpu else [f"read {first.cpu / as_read.cpu:.1f}x of webdataset, not 5x"]
    if is_text and first.cpu < 4 * as_batches.cpu:
        missed.append(f"batches {first.cpu / as_batches.cpu:.1f}x of webdataset, not 4x")
    if not is_text and as_batches.cpu > 2.5 * memcpy.cpu:
        missed.append(f"batches take {as_batches.cpu / memcpy.cpu:.1f} times their memcpy, not 2.5")
    return missed


def bench_workers(dataset: PackedShards, item: Item, lit_folder: Path, repeats: int) -> list[str]:
    """Batches of one pack, collated in the workers; the same collater on all sides."""
    epochs = max(1, 64 // len(dataset))  # starting the workers is part of it, and must not be most of it
    options: dict[str, Any] = {"batch_size": 1, "num_workers": NUM_WORKERS, "persistent_workers": True,
                               "multiprocessing_context": "fork"}  # fmt: skip

    def ours() -> DataLoader[Any]:
        return DataLoader(dataset, collate_fn=collated, **options)

    def not_read() -> DataLoader[Any]:
        return DataLoader(range(len(dataset)), collate_fn=partial(collated_again, [item]), **options)  # type: ignore[arg-type]

    loaders: dict[str, Callable[[], Iterable[Item]]] = {"DataLoader of PackedShards": ours}
    if litdata:
        write_litdata(dataset, lit_folder)
        settings = {LAYOUT_KEY: dataset.layout, STORED_KEY: dataset.stored}

        def theirs() -> Any:
            streamed = litdata.StreamingDataset(str(lit_folder), shuffle=False)
            return litdata.StreamingDataLoader(streamed, collate_fn=partial(collated_arrays, settings), **options)

        loaders = {"LitData's loader of the same arrays": theirs} | loaders
        if digests(ours()) != digests(theirs()):
            raise SystemExit("the batches of both sides differ: the comparison would mean nothing")
        end_workers()
    loaders["the limit: the same pack, not read"] = not_read

    def passes(make: Callable[[], Iterable[Item]]) -> float:
        loader = make()
        for _ in range(epochs):
            for batch in loader:
                batch["input_ids"][0, -1].item()
        done = time.perf_counter()
        del loader
        end_workers()
        return done

    print(f"\n  {NUM_WORKERS} workers, which collate")
    costs = report({name: partial(passes, make) for name, make in loaders.items()}, epochs * len(dataset), repeats)
    if not litdata:
        print(f"    LitData: {NO_LITDATA}; `pip install --no-deps litdata` and what it imports, to compare with it")
        return []
    ratio = costs[0].cpu / costs[1].cpu
    return [f"{ratio:.2f}x of LitData, not 1x"] if ratio < 1 else []


def bench_restoring(dataset: PackedShards, item: Item, repeats: int) -> None:
    stored, how = item["pixel_values"], dataset.stored["pixel_values"]
    result = restored(stored, how, torch.bfloat16)
    target = torch.empty_like(result)
    print("\n  pixels")
    restoring = {
        "restored to bf16": lambda: restored(stored, how, torch.bfloat16),
        "the limit: memcpy of the result": lambda: target.copy_(result),
    }
    report(restoring, 1, repeats * 3)


# Both sides of the comparison


def collated(items: Sequence[Item]) -> Item:
    return neat_packed_vlm_collater(items, attn_implementation="flash_attention_2")


def collated_again(items: Sequence[Item], _: object) -> Item:
    return collated(items)


def collated_arrays(settings: Item, samples: Sequence[Item]) -> Item:
    """What PackedShards adds to the arrays of a pack; the collater makes the integers long."""
    return collated(
        [{**sample, "attention_mask": document_numbers(sample["seq_lens_padded"]), **settings} for sample in samples]
    )


def write_litdata(dataset: PackedShards, folder: Path) -> None:
    """As tensors, which LitData reads faster than numpy's arrays: it copies those twice.

    `optimize` makes "spawn" the way to start processes, for good: workers would import all of this file, for seconds.
    """
    numbers = dataset.reader.packs.tolist()
    litdata.optimize(partial(stored_pack, dataset.reader), numbers, str(folder), chunk_bytes="64MB", num_workers=1,
                     verbose=False)  # fmt: skip


def stored_pack(reader: ShardReader, number: int) -> Item:
    arrays, counts = reader.arrays(number, reader.content(number)), reader.counts(number)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return tensors | {f"n_{kind}s": counts[f"num_{kind}s"] for kind in TOKEN_TYPES}


def tensors_of(batch: Item) -> list[str]:
    return [name for name, value in batch.items() if isinstance(value, torch.Tensor)]


def digests(loader: Iterable[Item]) -> list[str]:
    """Of every batch; sorted, since workers take turns in other ways."""
    return sorted(
        hashlib.sha256(
            b"".join(f"{name}{batch[name].dtype}{batch[name].shape}".encode() + batch[name].numpy().tobytes()
                     for name in sorted(tensors_of(batch)))
        ).hexdigest()
        for batch in loader
    )  # fmt: skip


# Time


def report(contenders: Mapping[str, Callable[[], object]], num_packs: int, repeats: int) -> list[Cost]:
    """Medians, and how often each would go into the first of them.

    A contender that cleans up after itself says when it was done: the clock stops there.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, function in contenders.items():
            start, cpu = time.perf_counter(), cpu_seconds()
            done = function()
            end = done if isinstance(done, float) else time.perf_counter()
            costs[name].append(Cost(cpu_seconds() - cpu, end - start))
    medians = [Cost(*(statistics.median(values) for values in zip(*costs[name], strict=True))) for name in contenders]
    print(f"    {'microseconds per pack':40} {'CPU':>10} {'':9} {'clock':>10}")
    for name, cost in zip(contenders, medians, strict=True):
        ratios = Cost(medians[0].cpu / cost.cpu, medians[0].clock / cost.clock)
        cpu, clock = (1e6 * value / num_packs for value in cost)
        print(f"    {name:40} {cpu:10,.0f} {ratios.cpu:8.2f}x {clock:10,.0f} {ratios.clock:8.2f}x")
    return medians


def cpu_seconds() -> float:
    """Of this process and of those of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def end_workers() -> None:
    """Those of loaders that nobody holds any more: their time counts when they have ended."""
    gc.collect()
    left = [process for process in multiprocessing.active_children() if process.name != SPINNING]
    assert not left, f"workers live on, whose time would be another's: {left}"


@contextmanager
def competition(num_processes: int) -> Iterator[None]:
    spinning = [multiprocessing.Process(target=spin, name=SPINNING, daemon=True) for _ in range(num_processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.terminate()
            process.join()


def spin() -> None:
    while True:
        pass


# Packs


def pictures(folder: Path) -> Path:
    """96 noisy pictures of 0.8 megapixels, about six to a pack."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows: list[Item] = []
    for number in range(96):
        pixels = rng.integers(0, 256, (56, 56, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((896, 896), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
        rows.append(row("<image>What is it?", "Noise. " * 20) | {"images": [f"{number}.jpg"]})
    return packed(folder, rows, 8192)


def text(folder: Path, tokens: int, num_packs: int) -> Path:
    """Documents of about 120 words, which are 120 tokens and a few for the roles."""
    folder.mkdir()
    rng = random.Random(0)
    num_rows = num_packs * tokens // 125
    return packed(
        folder, [row("Go on.", " ".join(rng.choices(WORDS, k=rng.randint(20, 200)))) for _ in range(num_rows)], tokens
    )


def row(question: str, answer: str) -> Item:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def packed(folder: Path, rows: list[Item], pack_size: int) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps({"drawn": {"file_name": "rows.jsonl", "media_dir": "."}}))
    run_pack(PackConfig(meta=str(folder / "meta.json"), processor=str(PROCESSOR), out=str(folder / "out"),
                        pack_size=pack_size, max_pixels=1_000_000, engine="inline", pixels="u8"))  # fmt: skip
    return folder / "out"


if __name__ == "__main__":
    raise SystemExit(main())
