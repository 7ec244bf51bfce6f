"""Reads outputs by the documented format alone (docs/FORMAT.md), with none of neatpack's code."""

import hashlib
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Arrays = dict[str, np.ndarray]
KINDS = ("image", "video", "audio")
CODECS = ("u8", "zstd", "source")  # by their numbers
# The columns of the tables NAME_media.
MEDIA_COLUMNS = ("codec", "bytes", "rows", "crc32", "height", "width", "resized_height", "resized_width",
                 "grid_t", "grid_h", "grid_w")  # fmt: skip
TEXT_MEMBERS = ("input_ids.npy", "labels.npy", "position_ids.npy", "seq_lens.npy", "seq_lens_padded.npy",
                "mm_token_type_ids.npy")  # fmt: skip

# What a redesign may change freely: wording, and where a row was read.
LEDGER_WORDING = ("detail", "file", "line")


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the sha256 of bytes or of a JSON value."""
    content = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    return hashlib.sha256(content).hexdigest()[:16]


class Manifest(dict[str, Any]):
    """A JSON object whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class StoredPack:
    number: int
    arrays: Arrays
    documents: list[Any]  # the lines of its JSON, keys as attributes
    fake_image: bool


def read_manifest(out: Path | str) -> Manifest:
    manifest: Manifest = json.loads((Path(out) / "manifest.json").read_text(), object_hook=Manifest)
    return manifest


def sign(out: Path, change: Callable[[Any], Any] = lambda manifest: None) -> None:
    """Change the manifest, and give it the digests of all files as they are now, and its own."""
    manifest = json.loads((out / "manifest.json").read_bytes())
    for name in manifest["files"]:
        if (out / name).is_file():
            manifest["files"][name] = hashlib.sha256((out / name).read_bytes()).hexdigest()
    for shard in manifest["shards"]:
        if (out / "shards" / shard["name"]).is_file():
            content = (out / "shards" / shard["name"]).read_bytes()
            shard |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(manifest)
    del manifest["digest"]
    unsigned = json.dumps(manifest | {"digest": ""}, indent=1)
    own = hashlib.sha256(f"{unsigned}\n".encode()).hexdigest()
    (out / "manifest.json").write_text(unsigned.replace('"digest": ""', f'"digest": "{own}"') + "\n")


def read_family(out: Path) -> Any:
    """Return the ids that models of the tests are made for: `chat.placeholder_ids` and `chat.padding_id`."""
    return SimpleNamespace(chat=read_manifest(out).family)


def read_index(out: Path) -> list[dict[str, Any]]:
    return pq.read_table(out / "index.parquet").to_pylist()


def read_ledger(out: Path) -> list[dict[str, Any]]:
    parts = [pq.read_table(path) for path in sorted((out / "ledger").iterdir())]
    return pa.concat_tables(parts).to_pylist()


def read_packs(out: Path) -> Iterator[StoredPack]:
    """Yield the packs in order; images that are stored as their own file (`source`) cannot be read here."""
    media = read_manifest(out).family.media
    for line in read_index(out):
        yield read_pack(out, line, media)


def read_documents(out: Path, number: int) -> list[Any]:
    """Return what the JSON of a pack says of its documents."""
    line = read_index(out)[number]
    (member,) = (each for each in line["members"] if each["name"] == "json")
    with (out / "shards" / line["shard"]).open("rb") as shard:
        shard.seek(member["offset"])
        return [SimpleNamespace(**each) for each in json.loads(shard.read(member["size"]))["documents"]]


def read_members(out: Path, line: dict[str, Any]) -> dict[str, bytes]:
    """Return the members of a pack by its line of the index."""
    content = (out / "shards" / line["shard"]).read_bytes()
    assert zlib.crc32(content[line["offset"] : line["offset"] + line["bytes"]]) == line["crc32"]
    return {each["name"]: content[each["offset"] : each["offset"] + each["size"]] for each in line["members"]}


def read_pack(out: Path, line: dict[str, Any], media: Mapping[str, Any]) -> StoredPack:
    """Return a pack by its line of the index, its pixels as bytes."""
    members = read_members(out, line)
    header = json.loads(members.pop("json"))
    stored = {name.removesuffix(".npy"): np.load(io.BytesIO(member)) for name, member in members.items()}
    documents = [SimpleNamespace(**document) for document in header["documents"]]
    return StoredPack(header["pack"], decode_pixels(stored, media), documents, header["fake_image"])


def decode_pixels(stored: Arrays, media: Mapping[str, Any]) -> Arrays:
    """Return the arrays of a pack as the codec u8 has them."""
    arrays = {}
    for name, array in stored.items():
        if not name.endswith("_coded"):
            if not name.endswith("_media"):
                arrays[name] = array
            continue
        name, rows, start = name.removesuffix("_coded"), [], 0
        shape = media[name]["row"]
        for codec, size, count, crc32, *_ in stored[f"{name}_media"].tolist():
            content, start = array[start : start + size].tobytes(), start + size
            if codec == 1:
                content = pa.decompress(content, count * math.prod(shape), codec="zstd", asbytes=True)
            assert codec in (0, 1) and zlib.crc32(content) == crc32
            rows.append(np.frombuffer(content, np.uint8).reshape(count, *shape))
        arrays[name] = np.concatenate(rows) if rows else np.zeros((0, *shape), np.uint8)
    return arrays


def split_media(arrays: Mapping[str, Any], media: Mapping[str, Any], documents: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of each document of the media arrays of a pack ("Media arrays" of the format page)."""
    parts: list[dict[str, Any]] = [{} for _ in documents]
    for name in media:
        if name in arrays:
            row = 0
            for part, count in zip(parts, count_rows(name, arrays, media, documents), strict=True):
                part[name], row = arrays[name][row : row + count], row + count
    return parts


def count_rows(name: str, arrays: Mapping[str, Any], media: Mapping[str, Any], documents: list[Any]) -> list[int]:
    """Return how many rows of a media array each document has."""
    described = media[name]
    wanted = [sum(getattr(document, f"num_{kind}s") for kind in described["kinds"]) for document in documents]
    if not described["counts"] and not described["groups"]:
        return wanted
    rows = iter(np.asarray(arrays[described["counts"] or name]))
    if described["groups"]:
        return [take_group(rows, count) for count in wanted]
    side = described["row"][-1] if described["deliver"].get("pictures") else 1
    wanted = count_rows(described["counts"], arrays, media, documents)
    return [sum(int(np.prod(next(rows) // side)) for _ in range(count)) for count in wanted]


def take_group(rows: Iterator[Any], count: int) -> int:
    """Return how many rows add up to so many media."""
    taken = 0
    while count > 0:
        count, taken = count - int(next(rows)), taken + 1
    return taken


def files_of(out: Path) -> dict[str, bytes]:
    """Return all files of an output but its work folder and its report, which tells how long the run took."""
    names = {str(path.relative_to(out)): path for path in sorted(out.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in names.items()
            if not name.startswith("work/") and "report.html" not in name}  # fmt: skip


def read_stats(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted((out / "stats").iterdir())}


def find_outputs(out: Path) -> Iterator[Path]:
    """The output, and the held out one next to it."""
    for folder in (out, out.with_name(f"{out.name}-holdout")):
        if (folder / "manifest.json").exists():
            yield folder


def digest_output(out: Path, *, media: bool = True) -> dict[str, Any]:
    """Digests of everything in an output that users depend on; manifests and fingerprints are left out.

    Without `media`: of text, positions, labels and documents alone, and not of bytes.
    """
    bytes_of_media = () if media else ("bytes", "crc32", "members", "offset")
    shards = [path.read_bytes() for path in sorted((out / "shards").iterdir())] if media else list(read_texts(out))
    stats = {name: [{key: row[key] for key in row if key not in bytes_of_media} for row in rows]
             for name, rows in read_stats(out).items()}  # fmt: skip
    return {
        "shards": [digest(content) for content in shards],
        "index": digest_columns(read_index(out), without=bytes_of_media),
        "ledger": digest_columns(read_ledger(out), without=LEDGER_WORDING),
        "stats": {name: digest(rows) for name, rows in stats.items()},
    }


def read_texts(out: Path) -> Iterator[bytes]:
    """Yield the members of each pack that are not media, end to end."""
    for line in read_index(out):
        content = (out / "shards" / line["shard"]).read_bytes()
        members = {each["name"]: content[each["offset"] : each["offset"] + each["size"]] for each in line["members"]}
        yield b"".join(members[name] for name in (*TEXT_MEMBERS, "json"))


def digest_columns(rows: list[dict[str, Any]], without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return a digest for each column, so that a comparison names the columns that differ."""
    return {name: digest([row[name] for row in rows])[:8] for name in rows[0] if name not in without}
