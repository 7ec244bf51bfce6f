"""neatpack inspect"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from neatpack.format.manifest import Manifest
from neatpack.storage.location import Location

from ..config import place_of
from ..runtime.logs import to_stdout
from ..safe import harmless_json, harmless_line
from .common import DONE, command


def add_to(commands: Any) -> None:
    inspect = command(
        commands,
        "inspect",
        _inspect,
        description="Show data sets, reasons of skips, lengths and shards of a finished output, as its parquet files "
        "have them. --sql asks the tables datasets, index, ledger, media, packs, shards (and fetched, where media were "
        "downloaded) by DuckDB; docs/FORMAT.md has their columns.",
        epilog='Example: neatpack inspect packed --sql "select dataset, max(tokens) from ledger group by all"',
    )
    inspect.add_argument("out", metavar="OUT", help="a finished output")
    inspect.add_argument("--json", action="store_true", help="as JSON; of --sql, a line per row")
    inspect.add_argument("--sql", metavar="QUERY", help="what DuckDB answers instead; needs `pip install duckdb`")


def _inspect(args: argparse.Namespace) -> int:
    out = place_of("OUT", args.out)
    for line in _lines(out, args):
        to_stdout(line)
    return DONE


def _lines(out: Location, args: argparse.Namespace) -> Iterator[str]:
    from ..view.columns import aligned
    from ..view.inspect import answered, described, inspected

    manifest = Manifest.read(out)
    if args.sql is not None:
        names, rows = answered(out, manifest, args.sql)
        if args.json:
            return (_as_json(dict(zip(names, row, strict=True))) for row in rows)
        return map(harmless_line, aligned(names, rows))
    tables = inspected(out, manifest)
    if not args.json:
        return map(harmless_line, described(out, manifest, tables))
    of = {"out": str(out), "neatpack": manifest.neatpack, "fingerprint": manifest.fingerprint}
    return iter([_as_json(of | tables, indent=1)])


def _as_json(value: Any, indent: int | None = None) -> str:
    return harmless_json(json.dumps(value, indent=indent, ensure_ascii=False, default=str))
