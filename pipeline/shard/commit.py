"""The first and the last step of a run at its output: `claim` it, and `commit` what came out.

The manifest is written last, after index, stats, ledger and pixel tables: its existence means done.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from neatpack.errors import OutputError, fields_of
from neatpack.format.manifest import (
    FILE as MANIFEST,
    SOURCE,
    SOURCES,
    Counts,
    Identity,
    Manifest,
    Pixels,
    ShardEntry,
    Shards,
    changes,
)
from neatpack.storage.files import Hashed, read_json, remove_parts, write_json, write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import write_parquet

from ..codecs import parse_codecs
from ..config import UserError
from ..families.base import ProcessorKey
from ..families.registry import family_for
from ..families.restore import described_rule
from ..planned import Planned
from ..records import REASONS
from ..runtime.calls import Call
from ..runtime.engine import Engine
from ..runtime.faults import sentence
from .exchange import BEGUN, OURS, is_halfway
from .gathered import FOLDER as GATHERED, Tables, Tabling
from .ledger import LedgerJob, folders_of, write_ledger
from .note import note_path
from .pieces import pieces_folder
from .sources import write_sources
from .stats import DATASETS, dataset_stats

# Where a process that is killed may leave a part of which files.
LEFT_OVERS = {
    "": r"manifest\.json|(index|fetched)\.parquet|index\.arrow|sources\.json|(image|video)_table\.npy"
    r"|report\.html|README\.md",
    "shards": r"pack-\d{6,}\.tar",
    "stats": r"[a-z]+\.parquet",
    "ledger": r"\d{5,}(-\d{5,})?\.parquet",
    "work": r"(run|base|timing|finished)\.json",
    "work/done": r"\d{6,}\.(json|arrow)",
}

logger = logging.getLogger(__name__)


def refuse_strangers(out: Location) -> None:
    """OUT must be new, empty or ours; asked before anything is written there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a directory", code="out-not-empty", out=str(out))
    strangers = [path.name for path in out.iterdir() if path.name != "work"] if out.is_dir() else []
    ours = is_halfway(out) or any((out / record).exists() for record in (MANIFEST, BEGUN))
    if strangers and not ours:
        raise UserError(
            f"--out {out} holds other files ({', '.join(sorted(strangers)[:3])}); give an empty directory",
            code="out-not-empty",
            out=str(out),
            files=sorted(strangers)[:3],
        )


def refuse_old_holdout(out: Location, beside: Location) -> None:
    """A run without --holdout packs all rows into OUT, also those that an earlier run kept for validation."""
    try:
        _, identities = _records(beside)
    except (OutputError, ValueError, KeyError):
        return  # it is of no use for validation, either
    if any(identity.config.get("split") == "holdout" for identity in identities):
        raise UserError(
            f"{beside} has rows that an earlier run held out, and without --holdout {out} would have them, too; "
            f"give --holdout or another --out, or remove {beside}",
            code="output-mismatch",
            out=str(out),
            holdout=str(beside),
        )


def claim(outputs: Mapping[Location, Identity], *, overwrite: bool) -> dict[Location, Manifest]:
    """Make the outputs of a run ours for these identities. The manifests of those that are finished already.

    Refuses an output, finished or begun, of another identity, naming the difference, unless `overwrite`; then none of
    them is touched.
    """
    if overwrite:
        for out in outputs:
            logger.info("overwrite: %s starts anew", out)
            for name in OURS:
                (out / name).remove()
    done = {out: manifest for out, identity in outputs.items() if (manifest := _finished(out, identity)) is not None}
    for out in done:
        logger.info("%s is finished and made from the same inputs", out)
    if len(done) < len(outputs):
        for out in outputs:
            remove_left_overs(out)
            if out.is_local:
                for folder in [path for path in (out / "work").path.rglob("*") if path.is_dir()]:
                    remove_parts(folder, ".+")
    for out, identity in outputs.items():
        if out not in done:
            write_json(out / BEGUN, {"identity": identity.to_json()})
    return done


def release(outputs: Mapping[Location, Location]) -> None:
    """Give up outputs of which nothing is rendered, so that the same OUT takes another config. `outputs`: where each is
    written, by OUT."""
    for out, written in outputs.items():
        if written != out:
            written.remove()
        elif not any(path.exists() for path in (out / MANIFEST, note_path(out, 0).parent, pieces_folder(out))):
            (out / BEGUN).unlink(missing_ok=True)


def remove_left_overs(out: Location) -> None:
    """What killed processes have left of files of ours. Not while tasks write there."""
    for folder, names in LEFT_OVERS.items():
        remove_parts(out / folder, names)


def _finished(out: Location, identity: Identity) -> Manifest | None:
    """The manifest, if OUT is finished. Refuses what is of another identity."""
    try:
        manifest, identities = _records(out)
    except (OutputError, ValueError, KeyError) as error:
        raise UserError(
            f"{out}: of another version, or damaged: {error}; or give --overwrite to start anew",
            code=error.code if isinstance(error, OutputError) else "output-format",
            **fields_of(error) | {"out": str(out)},
        ) from None
    for theirs in identities:
        if theirs != identity:
            raise UserError(
                f"{out} was made from something else:\n  "
                + "\n  ".join(theirs.differences(identity))
                + "\ngive --overwrite to start anew, or another --out",
                code="output-mismatch",
                out=str(out),
                changed=[where for where, *_ in changes(theirs.to_json(), identity.to_json())],
            )
    return manifest


def _records(out: Location) -> tuple[Manifest | None, list[Identity]]:
    """The manifest, if there is one, and what OUT is made from, as that and the record of the begun run say."""
    try:
        manifest = Manifest.read(out) if (out / MANIFEST).exists() else None
    except OutputError as error:
        if isinstance(error.__cause__, OSError) and sentence(error.__cause__):
            raise error.__cause__ from None  # a disk that fails says nothing about what is on it
        raise
    begun = [Identity.from_json(read_json(out / BEGUN)["identity"])] if (out / BEGUN).exists() else []
    return manifest, [manifest.identity, *begun] if manifest else begun


def commit(planned: Planned, shards: Sequence[ShardEntry], processor: ProcessorKey, running: Engine) -> Manifest:
    """Write everything but the shards, the manifest last. What has a line per row or pack is made by tasks."""
    inputs = planned.inputs
    out, family, config = inputs.place, inputs.family, inputs.config
    codecs = parse_codecs(config.pixels)
    tabling = Tabling(
        out,
        len(shards),
        [file.num_packs for file in planned.files],
        pack_size=config.pack_size,
    )
    ledgers: dict[str, str] = {}
    described: dict[str, Any] = {}

    def then(call: Call, result: Any) -> Iterable[Call]:
        if call.function is write_ledger:
            ledgers.update(result)
        elif call.function is _described:
            described.update(result)
        else:
            return tabling.then(call, result)
        return ()

    calls = [*tabling.calls(), *(Call(function=write_ledger, arguments=(job,)) for job in _ledger_jobs(planned))]
    running.flow([*calls, Call(function=_described, arguments=(processor,))], then, title="commit", unit="table")
    made = tabling.made
    digests = {DATASETS: write_parquet(out / DATASETS, dataset_stats(inputs.corpora, planned.sums, made.datasets))}
    digests[SOURCES] = write_sources(out, inputs.out, inputs.corpora, config)
    pixel_tables = {}
    for kind, values in family.tables(config.resize).items():
        pixel_tables[kind] = f"{kind}_table.npy"
        with write_whole(out / pixel_tables[kind]) as table:
            hashed = Hashed(table)
            np.lib.format.write_array(hashed, values)
        digests[pixel_tables[kind]] = hashed.digest()
    manifest = Manifest(
        fingerprint=inputs.identity.fingerprint,
        identity=inputs.identity,
        family=described,
        pixels=Pixels(
            codec=codecs,
            resize=family.resized_by(config.resize),
            tables=pixel_tables,
            rule=described_rule(family.image) if codecs["image"] == SOURCE else None,
        ),
        counts=_counts(planned, made),
        shards=Shards(shards),
        files=dict(sorted((made.files | ledgers | digests).items())),
        warnings=planned.warnings,
    )
    if planned.is_mended:
        _remove_others(out, manifest)
    running.run(
        Location.remove, [(out / "work" / GATHERED,)], title="clean", unit="folder"
    )  # a tenth of a second per 2M rows
    remove_left_overs(out)
    manifest.write(out)
    return manifest


def _described(processor: ProcessorKey) -> dict[str, Any]:
    """A task: who has measured knows which tokenizer does it, and finding out takes a second."""
    return family_for(processor).described()


def _ledger_jobs(planned: Planned) -> list[LedgerJob]:
    """One per plan file. Rows that are left out are told of with the partition that their part is in."""
    corpora, files = planned.inputs.corpora, planned.files
    folders = [folders_of(corpus) for corpus in corpora]
    parts = [planned.taken(number) for number in range(planned.num_partitions)]
    jobs = []
    for file, shift in zip(files, planned.first_packs, strict=False):
        own = parts[file.number] if file.number < len(parts) else []
        jobs.append(
            LedgerJob(
                plan=planned.path(file),
                shift=shift,
                number=file.number if len(files) > 1 else None,
                corpora=[corpus.name for corpus in corpora],
                folders=folders,
                rows=[[part.rows for part in own if part.corpus == index] for index in range(len(corpora))],
                out=planned.inputs.place,
            )
        )
    return jobs


def _counts(planned: Planned, made: Tables) -> Counts:
    """What the plan and the tables say; `verify` finds the same in the ledger."""
    skipped, fitted = planned.skip_counts(), {"truncated": 0, "shrunk": 0}
    for corpus in planned.inputs.corpora:
        skipped += Counter(corpus.num_left_out())
    skipped_tokens: Counter[str] = Counter()
    for sums in planned.sums:
        skipped_tokens.update(sums.skipped_tokens)
        fitted = {word: count + getattr(sums, word) for word, count in fitted.items()}
    return Counts(
        rows=planned.inputs.identity.num_rows,
        samples=planned.num_packed + skipped.total(),
        packed=planned.num_packed,
        skipped={reason: skipped[reason] for reason in REASONS if skipped[reason]},
        skipped_tokens={reason: skipped_tokens[reason] for reason in REASONS if skipped_tokens[reason]},
        fitted={word: count for word, count in fitted.items() if count},
        packs=made.packs,
        tokens=made.tokens,
        visual_tokens=made.visual_tokens,
        target_tokens=made.target_tokens,
    )


def _remove_others(out: Location, manifest: Manifest) -> None:
    """A mended plan may need fewer shards than the one before it, and fewer ledgers."""
    names = {shard.name for shard in manifest.shards}
    strangers = [path for path in (out / "shards").glob("pack-*.tar") if path.name not in names]
    strangers += [path for path in (out / "ledger").glob("*.parquet") if f"ledger/{path.name}" not in manifest.files]
    for path in strangers:
        path.unlink()
