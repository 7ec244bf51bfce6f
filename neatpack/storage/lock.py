"""One run at a time in a folder: a file that names its owner, renewed by a heartbeat; the same on disk and in a store.

A run that finds no file writes one and has the lock. An owner on this machine counts as long as its process lives, so
that what a killed run left is free at once. An owner on another machine is watched: it lives if its file changes, and
the clocks of the machines need not agree.

A run that follows a dead owner replaces the file, waits until others that did the same are through, and has the lock
if its own name is still there: the last of several stays. No store that pyarrow knows creates an object only if there
is none, so there each lock is taken that way. Disks can (a hard link), and nobody waits.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from neatpack.errors import UserError
from neatpack.storage.files import create_file, write_whole
from neatpack.storage.location import Location, PathLike

FILE = "lock"
BEAT = 10.0  # seconds between two heartbeats
WATCH, LOOKS = 45.0, 9  # seconds without a heartbeat after which an owner counts as dead, and looks in that time
SETTLING = 2.0  # seconds after which requests of others that took the lock at the same time are through
GRACE = 20  # tenths of a second in which an owner that was killed may end: its job runs in a fork, which goes after it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The run that a lock names."""

    host: str
    pid: int
    since: str
    beat: int = 0
    machine: str = ""  # host and namespace of process numbers: containers may share a host name
    started: str = ""  # of the process, in ticks since the machine's: numbers of processes are used again
    token: str = ""  # of this lock alone


@contextlib.contextmanager
def lock_folders(folders: Iterable[PathLike]) -> Iterator[None]:
    """Lock folders until the block ends.

    Raises:
        UserError: another run holds one of them. The message names it.
    """
    with contextlib.ExitStack() as stack:
        for folder in sorted(set(map(Location.parse, folders))):
            stack.enter_context(_lock_folder(folder))
        yield


@contextlib.contextmanager
def _lock_folder(folder: Location) -> Iterator[None]:
    path, stop, mine = folder / FILE, threading.Event(), _describe_this_run()
    _take_lock(path, mine)
    heart = threading.Thread(target=_beat, args=(path, mine, stop), name=_name_thread(mine), daemon=True)
    heart.start()
    try:
        yield
    finally:
        stop.set()
        heart.join()
        if _is_same(_read_owner(path), mine):
            path.unlink(missing_ok=True)
        if folder.is_local:
            with contextlib.suppress(OSError):  # it holds more than the lock, or is gone
                folder.path.rmdir()


def _take_lock(path: Location, mine: Owner) -> None:
    if create_file(path, _to_bytes(mine)):
        return
    _wait_for_end(path)
    _write(path, mine)
    time.sleep(SETTLING)
    if not _is_same(owner := _read_owner(path), mine):
        raise _busy(path, owner)


def _wait_for_end(path: Location) -> None:
    """Return when nobody has the lock. Raises UserError where its owner lives."""
    owner = _read_owner(path)
    if owner is None:
        return
    if owner.machine == _name_machine():
        if not _ends(owner):
            raise _busy(path, owner)
        return
    logger.warning("%s: a run on %s was here; watching for %.0f s whether it lives", path, owner.host, WATCH)
    for _ in range(LOOKS):
        time.sleep(WATCH / LOOKS)
        now = _read_owner(path)
        if now is None:
            return
        if now != owner:
            raise _busy(path, now)
    logger.warning("%s: it does not; going on", path)


def _beat(path: Location, owner: Owner, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        try:
            if not _is_same(_read_owner(path), owner):
                logger.error("%s: another run has taken it; both write the same, or one of them refuses", path)
                return
            owner = replace(owner, beat=owner.beat + 1)
            _write(path, owner)
        except OSError as error:  # a full disk, a store that is away: the run itself will say so
            logger.debug("heartbeat: %s", error)


def _ends(owner: Owner) -> bool:
    """Whether a process of this machine is gone, or goes within the grace of one that was killed."""
    for _ in range(GRACE):
        if not _is_alive(owner):
            return True
        time.sleep(0.1)
    return False


def _is_alive(owner: Owner) -> bool:
    if owner.pid == os.getpid() and _name_thread(owner) not in (each.name for each in threading.enumerate()):
        return False  # left by a disk that failed when this process gave the lock back
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    state, started = _read_process(owner.pid)
    # Z: it has ended and nobody fetches it, as the first process of many containers does not.
    return not state or (state not in ("Z", "X") and started == owner.started)


def _read_process(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it started; "", "" where the kernel does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def _describe_this_run() -> Owner:
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
        machine=_name_machine(),
        started=_read_process(os.getpid())[1],
        token=secrets.token_hex(8),
    )


def _name_machine() -> str:
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _name_thread(owner: Owner) -> str:
    return f"lock {owner.token}"


def _is_same(found: Owner | None, mine: Owner) -> bool:
    return found is not None and found.token == mine.token


def _write(path: Location, owner: Owner) -> None:
    with write_whole(path, durable=False) as file:
        file.write(_to_bytes(owner))


def _to_bytes(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode()


def _read_owner(path: Location) -> Owner | None:
    """Return the owner that a lock names; None where there is no lock, or a file of something else."""
    try:
        return Owner(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _busy(path: Location, owner: Owner | None) -> UserError:
    who = f"process {owner.pid} on {owner.host}, since {owner.since}" if owner else "a process that has just begun"
    return UserError(
        f"{path.parent} is in use by another run ({who}); wait for it or end it, or give another --out and --work",
        code="output-locked",
        out=str(path.parent),
        pid=owner.pid if owner else None,
        host=owner.host if owner else None,
        since=owner.since if owner else None,
    )
