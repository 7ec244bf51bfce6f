"""Codecs of pixels, `--pixels u8 | zstd | source`: what each costs on disk, when packing and when loading.

Bytes of pixels on disk per visual token; thousand visual tokens per second and core that a loader restores (to bytes:
reading, decoding and resizing, without the look-up, which is the same for all); CPU of packing per picture, tokens
measured before; and of pictures as they came, decoded, looked up as bf16 and collated, the cores that a GPU in training
wants, which takes about 10 thousand visual tokens a second. Packs of up to 8,192 tokens, the first PACKS of --meta, or
of drawn photos, which are noisier than real ones: they flatter neither zstd nor JPEG.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.format.manifest import Manifest
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.run import run_pack

from .side_by_side import Options, Row, cpu_seconds, side_by_side

CODECS = ("u8", "zstd", "source")
PACKS = 24
EATEN = 10_000  # visual tokens a second, by a GPU in training
PICTURES = 48  # drawn ones


def rows(options: Options) -> Iterator[Row]:
    meta = options.meta or drawn(options.folder / "drawn")
    outs, packing = {}, {}
    for codec in ("u8", *CODECS):  # the first run measures, and warms up
        outs[codec] = options.folder / f"out-{codec}"
        start = cpu_seconds()
        run_pack(
            PackConfig(
                meta=str(meta),
                processor=options.processor,
                out=str(outs[codec]),
                work=str(options.folder / "work"),
                pixels=codec,
                engine="inline",
                max_packs=PACKS,
                max_skipped=1.0,
                overwrite=True,
            )  # fmt: skip
        )
        packing[codec] = cpu_seconds() - start
    sides = {codec: partial(loaded, out) for codec, out in outs.items()} | {"batches": partial(batches, outs["source"])}
    loading = side_by_side(sides, options.repeats)
    counts = Manifest.read(outs["u8"]).counts
    num_pictures = sum(int(PackedShards(outs["u8"]).reader.counts(pack)["num_images"]) for pack in range(counts.packs))
    for codec, out in outs.items():
        yield Row(
            what=f"{codec}: pixels on disk per visual token", figure=pixel_bytes(out) / counts.visual_tokens, unit="B"
        )
    for codec in outs:
        figure = counts.visual_tokens / 1000 / loading[codec]
        yield Row(what=f"{codec}: thousand visual tokens a second and core", figure=figure, unit="", of=loading)
    figure = EATEN * loading["batches"] / counts.visual_tokens
    yield Row(
        what=f"source: cores for bf16 batches of {EATEN:,} visual tokens a second", figure=figure, unit="", of=loading
    )
    for codec in outs:
        figure = 1000 * packing[codec] / max(1, num_pictures)
        yield Row(what=f"{codec}: CPU of packing per picture, measured before", figure=figure, unit="ms", of=packing)


def loaded(out: Path) -> None:
    """Every pack once, as bytes, by one thread."""
    packs = PackedShards(out, rank=0, world_size=1, pixels="uint8", check="sizes")
    for number in range(packs.reader.num_packs):
        packs.pack(number)


def batches(out: Path) -> None:
    """The same as a training loop gets them, packs compared as by default."""
    packs = PackedShards(out, rank=0, world_size=1)
    for _ in packs.loader(collate_fn=partial(neat_packed_vlm_collater, attn_implementation="flash_attention_2")):
        pass


def pixel_bytes(out: Path) -> int:
    reader = PackedShards(out, rank=0, world_size=1).reader
    sizes = (reader.members_of(pack, reader.content(pack)) for pack in range(reader.num_packs))
    return sum(len(member) for found in sizes for name, member in found.items() if name.startswith("pixel_values"))


def drawn(folder: Path) -> Path:
    """Photos, nearly: smooth colours with some noise, as JPEG."""
    folder.mkdir()
    rng, lines = np.random.default_rng(0), []
    for number in range(PICTURES):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (1120, 840), Image.Resampling.BICUBIC
        )
        noisy = np.asarray(coarse) + rng.normal(0, 6, (840, 1120, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.jpg", quality=90)
        turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": f"Number {number}."}]
        lines.append(json.dumps({"messages": turns, "images": [f"{number}.jpg"]}))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "meta.json").write_text(json.dumps({"drawn": {"file_name": "rows.jsonl", "media_dir": "."}}))
    return folder / "meta.json"
