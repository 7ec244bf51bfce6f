"""A finished output that is overwritten stays until the new one is complete, which is written beside it.

OUT/work/anew is an output like any other. When it is complete, its files and those of OUT change places by renames:
those of OUT go to OUT/work/old, the manifest first; the folder of the new ones is renamed to OUT/work/installing, which
says that nothing old is left in OUT; and they move in, the manifest last. A run that is killed in between leaves one of
these states, and the next one goes on from it.

A store has no renames: there the old output is removed, its manifest first, before the new one is begun.
"""

import logging
import os
from collections.abc import Iterable

from neatpack.format.manifest import FETCHED, FILE as MANIFEST, INDEX, LOADER_INDEX, SOURCES
from neatpack.storage.files import sync_folder
from neatpack.storage.location import Location

from ..finished import FILE as FINISHED
from ..runtime.progress import FILE as TIMING
from .sources import BASE

BEGUN = "work/run.json"  # what a begun output is made from; of a finished one its manifest says it
# The manifest first: without it nobody takes the rest for a finished output.
OURS = (
    MANIFEST,
    "report.html",  # of the old output; the new one gets its own when it is in place
    SOURCES,
    INDEX,
    LOADER_INDEX,
    FETCHED,
    "image_table.npy",
    "video_table.npy",
    "stats",
    "ledger",
    "shards",
    FINISHED,
    ".nv-meta",  # of `neatpack export energon`
    "work/done",
    "work/pieces",
    BASE,
    TIMING,
    BEGUN,
)
ANEW, INSTALLING, OLD = "work/anew", "work/installing", "work/old"

logger = logging.getLogger(__name__)


def place_for(out: Location, *, overwrite: bool) -> Location:
    """Where a run writes: OUT, or beside the finished output that it overwrites."""
    if not out.is_local:
        return out
    (out / ANEW).remove()  # of a run that did not get to its end
    return out / ANEW if overwrite and (out / MANIFEST).exists() else out


def is_halfway(out: Location) -> bool:
    """Whether a complete new output waits for its place."""
    if not out.is_local:
        return False
    return (out / INSTALLING).exists() or (out / ANEW / MANIFEST).exists()


def is_alone(out: Location) -> bool:
    """Whether no run that was killed has left a new output beside this one, complete or not."""
    return not out.is_local or not any((out / name).exists() for name in (ANEW, INSTALLING))


def put_in_place(out: Location) -> None:
    """The complete new output, if there is one, and the old one away."""
    if not out.is_local or not is_halfway(out):
        return
    anew, installing, old = (out / name for name in (ANEW, INSTALLING, OLD))
    if not installing.exists():
        if (out / MANIFEST).exists():
            old.remove()
        _move(OURS, out, old)
        os.replace(anew, installing)
        sync_folder(out / "work")
    _move(reversed(OURS), installing, out)
    installing.remove()
    old.remove()
    logger.info("%s: the new output has taken the place of the old one", out)


def _move(names: Iterable[str], source: Location, target: Location) -> None:
    """What is there of them. Each move is on disk before the next begins."""
    for name in names:
        if (source / name).exists():
            (target / name).parent.mkdir()
            os.replace(source / name, target / name)
            sync_folder((target / name).parent)
            sync_folder((source / name).parent)
