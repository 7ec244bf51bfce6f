"""Memory that nobody has any more is used again; memory that somebody has is not."""

import gc
import mmap
import os
import threading

import numpy as np
import pytest
import torch

from neatpack.format.layout import MediaArray
from neatpack.pipeline.families.media_rows import join_rows
from neatpack.pipeline.runtime import reused

MB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_is_free(monkeypatch):
    monkeypatch.setattr(reused, "_free", [])


def place(array: np.ndarray) -> int:
    return array.ctypes.data


def test_what_is_dropped_is_used_again():
    first = reused.taken(3 * MB)
    was = place(first)
    assert len(first) == 3 * MB and was % mmap.PAGESIZE == 0
    del first
    again = reused.taken(3 * MB + 5)  # a little larger
    assert place(again) == was and len(again) == 3 * MB + 5


@pytest.mark.parametrize(
    "kept",
    [
        lambda flat: flat[100:200],
        lambda flat: flat.view(np.int32).reshape(-1, 4)[1:],
        lambda flat: memoryview(flat)[5:],
        lambda flat: torch.from_numpy(flat).view(torch.bfloat16)[7:9],
        lambda flat: torch.from_numpy(flat)[1:].numpy(),
    ],
)
def test_a_view_holds_it(kept):
    flat = reused.taken(MB)
    was, view = place(flat), kept(flat)
    del flat
    gc.collect()
    assert place(reused.taken(MB)) != was
    del view
    assert was in {place(reused.taken(MB)), place(reused.taken(MB))}


def test_large_arrays_take_it():
    small, large = reused.empty((3, 4), "int32"), reused.empty((2, MB), "float32")
    assert (small.shape, large.shape) == ((3, 4), (2, MB)) and (small.dtype.name, large.dtype.name) == (
        "int32",
        "float32",
    )
    was = place(large)
    del large
    assert place(reused.empty((MB, 8), "uint8")) == was


def test_rows_of_the_next_pack_take_it():
    pixels = MediaArray(dtype="uint8", row=(588,), kinds=("image",))
    first = join_rows([np.full((900, 588), 1, np.uint8), np.full((1200, 588), 2, np.uint8)], pixels)
    was, row = place(first), first[900]
    again = join_rows([np.full((1000, 588), 3, np.uint8)] * 2, pixels)
    assert place(again) != was and row[0] == 2, "what somebody has is left alone"
    del first, row
    assert place(join_rows([np.full((1000, 588), 4, np.uint8)] * 2, pixels)) == was


def test_not_much_is_kept(monkeypatch):
    monkeypatch.setattr(reused, "MOST", 10 * MB)
    several = [reused.taken(3 * MB) for _ in range(6)]
    last = place(several[-1])
    while several:
        several.pop(0)
    far_larger = reused.taken(40 * MB)
    assert sum(map(len, reused._free)) <= 10 * MB and len(far_larger) == 40 * MB
    assert place(reused.taken(3 * MB)) == last, "that which was dropped last"


def test_small_parts_do_not_use_up_large_memory():
    large = reused.taken(64 * MB)
    was = place(large)
    del large
    assert place(reused.taken(MB)) != was and place(reused.taken(64 * MB)) == was


def test_threads_have_memory_of_their_own():
    wrong: list[int] = []

    def write(number: int) -> None:
        for _ in range(200):
            flat = reused.taken(MB)
            flat[:: mmap.PAGESIZE] = number
            if (flat[:: mmap.PAGESIZE] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_forked_process_drops_is_not_kept_there():
    flat = reused.taken(MB)
    if (child := os.fork()) == 0:
        del flat
        os._exit(len(reused._free))
    assert os.waitpid(child, 0)[1] == 0
    del flat
    assert len(reused._free) == 1
