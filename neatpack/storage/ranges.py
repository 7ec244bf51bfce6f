"""Ranges of bytes, of files on disk or in a store: those that lie close together are read together."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from neatpack.storage.location import AT_ONCE, Location

NEAR = 64 << 10  # bytes between two ranges that are read as one: a request costs as much as reading these


def read_ranges(files: Sequence[Location], which: np.ndarray, at: np.ndarray, size: np.ndarray) -> list[memoryview]:
    """Return `size` bytes from `at` on of files[which], for each of these; fewer where a file ends before.

    Ranges that lie close together are one read, and reads of a store run in parallel: few requests, and none waits.
    """
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
    runs = [(files[file], end - start, start) for file, start, end in
            zip(which[begins].tolist(), starts.tolist(), ends.tolist(), strict=True)]  # fmt: skip
    contents = list(_read_runs(runs))
    run = np.repeat(np.arange(len(runs)), np.diff(np.append(begins, len(at))))
    found: list[memoryview] = [memoryview(b"")] * len(order)
    inside = at - starts[run]
    places = zip(order.tolist(), run.tolist(), inside.tolist(), (inside + size).tolist(), strict=True)
    for number, of_run, start, end in places:
        found[number] = contents[of_run][start:end]
    return found


def _read_runs(runs: Sequence[tuple[Location, int, int]]) -> Iterator[memoryview]:
    if all(file.is_local for file, _, _ in runs):
        yield from map(_read_run, runs)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(_read_run, runs)


def _read_run(run: tuple[Location, int, int]) -> memoryview:
    file, length, start = run
    return memoryview(file.read_range(length, start))
