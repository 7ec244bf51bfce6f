"""What tests of internals share; those of the net use support/ alone."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from places import DEMO_PROCESSOR, RECIPE_PACKAGES, ROOT, SHARED
from support.data import TinyData, asked, clip as make_clip, film, mixed_rows, picture, tone
from support.outputs import files_of
from support.packed import differences, documents_of, eight_packs, many_packs, packed_rows, tiny_config
from support.shards import one_shard_per_pack
from support.workers import run_hf, run_with_torchvision, torchvision_environment
from transformers import AutoConfig, Qwen2_5_VLModel, Qwen2VLModel, Qwen3VLModel

from neatpack.format.manifest import Manifest
from neatpack.format.members import Pack, read_pack
from neatpack.format.pixels import PixelDecoder
from neatpack.pipeline.families.restore import load_renderer
from neatpack.pipeline.ingest.corpus import Corpus
from neatpack.pipeline.ingest.lines import Source
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.plan.assign import SCHEMA as PLAN_SCHEMA, Plan
from neatpack.pipeline.records import MediaRef
from neatpack.pipeline.shard.verify import verify_ledger, verify_shard

__all__ = [  # for others, too
    "DEMO_PROCESSOR", "RECIPE_PACKAGES", "ROOT", "SHARED", "TinyData", "asked", "differences", "documents_of",
    "eight_packs", "files_of", "film", "many_packs", "mixed_rows", "one_shard_per_pack", "packed_rows", "picture",
    "run_hf", "run_with_torchvision", "tiny_config", "tone", "torchvision_environment",
]  # fmt: skip


def corpus_of(name: str, copies: list[int]) -> Corpus:
    """A corpus of as many rows as there are numbers of copies; nobody reads its file."""
    source = Source(files=("absent.jsonl",), digests=("d1",), digest="d1", parts=())
    taken = np.array(copies, np.int32)
    return Corpus(
        dataset=Dataset(name=name, files=("absent.jsonl",)),
        source=source,
        split="train",
        is_held=np.zeros(len(copies), np.bool_),
        copies=taken,
        is_measured=taken > 0,
    )


def plan_of(*lines: dict[str, Any]) -> Plan:
    """A plan by hand: packed lines in pack order, then skipped ones; what a line is silent about is 0 or ""."""
    blank = {field.name: "" if field.type == "large_string" else 0 for field in PLAN_SCHEMA}
    packs = [line.get("pack", 0) for line in lines]
    places = [-1 if pack < 0 else packs[:index].count(pack) for index, pack in enumerate(packs)]
    whole = [blank | {"position": place} | line for place, line in zip(places, lines, strict=True)]
    return Plan(pa.Table.from_pylist(whole, schema=PLAN_SCHEMA))


def packs_of(out: Path) -> Iterator[Pack]:
    """The packs of an output, by its index, their pixels restored."""
    pixels = PixelDecoder(Manifest.read(out), load_renderer)
    for line in pq.read_table(out / "index.parquet").to_pylist():
        content = (out / "shards" / line["shard"]).read_bytes()
        members = {m["name"]: content[m["offset"] : m["offset"] + m["size"]] for m in line["members"]}
        yield read_pack(members, pixels)


@lru_cache(maxsize=1)  # a test asks it again and again, of one processor, whose config takes 50 ms to read
def bare_model(processor: str) -> Any:
    """A model without weights: get_rope_index needs its config only."""
    config = AutoConfig.from_pretrained(processor)
    models = {"qwen2_vl": Qwen2VLModel, "qwen2_5_vl": Qwen2_5_VLModel, "qwen3_vl": Qwen3VLModel}
    model = models[config.model_type].__new__(models[config.model_type])
    torch.nn.Module.__init__(model)
    model.config = config
    return model


def clip(path: Path, **keys: Any) -> MediaRef:
    return MediaRef(kind="video", path=str(make_clip(path, **keys)))


def decoded_sound(path: Path, rate: int = 16_000) -> np.ndarray:
    """The samples of a sound, as packing decodes them."""
    return decode_audio(MediaRef(kind="audio", path=str(path)), rate)


def assert_verified(out: Path) -> Manifest:
    """The manifest of an output in which `verify` finds nothing wrong."""
    manifest = Manifest.read(out)
    problems = verify_ledger(out, manifest)
    for number in range(len(manifest.shards)):
        problems += verify_shard(out, manifest, number)
    assert not problems, problems[:5]
    return manifest
