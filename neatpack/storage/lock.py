"""One run at a time in a folder: a lock file that names its owner, which a heartbeat keeps alive.

The kernel's lock on the file (flock) goes with the process that holds it: what a killed run of this machine left is
free at once. Not every shared file system tells other machines of it. So the owner also counts in the file, and a run
on another machine that finds an owner watches whether the count goes on; clocks of machines need not agree.

A store has no locks. Where it, and what is installed, can write an object only if there is none (uploads.py), whoever
wrote it has the lock. Else the count is all: whoever finds no living owner writes itself down, waits until requests
that were under way are through, and looks whether what it wrote still stands; of two that come at once, the last stays.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from neatpack.errors import UserError
from neatpack.storage.files import Place, name_errors
from neatpack.storage.location import Remote
from neatpack.storage.uploads import created

FILE = "lock"
BEAT = 5.0  # seconds between two counts
GRACE = 20  # tenths of a second in which an owner that was killed may end: its job runs in a fork, which goes after it
STORE_BEAT, SETTLING = 15.0, 2.0  # seconds, of a lock in a store
PATIENCE = 6  # beats without a count after which an owner on another machine is taken for dead

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    host: str
    pid: int
    since: str
    beat: int


@contextlib.contextmanager
def locked(folders: Iterable[Place]) -> Iterator[None]:
    """Held by this run until it ends. A UserError names the run that holds one of them already."""
    with contextlib.ExitStack() as stack:
        for folder in sorted(set(folders), key=str):
            stack.enter_context(_locked_in_store(folder) if isinstance(folder, Remote) else _locked(folder))
        yield


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder / FILE
    file = _acquired(path)
    stop = threading.Event()
    mine = _this_run()
    beating = threading.Thread(target=_keep_beating, args=(file, mine, stop), daemon=True)
    try:
        with name_errors(path):
            _write(file, mine)
        beating.start()
        yield
    finally:
        stop.set()
        if beating.is_alive():
            beating.join()
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(file)  # whatever happens: a lock that outlives its run is one on the next
        with contextlib.suppress(OSError):  # it holds more than the lock, or is gone
            folder.rmdir()


def _this_run() -> Owner:
    return Owner(host=socket.gethostname(), pid=os.getpid(), since=time.strftime("%Y-%m-%d %H:%M:%S"), beat=0)


@contextlib.contextmanager
def _locked_in_store(folder: Remote) -> Iterator[None]:
    path, stop, mine = folder / FILE, threading.Event(), _this_run()
    if not created(path, _written(mine)):
        _watch(path)
        path.write_bytes(_written(mine))
        time.sleep(SETTLING)
        if (owner := _owner(path)) != mine:
            raise _busy(path, owner)
    beating = threading.Thread(target=_keep_beating_in_store, args=(path, mine, stop), daemon=True)
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join()
        if _is_ours(_owner(path), mine):
            path.unlink(missing_ok=True)


def _watch(path: Remote) -> None:
    """Return when nobody has the lock."""
    owner = _owner(path)
    if owner is None or _has_ended(owner):
        return
    seconds = STORE_BEAT * PATIENCE / 2
    logger.warning("%s: a run on %s was here; watching for %.0f s whether it lives", path, owner.host, seconds)
    for _ in range(PATIENCE):
        time.sleep(seconds / PATIENCE)
        now = _owner(path)
        if now is None or now == owner and _has_ended(owner):
            return
        if now != owner:
            raise _busy(path, now)
    logger.warning("%s: it does not; going on", path)


def _keep_beating_in_store(path: Remote, owner: Owner, stop: threading.Event) -> None:
    while not stop.wait(STORE_BEAT):
        try:
            if not _is_ours(_owner(path), owner):
                logger.error("%s: another run has taken it; both write the same, or one of them refuses", path)
                return
            owner = replace(owner, beat=owner.beat + 1)
            path.write_bytes(_written(owner))
        except OSError as error:  # the run itself will say so
            logger.debug("heartbeat: %s", error)


def _is_ours(found: Owner | None, mine: Owner) -> bool:
    return found is not None and replace(found, beat=mine.beat) == mine


def _has_ended(owner: Owner) -> bool:
    """Of a run on this machine: it is gone, or goes within the grace of one that was killed."""
    if owner.host != socket.gethostname():
        return False
    for _ in range(GRACE):
        if not _is_alive(owner.pid):
            return True
        time.sleep(0.1)
    return False


def _is_alive(pid: int) -> bool:
    """One that has ended and that nobody fetches, as the first process of many containers does not, is not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's; or it ends at this moment
        return True
    return state not in ("Z", "X")


def _owner(path: Remote) -> Owner | None:
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return None


def _acquired(path: Path) -> int:
    """The lock file, open and locked by this process."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(file, path)
            if _is_still(path, file):  # else its owner has just ended, and removed it
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int, path: Path) -> None:
    is_locked = _flocked(file, path)
    owner = _read(file)
    if owner is None or (is_locked and owner.host == socket.gethostname()):
        return
    logger.warning("%s: a run on %s was here; watching for %.0f s whether it lives", path, owner.host, BEAT * PATIENCE)
    for _ in range(PATIENCE):
        time.sleep(BEAT)
        if _read(file) not in (owner, None):
            raise _busy(path, owner)
    logger.warning("%s: it does not; going on", path)


def _flocked(file: int, path: Path) -> bool:
    """Whether the kernel has locked it for us; False where its file system has no locks, and counting must do."""
    for _ in range(GRACE):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.1)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            logger.debug("%s: %s", path, error.strerror)
            return False
    raise _busy(path, _read(file))


def _is_still(path: Path, file: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file))
    return False


def _keep_beating(file: int, owner: Owner, stop: threading.Event) -> None:
    beat = 0
    while not stop.wait(BEAT):
        beat += 1
        try:
            _write(file, Owner(host=owner.host, pid=owner.pid, since=owner.since, beat=beat))
        except OSError as error:  # a full disk: the run itself will say so, and flock still holds
            logger.debug("heartbeat: %s", error)


def _write(file: int, owner: Owner) -> None:
    os.pwrite(file, _written(owner), 0)


def _written(owner: Owner) -> bytes:
    """Always as long: what is read is never half old and half new."""
    return json.dumps(asdict(owner)).encode().ljust(256)


def _read(file: int) -> Owner | None:
    return _parsed(os.pread(file, 4096, 0))


def _parsed(content: bytes) -> Owner | None:
    """The owner that a lock names; None for one that was created a moment ago, or by something else."""
    try:
        return Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _busy(path: Place, owner: Owner | None) -> UserError:
    who = f"process {owner.pid} on {owner.host}, since {owner.since}" if owner else "a process that has just begun"
    return UserError(
        f"{path.parent} is in use by another run ({who}); wait for it or end it, or give another --out and --work",
        code="output-locked",
        out=str(path.parent),
        pid=owner.pid if owner else None,
        host=owner.host if owner else None,
        since=owner.since if owner else None,
    )
