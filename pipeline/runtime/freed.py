"""What malloc does with memory that is freed, in processes that are ours alone. It imports nothing that takes time.

Libraries take memory for themselves, for pixels of a picture that is decoded or resized, and drop it after each. A
picture of 4 megapixels passes through 40 MB on its way, which the system clears for each picture anew: with that,
decoding and resizing take a third longer, and more where the machine is a virtual one that asks its host for pages.
"""

import ctypes
from functools import lru_cache

MOST = 256 << 20  # bytes that malloc keeps at the end of its heap
_LARGEST = 32 << 20  # bytes that it takes from there for one object, at most
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


@lru_cache(maxsize=1)
def keep_freed() -> None:
    """Have malloc keep it, and not return it to the system at once. Others, who train, may want their memory back."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # glibc has it; elsewhere malloc does as it likes
        mallopt(_TRIM_THRESHOLD, MOST)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
