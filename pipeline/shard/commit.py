"""The last step of a run: index, stats, ledger, pixel table, and then the manifest, whose existence means done."""

import importlib.metadata
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack import __version__
from neatpack.pipeline.config import PackConfig, UserError, fingerprint
from neatpack.pipeline.families.base import Family
from neatpack.pipeline.plan.assign import Plan
from neatpack.pipeline.runtime.storage import read_json, sha256_of, write_json, write_parquet, write_whole
from neatpack.pipeline.shard.codec import member_names
from neatpack.pipeline.shard.ledger import fitted_counts, make_ledger, reason_counts
from neatpack.pipeline.shard.stats import dataset_stats, make_index, pack_stats, shard_stats

FORMAT = 2
KEYS = (
    "format",
    "neatpack",
    "fingerprint",
    "identity",
    "family",
    "pixels",
    "counts",
    "shards",
    "files",
)  # of a manifest
VERSIONED = ("transformers", "tokenizers", "torch", "pillow", "av", "numpy")  # packages that shape the tensors
RECORDS = ("manifest.json", "work/run.json")  # of a finished and of a begun output: what it was made from
OURS = (
    "manifest.json",
    "index.parquet",
    "image_table.npy",
    "video_table.npy",
    "stats",
    "ledger",
    "shards",
    "work/done",
    "work/run.json",
)


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in VERSIONED}


def refuse_strangers(out: Path) -> None:
    """OUT must be new, empty or ours; asked before anything is written there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a directory")
    strangers = [path.name for path in out.iterdir() if path.name != "work"] if out.is_dir() else []
    if strangers and not any((out / record).exists() for record in RECORDS):
        raise UserError(f"--out {out} holds other files ({', '.join(sorted(strangers)[:3])}); give an empty directory")


def claim(out: Path, identity: dict[str, Any], *, overwrite: bool) -> bool:
    """Make OUT ours for this identity (inputs, processor, config, versions). True: it is finished already.

    Refuses an output, finished or begun, of another identity, naming the difference, unless `overwrite`.
    """
    if overwrite:
        for name in OURS:  # the manifest first: without it nobody takes the rest for a finished output
            _remove(out / name)
    for record in RECORDS:
        if (out / record).exists():
            theirs = read_json(out / record)["identity"]
            if theirs != identity:
                raise UserError(
                    f"{out} was made from something else:\n  "
                    + "\n  ".join(differences(theirs, identity))
                    + "\ngive --overwrite to start anew, or another --out"
                )
            if record == "manifest.json":
                return True
    for left_over in out.rglob(".*.part"):  # of a run that was killed
        left_over.unlink(missing_ok=True)
    write_json(out / "work" / "run.json", {"identity": identity})
    return False


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs, in words: "config.pack_size: 8192 -> 4096"."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in [*old, *(key for key in new if key not in old)]:
            lines += differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        return lines
    return [] if old == new else [f"{where}: {old} -> {new}"]


def commit(
    out: Path,
    notes: Sequence[dict[str, Any]],
    plan: Plan,
    copies: Sequence[np.ndarray],
    datasets: Sequence[str],
    family: Family,
    config: PackConfig,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """Write everything but the shards, the manifest last; returns the manifest."""
    index = make_index(notes, member_names(family.media), len(family.fake_image_ids) if config.fake_image else 0)
    lost = [line for note in notes for line in note["lost"]]
    ledgers = make_ledger(plan, datasets, copies, lost)
    rows = [len(numbers) for numbers in copies]
    tables = {
        "index.parquet": index,
        "stats/shards.parquet": shard_stats(index),
        "stats/packs.parquet": pack_stats(index, config.pack_size),
        "stats/datasets.parquet": dataset_stats(datasets, rows, ledgers),
        **{f"ledger/{number:05d}.parquet": ledger for number, ledger in enumerate(ledgers)},
    }
    for name, table in tables.items():
        write_parquet(out / name, table)
    pixel_tables = {f"{kind}_table.npy": values for kind, values in family.tables(config.resize).items()}
    for name, values in pixel_tables.items():
        with write_whole(out / name) as file:
            np.save(file, values)
    ledger = pa.concat_tables(ledgers)
    firsts = {note["shard"]: note["packs"][0]["pack"] for note in notes if note["packs"]}
    manifest = {
        "format": FORMAT,
        "neatpack": __version__,
        "fingerprint": fingerprint(identity),
        "identity": identity,
        "family": family.described(),
        "pixels": {
            "codec": "u8",
            "resize": family.image.resized_by or config.resize if family.image else config.resize,
            "tables": {name.removesuffix("_table.npy"): name for name in pixel_tables},
        },
        "counts": count_all(identity, ledger, index),
        "shards": [
            {
                "name": note["shard"],
                "bytes": note["bytes"],
                "sha256": note["sha256"],
                "first_pack": firsts.get(note["shard"], -1),
                "num_packs": len(note["packs"]),
            }
            for note in notes
        ],
        "files": {name: sha256_of(out / name) for name in (*tables, *pixel_tables)},
    }
    assert tuple(manifest) == KEYS
    write_json(out / "manifest.json", manifest)
    return manifest


def count_all(identity: dict[str, Any], ledger: pa.Table, index: pa.Table) -> dict[str, Any]:
    """What an output has, in figures."""
    return {
        "rows": sum(entry["rows"] for entry in identity["inputs"].values()),
        "samples": len(ledger),
        "packed": int(pc.sum(pc.equal(ledger["status"], "packed")).as_py() or 0),
        "skipped": reason_counts(ledger),
        "fitted": fitted_counts(ledger),
        "packs": len(index),
        **{name: int(pc.sum(index[name]).as_py() or 0) for name in ("tokens", "visual_tokens", "target_tokens")},
    }


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
