"""Damaged and forged files: nothing that reads them may crash, hang, take all memory, or take them for sound ones.

python jobs/fuzz.py [--target output|coded|input|rows|imports] [--seed 0] [--minutes 2] [--only forged] [--cases 9]
                    [--case 7]

Each case copies sound files, damages the copy in one way, and asks every reader what it makes of it. Cases are drawn by
(seed, number): --case N does one again. Prints for every kind of damage how often it was found, how often it was
harmless, as when two blocks that change places are alike, and how often an edit fits, digests and all, so that it is
another output. Exits 1 after the first failures, and tells them.

A target is a line in TARGETS: how to make sound files, ways to damage them, and readers. See jobs/fuzzing/target.py.
"""

import argparse
import itertools
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.fuzzing.imports import IMPORTS
from jobs.fuzzing.input import INPUT
from jobs.fuzzing.output import CODED, OUTPUT
from jobs.fuzzing.rows import ROWS
from jobs.fuzzing.target import FINE, Target

TARGETS: dict[str, Target] = {"output": OUTPUT, "coded": CODED, "input": INPUT, "rows": ROWS, "imports": IMPORTS}
SECONDS = 60  # of one case; a hang is longer
MEMORY = 4 << 30  # bytes of address space more than the process has at its start
MOST_FAILURES = 5


class Hang(BaseException):
    """Not an Exception: nobody may take it for damage."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, default="output")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--only", default="", help="damage whose name begins so")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="at most")
    parser.add_argument("--case", type=int, help="only this one")
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    numbers = iter([args.case]) if args.case is not None else itertools.takewhile(
        lambda number: number < args.cases and time.monotonic() < until, itertools.count())  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        target = TARGETS[args.target].only(args.only)
        sound = target.make(Path(folder))
        limit_memory()
        counts, failures = fuzz(target, sound, Path(folder), args.seed, numbers)
    print_table(counts)
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    return 1 if failures else 0


def fuzz(
    target: Target, sound: Path, folder: Path, seed: int, numbers: Iterator[int]
) -> tuple[Counter[tuple[str, str, str]], list[str]]:
    """How often which mutator led which reader to which verdict; and what must not be, at most a few."""
    counts: Counter[tuple[str, str, str]] = Counter()
    failures: list[str] = []
    names = list(target.mutators)
    for number in numbers:
        rng = random.Random(f"{seed}/{number}")
        name = names[number % len(names)]
        copy = folder / f"case-{number}"
        shutil.copytree(sound, copy)
        said = target.mutators[name](copy, rng)
        failure = ""
        try:
            with time_limit(SECONDS):
                verdicts = target.examine(sound, copy, name) if said else {}
            if wrong := {reader: verdict for reader, verdict in verdicts.items() if verdict not in FINE}:
                failure = str(wrong)
        except (Exception, Hang) as error:
            verdicts = {"": type(error).__name__}
            failure = traceback.format_exc()
        counts.update((name, reader, verdict) for reader, verdict in verdicts.items())
        if failure:
            failures.append(f"seed {seed}, case {number}, {name}: {said}\n{failure}")
        for left in folder.glob(f"{copy.name}*"):
            shutil.rmtree(left)
        if len(failures) == MOST_FAILURES:
            break
    return counts, failures


def print_table(counts: Counter[tuple[str, str, str]]) -> None:
    columns = sorted({(reader, verdict) for _, reader, verdict in counts})
    print(f"{'':32}" + "".join(f"{reader:>12}" for reader, _ in columns))
    print(f"{'':32}" + "".join(f"{verdict:>12}" for _, verdict in columns))
    for name in dict.fromkeys(name for name, _, _ in counts):
        print(f"{name:32}" + "".join(f"{counts[name, *column]:12}" for column in columns))
    print(
        f"{'all':32}" + "".join(f"{sum(counts[key] for key in counts if key[1:] == column):12}" for column in columns)
    )


def limit_memory() -> None:
    """What asks for all memory gets a MemoryError, here and not on the machine of a user."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def end(*_: object) -> None:
        raise Hang(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    raise SystemExit(main())
