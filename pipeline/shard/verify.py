"""Proof of a finished output, from what is on disk alone: every promise that can be checked is checked."""

import dataclasses
import hashlib
import json
import mmap
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..families.registry import FAMILIES
from ..labels import TrainOn, TurnMarkers, assistant_spans, spans_mask
from ..layout import MediaArray, layout_of, rows_per_part, split_media
from ..manifest import Manifest, ShardEntry
from ..measure.targets import is_trained
from ..records import IGNORE, IMAGE, REASONS, TEXT, TOKEN_TYPES, VIDEO, Document, Pack
from ..runtime.engine import Engine
from ..runtime.storage import sha256_of
from ..runtime.tables import column_sum
from .codec import member_names, pack_key, read_pack
from .commit import count_all

MAX_PROBLEMS = 20  # of a shard; a broken one would fill the screen


def verify_output(out: Path, manifest: Manifest, running: Engine) -> list[str]:
    """All that is wrong with a finished output; nothing, if it is as promised."""
    problems = verify_ledger(out, manifest)
    if any(problem.startswith(("index.parquet", "ledger/")) for problem in problems):
        return [*problems, "shards: not checked, for they are held against the index and the ledger"]
    items = [(out, manifest, number) for number in range(len(manifest.shards))]
    for found in running.run(verify_shard, items, title="verify", unit="shard"):
        problems += found
    return problems


def verify_ledger(out: Path, manifest: Manifest) -> list[str]:
    """Digests of the tables, conservation of rows and tokens, index against manifest."""
    problems = []
    for name, digest in manifest.files.items():
        if not (out / name).is_file():
            problems.append(f"{name}: missing")
        elif sha256_of(out / name) != digest:
            problems.append(f"{name}: sha256 differs from the manifest's")
    if problems:
        return problems
    index = pq.read_table(out / "index.parquet")
    ledger = read_ledger(out, manifest)
    packed = ledger.filter(pc.equal(ledger["status"], "packed"))
    problems += _conservation(ledger, manifest)
    sums = {
        "tokens in the ledger": column_sum(packed["tokens"]),
        "tokens in the index, less fake images and padding": sum(
            sign * column_sum(index[name])
            for name, sign in (("tokens", 1), ("fake_tokens", -1), ("padding_tokens", -1))
        ),
    }
    if len(set(sums.values())) > 1:
        problems.append("; ".join(f"{count} {what}" for what, count in sums.items()))
    places = packed.select(["pack", "position"]).group_by(["pack", "position"]).aggregate([])
    if len(places) != len(packed):
        problems.append("ledger: two rows at one position of a pack")
    if (shards := sum(shard.num_packs for shard in manifest.shards)) != len(index):
        problems.append(f"{len(index)} packs in the index, {shards} in the shards")
    said = dataclasses.asdict(manifest.counts)
    problems += [
        f"manifest: counts.{name} is {said[name]}, index and ledger say {count}"
        for name, count in dataclasses.asdict(count_all(manifest.identity, ledger, index)).items()
        if said[name] != count
    ]
    if manifest.fingerprint != manifest.identity.fingerprint:
        problems.append("manifest: its fingerprint is not that of its identity")
    firsts = dict(zip(reversed(index["shard"].to_pylist()), reversed(index["pack"].to_pylist()), strict=True))
    for shard in manifest.shards:
        if shard.first_pack != (first := firsts.get(shard.name, -1)):
            problems.append(f"manifest: {shard.name} starts at pack {shard.first_pack}, by the index at {first}")
    return problems


def read_ledger(out: Path, manifest: Manifest) -> pa.Table:
    return pa.concat_tables([pq.read_table(out / name) for name in manifest.files if name.startswith("ledger/")])


def verify_shard(out: Path, manifest: Manifest, number: int) -> list[str]:
    """One shard: digest, tar structure, index, and every pack in it."""
    shard = manifest.shards[number]
    path = out / "shards" / shard.name
    if not path.is_file():
        return [f"{shard.name}: missing"]
    if path.stat().st_size != shard.bytes:
        return [f"{shard.name}: {path.stat().st_size} bytes where the manifest has {shard.bytes}"]
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        view = memoryview(content)
        try:
            if hashlib.sha256(view).hexdigest() != shard.sha256:
                return [f"{shard.name}: sha256 differs from the manifest's"]
            found = [f"{shard.name}: {problem}" for problem in _tar_problems(out, view, shard, manifest)]
        finally:
            view.release()
    more = [f"{shard.name}: and {len(found) - MAX_PROBLEMS} more"] if len(found) > MAX_PROBLEMS else []
    return found[:MAX_PROBLEMS] + more


def check_pack(pack: Pack, manifest: Manifest) -> list[str]:
    """What is wrong with the arrays of a pack."""
    arrays, length = pack.arrays, len(pack.arrays["input_ids"])
    pack_size, align = (manifest.identity.config[key] for key in ("pack_size", "align"))
    problems = []
    if length > pack_size:
        problems.append(f"{length} tokens, above pack_size {pack_size}")
    shapes = {
        "labels": (length,),
        "mm_token_type_ids": (length,),
        "position_ids": (3, length) if manifest.family["position_axes"] == 3 else (length,),
        "seq_lens": (len(pack.documents),),
        "seq_lens_padded": (len(pack.documents),),
    }
    problems += [
        f"{name} has shape {arrays[name].shape}, expected {shape}"
        for name, shape in shapes.items()
        if arrays[name].shape != shape
    ]
    planned = [document.tokens for document in pack.documents]
    if arrays["seq_lens"].tolist() != planned:
        problems.append(f"document lengths {arrays['seq_lens'].tolist()} differ from the planned {planned}")
    padded = [-(-tokens // align) * align for tokens in planned]
    if not problems and (arrays["seq_lens_padded"].tolist() != padded or sum(padded) != length):
        problems.append(f"padded lengths {arrays['seq_lens_padded'].tolist()}, expected {padded} of {length} in all")
    if problems:
        return problems
    config = manifest.identity.config
    train_on = TrainOn(turns=config["train_on"], reasoning=config["reasoning"])
    return [f"document {index}: {problem}" for index, problem in _document_problems(pack, manifest.family, train_on)]


def _document_problems(pack: Pack, described: dict[str, Any], train_on: TrainOn) -> Iterator[tuple[int, str]]:
    """`described`: what the manifest says of the family."""
    arrays, layout = pack.arrays, layout_of(described)
    family, facts, padding_id = FAMILIES[described["name"]], described["facts"], described["padding_id"]
    markers = TurnMarkers(
        header=tuple(described["assistant_header_ids"]),
        end=described["end_of_turn_id"],
        tail=described["assistant_header_tail"],
    )
    parts = {kind: [getattr(document, f"num_{kind}s") for document in pack.documents] for kind in TOKEN_TYPES}
    problem = _media_problem(arrays, layout, parts)
    if problem:
        yield len(pack.documents), problem
        return
    start = 0
    for index, (document, media) in enumerate(zip(pack.documents, split_media(arrays, layout, parts), strict=True)):
        stop = start + document.tokens
        ids, labels = arrays["input_ids"][start:stop], arrays["labels"][start:stop]
        is_fake = document.row < 0
        if is_fake and ids.tolist() != described["fake_image_ids"]:
            yield index, "the fake image has other tokens"
        types = arrays["mm_token_type_ids"][start:stop]
        if is_fake:
            if (labels != IGNORE).any():
                yield index, "the fake image has labels"
        else:
            yield from (
                (index, problem) for problem in _label_problems(ids, labels, types, document, markers, train_on)
            )
        expected_types = np.zeros_like(types)
        for kind, token in described["placeholder_ids"].items():
            expected_types[ids == token] = TOKEN_TYPES[kind]
        visual = int(np.count_nonzero((expected_types == IMAGE) | (expected_types == VIDEO)))
        tokens, expected = int(np.count_nonzero(expected_types)), family.media_tokens(media, facts)
        if visual != document.visual_tokens or expected not in (tokens, None):
            planned = f"planned {document.visual_tokens} visual ones"
            yield index, f"{tokens} media tokens, arrays for {expected}, {planned}"
        elif not np.array_equal(types, expected_types):
            yield index, "mm_token_type_ids differ from the media tokens"
        else:
            # Positions depend on what came before only, so the token that the shift cut off does not matter.
            positions = family.positions(types, media, facts)
            if not np.array_equal(arrays["position_ids"][..., start:stop], positions):
                yield index, "positions differ from those of the document alone"
        end = start + int(arrays["seq_lens_padded"][index])
        if (arrays["labels"][stop:end] != IGNORE).any() or (arrays["input_ids"][stop:end] != padding_id).any():
            yield index, "its padding has labels or tokens"
        start = end


def _media_problem(arrays: dict[str, np.ndarray], layout: dict[str, MediaArray], parts: dict[Any, list[int]]) -> str:
    """Whether every media array has as many rows, of the shape, as its documents say."""
    for name, array in layout.items():
        shape = arrays[name].shape
        sides = zip(shape[1:], array.row, strict=False)
        if len(shape) != len(array.row) + 1 or any(side not in (has, -1) for has, side in sides):
            return f"{name} {shape}: rows of another shape than {array.row}"
        try:
            rows = sum(rows_per_part(name, arrays, layout, parts))
        except IndexError:
            rows = -1
        if shape[0] != rows:
            media = " and ".join(f"{sum(parts[kind])} {kind}s" for kind in array.kinds)
            return f"{name} {shape}: does not fit the {media} of the documents"
    return ""


def _label_problems(
    ids: np.ndarray,
    labels: np.ndarray,
    types: np.ndarray,
    document: Document,
    markers: TurnMarkers,
    train_on: TrainOn,
) -> Iterator[str]:
    """Labels are the next token in the spans that the pack's JSON names, and -100 elsewhere; the spans are those that
    the config and the row ask for.

    The shift has cut the last token off the inputs; it is known only through its label, if it has one.
    """
    targets = spans_mask(document.targets, len(labels))
    following = np.append(ids[1:], labels[-1])
    expected = np.where(targets, following, IGNORE)
    if not np.array_equal(labels, expected):
        at = int(np.flatnonzero(labels != expected)[0])
        yield f"label {labels[at]} at token {at}, expected {expected[at]}"
    if not targets.any():
        yield "no target"
        return
    asked, free = _asked_targets(np.append(ids, labels[-1]), types, document, markers, train_on)
    wrong = (targets != asked[1:]) & ~free[1:]
    wrong[-1] &= labels[-1] != IGNORE  # a token that is not there cannot be told
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        yield f"token {at + 1} is {'trained on' if targets[at] else 'masked'}, against --train-on and its row"


def _asked_targets(
    ids: np.ndarray, types: np.ndarray, document: Document, markers: TurnMarkers, train_on: TrainOn
) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens are to be trained on, and which may be or not.

    Free are, in answers, tokens of reasoning that is masked: where it stands only the tokenizer tells. In text that is
    trained on as a whole, the markers beside media are.
    """
    is_text = np.append(types == TEXT, True)
    spans = assistant_spans(ids, markers)
    num_turns = len(document.loss) or len(spans)  # more than spans where the document was cut
    trained = [is_trained(number, num_turns, document.loss, train_on) for number in range(len(spans))]
    whole = document.form == "document" or train_on.turns == "all"
    asked = is_text.copy() if whole else np.zeros(len(ids), dtype=bool)
    free = _beside(~is_text) if whole else np.zeros(len(ids), dtype=bool)
    if document.form == "document":
        return asked, free
    for (start, stop), is_asked in zip(spans, trained, strict=True):
        asked[start:stop] = is_asked
        free[start:stop] |= is_asked and train_on.reasoning == "mask"
    return asked, free


def _beside(media: np.ndarray) -> np.ndarray:
    """Text between media tokens, or at most a few tokens from one: markers, and times of frames."""
    reach, here = 16, np.arange(len(media))
    before = np.concatenate([[0], np.cumsum(media)])  # media tokens before each place
    near = before[np.minimum(here + reach + 1, len(media))] > before[np.maximum(here - reach, 0)]
    return np.asarray(near & ~media)


def _conservation(ledger: pa.Table, manifest: Manifest) -> list[str]:
    """Every input row once per repetition, with a known status and reason."""
    problems = []
    lines = ledger.select(["dataset", "row", "repeat"]).group_by(["dataset", "row", "repeat"]).aggregate([])
    if len(lines) != len(ledger):
        problems.append(f"ledger: {len(ledger) - len(lines)} rows are there twice")
    for name, entry in manifest.identity.inputs.items():
        rows = pc.unique(ledger.filter(pc.equal(ledger["dataset"], name))["row"]).to_numpy()
        if len(rows) != entry["rows"] or (len(rows) and not (np.sort(rows) == np.arange(len(rows))).all()):
            problems.append(f"ledger: data set {name} has {entry['rows']} rows, the ledger {len(rows)}")
    packed = pc.equal(ledger["status"], "packed")
    skipped = pc.and_(pc.equal(ledger["status"], "skipped"), pc.is_in(ledger["reason"], pa.array(list(REASONS))))
    named = pc.or_(pc.and_(packed, pc.equal(ledger["reason"], "")), skipped)
    if not pc.all(named).as_py() and len(ledger):
        problems.append("ledger: a line that is neither packed nor skipped for a known reason")
    if not pc.all(pc.equal(packed, pc.greater_equal(ledger["pack"], 0))).as_py() and len(ledger):
        problems.append("ledger: a packed row without a pack, or a skipped one with")
    return problems


def _tar_problems(out: Path, view: memoryview, shard: ShardEntry, manifest: Manifest) -> Iterator[str]:
    index = pq.read_table(out / "index.parquet", filters=[("shard", "=", shard.name)]).to_pylist()
    if len(index) != shard.num_packs:
        yield f"{shard.num_packs} packs by the manifest, {len(index)} by the index"
    ledger = _ledger_of_packs(out, [line["pack"] for line in index])
    with tarfile.open(out / "shards" / shard.name) as tar:
        members = {member.name: (member.offset_data, member.size) for member in tar}
    names = member_names(manifest.family["media"])
    expected = {f"{pack_key(line['pack'])}.{name}" for line in index for name in names}
    if members.keys() != expected:
        yield f"tar members differ from the index: {sorted(members.keys() ^ expected)[:3]}"
        return
    for line in index:
        key = pack_key(line["pack"])
        places = {place["name"]: (place["offset"], place["size"]) for place in line["members"]}
        if places != {name: members[f"{key}.{name}"] for name in names}:
            yield f"pack {line['pack']}: the index has other member offsets than the tar"
            continue
        try:
            pack = read_pack({name: view[start : start + size] for name, (start, size) in places.items()})
        except (ValueError, KeyError, AssertionError, json.JSONDecodeError) as error:
            yield f"pack {line['pack']}: cannot be read: {error}"
            continue
        yield from (f"pack {line['pack']}: {problem}" for problem in check_pack(pack, manifest))
        if len(pack.arrays["input_ids"]) != line["tokens"]:
            yield f"pack {line['pack']}: {len(pack.arrays['input_ids'])} tokens, the index has {line['tokens']}"
        sources = [
            (document.dataset, document.row, document.repeat, document.tokens, document.visual_tokens)
            for document in pack.documents
            if document.row >= 0
        ]
        if sources != ledger.get(line["pack"], []):
            yield f"pack {line['pack']}: its documents differ from the ledger's"
        del pack  # its arrays are views of the map, which must be free of them when it is closed


def _ledger_of_packs(out: Path, packs: list[int]) -> dict[int, list[tuple[Any, ...]]]:
    """Documents by pack and position, as the ledger has them."""
    if not packs:
        return {}
    within = [("pack", ">=", min(packs)), ("pack", "<=", max(packs))]
    tables = [pq.read_table(path, filters=within) for path in sorted((out / "ledger").glob("*.parquet"))]
    lines = pa.concat_tables(tables).sort_by([("pack", "ascending"), ("position", "ascending")])
    documents: dict[int, list[tuple[Any, ...]]] = {}
    for line in lines.to_pylist():
        source = (line["dataset"], line["row"], line["repeat"], line["tokens"], line["visual_tokens"])
        documents.setdefault(line["pack"], []).append(source)
    return documents
