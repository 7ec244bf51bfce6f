"""A finished output made readable for Energon: a few small files beside the shards, which stay as they are.

Energon (Megatron-Energon 7) wants what its `energon prepare` writes; the index has all of it, so neither is Energon
needed nor is a tar read:

    shards/*.tar.idx         where each pack starts, and where the last one ends: uint64
    .nv-meta/split.yaml      which shards are for training: all
    .nv-meta/dataset.yaml    packs are crude samples, for `loaders/energon.py` to cook
    .nv-meta/tools.yaml      packs as texts, which are their JSON, for Energon's own lint, info and preview: these fail
                             on crude samples (7.4.1 cooks none, and asks for a sample_type)
    .nv-meta/.info.json      how many packs are in which shard; written last, for it makes a data set of the folder

What only joins and look-ups by key read (index.sqlite) is left out; `energon prepare --tar-index-only OUT` adds it.
"""

from itertools import groupby

import numpy as np

from neatpack.errors import OutputError
from neatpack.format.manifest import Manifest
from neatpack.storage.files import sha256_of, write_json, write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import read_parquet

META = ".nv-meta"
MODULE = "megatron.energon"
TOOLS = {"sample_type": {"__module__": MODULE, "__class__": "TextSample"}, "field_map": {"text": "json"}}


def export_energon(out: Location, manifest: Manifest) -> int:
    """Write the files; how many shards they name. A shard without packs is left out: Energon refuses such."""
    if sha256_of(out / "index.parquet") != manifest.files["index.parquet"]:
        raise OutputError(
            f"{out}/index.parquet: sha256 differs from the manifest's; run `neatpack verify`",
            code="output-damaged",
            out=str(out),
            file="index.parquet",
        )
    counts = {}
    lines = read_parquet(out / "index.parquet", columns=["shard", "offset", "bytes"]).to_pylist()
    for shard, group in groupby(lines, key=lambda line: str(line["shard"])):
        packs = list(group)
        places = [line["offset"] for line in packs] + [packs[-1]["offset"] + packs[-1]["bytes"]]
        with write_whole(out / "shards" / f"{shard}.idx") as file:
            file.write(np.array(places, dtype="<u8").tobytes())
        counts[f"shards/{shard}"] = len(packs)
    # JSON is YAML, too.
    splits = {"split_parts": {"train": list(counts), "val": [], "test": []}, "exclude": []}
    write_json(out / META / "split.yaml", splits)
    write_json(out / META / "dataset.yaml", {"__module__": MODULE, "__class__": "CrudeWebdataset"})
    write_json(out / META / "tools.yaml", TOOLS)
    write_json(out / META / ".info.json", {"shard_counts": counts})
    return len(counts)
