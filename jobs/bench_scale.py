"""Benchmark of size: what a row costs the driver of a job and its tasks, and what packs cost a loader that opens them.

python jobs/bench_scale.py [--rows 100000,1000000,10000000] [--packs 1000000,10000000] [--json FILE]

Exits 1 on a missed target: from 10M rows on the driver may take 50 bytes and 0.2 us a row; a row may cost no more than
1.1 times as much in a large job as in a small one. "Serial" is what no number of workers shortens. Every size is
measured in a process of its own. The token store of 10M rows takes 1 GB of disk, the rest as much again.
"""

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MANY = 10_000_000  # rows: the targets of the driver hold from there on
MAX_BYTES, MAX_US, MAX_GROWTH = 50, 0.2, 1.1
LOADER = "jobs.scale.loader"

Figures = dict[str, Any]


def one_size(num_rows: int) -> Figures:
    """In a process of its own."""
    command = [sys.executable, __file__, "--one", str(num_rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def table(figures: Sequence[Figures]) -> list[str]:
    names = [
        "rows",
        "partitions",
        "packs",
        "shards",
        "driver us/row",
        "driver B/row",
        "tasks us/row",
        "all us/row",
        "serial us/row",
        "largest task",
    ]
    lines = [names]
    for each in figures:
        counts = [f"{each[name]:,}" for name in names[:4]]
        costs = [
            f"{each[name]:.3f}"
            for name in (
                "driver_us_per_row",
                "driver_bytes_per_row",
                "tasks_us_per_row",
                "us_per_row",
                "serial_us_per_row",
            )
        ]
        lines.append([*counts, *costs, f"{each['largest_task_bytes'] / 1e9:.2f} GB"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]


def missed(figures: Sequence[Figures]) -> list[str]:
    found = []
    for each in figures:
        if each["rows"] >= MANY:
            for name, most in (("driver_bytes_per_row", MAX_BYTES), ("driver_us_per_row", MAX_US)):
                if each[name] > most:
                    found.append(f"{name} = {each[name]:.3f} at {each['rows']:,} rows, target <= {most}")
    for small in figures:
        for large in figures:
            growth = large["us_per_row"] / small["us_per_row"]
            if small["rows"] < large["rows"] and growth > MAX_GROWTH:
                found.append(f"a row costs {growth:.2f} times as much in {large['rows']:,} as in {small['rows']:,}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Costs by the row; exits 1 if a target is missed.")
    parser.add_argument("--rows", default="100000,1000000,10000000")
    parser.add_argument("--packs", default="1000000,10000000", help="of the loader")
    parser.add_argument("--json", default="", help="where figures go")
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        from jobs.scale.driver import measure

        print(json.dumps(measure(args.one)))
        return 0
    figures = [one_size(int(rows)) for rows in args.rows.split(",") if rows]
    for line in table(figures):
        print(line)
    for each in figures:
        print(
            f"tasks at {each['rows']:,} rows, us/row: "
            + ", ".join(f"{name} {us}" for name, us in each["tasks"].items())
        )
    result: Figures = {"driver": figures}
    if importlib.util.find_spec(LOADER):
        result["loader"] = importlib.import_module(LOADER).measure(
            [int(packs) for packs in args.packs.split(",") if packs]
        )
        for each in result["loader"]:
            print("loader: " + ", ".join(f"{name} {value}" for name, value in each.items()))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    problems = missed(figures)
    print("\n".join(f"MISSED {problem}" for problem in problems) or "all targets are met")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
