"""The first and the last step of a run at its output: `claim` it, and `commit` what came out.

The manifest is written last, after index, stats, ledger and pixel tables: its existence means done.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import UserError
from ..identity import Identity
from ..manifest import (
    FETCHED,
    FILE as MANIFEST,
    INDEX,
    MEDIA,
    Counts,
    Manifest,
    OutputError,
    Pixels,
    Shards,
)
from ..planned import Planned
from ..runtime.faults import sentence
from ..runtime.objects import Remote
from ..runtime.storage import Hashed, Place, read_json, remove, remove_parts, write_json, write_whole
from ..runtime.tables import column_sum, write_parquet
from ..runtime.uploads import abort_uploads
from .codec import member_names
from .exchange import BEGUN, OURS, is_halfway
from .index import write_index
from .ledger import fitted_counts, make_ledger, reason_counts
from .note import ShardNote
from .sources import write_sources
from .stats import dataset_stats, make_index, media_stats, pack_stats, shard_stats

DOWNLOADS = pa.schema({"url": pa.string(), "bytes": pa.int64(), "sha256": pa.string()})  # columns of FETCHED

# Where a process that is killed may leave a part of which files.
LEFT_OVERS = {
    "": r"manifest\.json|(index|fetched)\.parquet|(index|loads)\.arrow|sources\.json|(image|video)_table\.npy"
    r"|report\.html|README\.md",
    "shards": r"pack-\d{6,}\.tar",
    "stats": r"[a-z]+\.parquet",
    "ledger": r"\d{5,}\.parquet",
    "work": r"(run|base|timing)\.json",
    "work/done": r"\d{6,}\.json",
}

logger = logging.getLogger(__name__)


def refuse_strangers(out: Place) -> None:
    """OUT must be new, empty or ours; asked before anything is written there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a directory")
    strangers = [path.name for path in out.iterdir() if path.name != "work"] if out.is_dir() else []
    ours = is_halfway(out) or any((out / record).exists() for record in (MANIFEST, BEGUN))
    if strangers and not ours:
        raise UserError(f"--out {out} holds other files ({', '.join(sorted(strangers)[:3])}); give an empty directory")


def refuse_old_holdout(out: Place, beside: Place) -> None:
    """A run without --holdout packs all rows into OUT, also those that an earlier run kept for validation."""
    try:
        _, identities = _records(beside)
    except (OutputError, ValueError, KeyError):
        return  # it is of no use for validation, either
    if any(identity.config.get("split") == "holdout" for identity in identities):
        raise UserError(
            f"{beside} has rows that an earlier run held out, and without --holdout {out} would have them, too; "
            f"give --holdout or another --out, or remove {beside}"
        )


def claim(outputs: Mapping[Place, Identity], *, overwrite: bool) -> dict[Place, Manifest]:
    """Make the outputs of a run ours for these identities. The manifests of those that are finished already.

    Refuses an output, finished or begun, of another identity, naming the difference, unless `overwrite`; then none of
    them is touched.
    """
    if overwrite:
        for out in outputs:
            logger.info("overwrite: %s starts anew", out)
            for name in OURS:
                remove(out / name)
    done = {out: manifest for out, identity in outputs.items() if (manifest := _finished(out, identity)) is not None}
    for out in done:
        logger.info("%s is finished and made from the same inputs", out)
    if len(done) < len(outputs):
        for out in outputs:
            remove_left_overs(out)
            if isinstance(out, Path):
                for folder in [path for path in (out / "work").rglob("*") if path.is_dir()]:
                    remove_parts(folder, ".+")
    for out, identity in outputs.items():
        if out not in done:
            write_json(out / BEGUN, {"identity": identity.to_json()})
    return done


def remove_left_overs(out: Place) -> None:
    """What killed processes have left of files of ours. Not while tasks write there."""
    if isinstance(out, Remote):
        abort_uploads(out)
        return
    for folder, names in LEFT_OVERS.items():
        remove_parts(out / folder, names)


def _finished(out: Place, identity: Identity) -> Manifest | None:
    """The manifest, if OUT is finished. Refuses what is of another identity."""
    try:
        manifest, identities = _records(out)
    except (OutputError, ValueError, KeyError) as error:
        raise UserError(f"{out}: of another version, or damaged: {error}; or give --overwrite to start anew") from None
    for theirs in identities:
        if theirs != identity:
            raise UserError(
                f"{out} was made from something else:\n  "
                + "\n  ".join(theirs.differences(identity))
                + "\ngive --overwrite to start anew, or another --out"
            )
    return manifest


def _records(out: Place) -> tuple[Manifest | None, list[Identity]]:
    """The manifest, if there is one, and what OUT is made from, as that and the record of the begun run say."""
    try:
        manifest = Manifest.read(out) if (out / MANIFEST).exists() else None
    except OutputError as error:
        if isinstance(error.__cause__, OSError) and sentence(error.__cause__):
            raise error.__cause__ from None  # a disk that fails says nothing about what is on it
        raise
    begun = [Identity.from_json(read_json(out / BEGUN)["identity"])] if (out / BEGUN).exists() else []
    return manifest, [manifest.identity, *begun] if manifest else begun


def commit(planned: Planned, notes: Sequence[ShardNote]) -> Manifest:
    """Write everything but the shards, whose notes these are, the manifest last."""
    inputs = planned.inputs
    out, family, config = inputs.place, inputs.family, inputs.config
    fake_tokens = len(family.fake_image_ids) if config.fake_image else 0
    index = make_index(notes, member_names(family.media), fake_tokens, planned.plan.times_per_pack)
    ledgers = make_ledger(planned.plan, inputs.corpora)
    tables = {
        INDEX: index,
        "stats/shards.parquet": shard_stats(index),
        "stats/packs.parquet": pack_stats(index, config.pack_size),
        "stats/datasets.parquet": dataset_stats(inputs.corpora, ledgers, planned.plan, notes),
        MEDIA: media_stats(notes),
        **{f"ledger/{number:05d}.parquet": ledger for number, ledger in enumerate(ledgers)},
    }
    if fetched := sorted({each for note in notes for each in note.fetched}):
        tables[FETCHED] = pa.Table.from_pylist([each._asdict() for each in fetched], schema=DOWNLOADS)
    files = {name: write_parquet(out / name, table) for name, table in tables.items()}
    write_sources(out, inputs.out, inputs.corpora, config)
    pixel_tables = {}
    for kind, values in family.tables(config.resize).items():
        pixel_tables[kind] = f"{kind}_table.npy"
        with write_whole(out / pixel_tables[kind]) as file:
            hashed = Hashed(file)
            np.lib.format.write_array(hashed, values)
        files[pixel_tables[kind]] = hashed.digest()
    places, digests = write_index(out, [index], len(member_names(family.media)))
    files |= digests
    manifest = Manifest(
        fingerprint=inputs.identity.fingerprint,
        identity=inputs.identity,
        family=family.described(),
        pixels=Pixels(codec="u8", resize=family.resized_by(config.resize), tables=pixel_tables),
        counts=count_all(inputs.identity, pa.concat_tables(ledgers), index),
        shards=Shards(note.entry for note in notes),
        files=files,
        index=places,
    )
    _remove_other_shards(out, manifest)
    remove_left_overs(out)
    manifest.write(out)
    return manifest


def _remove_other_shards(out: Place, manifest: Manifest) -> None:
    """A mended plan may need fewer shards than the one before it."""
    names = {shard.name for shard in manifest.shards}
    for path in (out / "shards").glob("pack-*.tar"):
        if path.name not in names:
            path.unlink()


def count_all(identity: Identity, ledger: pa.Table, index: pa.Table) -> Counts:
    """What an output has, in figures."""
    return Counts(
        rows=identity.num_rows,
        samples=len(ledger),
        packed=column_sum(pc.equal(ledger["status"], "packed")),
        skipped=reason_counts(ledger),
        fitted=fitted_counts(ledger),
        packs=len(index),
        tokens=column_sum(index["tokens"]),
        visual_tokens=column_sum(index["visual_tokens"]),
        target_tokens=column_sum(index["target_tokens"]),
    )
