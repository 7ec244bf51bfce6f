"""Memory of this process for large arrays, which is used again when nobody has it any more.

Fresh pages are what it costs to read a pack that lies in the page cache: the kernel clears each before it copies into
it. To render one, they cost a tenth of what decoding and resizing its pictures takes. And it begins on a page: large
memory of malloc lies 16 bytes behind one, where AMD's processors copy a file's pages at a third of their speed (15 MB
in 5.9 ms of CPU time, and in 1.9 ms).
"""

import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np

MOST = 256 << 20  # bytes that are kept while nobody has them
_GRAIN = 1 << 20  # memory has some room to spare: the next pack may be a little larger
_free: list[np.ndarray] = []  # those that were dropped last at the end; appended to by any thread, at any time
_lock = threading.Lock()  # of who takes from it


def empty(shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array, whatever is in it; of memory that was used before, if it is large."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return taken(num_bytes).view(dtype).reshape(shape) if num_bytes >= _GRAIN else np.empty(shape, dtype)


def taken(num_bytes: int) -> np.ndarray:
    """So many bytes that nobody else has, whatever is in them. They come back when the last view of them is dropped."""
    with _lock:
        memory = _fitting(num_bytes)
        while sum(len(each) for each in list(_free)) > MOST:
            del _free[0]
    if memory is None:
        memory = _aligned(-(-num_bytes * 9 // 8 // _GRAIN) * _GRAIN)
    # Of a memoryview, and not a slice: views of a slice would hold on to the whole, and not to this object.
    flat = np.frombuffer(memory.data, np.uint8, num_bytes)
    weakref.finalize(flat, _come_back, memory, os.getpid()).atexit = False
    return flat


def _aligned(num_bytes: int) -> np.ndarray:
    whole = np.empty(num_bytes + mmap.PAGESIZE, np.uint8)  # numpy asks for huge pages
    start = -whole.ctypes.data % mmap.PAGESIZE
    return whole[start : start + num_bytes]


def _fitting(num_bytes: int) -> np.ndarray | None:
    """Of those that are large enough, and not twice as large, that which was dropped last: it may still be cached."""
    for number in reversed(range(len(_free))):
        if num_bytes <= len(_free[number]) <= 2 * num_bytes + _GRAIN:
            return _free.pop(number)
    return None


def _come_back(memory: np.ndarray, process: int) -> None:
    """Without the lock: the collector may call it in the middle of `taken`, where an append disturbs nothing."""
    if process == os.getpid():  # in one that was forked, writing there would copy every page
        _free.append(memory)
