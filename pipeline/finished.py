"""What a run looked at when it finished its output, so that the next one need not look into it.

The identity of an output has digests of all data, and the processor as its family sees it: seconds of CPU, and minutes
of reading. So a run that has finished an output leaves a record beside it (`FILE`): the config, and of each file that
shapes the identity its size, its inode and when it was changed, to the nanosecond. A later run that finds all of that
as it was has nothing to do, and knows it before torch, transformers or Ray are imported. A difference proves nothing:
then the identity is made anew, and decides.

Like git's index, this trusts times: a file of the same inode, size, mtime and ctime is taken for the same file. The
kernel sets ctime at every change, and programs cannot set it back. Two changes within one tick of that clock have the
same time, so a file that has just been written is read only when the tick is over.
"""

import dataclasses
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import neatpack
from neatpack.errors import OutputError
from neatpack.format.manifest import FILE as MANIFEST, Manifest, fields_from_json, fingerprint
from neatpack.storage.files import read_json, write_json
from neatpack.storage.location import AT_ONCE, Location

from .config import PackConfig
from .families.hub import stamped_files
from .identity import versions
from .ingest.meta import Dataset
from .typed import check_types

FILE = "work/finished.json"
TICK, COARSE_TICK = (
    0.05,
    2.0,
)  # seconds between two times that differ, with room; of file systems that have no fractions
UNSHAPING = (
    "engine",
    "num_workers",
    "overwrite",
    "keep_going",
)  # config keys that change neither an output nor what is said of it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """All that the identity of an output depends on, as it can be seen from outside. Each is a fingerprint."""

    config: str
    datasets: str  # what the meta JSON says, its files found
    data: str  # of their files: sizes, inodes, times; of objects in a store, the store's tags
    processor: str  # likewise
    code: str  # neatpack's own files likewise; versions of packages, and when one was installed


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The record: what was seen before the output was made, and what the run said at its end."""

    seen: dict[str, str]
    fingerprint: str  # of the output's identity
    summary: str
    troubles: list[str]

    @classmethod
    def read(cls, out: Location) -> "Finished | None":
        """None where there is none that can be read: it only saves time."""
        try:
            found = cls(**fields_from_json(cls, read_json(out / FILE)))
            check_types(found)
        except (OSError, ValueError):
            return None
        return found


def seen_by(config: PackConfig, datasets: Sequence[Dataset]) -> Seen | None:
    """What a run sees before it begins. None where that is not all that counts: rows of a named source, which are no
    files; a processor that the hub may have anew; code of its own in it, from wherever; media, with --check-media.
    """
    if config.check_media != "none" or config.trust_remote_code or any(dataset.source for dataset in datasets):
        return None
    processor = stamped_files(config.processor)
    data = [Location.parse(file) for dataset in datasets for file in dataset.files]
    if processor is None:
        return None
    try:
        stamps = list(_stamps(data)), list(_stamps(processor)), list(_stamps(_own_files()))
    except OSError:  # whoever reads it says what is wrong
        return None
    if not _settled([changed for _, changed in (*stamps[0], *stamps[1])]):
        return None
    shaping = {key: value for key, value in dataclasses.asdict(config).items() if key not in UNSHAPING}
    return Seen(
        config=fingerprint(shaping),
        datasets=fingerprint([dataclasses.asdict(dataset) for dataset in datasets]),
        data=fingerprint([stamp for stamp, _ in stamps[0]]),
        processor=fingerprint([str(file) for file in processor], [stamp for stamp, _ in stamps[1]]),
        code=fingerprint(sys.version, versions(), _installed(), [stamp for stamp, _ in stamps[2]]),
    )


def finished(out: Location, seen: Seen) -> tuple[Manifest, Finished] | None:
    """An output that an earlier run has finished, if all that run saw is as it was."""
    if (record := Finished.read(out)) is None:
        return None
    if others := [name for name, value in dataclasses.asdict(seen).items() if record.seen.get(name) != value]:
        logger.info("%s: looked at anew, for another run saw another %s", out, ", ".join(others))
        return None
    try:
        manifest = Manifest.read(out)
    except OutputError:  # told by whoever claims it
        return None
    return (manifest, record) if manifest.fingerprint == record.fingerprint else None


def leave_record(out: Location, seen: Seen | None, manifest: Manifest, summary: str, troubles: Sequence[str]) -> None:
    """Of an output that is complete, and in its place."""
    if seen is None or not (out / MANIFEST).exists():
        (out / FILE).unlink(missing_ok=True)
        return
    record = Finished(
        seen=dataclasses.asdict(seen), fingerprint=manifest.fingerprint, summary=summary, troubles=list(troubles)
    )
    write_json(out / FILE, dataclasses.asdict(record))


def _settled(changed: Sequence[int]) -> bool:
    """Wait until no file could change once more at the time that it has now. False where a clock is ahead of ours."""
    for tick, times in ((COARSE_TICK, [ns for ns in changed if ns % 10**9 == 0]), (TICK, changed)):
        left = max(times, default=0) / 1e9 + tick - time.time()
        if left > tick:
            return False
        time.sleep(max(0.0, left))
    return True


def _stamps(files: Sequence[Location | str]) -> Iterator[tuple[Any, int]]:
    """What stands for the content of each, and when it was changed: 0 where a store has a tag for it."""
    stored = [file for file in files if isinstance(file, Location) and not file.is_local]
    if stored:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            tags = dict(zip(map(str, stored), pool.map(_tag, stored), strict=True))
    for file in files:
        if isinstance(file, Location) and not file.is_local:
            yield tags[str(file)], 0
            continue
        found = os.stat(file)
        yield [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns], found.st_ctime_ns


def _tag(file: Location) -> list[Any]:
    opened = file.open_object()
    return [opened.size, opened.version]


def _own_files() -> list[str]:
    """Return the names of neatpack's files: to make a Path of each of 300 takes as long as to look at it."""
    folders = os.walk(os.path.dirname(neatpack.__file__), followlinks=True)  # pipeline and loaders are links
    return sorted(os.path.join(folder, name) for folder, _, names in folders for name in names if name.endswith(".py"))


def _installed() -> list[list[Any]]:
    """Folders that packages are imported from: one that is installed, updated or removed changes its folder's time."""
    folders = [folder for folder in sys.path if folder.endswith("-packages") and os.path.isdir(folder)]
    return [[folder, os.stat(folder).st_mtime_ns] for folder in folders]
