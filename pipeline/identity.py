"""Identity: everything that an output is made from. An output of another identity is refused, never mixed in.

Light on purpose: readers of a manifest need neither transformers nor Ray for it.
"""

import dataclasses
import importlib.metadata
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from neatpack import __version__
from neatpack.errors import OutputError

from . import measure
from .config import fingerprint
from .extras import VERSIONED
from .typed import check_types

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
    return {"neatpack": __version__, "measure": measure.REVISION, "family": family_revision}


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Holds JSON values only: one that was written and read again equals the one in memory."""

    inputs: dict[str, dict[str, Any]]  # by data set: what shapes its rows, `content` (a digest), `rows` (how many)
    processor: str  # fingerprint of the processor, as the family sees it
    config: dict[str, Any]  # the keys that shape the result, not where it lies or what computes it
    versions: dict[str, str]
    code: dict[str, str | int]

    @property
    def fingerprint(self) -> str:
        return fingerprint({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    @property
    def num_rows(self) -> int:
        return sum(int(entry["rows"]) for entry in self.inputs.values())

    def differences(self, new: "Identity") -> list[str]:
        """What differs in `new`, in words: "config.pack_size: 8192 -> 4096"."""
        return differences(self.to_json(), new.to_json())

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "Identity":
        """Raises ValueError where `value` is not an identity, as in records of an older neatpack."""
        identity = cls(**fields_from_json(cls, value, "identity"))
        check_types(identity, "identity")
        return identity


def fields_from_json(kind: "type[DataclassInstance]", found: Any, name: str = "") -> dict[str, Any]:
    """The fields of a record from JSON; keys that it does not know are left out. A ValueError says what is wrong."""
    where = f"{name}: " if name else ""
    names = [field.name for field in dataclasses.fields(kind)]
    if not isinstance(found, dict):
        raise OutputError(
            f"{where}expected an object of {', '.join(names)}, got {str(found)[:60]}",
            code="output-damaged",
            key=name,
        )
    if lacking := [each for each in names if each not in found]:
        raise OutputError(f"{where}lacks {', '.join(lacking)}", code="output-damaged", key=name, missing=list(lacking))
    return {name: found[name] for name in names}


def differences(old: Any, new: Any) -> list[str]:
    """What differs in two JSON values, in words."""
    return [f"{where}: {was} -> {is_}" for where, was, is_ in changes(old, new)]


def changes(old: Any, new: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """What differs in two JSON values: where ("config.pack_size"), the old value and the new one."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in [*old, *(key for key in new if key not in old)]:
            found += changes(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        return found
    return [] if old == new else [(where, old, new)]
