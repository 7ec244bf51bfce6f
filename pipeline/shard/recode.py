"""A finished output with its pixels stored otherwise: the same packs in the same order, without planning anew.

Shard by shard, each with a note when it is done, as when packing: a run that was killed goes on. Ledger, tables of
pixels and what is said of data sets and media stay as they are; index and sizes are made anew, the manifest last.
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from neatpack.errors import OutputError, UserError, fields_of
from neatpack.storage.files import Hashed, Place, append, inside, open_regular, read_into, remove, write_whole
from neatpack.storage.tables import read_parquet, write_arrow

from ..codecs import SOURCE, Codecs, parse_codecs, spelled
from ..identity import Identity
from ..layout import layout_of
from ..manifest import INDEX, LOADS, PLACES, REMEDY, Manifest, ShardError, Shards
from ..runtime.engine import Engine
from ..runtime.progress import COMMITTING, RECODING
from ..runtime.work import did, timed
from .codec import member_names, read_arrays, read_pack, write_end, write_pack
from .commit import claim, refuse_strangers, remove_left_overs
from .gathered import FOLDER as GATHERED, Tabling
from .index import SCHEMA, parse_index
from .note import ShardDone, ShardNote, lines_path, note_path
from .pixels import CODED, MEDIA, PixelEncoder, array_codec
from .restoring import OtherPixelsError, PixelDecoder
from .sources import BASE, FILE as SOURCES
from .stats import PACKS, SHARDS
from .writer import finished_shards

MADE_ANEW = {INDEX, PLACES, LOADS, PACKS, SHARDS}  # what depends on bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Recoding:
    """What a run of `recode` does; it travels to every task."""

    out: Place
    manifest: Manifest
    target: Place
    codecs: Codecs
    identity: Identity  # of the target

    def fingerprint(self, shard: int) -> str:
        return f"{self.identity.fingerprint} recoded {self.manifest.shards[shard].sha256}"


def recoding(out: Place, manifest: Manifest, asked: str, target: Place) -> Recoding:
    """Kinds that are not named stay as they are. Refuses what cannot be done, before anything is written."""
    codecs, before = parse_codecs(asked, default=manifest.pixels.codec), manifest.pixels.codec
    if codecs == before:
        raise UserError(
            f"--pixels {asked}: {out} is stored so already",
            code="option-conflict",
            option="pixels",
            got=asked,
            out=str(out),
        )
    if codecs["image"] == SOURCE != before["image"]:
        raise UserError(
            f"--pixels {asked}: {out} has its pictures as {before['image']}, and their own bytes are gone; pack again "
            f"with --pixels {spelled(codecs)}",
            code="option-conflict",
            option="pixels",
            got=asked,
            out=str(out),
            stored=before["image"],
        )
    if target == out:
        raise UserError(
            f"--out {target}: is what is read; give another directory",
            code="option-conflict",
            option="out",
            got=str(target),
        )
    config = manifest.identity.config | {"pixels": spelled(codecs)}
    identity = dataclasses.replace(manifest.identity, config=config)
    return Recoding(out=out, manifest=manifest, target=target, codecs=codecs, identity=identity)


def recode(job: Recoding, running: Engine) -> Manifest:
    """The target, whatever an earlier run has done of it already. Whoever calls holds its lock."""
    refuse_strangers(job.target)
    done = claim({job.target: job.identity}, overwrite=False)
    if job.target in done:
        return done[job.target]
    _check_index(job)
    running.progress.enter(RECODING)
    numbers = range(len(job.manifest.shards))
    finished = finished_shards(job.target, [(number, job.fingerprint(number)) for number in numbers])
    todo = [number for number in numbers if number not in finished]
    made = running.run(recode_shard, [(job, number) for number in todo], title="recode", unit="shard")
    finished |= dict(zip(todo, made, strict=True))
    running.progress.enter(COMMITTING)
    return _commit(job, Shards(finished[number].entry for number in numbers), running)


def _check_index(job: Recoding) -> None:
    """Raises OutputError where it is not what was written: tasks go by it."""
    content = inside(job.out, INDEX).read_bytes()
    if hashlib.sha256(content).hexdigest() != job.manifest.files[INDEX]:
        raise OutputError(
            f"{job.out}/{INDEX}: sha256 differs from the manifest's; run `neatpack verify`",
            code="output-damaged",
            out=str(job.out),
            file=INDEX,
        )
    parse_index(content, job.manifest, str(job.out))


def recode_shard(job: Recoding, number: int) -> ShardDone:
    """The task: one shard."""
    shard, layout = job.manifest.shards[number], layout_of(job.manifest.family)
    decoder, encoder = PixelDecoder(job.manifest), PixelEncoder(layout=layout, codecs=job.codecs)
    names = member_names(layout, job.codecs)
    same = [n for n in decoder.coded if array_codec(layout[n], decoder.codecs) == array_codec(layout[n], job.codecs)]
    lines = read_parquet(job.out / INDEX, filters=[("shard", "=", shard.name)]).to_pylist()
    with (
        open_regular(inside(job.out, f"shards/{shard.name}"))[0] as file,
        write_whole(job.target / "shards" / shard.name) as written,
    ):
        hashed = Hashed(written)
        for line in lines:
            content = np.empty(line["bytes"], np.uint8).data
            got = read_into(file, content, line["offset"])
            if got < len(content) or zlib_ng.crc32(content) != line["crc32"]:
                raise _broken(job, number, line["pack"], f"its bytes are not those that were written; {REMEDY}")
            starts = [place["offset"] - line["offset"] for place in line["members"]]
            members = {
                place["name"]: content[start : start + place["size"]]
                for place, start in zip(line["members"], starts, strict=True)
            }
            try:
                with timed("restoring"):
                    pack = read_pack(members, decoder)
            except ValueError as error:
                raise _broken(
                    job,
                    number,
                    line["pack"],
                    f"{error}; {decoder.remedy(error, str(job.out))}",
                    code=error.code if isinstance(error, OtherPixelsError) else "",
                    **fields_of(error),
                ) from None
            stored = read_arrays(members)
            kept = {name + end: stored[name + end] for name in same for end in (CODED, MEDIA)}
            with timed("encoding"):
                coded = encoder.stored(pack.arrays, kept=kept)
            start = hashed.size
            with timed("writing"):
                end, crc32, places = write_pack(hashed, start, pack, coded, job.codecs)
            described = zip(names, places, strict=True)
            line |= {"offset": start, "bytes": end - start, "crc32": crc32}
            line["members"] = [{"name": name, "offset": at, "size": size} for name, (at, size) in described]
            did(packs=1, bytes=end - start)
        write_end(hashed)
    write_arrow(lines_path(job.target, number), pa.Table.from_pylist(lines, schema=SCHEMA))
    note = ShardNote(
        fingerprint=job.fingerprint(number),
        shard=shard.name,
        bytes=hashed.size,
        sha256=hashed.digest(),
        first_pack=shard.first_pack,
        num_packs=shard.num_packs,
        lost=(),
    )
    note.write(note_path(job.target, number))
    return note.done


def _broken(job: Recoding, shard: int, pack: int, words: str, **fields: Any) -> ShardError:
    name = job.manifest.shards[shard].name
    return ShardError(f"{job.out}/shards/{name}, pack {pack}: {words}", name, pack, **fields | {"out": str(job.out)})


def _commit(job: Recoding, shards: Shards, running: Engine) -> Manifest:
    old, target = job.manifest, job.target
    tabling = Tabling(
        target,
        len(shards),
        [shards.num_packs],
        pack_size=old.identity.config["pack_size"],
        num_members=len(member_names(layout_of(old.family), job.codecs)),
        media=False,
    )
    running.flow(tabling.calls(), tabling.then, title="index", unit="table")
    kept = [name for name in old.files if name not in MADE_ANEW]
    for name in kept:
        if _copied(job, name) != old.files[name]:
            raise OutputError(
                f"{job.out}/{name}: sha256 differs from the manifest's; run `neatpack verify`",
                code="output-damaged",
                out=str(job.out),
                file=name,
            )
    for name in (SOURCES, BASE):
        if (job.out / name).exists():
            _copied(job, name)
    rule = old.pixels.rule if job.codecs["image"] == SOURCE else None
    manifest = dataclasses.replace(
        old,
        fingerprint=job.identity.fingerprint,
        identity=job.identity,
        pixels=dataclasses.replace(old.pixels, codec=dict(job.codecs), rule=rule),
        shards=shards,
        files=dict(sorted((tabling.made.files | {name: old.files[name] for name in kept}).items())),
        index=tabling.made.places,
    )
    remove(target / "work" / GATHERED)
    remove_left_overs(target)
    manifest.write(target)
    return manifest


def _copied(job: Recoding, name: str) -> str:
    """Its sha256."""
    with write_whole(job.target / name) as file:
        hashed = Hashed(file)
        append(inside(job.out, name), hashed)
    return hashed.digest()
