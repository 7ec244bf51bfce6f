"""Whether a medium is still the one that was measured.

A stamp is its size, its time of change, and a digest of its first and last bytes. A file of another size is another
one; one of another time, too, if it begins or ends otherwise: copying and touching change times, and nothing else.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ..records import MediaRef
from ..runtime.storage import sha256_of
from .open import TROUBLE, trouble
from .remote import is_uri

END = 4096  # bytes at either end; what an editor or encoder changes reaches the header or the trailer


def stamp_of(ref: MediaRef) -> str:
    """Of a medium that is a file of its own, or several. "" for others: the files that they are in have digests."""
    files = _files(ref)
    if not files:
        return ""
    try:
        size, time = _status(files)
        return f"{size} {time} {_ends(files)}"
    except OSError as error:
        if error.errno in TROUBLE:
            raise trouble(ref, error) from None
        return ""  # whoever reads it says what is wrong
    except ValueError:  # a name that no file can have
        return ""


def is_changed(ref: MediaRef, stamp: str) -> bool:
    if not stamp:
        return False
    size, time, ends = stamp.split(" ")
    files = _files(ref)
    try:
        now = _status(files)
        return now[0] != int(size) or (now[1] != int(time) and _ends(files) != ends)
    except OSError:  # it is gone, and reading it says so
        return False


def content_of(ref: MediaRef, stamp: str, level: str) -> str:
    """What stands for the content of a medium in an identity: its size, or (level "digest") the digest of all of it."""
    if not stamp:
        return ""
    return stamp.split(" ")[0] if level == "size" else " ".join(sha256_of(Path(file)) for file in _files(ref))


def _files(ref: MediaRef) -> Sequence[str]:
    if ref.held is not None or ref.inside or ref.offset or ref.length >= 0:
        return ()
    return [] if is_uri(ref.path) else ref.frames or (ref.path,)


def _status(files: Sequence[str]) -> tuple[int, int]:
    """Bytes of all, and when the last of them was changed."""
    found = [os.stat(file) for file in files]
    if not all(stat.S_ISREG(status.st_mode) for status in found):
        raise OSError("a pipe, a device or a folder, which must not be read")
    return sum(status.st_size for status in found), max(status.st_mtime_ns for status in found)


def _ends(files: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(file.read(END))
            file.seek(max(size - END, 0))
            digest.update(file.read(END))
    return digest.hexdigest()[:16]
