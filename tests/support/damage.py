"""Edits of tables and shards, for test_damage.py and test_damage_inside.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.shards import read_table, write_forged

from neatpack import OutputError

Lines = list[dict[str, Any]]


def edit_table(out: Path, name: str, change: Callable[[Lines], Any]) -> None:
    table = read_table(out / name)
    lines = table.to_pylist()
    change(lines)
    write_forged(out, name, pa.Table.from_pylist(lines, schema=table.schema))


def put(**cells: Any) -> Callable[[Lines], None]:
    """Other cells in line 3."""
    return lambda lines: lines[3].update(cells)


def exchange(key: str) -> Callable[[Lines], None]:
    """The cells of line 3 with those of the line behind it that differs most."""

    def change(lines: Lines) -> None:
        sizes = [line["offset"] if key == "offset" else sum(line.get("sizes") or [line["bytes"]]) for line in lines[3:]]
        other = 3 + max(range(len(sizes)), key=lambda at: abs(sizes[at] - sizes[0]))
        lines[3][key], lines[other][key] = lines[other][key], lines[3][key]

    return change


def has(error: OutputError, **fields: Any) -> bool:
    """Whether an error has at least these fields."""
    found = {name: error.fields.get(name) for name in fields}
    assert found == fields, f"{error.fields}: {error}"
    return True
