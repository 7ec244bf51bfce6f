"""Reading packs: PackedShards against memcpy, webdataset's own iterator and decoders, and LitData, on the same packs.

Packs of pictures have 8,192 tokens and about 15 MB; packs of text 1,024 tokens. All sides read all packs from the page
cache, in turns, by CPU time of all threads and processes; torch keeps its threads, as in training. Packs are compared
with their checksums in the first pass over them, which is not timed in one process; with workers, who are new in each
pass, it is. In one process, whoever reads looks at every byte of the pixels: a map has read nothing yet. LitData is
optional (`pip install --no-deps litdata`, and what it imports): without it, its rows are against memcpy, and say so.
"""

import gc
import hashlib
import itertools
import json
import math
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from PIL import Image

from jobs.speed.side_by_side import Options, Row, side_by_side
from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.format.layout import TOKEN_TYPES
from neatpack.format.output import OutputReader
from neatpack.loaders.masks import block_causal_mask
from neatpack.loaders.media import LAYOUT_KEY, document_numbers
from neatpack.loaders.pixels import STORED_KEY, restored, restored_shape
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.run import run_pack

try:
    import litdata
except ImportError:
    litdata = None

WORDS = ("apple", "anchor", "basket", "bridge", "candle", "castle", "desert", "dragon", "engine", "feather", "forest")
NUM_WORKERS, MASK_TOKENS, MASK_DOCUMENTS = 2, 32768, 12
IN_FLIGHT = 3 * NUM_WORKERS  # batches: two that wait and one in work, of each
BATCHES = 192  # at least, of a pass with workers: starting them is part of it, and must not be most of it
WITHOUT = "" if litdata else " (not installed: / memcpy)"
Item = dict[str, Any]


def rows(options: Options) -> Iterator[Row]:
    meta = options.meta or pictures(options)
    out = packed(options, meta, 8192)
    yield from of_packs("pictures", out, options, read=0.2, batch=None)
    yield from of_workers(out, packed(options, meta, 8192, pixels="source"), options)
    yield from restoring(out, options)
    yield from of_packs("text", text(options, 1024, 500), options, read=0.2, batch=0.25)
    yield from masks(options)


def of_packs(name: str, out: Path, options: Options, *, read: float, batch: float | None) -> Iterator[Row]:
    """In one process. Every side ends with all arrays of the pack at hand, and every byte of its pixels seen."""
    packs = PackedShards(out, pixels="uint8", shuffle=False)
    urls = sorted(str(path) for path in (out / "shards").iterdir())
    sizes = [sum(batch[name].nbytes for name in tensors_of(batch)) for batch in packs.loader(collate_fn=collated)]

    def theirs() -> None:
        for sample in wds.WebDataset(urls, shardshuffle=False).decode():
            sample["pixel_values.npy"].max(initial=0)

    def views() -> None:
        for item in packs:
            seen(item)

    def batches() -> None:
        for batch in packs.loader(collate_fn=collated):
            seen(batch)

    sides: dict[str, Callable[[], object]] = {
        "webdataset": theirs,
        "views": views,
        "batches": batches,
        "memcpy": memcpys(sizes),
    }
    if litdata:
        folder = written_for_litdata(packs, options.folder / f"lit-{name}")

        def lit(use: Callable[[Item], object]) -> None:
            for sample in litdata.StreamingDataset(str(folder), shuffle=False):
                use(sample)

        settings = settings_of(packs)
        sides["litdata views"] = partial(lit, seen)
        sides["litdata batches"] = partial(lit, lambda sample: seen(collated_arrays(settings, [sample])))
    took = side_by_side(sides, options.repeats)
    yield Row(what=f"{name}: read / webdataset's decoders", figure=took["views"] / took["webdataset"], wanted=read,
              of=took)  # fmt: skip
    yield Row(what=f"{name}: batch / webdataset's decoders", figure=took["batches"] / took["webdataset"], wanted=batch,
              of=took)  # fmt: skip
    for side, ours in (("views", "read"), ("batches", "batch")):
        theirs_took = took[f"litdata {side}" if litdata else "memcpy"]
        yield Row(what=f"{name}: {ours} / LitData's{WITHOUT}", figure=took[side] / theirs_took,
                  wanted=1.0 if litdata else None, of=took)  # fmt: skip


def of_workers(out: Path, as_they_came: Path, options: Options) -> Iterator[Row]:
    """Batches of one pack, collated in the workers; the same collater on all sides. as_they_came: the same packs, with
    pictures stored by the codec that is the default.
    """
    packs = PackedShards(out, pixels="uint8", shuffle=False)
    as_bf16 = PackedShards(out, shuffle=False)
    decoded = PackedShards(as_they_came, pixels="uint8", shuffle=False)
    processes: dict[str, Any] = {"num_workers": NUM_WORKERS, "persistent_workers": True,
                                 "multiprocessing_context": "fork"}  # fmt: skip
    sizes = {name: [batch["pixel_values"].nbytes for batch in kind.loader(collate_fn=collated)] for name, kind in
             (("bytes", packs), ("bf16", as_bf16))}  # fmt: skip
    epochs = max(1, BATCHES // len(packs))
    makers: dict[str, Callable[[], Iterable[Item]]] = {
        "bytes": lambda: packs.loader(num_workers=NUM_WORKERS, collate_fn=collated),
        "bf16": lambda: as_bf16.loader(num_workers=NUM_WORKERS, collate_fn=collated),
        "decoded": lambda: decoded.loader(num_workers=NUM_WORKERS, collate_fn=collated),
    }
    if litdata:
        folder = written_for_litdata(packs, options.folder / "lit-workers")
        collate = partial(collated_arrays, settings_of(packs))
        makers["litdata"] = lambda: litdata.StreamingDataLoader(
            litdata.StreamingDataset(str(folder), shuffle=False), collate_fn=collate, batch_size=1, **processes
        )
        if len({tuple(digests(makers[side]())) for side in ("bytes", "decoded", "litdata")}) > 1:
            raise SystemExit("the batches of both sides differ: the comparison would mean nothing")
    sides: dict[str, Callable[[], object]] = {name: partial(passes, make, epochs) for name, make in makers.items()}
    for name, own in sizes.items():
        sides[f"memcpy of {name}"] = memcpys(own, epochs, IN_FLIGHT)
    took = side_by_side(sides, options.repeats)
    yield Row(what=f"pictures: {NUM_WORKERS} workers / LitData's{WITHOUT}", of=took, wanted=1.0 if litdata else None,
              figure=took["bytes"] / took["litdata" if litdata else "memcpy of bytes"])  # fmt: skip
    yield Row(
        what=f"pictures as they came: {NUM_WORKERS} workers / u8", of=took, figure=took["decoded"] / took["bytes"]
    )
    yield Row(what=f"pictures: {NUM_WORKERS} workers, restored to bf16 / memcpy", of=took, wanted=4.0,
              figure=took["bf16"] / took["memcpy of bf16"])  # fmt: skip


def restoring(out: Path, options: Options) -> Iterator[Row]:
    packs = PackedShards(out, pixels="uint8", shuffle=False)
    stored, how = [item["pixel_values"] for item in packs], packs.stored["pixel_values"]
    shapes = [restored_shape(each.shape, how) for each in stored]
    rooms = torch.ones(IN_FLIGHT, max(map(math.prod, shapes)), dtype=torch.bfloat16)

    def all_restored() -> None:
        for each, shape, room in zip(stored, shapes, itertools.cycle(rooms), strict=False):
            restored(each, how, torch.bfloat16, room[: math.prod(shape)].view(shape))

    sides = {"restored": all_restored, "memcpy": memcpys([2 * math.prod(shape) for shape in shapes], 1, IN_FLIGHT)}
    took = side_by_side(sides, options.repeats)
    yield Row(what="pixels: restored to bf16 / memcpy", figure=took["restored"] / took["memcpy"], wanted=3.0, of=took)


def masks(options: Options) -> Iterator[Row]:
    """The sdpa mask of one long pack; nobody can do with less than its zeros."""
    documents = document_numbers(torch.tensor([-(-MASK_TOKENS // MASK_DOCUMENTS)] * MASK_DOCUMENTS))[None, :MASK_TOKENS]
    sides = {"mask": lambda: block_causal_mask(documents), "memset": lambda: np.full((MASK_TOKENS,) * 2, False)}
    took = side_by_side(sides, options.repeats)
    yield Row(what=f"the mask of {MASK_TOKENS:,} tokens / memset", figure=took["mask"] / took["memset"], wanted=1.5,
              of=took)  # fmt: skip
    yield Row(what=f"the mask of {MASK_TOKENS:,} tokens", figure=took["mask"], unit="s", wanted=0.6, of=took)


# Both sides of the comparison


collated = partial(neat_packed_vlm_collater, attn_implementation="flash_attention_2")


def collated_arrays(settings: Item, samples: Sequence[Item]) -> Item:
    """What PackedShards adds to the arrays of a pack; the collater makes the integers long."""
    return collated(
        [{**sample, "attention_mask": document_numbers(sample["seq_lens_padded"]), **settings} for sample in samples]
    )


def seen(item: Item) -> None:
    """A batch without pictures has none."""
    if "pixel_values" in item:
        item["pixel_values"].numpy().max(initial=0)


def settings_of(packs: PackedShards) -> Item:
    return {LAYOUT_KEY: packs.layout, STORED_KEY: packs.stored}


def written_for_litdata(packs: PackedShards, folder: Path) -> Path:
    """As tensors, which LitData reads faster than numpy's arrays: it copies those twice.

    `optimize` makes "spawn" the way to start processes, for good: workers would import all of this file, for seconds.
    """
    numbers = packs.reader.packs.tolist()
    litdata.optimize(partial(stored_pack, packs.reader), numbers, str(folder), chunk_bytes="64MB", num_workers=1,
                     verbose=False)  # fmt: skip
    return folder


def stored_pack(reader: OutputReader, number: int) -> Item:
    arrays, counts = reader.arrays(number, reader.content(number)), reader.counts(number)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return tensors | {f"n_{kind}s": counts[f"num_{kind}s"] for kind in TOKEN_TYPES}


def passes(make: Callable[[], Iterable[Item]], epochs: int) -> None:
    """The time of workers counts when they have ended."""
    loader = make()
    for _ in range(epochs):
        for batch in loader:
            batch["input_ids"][0, -1].item()
    del loader, batch
    gc.collect()
    assert not (left := multiprocessing.active_children()), f"workers live on, whose time would be another's: {left}"


def memcpys(sizes: Sequence[int], epochs: int = 1, num_targets: int = 1) -> Callable[[], None]:
    """Of packs of so many bytes, as they are: each lies somewhere else, and is copied to memory that was written
    before, of which there are several pieces in turns. One pack copied again and again would stay in the caches."""
    source = np.ones(sum(sizes), dtype=np.uint8)
    targets = np.ones((num_targets, max(sizes)), dtype=np.uint8)
    ends = list(itertools.accumulate(sizes))

    def copied() -> None:
        for _ in range(epochs):
            for size, end, target in zip(sizes, ends, itertools.cycle(targets), strict=False):
                np.copyto(target[:size], source[end - size : end])

    return copied


def tensors_of(batch: Mapping[str, Any]) -> list[str]:
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


# Packs


def pictures(options: Options) -> Path:
    """The meta JSON of 96 noisy pictures of 0.8 megapixels, about six to a pack."""
    folder = options.folder / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines: list[Item] = []
    for number in range(96):
        pixels = rng.integers(0, 256, (56, 56, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((896, 896), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
        lines.append(line("<image>What is it?", "Noise. " * 20) | {"images": [f"{number}.jpg"]})
    return written(folder, lines)


def text(options: Options, tokens: int, num_packs: int) -> Path:
    """Documents of about 120 words, which are 120 tokens and a few for the roles."""
    folder = options.folder / "text"
    folder.mkdir()
    rng = random.Random(0)
    answers = (" ".join(rng.choices(WORDS, k=rng.randint(20, 200))) for _ in range(num_packs * tokens // 125))
    return packed(options, written(folder, [line("Go on.", answer) for answer in answers]), tokens)


def line(question: str, answer: str) -> Item:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def written(folder: Path, lines: list[Item]) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "meta.json").write_text(json.dumps({"drawn": {"file_name": "rows.jsonl", "media_dir": "."}}))
    return folder / "meta.json"


def packed(options: Options, meta: Path, pack_size: int, pixels: str = "u8") -> Path:
    out = options.folder / f"packed-{meta.parent.name}-{pixels}"
    run_pack(PackConfig(meta=str(meta), processor=options.processor, out=str(out), pack_size=pack_size,
                        max_pixels=1_000_000, engine="inline", pixels=pixels))  # fmt: skip
    return out
