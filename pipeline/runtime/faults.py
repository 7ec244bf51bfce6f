"""Faults of the machine under a run: a full disk, a lost mount, a dead node. Each in one sentence, with the remedy.

They are neither the input's fault nor the program's: a run that met one ends, and the same command goes on from what is
done. Whatever is not listed here keeps its traceback.
"""

import errno
import os
import re
from pathlib import Path

from neatpack.errors import NeatpackError
from neatpack.storage.location import NoBucket

_ELSEWHERE = "{elsewhere}"  # another place that a command may be given, by its own flags
_ROOM = f"free some room there{_ELSEWHERE}"
_RIGHTS = f"give this user the right to it{_ELSEWHERE}"
_FILES = "allow more open files (ulimit -n)"
_MOUNT = "see to its disk or mount"
_GONE = "bring it back (was it moved, is its disk mounted?)"

# What the kernel says, and what helps. A missing file is one that was there when the run began: input that is not there
# is a UserError before.
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: f"make it writable{_ELSEWHERE}",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EFBIG: f"allow larger files there (ulimit -f){_ELSEWHERE}",
    errno.ENOMEM: "give the machine more memory, or the run fewer --num-workers",
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ENODEV, errno.ENXIO), _MOUNT),
}

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}

# Whoever met one of the others may blame the input for it with reason: a file that is not there, or not to be read.
_NEVER_OF_INPUT = set(_REMEDIES) - {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM}

_NODE = "a node of Ray was lost", "look whether the machine ran out of memory, and for others that end processes there"
_CRASHED = "a worker of Ray ended, also when it was tried again", "look into its log in Ray's session folder"
_UNREADY = "Ray could not start a worker", "look into the logs in Ray's session folder"
# Exceptions of ray.exceptions that say something about the machine: what happened, and what helps. Their subclasses say
# the same. RayTaskError, which wraps exceptions of the program, is none of them.
_OF_RAY = {
    "ObjectStoreFullError": ("Ray's object store is full", "make /dev/shm larger, or give fewer --num-workers"),
    "OutOfDiskError": ("the disk of Ray's session folder is full", "free some room there, or set RAY_TMPDIR"),
    "OutOfMemoryError": ("Ray ended a task for want of memory", "give fewer --num-workers, or add memory"),
    "LocalRayletDiedError": _NODE,
    "NodeDiedError": _NODE,
    "ObjectLostError": _NODE,
    "RaySystemError": _NODE,
    "RpcError": _NODE,
    "WorkerCrashedError": _CRASHED,
    "RuntimeEnvSetupError": _UNREADY,
    "TaskUnschedulableError": _UNREADY,
}


_CODES_OF_RAY = {
    "ObjectStoreFullError": "memory",
    "OutOfDiskError": "disk-full",
    "OutOfMemoryError": "memory",
    "WorkerCrashedError": "worker-crashed",
    "RuntimeEnvSetupError": "ray-start",
    "TaskUnschedulableError": "ray-start",
}
_LACKING = re.compile(r"No module named '([\w.]+)'")


class MachineError(NeatpackError):
    """A fault of the machine that is not the kernel's own: what happened, and the remedy."""

    code = "machine"


class HeadLost(MachineError):
    """The head of a cluster is gone. Ray itself would end the process for that, after a minute, without our words."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the head of Ray at {address} does not answer any more; look why it ended (gcs_server.out in the logs of "
            "Ray's session folder), and start it again",
            code="ray-unreachable",
            address=address,
        )


def of_ray(error: Exception) -> MachineError | None:
    """What an exception of Ray says of the machine; None if nothing."""
    for kind in type(error).__mro__:
        if kind.__module__ == "ray.exceptions" and kind.__name__ in _OF_RAY:
            happened, remedy = _OF_RAY[kind.__name__]
            code = _CODES_OF_RAY.get(kind.__name__, "machine")
            return MachineError(f"{happened} ({type(error).__name__}); {remedy}", code=code, error=type(error).__name__)
    return None


def of_workers(error: Exception) -> MachineError | None:
    """What a worker says that lacks a package, by itself or through Ray, which blames its own system; None for others.

    This process has them all, or it would not have come so far.
    """
    lacking = _LACKING.search(str(error))
    of_its_own = isinstance(error, ModuleNotFoundError) or any(
        kind.__module__ == "ray.exceptions" for kind in type(error).__mro__
    )
    if lacking is None or not of_its_own:
        return None
    return MachineError(
        f"the workers of Ray cannot import {lacking[1].split('.')[0]}: every node needs what this command runs with; "
        "install neatpack[pack] in the nodes' image, or send it along: `ray job submit --working-dir CHECKOUT "
        '--runtime-env-json \'{"pip": ["transformers", …]}\' -- python pipeline/pack.py …` brings a checkout of '
        "neatpack by working-dir and what pyproject.toml lists under pack by pip; without RAY_ADDRESS, Ray runs here",
        code="worker-import",
        package=lacking[1].split(".")[0],
    )


def no_answer(address: str, error: OSError) -> MachineError:
    return MachineError(
        f"RAY_ADDRESS {address}: no Ray answers there ({error.strerror or error}); correct it, start the cluster (`ray "
        "start --head`), or unset it to run on this machine",
        code="ray-unreachable",
        address=address,
    )


def not_started(error: Exception) -> MachineError:
    """Of Ray itself: its errors are of any class, and tell little in their first line and nothing in the others."""
    return MachineError(
        f"Ray does not start: {_first_line(error)}; it needs /dev/shm, and for its sockets a TMPDIR (or RAY_TMPDIR) "
        "that is short and writable: see to that, or give --engine inline",
        code="ray-start",
    )


def not_joined(address: str, error: Exception) -> MachineError:
    """Of a Ray that runs elsewhere, or has not come up yet: its ports answer before its node is there."""
    return MachineError(
        f"RAY_ADDRESS {address}: something answers there, and Ray cannot join it: {_first_line(error)}; look whether "
        f"the cluster is up (`ray status --address {address}`) and has a node on this machine, or unset it to run here",
        code="ray-unreachable",
        address=address,
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def sentence(error: Exception, elsewhere: str = "--out or --work") -> str:
    """What happened, where, and what to do; "" for what is no fault of the machine. `elsewhere`: flags of the command
    by which it would write to another place; "": it has none."""
    if isinstance(error, MachineError):
        happened = str(error)
    elif isinstance(error, NoBucket):
        happened = f"{error.filename}: {error.strerror}"
    elif isinstance(error, OSError) and error.errno in _REMEDIES:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | Path) else ""
        other = f", or give another {elsewhere}" if elsewhere else ""
        happened = f"{where}{error.strerror}; {_REMEDIES[error.errno].replace(_ELSEWHERE, other)}"
    else:
        return ""
    return f"{happened}; then run the same command again to go on"


def code_of(error: Exception) -> str:
    """Return the code of an error that `sentence` describes."""
    if isinstance(error, NeatpackError):
        return error.code
    if isinstance(error, NoBucket):
        return "data-missing"
    return "disk-full" if getattr(error, "errno", None) in _NO_ROOM else "machine"


def behind(error: Exception) -> Exception:
    """The fault of the machine that an error was raised for which blames the input; else the error itself.

    A reader that cannot read a file says so of the file, and does not ask whether the disk is full or its own.
    """
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, OSError) and reason.errno in _NEVER_OF_INPUT:
            return reason
        reason = reason.__context__
    return error
