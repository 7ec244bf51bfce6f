"""Reads outputs by the documented format alone (docs/FORMAT.md), with none of neatpack's code."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# What a redesign may change freely: wording, and where a row was read.
LEDGER_WORDING = ("detail", "file", "line")


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the sha256 of bytes or of a JSON value."""
    content = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def read_index(out: Path) -> list[dict[str, Any]]:
    return pq.read_table(out / "index.parquet").to_pylist()


def read_ledger(out: Path) -> list[dict[str, Any]]:
    parts = [pq.read_table(path) for path in sorted((out / "ledger").iterdir())]
    return pa.concat_tables(parts).to_pylist()


def read_stats(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted((out / "stats").iterdir())}


def find_outputs(out: Path) -> Iterator[Path]:
    """The output, and the held out one next to it."""
    for folder in (out, out.with_name(f"{out.name}-holdout")):
        if (folder / "manifest.json").exists():
            yield folder


def digest_output(out: Path) -> dict[str, Any]:
    """Digests of everything in an output that users depend on; manifests and fingerprints are left out."""
    ledger = [{key: line[key] for key in line if key not in LEDGER_WORDING} for line in read_ledger(out)]
    return {
        "shards": [digest(path.read_bytes()) for path in sorted((out / "shards").iterdir())],
        "index": digest(read_index(out)),
        "ledger": digest(ledger),
        "stats": {name: digest(rows) for name, rows in read_stats(out).items()},
    }
