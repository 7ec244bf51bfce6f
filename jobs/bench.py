"""Where we are against the physical limits, and where we want to be: one command, a table, JSON.

python jobs/bench.py [SECTION …] [--meta META.json --processor DIR] [--repeats 5] [--json FILE] [--check]

Sections are the modules of jobs/speed/ (see there what each compares); without a name, all of them, each in a process
of its own: memory and modules of the one before cost the next up to a quarter more. Both sides of a figure run in turns
and are told as CPU time. Without --meta, sections draw their data: small pictures, which flatter
nobody. --check exits 1 if a figure is above what is wanted of it; no test does that, for machines are noisy.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from jobs import speed
from jobs.speed.side_by_side import Options, Row


def sections() -> list[str]:
    """Modules of jobs/speed/ that give rows."""
    names = (module.name for module in pkgutil.iter_modules(speed.__path__))
    return [name for name in names if hasattr(importlib.import_module(f"jobs.speed.{name}"), "rows")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    parser.add_argument("--meta", type=Path)
    parser.add_argument("--processor", default=str(Path(__file__).parent / "demo" / "processor"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    known = sections()
    if unknown := set(args.sections) - set(known):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = args.sections or known
    print(f"{'':12}{'':58}{'figure':>10}{'wanted':>10}", flush=True)
    found: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        options = Options(
            folder=Path(folder),
            meta=args.meta and args.meta.resolve(),
            processor=os.path.abspath(args.processor),
            repeats=args.repeats,
        )
        for name in chosen:
            found[name] = section(name, options) if len(chosen) == 1 else apart(section, name, options)
    if args.json:
        args.json.write_text(json.dumps({name: [asdict(row) for row in own] for name, own in found.items()}, indent=1))
    missed = [row for own in found.values() for row in own if row.is_met is False]
    return 1 if args.check and missed else 0


def section(name: str, options: Options) -> list[Row]:
    """Its rows, told as they come."""
    options = replace(options, folder=options.folder / name)  # of its own: sections call their folders what they like
    options.folder.mkdir()
    found = []
    for row in rows_of(name, options):
        found.append(row)
        print(line(name, row), flush=True)
    return found


def apart(work: Callable[..., list[Row]], *arguments: Any) -> list[Row]:
    """In a new process, which has imported nothing."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def rows_of(name: str, options: Options) -> Iterator[Row]:
    rows: Iterator[Row] = importlib.import_module(f"jobs.speed.{name}").rows(options)
    return rows


def line(section: str, row: Row) -> str:
    wanted = "" if row.wanted is None else f"{row.wanted:.3g}{row.unit}"
    mark = {None: "", True: "  met", False: "  missed"}[row.is_met]
    figure = f"{row.figure:,.0f}" if row.figure >= 100 else f"{row.figure:.3g}"
    return f"{section:12}{row.what:58}{figure:>9}{row.unit:1}{wanted:>10}{mark}"


if __name__ == "__main__":
    raise SystemExit(main())
