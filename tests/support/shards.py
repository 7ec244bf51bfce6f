"""Rewrites the shards and the index of an output, by the documented format (docs/FORMAT.md)."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.outputs import sign

BLOCK = 512
END = bytes(2 * BLOCK)  # of a tar


def one_shard_per_pack(out: Path) -> None:
    """Write the same packs into more shards."""
    lines = pq.read_table(out / "index.parquet").to_pylist()
    contents = {}
    for number, line in enumerate(lines):
        content = (out / "shards" / line["shard"]).read_bytes()
        name = f"pack-{number:06d}.tar"
        contents[name] = content[line["offset"] : line["offset"] + line["bytes"]] + END
        for member in line["members"]:
            member["offset"] -= line["offset"]
        line |= {"shard": name, "offset": 0}
    shutil.rmtree(out / "shards")
    (out / "shards").mkdir()
    for name, content in contents.items():
        (out / "shards" / name).write_bytes(content)
    shards = [{"name": line["shard"], "bytes": 0, "sha256": "", "first_pack": line["pack"], "num_packs": 1}
              for line in lines]  # fmt: skip
    sign(out, lambda manifest: manifest.update(shards=shards))
    write_index(out, lines)


def write_index(out: Path, lines: list[dict[str, Any]]) -> None:
    """Write the index in all files that have it, and sign the manifest."""
    pq.write_table(pa.Table.from_pylist(lines, schema=pq.read_schema(out / "index.parquet")), out / "index.parquet")
    schema = pa.ipc.open_file((out / "index.arrow").read_bytes()).schema
    table = pa.Table.from_pylist([line | {"blocks": line["bytes"] // BLOCK} for line in lines], schema=schema)
    write_forged(out, "index.arrow", table)


def read_table(path: Path) -> pa.Table:
    return pa.ipc.open_file(path.read_bytes()).read_all() if path.suffix == ".arrow" else pq.read_table(path)


def write_forged(out: Path, name: str, table: pa.Table) -> None:
    """Write a table of an output, and all digests that fit it."""
    if name.endswith(".parquet"):
        pq.write_table(table, out / name)
    else:
        with (out / name).open("wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table.combine_chunks())
    sign(out)
