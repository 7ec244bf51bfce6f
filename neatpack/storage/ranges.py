"""Stretches of bytes, of files on disk or in a store: what lies close together is read together."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from neatpack.storage.location import AT_ONCE, Location

NEAR = 64 << 10  # bytes between two stretches that are read as one: a request costs as much as reading these


class Stretch(NamedTuple):
    """Some bytes of a file."""

    file: Location
    at: int
    size: int


def read_stretches(wanted: Sequence[Stretch]) -> list[memoryview]:
    """The bytes of each, in this order: see `read_from`."""
    files = list(dict.fromkeys(stretch.file for stretch in wanted))
    which, at, size = (
        np.array(values, dtype=np.int64)
        for values in zip(*((files.index(file), at, size) for file, at, size in wanted), strict=True)
    )
    return read_from(files, which, at, size)


def read_from(files: Sequence[Location], which: np.ndarray, at: np.ndarray, size: np.ndarray) -> list[memoryview]:
    """`size` bytes from `at` on of files[which], for each of these; fewer where a file ends before. What lies close
    together is read together, and from a store several reads run at once: few requests, and none waits for another."""
    if not len(which):
        return []
    order = np.lexsort((at, which))
    at, size, which = (values[order].astype(np.int64) for values in (at, size, which))
    # As if the files lay behind each other, too far apart for any two to be read together.
    before = which * int((at + size).max() + NEAR + 1)
    reached = np.maximum.accumulate(before + at + size)
    begins = np.flatnonzero(np.append(True, before[1:] + at[1:] - reached[:-1] > NEAR))
    ends = (reached - before)[np.append(begins[1:], len(at)) - 1]
    starts = at[begins]
    runs = [Stretch(files[file], start, end - start) for file, start, end in
            zip(which[begins].tolist(), starts.tolist(), ends.tolist(), strict=True)]  # fmt: skip
    contents = list(_read_runs(runs))
    run = np.repeat(np.arange(len(runs)), np.diff(np.append(begins, len(at))))
    found: list[memoryview] = [memoryview(b"")] * len(order)
    inside = at - starts[run]
    places = zip(order.tolist(), run.tolist(), inside.tolist(), (inside + size).tolist(), strict=True)
    for number, of_run, start, end in places:
        found[number] = contents[of_run][start:end]
    return found


def _read_runs(runs: Sequence[Stretch]) -> Iterator[memoryview]:
    if all(run.file.is_local for run in runs):
        yield from map(_read_run, runs)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(_read_run, runs)


def _read_run(run: Stretch) -> memoryview:
    return memoryview(run.file.read_range(run.size, run.at))
