"""Whether a medium is still the one that was measured.

A stamp is its size, its time of change, and sums of its first and last bytes. A file of another size is another
one; one of another time, too, if it begins or ends otherwise: copying and touching change times, and nothing else. Of
an object of a store it is the size, and the tag that the store gives to its content.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from zlib_ng import zlib_ng

from neatpack.storage.clients import Unreachable
from neatpack.storage.files import read_ends, sha256_of
from neatpack.storage.uris import is_http, is_stored

from ..records import MediaRef
from .ahead import ahead
from .open import TROUBLE, trouble

BEGINNING = 16 << 10  # bytes that are read of a file; most headers are there
END = 4096  # bytes at either end; what an editor or encoder changes reaches the header or the trailer


class Stamped(NamedTuple):
    """A medium as it is when it is measured."""

    stamp: str  # "" of a medium that is no file of its own, nor several: the file that it is in has a digest
    size: int = 0  # of a single file on disk, its bytes, and how it begins: read for the stamp, and a header is there
    beginning: bytes = b""


def stamped(ref: MediaRef) -> Stamped:
    files = _files(ref)
    if not files:
        return Stamped("")
    try:
        if is_stored(files[0]):
            return Stamped(_tagged(files))
        if len(files) == 1:  # nearly all: without lists of one
            status, first, last = read_ends(files[0], BEGINNING, END)
            size = status.st_size
            return Stamped(f"{size} {status.st_mtime_ns} {_sums(first[:END], last)}", size, first)
        size, time, sums = _sums_of_all(files)
        return Stamped(f"{size} {time} {sums}")
    except Unreachable:
        raise
    except OSError as error:
        if error.errno in TROUBLE:
            raise trouble(ref, error) from None
        return Stamped("")  # whoever reads it says what is wrong
    except ValueError:  # a name that no file can have
        return Stamped("")


def is_changed(ref: MediaRef, stamp: str) -> bool:
    if not stamp:
        return False
    size, time, ends = stamp.split(" ")
    files = _files(ref)
    try:
        if is_stored(files[0]):
            return _tagged(files) != stamp
        now = _status([os.stat(file) for file in files])
        return now[0] != int(size) or (now[1] != int(time) and _sums_of_all(files)[2] != ends)
    except Unreachable:
        raise
    except OSError:  # it is gone, and reading it says so
        return False


def content_of(ref: MediaRef, stamp: str, level: str) -> str:
    """What stands for the content of a medium in an identity: its size, or (level "digest") the digest of all of it."""
    if not stamp:
        return ""
    return stamp.split(" ")[0] if level == "size" else " ".join(sha256_of(file) for file in _files(ref))


def _files(ref: MediaRef) -> Sequence[str]:
    if ref.held is not None or ref.inside or ref.offset or ref.length >= 0:
        return ()
    if not ref.frames:
        return () if is_http(ref.path) else (ref.path,)  # a download is kept
    if any(map(is_http, ref.frames)) or len({is_stored(file) for file in ref.frames}) > 1:
        return ()
    return ref.frames


def _tagged(objects: Sequence[str]) -> str:
    found = [ahead.opened(uri) for uri in objects]
    tags = hashlib.sha256(" ".join(each.version for each in found).encode()).hexdigest()[:16]
    return f"{sum(each.size for each in found)} 0 {tags}"


def _status(found: Sequence[os.stat_result]) -> tuple[int, int]:
    """Bytes of all, and when the last of them was changed."""
    if not all(stat.S_ISREG(status.st_mode) for status in found):
        raise OSError("a pipe, a device or a folder, which must not be read")
    return sum(status.st_size for status in found), max(status.st_mtime_ns for status in found)


def _sums_of_all(files: Sequence[str]) -> tuple[int, int, str]:
    """Bytes of all, when the last of them was changed, and the sums of their ends; of one in memory at a time."""
    size = time = first_sum = last_sum = 0
    for file in files:
        status, first, last = read_ends(file, END, END)
        own_size, own_time = _status([status])
        size, time = size + own_size, max(time, own_time)
        first_sum, last_sum = zlib_ng.crc32(first, first_sum), zlib_ng.crc32(last, last_sum)
    return size, time, f"{first_sum:08x}{last_sum:08x}"


def _sums(first: bytes, last: bytes) -> str:
    """crc32 of both ends, which takes a seventh of the time of sha256: it is to tell one file from another that took
    its place, and no forgery."""
    return f"{zlib_ng.crc32(first):08x}{zlib_ng.crc32(last):08x}"
