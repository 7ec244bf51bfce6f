"""Private folders in the temporary folder of a machine, which other users of it can neither read nor prepare."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from neatpack.errors import UserError


def private_folder(*names: str) -> Path:
    """Return TMPDIR/neatpack-UID/names…, made with mode 0700 where it is missing.

    Raises:
        UserError: a folder on the way is a link, another user's, or open to others. Whoever prepares such a folder in
            a shared /tmp could read, exchange or redirect what is written to it.
    """
    folder = Path(tempfile.gettempdir(), f"neatpack-{os.getuid()}")
    _make_private(folder)
    for name in names:
        folder /= name
        _make_private(folder)
    return folder


def _make_private(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):  # nor a link to one
        problem = "is not a folder"
    elif found.st_uid != os.getuid():
        problem = f"belongs to another user (uid {found.st_uid})"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        problem = f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o}, expected 0700)"
    else:
        return
    raise UserError(
        f"{folder}: {problem}. Remove it, or set TMPDIR to a folder of your own.",
        code="folder-unsafe",
        folder=str(folder),
    )


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A private folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=private_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
