"""Proof of a finished output, from what is on disk alone: every promise that can be checked is checked."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng import zlib_ng

from neatpack.errors import OutputError, fields_of
from neatpack.format.index import LOADER_SCHEMA, index_problems, largest_index, to_loader_index
from neatpack.format.layout import TOKEN_TYPES, layout_of
from neatpack.format.manifest import FETCHED, FILE, INDEX, LOADER_INDEX, SOURCES, Counts, Manifest, ShardEntry
from neatpack.format.members import END, read_pack, split_members
from neatpack.format.pixels import PixelDecoder, PixelsChangedError
from neatpack.storage.files import inside, open_regular, read_inside, read_into
from neatpack.storage.location import Location
from neatpack.storage.tables import column_sum, read_groups, read_parquet, read_plain_arrow

from ..families.registry import FAMILIES
from ..families.restore import load_renderer
from ..labels import TrainOn
from ..runtime.engine import Engine
from ..runtime.work import did
from ..typed import check_types
from .audit import Figures, Rows, audit_file, audit_rows, sums_of
from .check import check_pack
from .composition import composition_problems, read_composition
from .note import PackLine
from .problems import Problem
from .stats import pack_stats, shard_stats
from .tables import ledger_names, row_blocks

# A document: its position in the pack, data set, row, repetition, tokens and visual tokens.
Documented = tuple[int, str, int, int, int, int]
OF_PLACE = ("pack", "position", "dataset", "row", "repeat", "tokens", "visual_tokens")
MAX_PROBLEMS = 20  # of a shard; a broken one would fill the screen
# What numbers that make no sense may lead to, where they come with checksums that fit them.
UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, MemoryError, RecursionError)
FAMILY_KEYS = {"name": str, "placeholder_ids": dict, "assistant_header_ids": list, "assistant_header_tail": int,
               "end_of_turn_id": int, "fake_image_ids": list, "padding_id": int, "facts": dict}  # fmt: skip


def verify_output(out: Location, manifest: Manifest, running: Engine) -> list[Problem]:
    """All that is wrong with a finished output; nothing, if it is as promised."""
    problems, ledger = _verified_tables(out, manifest, running)
    if any(problem.startswith(("manifest.json", INDEX, "ledger/")) for problem in problems):
        unchecked = "shards: not checked, because they are compared with manifest, index and ledger"
        return [*problems, Problem(unchecked, "not-checked")]
    shards = range(len(manifest.shards))
    sums = [None] * len(shards) if ledger is None else list(map(tuple, ledger.sums.tolist()))
    items = [(out, manifest, number, sums[number]) for number in shards]
    for found in running.run(verify_shard, items, title="verify", unit="shard"):
        problems += found
    return problems


def verify_ledger(out: Location, manifest: Manifest, running: Engine | None = None) -> list[Problem]:
    """Digests of the tables, conservation of rows and tokens, index against manifest."""
    return _verified_tables(out, manifest, running or Engine({}))[0]


def _verified_tables(out: Location, manifest: Manifest, running: Engine) -> tuple[list[Problem], Figures | None]:
    """What is wrong with them; and what the ledger adds up to, if it can be read. Tasks read it: nobody holds it."""
    problems = [
        Problem(f"{FILE}: {problem}", "manifest-invalid", file=FILE) for problem in _manifest_problems(manifest)
    ]
    items = [(out, name, digest) for name, digest in manifest.files.items()]
    problems += [found for found in running.run(file_problem, items, title="digests", unit="file") if found]
    problems += _strangers(out, manifest)
    if problems:
        return problems, None
    tables: dict[str, pa.Table] = {}
    for name in manifest.files:
        if name.endswith(".parquet") and not name.startswith("ledger/"):
            try:
                tables[name] = read_parquet(out / name)
            except (pa.ArrowException, OSError) as error:
                problems.append(Problem(f"{name}: not parquet: {str(error)[:200]}", "file-unreadable", file=name))
    if problems:
        return problems, None
    index = tables[INDEX]
    ledger = _audited(out, manifest, running)
    problems += [problem for problem in ledger.problems if problem.startswith("ledger/")]
    problems += [
        Problem(f"{INDEX}: {words}", "index-invalid", file=INDEX, shard=shard, pack=pack, column=column)
        for words, shard, pack, column in index_problems(index, manifest)
    ]
    if problems:
        return problems, None
    problems += _loader_index_problems(out, index, manifest)
    if manifest.fingerprint != manifest.identity.fingerprint:
        problems.append(Problem("manifest: its fingerprint is not that of its identity", "manifest-invalid"))
    problems += ledger.problems
    if not problems:
        problems += composition_problems(read_composition(out, manifest))
    problems += _sum_problems(ledger, index, manifest)
    made = {"shards": shard_stats(index), "packs": pack_stats(index, manifest.identity.config["pack_size"])}
    problems += [
        Problem(f"stats/{name}.parquet: not that of the index", "stats-mismatch", file=f"stats/{name}.parquet")
        for name, table in made.items()
        if not table.equals(tables[f"stats/{name}.parquet"])
    ]
    return problems, ledger


def _audited(out: Location, manifest: Manifest, running: Engine) -> Figures:
    """The ledger's figures, by tasks: of each of its files, then of the rows of each data set."""
    firsts, ledgers = np.array(manifest.shards.firsts), ledger_names(manifest)
    files = [(number, dataset, name) for number, (dataset, own) in enumerate(ledgers.items()) for name in own]
    items = [(out / name, name, dataset, number, firsts) for number, dataset, name in files]
    ledger = Figures(sums=np.zeros((len(firsts) - 1, 2), np.uint64))
    num_lines: Counter[str] = Counter()
    for (_, dataset, _), figures in zip(files, running.run(audit_file, items, title="ledger"), strict=True):
        num_lines[dataset] += figures.samples
        ledger.add(figures)
    if any(problem.startswith("ledger/") for problem in ledger.problems):
        return ledger
    rows = {name: int(entry["rows"]) for name, entry in manifest.identity.inputs.items()}
    blocks = [(name, block) for name, number in rows.items() for block in row_blocks(number, num_lines[name])]
    asked = [([out / file for file in ledgers[name]], block) for name, block in blocks]
    found: dict[str, list[Rows]] = {name: [] for name in rows}
    for (name, _), own in zip(blocks, running.run(audit_rows, asked, title="rows", unit="block"), strict=True):
        found[name].append(own)
    if twice := sum(own.lines - own.different for all_rows in found.values() for own in all_rows):
        ledger.problems[Problem(f"ledger: {twice} rows are there twice", "ledger-rows", duplicates=twice)] = None
    for name, all_rows in found.items():
        if not all(own.are_all for own in all_rows):
            there = sum(own.rows for own in all_rows)
            words = f"ledger: dataset {name} has {rows[name]} rows, the ledger {there}"
            ledger.problems[Problem(words, "ledger-rows", dataset=name, got=there, expected=rows[name])] = None
    return ledger


def _manifest_problems(manifest: Manifest) -> Iterator[str]:
    """What reading it leaves open."""
    config, described = manifest.identity.config, manifest.family
    try:
        needed = {array.deliver.table for array in layout_of(described).values()} - {""}
        if absent := needed - manifest.pixels.tables.keys():
            yield f"pixels.tables: {', '.join(manifest.pixels.tables)}, but media want {', '.join(sorted(absent))}, too"
        PixelDecoder(manifest, load_renderer)
    except ValueError as error:
        yield str(error)
    if wrong := {name for name, kind in FAMILY_KEYS.items() if not isinstance(described.get(name), kind)}:
        yield f"family: lacks {', '.join(sorted(wrong))}, or has another type"
    elif described["name"] not in FAMILIES:
        yield f"family: {described['name']!r} is unknown; known: {', '.join(FAMILIES)}"
    elif set(described["placeholder_ids"]) - set(TOKEN_TYPES):
        yield f"family: placeholder_ids of {', '.join(described['placeholder_ids'])}"
    try:
        asked: Any = {"turns": config.get("train_on"), "reasoning": config.get("reasoning")}
        check_types(TrainOn(**asked), "identity.config")
    except ValueError as error:
        yield str(error)
    expected = {
        INDEX,
        LOADER_INDEX,
        SOURCES,
        *(f"stats/{name}.parquet" for name in ("shards", "packs", "datasets", "media")),
    }
    expected |= set(manifest.pixels.tables.values())
    try:
        expected |= {name for names in ledger_names(manifest).values() for name in names}
    except OutputError as error:
        yield f"files: {error}"
        return
    if odd := (manifest.files.keys() - {FETCHED}) ^ expected:
        yield f"files: {', '.join(sorted(odd))} are too many, or missing"


def _loader_index_problems(out: Location, index: pa.Table, manifest: Manifest) -> Iterator[Problem]:
    """Whether index.arrow has what index.parquet has, which is known to be sound."""
    try:
        content = read_inside(out, LOADER_INDEX, largest_index(len(index)))
        found = pa.Table.from_batches(read_plain_arrow(content, LOADER_SCHEMA, len(index)), LOADER_SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Problem(f"{LOADER_INDEX}: not Arrow: {str(error)[:200]}", "file-unreadable", file=LOADER_INDEX)
        return
    if not found.equals(to_loader_index(index)):
        yield Problem(f"{LOADER_INDEX}: has other lines than {INDEX}", "index-mismatch", file=LOADER_INDEX)


def file_problem(out: Location, name: str, sha256: str) -> Problem | None:
    """Compare a file with the manifest. A task."""
    try:
        with open_regular(inside(out, name))[0] as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        if name == SOURCES:  # it may be removed before an output is given away
            return None
        return Problem(f"{name}: missing", "file-missing", file=name)
    except (OSError, ValueError) as error:
        return Problem(f"{name}: cannot be read: {error}", "file-unreadable", file=name)
    if digest == sha256:
        return None
    words = f"{name}: sha256 differs from the manifest's"
    return Problem(words, "file-changed", file=name, got=digest, expected=sha256)


def _strangers(out: Location, manifest: Manifest) -> list[Problem]:
    """Files beside the shards: whoever takes all of the folder would read them, too."""
    known = {shard.name for shard in manifest.shards}
    known |= {f"{name}.idx" for name in known}  # of `neatpack export energon`
    found = sorted(path.name for path in (out / "shards").iterdir()) if (out / "shards").is_dir() else []
    return [
        Problem(f"shards/{name}: not in the manifest; remove it", "file-unknown", file=f"shards/{name}")
        for name in found
        if name not in known
    ]


def _sum_problems(ledger: Figures, index: pa.Table, manifest: Manifest) -> list[Problem]:
    problems = []
    sums = {
        "tokens in the ledger": ledger.tokens,
        "tokens in the index, less fake images and padding": sum(
            sign * column_sum(index[name])
            for name, sign in (("tokens", 1), ("fake_tokens", -1), ("padding_tokens", -1))
        ),
    }
    if len(set(sums.values())) > 1:
        words = "; ".join(f"{count} {what}" for what, count in sums.items())
        problems.append(Problem(words, "counts-mismatch", key="tokens"))
    counts = Counts(
        rows=manifest.identity.num_rows,
        samples=ledger.samples,
        packed=ledger.packed,
        skipped=dict(ledger.skipped),
        skipped_tokens=dict(ledger.skipped_tokens),
        fitted=dict(ledger.fitted),
        packs=len(index),
        **{name: column_sum(index[name]) for name in ("tokens", "visual_tokens", "target_tokens")},
    )
    said = dataclasses.asdict(manifest.counts)
    return problems + [
        Problem(
            f"manifest: counts.{name} is {said[name]}, index and ledger say {count}",
            "counts-mismatch",
            key=f"counts.{name}",
            got=said[name],
            expected=count,
        )
        for name, count in dataclasses.asdict(counts).items()
        if said[name] != count
    ]


def read_ledger(out: Location, manifest: Manifest) -> pa.Table:
    return pa.concat_tables([read_parquet(out / name) for name in manifest.files if name.startswith("ledger/")])


def verify_shard(
    out: Location, manifest: Manifest, number: int, expected: tuple[int, int] | None = None
) -> list[Problem]:
    """One shard: every byte of the tar, digest, index, and every pack in it.

    `expected`: what its documents add up to by the ledger (audit.py), which is looked into only if that is not so.
    """
    shard = manifest.shards[number]
    try:
        file, found = open_regular(inside(out, f"shards/{shard.name}"))
    except FileNotFoundError:
        return [Problem(f"{shard.name}: missing", "file-missing", shard=shard.name)]
    except (OSError, ValueError) as error:
        return [Problem(f"{shard.name}: cannot be read: {error}", "file-unreadable", shard=shard.name)]
    with file:
        if found.st_size != shard.bytes:
            words = f"{shard.name}: {found.st_size} bytes where the manifest has {shard.bytes}"
            facts = {"shard": shard.name, "got": found.st_size, "expected": shard.bytes}
            return [Problem(words, "shard-changed", **facts)]
        try:
            inside_shard = _shard_problems(out, file, shard, manifest, expected)
            problems = [problem.inside(shard.name, shard=shard.name) for problem in inside_shard]
        except OSError as error:
            return [Problem(f"{shard.name}: cannot be read: {error}", "file-unreadable", shard=shard.name)]
    did(packs=shard.num_packs, bytes=shard.bytes)
    if len(problems) <= MAX_PROBLEMS:
        return problems
    words = f"{shard.name}: and {len(problems) - MAX_PROBLEMS} more"
    return [*problems[:MAX_PROBLEMS], Problem(words, "not-checked", shard=shard.name)]


def _shard_problems(
    out: Location, file: BinaryIO, shard: ShardEntry, manifest: Manifest, expected: tuple[int, int] | None
) -> Iterator[Problem]:
    """The index was held against the manifest before: its places are inside the file, and leave no gap."""
    index = read_parquet(out / INDEX, filters=[("shard", "=", shard.name)]).to_pylist()
    documents: dict[int, list[Documented]] = {}  # of packs that can be read
    digest, is_whole = hashlib.sha256(), True
    pixels = PixelDecoder(manifest, load_renderer)
    for line in index:
        number, at = line["pack"], f"pack {line['pack']}"
        content = np.empty(line["bytes"], np.uint8).data
        if read_into(file, content, line["offset"]) < len(content):
            yield Problem(f"{at}: the file ends before it does", "shard-changed", pack=number)
            return
        digest.update(content)
        if (crc32 := zlib_ng.crc32(content)) != line["crc32"]:
            is_whole = False
            yield Problem(
                f"{at}: its crc32 is {crc32:08x}, by the index {line['crc32']:08x}", "pack-changed", pack=number
            )
            continue
        try:
            found = _line_problems(content, line, manifest, pixels, documents)
            yield from (problem.inside(at, pack=number) for problem in found)
        except PixelsChangedError as error:
            yield Problem(f"{at}: {error}; {pixels.find_remedy(error)}", "pixels-changed", pack=number)
        except UNREADABLE as error:
            yield Problem(f"{at}: cannot be read: {type(error).__name__}: {error}", "pack-unreadable", pack=number)
    end = memoryview(bytearray(END))
    read_into(file, end, shard.bytes - END)
    digest.update(end)
    if any(end):
        yield Problem("does not end with two blocks of zeros", "shard-changed")
    elif is_whole and digest.hexdigest() != shard.sha256:
        yield Problem("sha256 differs from the manifest's", "shard-changed")
    numbers = {name: number for number, name in enumerate(manifest.identity.inputs)}
    listed = [
        (numbers.get(name, -1), row, repeat, pack, position, tokens, visual)
        for pack, own in documents.items()
        for position, name, row, repeat, tokens, visual in own
    ]
    if expected is None or sums_of(listed) != expected:
        yield from _ledger_problems(out, documents, manifest)


def _ledger_problems(out: Location, documents: dict[int, list[Documented]], manifest: Manifest) -> Iterator[Problem]:
    """Packs whose documents are others in the ledger."""
    ledger = _ledger_of_packs(out, list(documents), manifest)
    for pack, own in documents.items():
        theirs = ledger.get(pack, [])
        if len({place[0] for place in theirs}) < len(theirs):
            words = "two rows at one position by the ledger"
        elif [place[1:] for place in theirs] != [place[1:] for place in own]:
            words = "its documents differ from the ledger's"
        elif theirs != own:
            words = "its documents are at other positions by the ledger"
        else:
            continue
        yield Problem(f"pack {pack}: {words}", "pack-ledger", pack=pack)


def _line_problems(
    content: memoryview,
    line: dict[str, Any],
    manifest: Manifest,
    pixels: PixelDecoder,
    documents: dict[int, list[Documented]],
) -> Iterator[Problem]:
    """A pack by its bytes, against its line of the index. Its documents, if they can be read, are added."""
    try:
        members = split_members(content, line["pack"], [place["name"] for place in line["members"]])
    except OutputError as error:
        yield Problem(str(error), "pack-changed", **fields_of(error))
        return
    pack = read_pack(members, pixels)
    problems = check_pack(pack, manifest)
    yield from problems
    if problems:
        return
    places = [(place["offset"], place["size"]) for place in line["members"]]
    found = dataclasses.asdict(PackLine.of(pack, line["offset"], line["offset"] + line["bytes"], line["crc32"], places))
    found |= {"fake_tokens": len(manifest.family["fake_image_ids"]) if pack.fake_image else 0}
    for name, value in found.items():
        if name not in ("members", "fake_image") and line[name] != value:
            words = f"{name} is {line[name]} by the index, {value}"
            yield Problem(words, "pack-index", column=name, got=line[name], expected=value)
    own = (document for document in pack.documents if document.row >= 0)
    documents[line["pack"]] = [
        (position, document.dataset, document.row, document.repeat, document.tokens, document.visual_tokens)
        for position, document in enumerate(own)
    ]


def _ledger_of_packs(out: Location, packs: list[int], manifest: Manifest) -> dict[int, list[Documented]]:
    """Documents by pack and position, as the ledger has them."""
    if not packs:
        return {}
    least, most = min(packs), max(packs)
    documents: dict[int, list[Documented]] = {}
    for name in (name for name in manifest.files if name.startswith("ledger/")):
        for lines in read_groups(out / name, OF_PLACE):
            inside = pc.and_(pc.greater_equal(lines["pack"], least), pc.less_equal(lines["pack"], most))
            columns = [column.to_pylist() for column in lines.filter(inside).select(OF_PLACE).columns]
            for pack, *place in zip(*columns, strict=True):
                documents.setdefault(pack, []).append(tuple(place))
    return {pack: sorted(own) for pack, own in documents.items()}
