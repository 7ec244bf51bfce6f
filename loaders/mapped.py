"""Packs of a local shard as they lie in the page cache, without a copy.

A map of its own for each: private, so that whoever writes to it changes neither the file nor what comes later. All its
pages are brought in at once (MADV_POPULATE_READ), by a call that says so where a disk fails; pages that came when they
are touched would end the process there by a signal, without a word. What is left of that is a shard that somebody cuts
in place while a batch of it is in use: packing never does, it renames. On file systems of other machines, who may do so
at any time, and wherever a map cannot be had, packs are read.
"""

import mmap
import os
import weakref
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

MOST = 64  # at a time: Python keeps a file open for each
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay")  # file systems of this machine alone
_POPULATE_READ = 22  # MADV_POPULATE_READ, of Linux 5.14 and later; Python has no name for it
_maps: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()


def mapped(file: BinaryIO, offset: int, size: int) -> memoryview | None:
    """So many bytes of a file from a place on; None: they are to be read, which also tells what is wrong."""
    if len(_maps) >= MOST or file_system(os.fstat(file.fileno()).st_dev) not in LOCAL:
        return None
    before = offset % mmap.ALLOCATIONGRANULARITY
    try:
        memory = mmap.mmap(
            file.fileno(), before + size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset - before
        )
        memory.madvise(_POPULATE_READ)
    except (OSError, ValueError):  # ValueError: the file ends before
        return None
    _maps.add(memory)
    return memoryview(memory)[before:]


@lru_cache(maxsize=256)
def file_system(device: int) -> str:
    """What kind is mounted there; "": nobody says."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""
    # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    kinds = (line.partition(" - ")[2].split() for line in mounts.splitlines() if line.split()[2:3] == [number])
    return next((kind[0] for kind in kinds if kind), "")
