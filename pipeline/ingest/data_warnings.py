"""Warnings about the data of a run: logged at once, and collected for its manifest, summary and report."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from neatpack.storage.uris import without_secrets

_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/'\",;:]++/)++")  # of an absolute path: "/data/coco/" of /data/coco/a.jsonl
_collected: ContextVar[list[str] | None] = ContextVar("data warnings of a run", default=None)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings about data inside the block, each once, in the order in which they are found.

    They are part of the manifest, so that the same input must give the same ones: neither a warning about what an
    earlier run has left belongs here, nor one about the machine. What is collected names files without their folders.
    """
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def warn_of_data(logger: logging.Logger, message: str) -> None:
    logger.warning("%s", without_secrets(message))
    shown = without_secrets(_FOLDERS.sub("", message))
    if (found := _collected.get()) is not None and shown not in found:
        found.append(shown)
