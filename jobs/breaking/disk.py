"""A disk that fails at one call: the n-th of those by which this process opens or changes files under a folder."""

import builtins
import contextlib
import errno
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

_BY_PATH = ("open", "mkdir", "unlink", "rmdir", "replace", "rename")
_BY_FILE = ("write", "pwrite", "fsync")
CALLS = (*_BY_PATH, *_BY_FILE)
_OPENING = ("open",)
# What the kernel says, and the calls that it may say it of.
FAULTS = {
    errno.ENOSPC: ("open", "mkdir", "replace", "rename", *_BY_FILE),
    errno.EMFILE: _OPENING,
    errno.EROFS: _BY_PATH,
    errno.EIO: CALLS,
}
OF_WRITING = (errno.ENOSPC, errno.EROFS)
KILL = "SIGKILL"  # instead of a fault: the process ends there, before the call


class Disk:
    """Counts the calls that `fault` may befall, and lets number `at` fail by it. What failed, in words, is `failed`."""

    def __init__(self, folder: Path, fault: int | str, at: int) -> None:
        self._folder, self._fault, self._at = str(folder), fault, at
        self._calls = CALLS if isinstance(fault, str) else FAULTS[fault]
        self._thread = threading.current_thread()  # not of the lock's heart: its beats are a matter of time
        self.num_calls, self.failed = 0, ""

    @contextlib.contextmanager
    def in_use(self) -> Iterator["Disk"]:
        with contextlib.ExitStack() as stack:
            for name in CALLS:
                stack.enter_context(patch.object(os, name, self._failing(name, getattr(os, name))))
            for module in (builtins, io):  # pathlib takes the second
                stack.enter_context(patch.object(module, "open", self._failing("open", open)))
            yield self

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def failing(place: Any, *arguments: Any, **options: Any) -> Any:
            path = _path_of(place, options.get("dir_fd"))
            if self._is_ours(path) and self._may_fail(name, path, *arguments, **options):
                self.num_calls += 1
                if self.num_calls - 1 == self._at:
                    self.failed = f"{name} {path}"
                    self._fail(path if name in _BY_PATH else None)
            return call(place, *arguments, **options)

        return failing

    def _may_fail(self, name: str, path: str, *arguments: Any, **options: Any) -> bool:
        if name not in self._calls or threading.current_thread() is not self._thread:
            return False
        if name == "mkdir" and os.path.isdir(path):  # it fails anyhow, and nobody minds
            return False
        how = arguments[0] if arguments else options.get("mode", "r")
        reads = name == "open" and not (
            how & (os.O_WRONLY | os.O_RDWR) if isinstance(how, int) else set(how) & set("wax+")
        )
        return not (reads and self._fault in OF_WRITING)

    def _is_ours(self, path: str) -> bool:
        return path == self._folder or path.startswith(self._folder + os.sep)

    def _fail(self, path: str | None) -> None:
        if isinstance(self._fault, str):
            os.kill(os.getpid(), signal.Signals[self._fault])
        else:
            raise OSError(
                self._fault, os.strerror(self._fault), path
            )  # as the kernel: without the path of a descriptor


def _path_of(place: Any, folder: int | None) -> str:
    if isinstance(place, int):
        return os.readlink(f"/proc/self/fd/{place}")
    return os.path.join(_path_of(folder, None) if folder is not None else "", os.fsdecode(place))
