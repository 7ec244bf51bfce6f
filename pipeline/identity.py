"""Identity: everything that an output is made from. An output of another identity is refused, never mixed in.

Light on purpose: readers of a manifest need neither transformers nor Ray for it.
"""

import importlib.metadata
from functools import cache
from typing import TYPE_CHECKING

import neatpack

from . import measure
from .extras import VERSIONED

if TYPE_CHECKING:
    pass


def versions() -> dict[str, str]:
    """Installed versions of the packages that shape the tensors. (simplejpeg does not: its bits are Pillow's.)"""
    return {name: _version(name) for name in VERSIONED}


@cache
def _version(name: str) -> str:
    """Once in a process: it parses the package's whole description, 2 ms each."""
    return importlib.metadata.version(name)


def own_code(family_revision: int) -> dict[str, str | int]:
    """What stands for neatpack's own code: a release that changes a rule must not reuse what the old rule gave.

    The version changes with every release. The revisions change in between, by hand: see pipeline/measure/__init__.py
    and `Family.revision`.
    """
    return {"neatpack": neatpack.__version__, "measure": measure.REVISION, "family": family_revision}
