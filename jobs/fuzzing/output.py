"""A finished output: shards, index, manifest, ledger, statistics and tables: damaged, or edited and signed again."""

import hashlib
import io
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from neatpack import PackedShards
from neatpack.errors import OutputError
from neatpack.format.index import write_loader_index
from neatpack.format.manifest import Manifest, signed
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.runtime.engine import engine
from neatpack.pipeline.shard.verify import verify_output
from neatpack.storage.location import Location

from .target import DAMAGE, FITS, FOUND, HARMLESS, Mutator, Target, Verdicts

PROCESSOR = Path(__file__).parents[1] / "demo" / "processor"
KINDS = {
    "shard": "shards/*.tar",
    "index": "index.parquet",
    "loader index": "index.arrow",
    "manifest": "manifest.json",
    "table": "*_table.npy",
    "ledger": "ledger/*.parquet",
    "statistics": "stats/*.parquet",
}
NUMBERS = (0, 1, -1, 2, 3, 255, 512, 1024, 1 << 15, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1)
VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    "..",
    "/etc/passwd",
    "../../outside.tar",
    "a" * 64,
    [],
    {},
    [[]],
    {"a": 1},
    0.5,
    1e308,
    *NUMBERS,
)
# What numpy might be asked to make of the bytes of an array.
HEADERS = (b"|O8", b"<U9", b"|V8", b"<c8", b"<f8", b"<i8", b"|b1", b"<m8", b">i4", b"|S1")


def make(folder: Path, codec: str = "u8", num_rows: int = 36, kind: str = "png") -> Path:
    """Fourteen packs in two shards, of text and pictures; or as many as other numbers give."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(num_rows):
        name, answer = f"{number}.{kind}", " ".join(map(str, range(number % 36 * 3 + 1)))
        text = f"{'<image>' * (number % 3 == 0)}What is {number}?"
        turns = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        rows.append({"messages": turns} | ({"images": [name]} if number % 3 == 0 else {}))
        pixels = rng.integers(0, 256, (140 + 28 * (number % 5), 168, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps({"drawn": {"file_name": "rows.jsonl", "media_dir": "."}}))
    run_pack(PackConfig(meta=str(folder / "meta.json"), processor=str(PROCESSOR), out=str(folder / "out"),
                        pack_size=384, group_size=2, shard_mb=1, engine="inline", pixels=codec))  # fmt: skip
    shutil.rmtree(folder / "out/work")
    return folder / "out"


# Damage: every changed byte must be found


def damaged(damage: Mutator, pattern: str, out: Path, rng: random.Random) -> str:
    return damage(rng.choice(sorted(out.glob(pattern))), rng)


def exchange_shards(out: Path, rng: random.Random) -> str:
    one, other = rng.sample(sorted(out.glob("shards/*.tar")), 2)
    one.rename(out / "third")
    other.rename(one)
    (out / "third").rename(other)
    return f"{one.name} and {other.name}"


def exchange_packs(out: Path, rng: random.Random) -> str:
    """Two packs of one size in a shard change places, or parts of them: a sum over the bytes would not tell."""
    index = pq.read_table(out / "index.parquet").to_pylist()
    one, other = rng.sample(index, 2)
    size = min(one["bytes"], other["bytes"])
    first, second = (out / "shards" / line["shard"] for line in (one, other))
    contents = [first.read_bytes()[one["offset"] :][:size], second.read_bytes()[other["offset"] :][:size]]
    for path, line, content in ((first, one, contents[1]), (second, other, contents[0])):
        whole = bytearray(path.read_bytes())
        whole[line["offset"] : line["offset"] + size] = content
        path.write_bytes(whole)
    return f"packs {one['pack']} and {other['pack']}"


def link_out(out: Path, rng: random.Random) -> str:
    """The same bytes, but elsewhere: nobody may follow."""
    path = rng.choice([path for pattern in KINDS.values() for path in sorted(out.glob(pattern))])
    elsewhere = out.parent / f"{out.name}-elsewhere"
    elsewhere.mkdir(exist_ok=True)
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)
    return f"{path.name}: a link"


def becomes_pipe(out: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(out.glob("shards/*.tar")))
    path.unlink()
    os.mkfifo(path)
    return f"{path.name}: a pipe"


# Forgery: the digests fit, so that numbers and names are all that a reader can go by


def sign(out: Path, change: Callable[[dict[str, Any]], None] = lambda found: None) -> None:
    """Digests of the manifest for the files as they are now, after a change to it."""
    found = json.loads((out / "manifest.json").read_bytes())
    found.pop("digest")
    for name in found["files"]:
        if (out / name).is_file():
            found["files"][name] = hashlib.sha256((out / name).read_bytes()).hexdigest()
    for shard in found["shards"]:
        content = (out / "shards" / shard["name"]).read_bytes()
        shard |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(found)
    (out / "manifest.json").write_bytes(signed(found))


def write_forged(out: Path, name: str, table: pa.Table) -> None:
    """A table of an output, and all digests that fit it."""
    if name.endswith(".parquet"):
        pq.write_table(table, out / name)
        sign(out)
        return
    with (out / name).open("wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    sign(out)


def write_indexes(out: Path, table: pa.Table) -> None:
    """Write an index that can be to both files that have it."""
    write_loader_index(out, [table])
    pq.write_table(table, out / "index.parquet")
    sign(out)


def forged_manifest(out: Path, rng: random.Random) -> str:
    said = []

    def change(found: dict[str, Any]) -> None:
        said.append(changed_leaf(found, rng))

    sign(out, change)
    return f"manifest: {said[0]}"


def changed_leaf(value: Any, rng: random.Random) -> str:
    """Changes or removes something in a JSON value, anywhere."""
    where: list[str] = []
    while True:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        where.append(str(key))
        inner = value[key]
        if not (isinstance(inner, dict | list) and inner) or rng.random() < 0.1:
            break
        value = inner
    if rng.random() < 0.15:
        del value[key]
        return f"{'.'.join(where)} removed"
    value[key] = rng.choice(VALUES) if rng.random() < 0.7 else altered(inner, rng)
    return f"{'.'.join(where)}: {str(inner)[:30]} -> {str(value[key])[:30]}"


def altered(value: Any, rng: random.Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + rng.choice([-1, 1, 512, -512, 1 << 20])
    if isinstance(value, str):
        return rng.choice([value[1:], value + "x", value.upper(), "../" + value, value[::-1]])
    return value


def forged_index(out: Path, rng: random.Random) -> str:
    return forged_table(out, "index.parquet", rng)


def forged_loader_index(out: Path, rng: random.Random) -> str:
    return forged_table(out, "index.arrow", rng)


def forged_ledger(out: Path, rng: random.Random) -> str:
    return forged_table(out, "ledger/00000.parquet", rng)


def forged_table(out: Path, name: str, rng: random.Random) -> str:
    """Cells, lines or columns of a table."""
    table = read_table(out / name)
    lines, how = table.to_pylist(), rng.choice(["cell", "cell", "cell", "cell", "exchange", "double", "drop", "column"])
    if how == "cell":
        line = rng.choice(lines)
        column = rng.choice(table.column_names)
        said = f"{column}[{line.get('pack')}]: {changed_cell(line, column, table.schema, rng)}"
    elif how == "exchange":
        one, other = rng.sample(range(len(lines)), 2)
        column = rng.choice([table.column_names, [rng.choice(table.column_names)]])
        for key in column:
            lines[one][key], lines[other][key] = lines[other][key], lines[one][key]
        said = f"lines {one} and {other} exchange {', '.join(column)[:40]}"
    elif how == "double":
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
        said = "a line twice"
    elif how == "drop":
        said = f"without line {lines.pop(rng.randrange(len(lines))).get('pack')}"
    else:
        said = f"without {(column := rng.choice(table.column_names))}"
        table = table.drop_columns([column])
    if how != "column":
        table = pa.Table.from_pylist(lines, schema=table.schema)
    write_forged(out, name, table)
    return f"{name}: {said}"


def read_table(path: Path) -> pa.Table:
    return pa.ipc.open_file(path.read_bytes()).read_all() if path.suffix == ".arrow" else pq.read_table(path)


def changed_cell(line: dict[str, Any], column: str, schema: pa.Schema, rng: random.Random) -> str:
    old = line[column]
    if column == "members":
        place, key = rng.choice(old), rng.choice(["name", "offset", "size"])
        before = place[key]
        place[key] = (
            rng.choice(["../x", "json", ""]) if key == "name" else rng.choice([*NUMBERS, before + 512, -before])
        )
        return f"{key} {before} -> {place[key]}"
    kind = schema.field(column).type
    for _ in range(20):
        is_text = pa.types.is_string(kind)
        new = rng.choice(["../../../outside.tar", "/x.tar", "", "pack-000001.tar"]) if is_text else rng.choice(NUMBERS)
        try:
            pa.array([new], kind)
        except (pa.ArrowException, OverflowError):
            continue
        line[column] = None if rng.random() < 0.1 else new
        break
    return f"{old} -> {line[column]}"


def forged_pack(out: Path, rng: random.Random) -> str:
    """A number of an array, the header of one, or the JSON of a pack; checksums are made to fit."""
    index = pq.read_table(out / "index.parquet")
    lines = index.to_pylist()
    line = rng.choice(lines)
    place = rng.choice([place for place in line["members"] if place["size"]])
    path = out / "shards" / line["shard"]
    content = bytearray(path.read_bytes())
    start, end = place["offset"], place["offset"] + place["size"]
    member = bytes(content[start:end])
    if place["name"] == "json":
        header = json.loads(member)
        said = changed_leaf(header, rng)
        new = json.dumps(header, ensure_ascii=False).encode()[: len(member)].ljust(len(member))
    elif rng.random() < 0.3:
        said, new = "another header", forged_header(member, rng)
    else:
        said, new = forged_array(member, rng)
    content[start:end] = new
    path.write_bytes(content)
    line["crc32"] = zlib.crc32(content[line["offset"] : line["offset"] + line["bytes"]])
    write_indexes(out, pa.Table.from_pylist(lines, schema=index.schema))
    return f"pack {line['pack']}, {place['name']}: {said}"


def forged_header(member: bytes, rng: random.Random) -> bytes:
    """Of the same length: type, shape, order or version."""
    text = member[10:128]
    old = text[text.index(b"'descr': '") + 10 :][:3]
    changes = [
        (old, rng.choice(HEADERS)),
        (b"False", b"True "),
        (b"(", rng.choice([b"(9", b"(-", b"(99999999999999999999,", b"((" * 20])),
        (b"descr", rng.choice([b"Descr", b"__imp"])),
    ]
    before, after = rng.choice(changes)
    changed = text.replace(before, after, 1)[: len(text)].ljust(len(text))
    preamble = member[:10] if rng.random() < 0.8 else member[:6] + bytes([rng.randrange(4), 0]) + rng.randbytes(2)
    return preamble + changed + member[128:]


def forged_array(member: bytes, rng: random.Random) -> tuple[str, bytes]:
    array = np.lib.format.read_array(io.BytesIO(member), allow_pickle=False).copy()
    if not array.size:
        return "nothing", member
    flat = array.reshape(-1)
    place = rng.randrange(array.size)
    low, high = (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max) if array.dtype.kind in "iu" else (-1e30, 1e30)
    new = rng.choice([number for number in NUMBERS if low <= number <= high] + [low, high])
    said = f"[{place}] {flat[place]} -> {new}"
    flat[place] = new
    return said, member[: len(member) - array.nbytes] + array.tobytes()


MUTATORS: dict[str, Mutator] = {
    **{f"{kind}: {name}": partial(damaged, damage, pattern)
       for kind, pattern in KINDS.items() for name, damage in DAMAGE.items()},
    "shards exchanged": exchange_shards,
    "packs exchanged": exchange_packs,
    "a link out of the output": link_out,
    "a shard is a pipe": becomes_pipe,
    "forged manifest": forged_manifest,
    "forged index": forged_index,
    "forged loader index": forged_loader_index,
    "forged ledger": forged_ledger,
    "forged pack": forged_pack,
}  # fmt: skip


# Readers


def examine(sound: Path, out: Path, mutator: str) -> Verdicts:
    is_forged = mutator.startswith("forged")
    is_same = {str(path.relative_to(out)): content_of(path) for path in files_of(out)} == contents(sound)
    found = digests(sound)
    try:
        read = loaded(out)
    except OutputError:
        loader = FOUND
    else:
        loader = HARMLESS if read == found else FITS if is_forged else "WRONG PACKS"
    verify = FOUND if verified(out) else HARMLESS if is_same else FITS if is_forged else "MISSED"
    return {"loader": loader, "verify": verify}


def loaded(out: Path) -> dict[str, str]:
    """Digests of all that the loader, as it is by default, makes of an output: items and tables."""
    packs = PackedShards(out, rank=0, world_size=1)
    told = {f"table of {name}": _digest(stored.table) for name, stored in packs.stored.items()}
    for item in packs:
        tensors = {name: value for name, value in item.items() if isinstance(value, torch.Tensor)}
        rest = {name: value for name, value in item.items() if isinstance(value, int | str)}
        whole = "".join(f"{name}{_digest(tensor)}" for name, tensor in sorted(tensors.items()))
        told[str(item["pack"])] = f"{whole}{rest}{packs.layout}"
    return told


def verified(out: Path) -> list[str]:
    """What `neatpack verify` says."""
    try:
        manifest = Manifest.read(out)
    except OutputError as error:
        return [str(error)]
    with engine("inline") as running:
        return list(verify_output(Location.parse(out), manifest, running))


def _digest(tensor: torch.Tensor) -> str:
    content = tensor.contiguous().view(torch.int16 if tensor.dtype == torch.bfloat16 else tensor.dtype).numpy()
    return hashlib.sha256(f"{tensor.dtype}{tensor.shape}".encode() + content.tobytes()).hexdigest()


def files_of(out: Path) -> list[Path]:
    return sorted(path for path in out.rglob("*") if not path.is_dir())


def content_of(path: Path) -> bytes | None:
    return None if path.is_symlink() or not path.is_file() else path.read_bytes()


@lru_cache(maxsize=4)
def digests(sound: Path) -> dict[str, str]:
    assert verified(sound) == []
    return loaded(sound)


@lru_cache(maxsize=4)
def contents(sound: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(sound)): content_of(path) for path in files_of(sound)}


OUTPUT = Target(make=make, mutators=MUTATORS, examine=examine)
# The same with pictures that are stored as they came, and are decoded at load.
CODED = Target(make=partial(make, codec="source", num_rows=120, kind="jpg"), mutators=MUTATORS, examine=examine)
