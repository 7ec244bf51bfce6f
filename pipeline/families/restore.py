"""The rule that renders pictures as JSON, for the manifest, and back: a loader renders pictures of the codec `source`.

No name from a file is imported: RULES lists what can be asked for. A rule that is not there, or that does not come back
as it was, cannot be restored; then pictures are not stored as `source`.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from neatpack.errors import OutputError

from .base import ImageRule

# Classes by name, and the module of this package that has them: imported where one is asked for.
RULES = {
    "AnyresImages": "llava_onevision",
    "CropImages": "phi4_mm",
    "GemmaImages": "gemma4",
    "GlmImages": "glm4v",
    "K25Images": "kimi_k25",
    "KimiVLImages": "kimi_vl",
    "PatchImages": "rules",
    "PlacedTiles": "idefics3",
    "RowImages": "mistral3",
    "SmolImages": "smolvlm",
    "SquareImages": "gemma3",
    "TiledImages": "internvl",
}
_MOST = 1 << 31  # no number of a rule is larger


def described_rule(rule: ImageRule | None) -> dict[str, Any] | None:
    """As JSON; None where it could not be restored."""
    if rule is None or type(rule).__name__ not in RULES:
        return None
    fields = {f.name: _plain(getattr(rule, f.name)) for f in dataclasses.fields(rule) if f.compare}
    described = {"name": type(rule).__name__, "fields": fields}
    try:
        return described if restored_rule(described) == rule else None
    except ValueError:
        return None


def restored_rule(found: Mapping[str, Any]) -> ImageRule:
    """The rule that a manifest describes, which may say anything. Raises ValueError where it is none."""
    name, given = found.get("name"), found.get("fields")
    if not isinstance(name, str) or name not in RULES or not isinstance(given, dict):
        raise OutputError(
            f"pixels.rule: {str(name)[:60]!r} is unknown; known: {', '.join(RULES)}",
            code="output-damaged",
            key="pixels.rule",
        )
    rule: type[ImageRule] = getattr(import_module(f".{RULES[name]}", __package__), name)
    hints = typing.get_type_hints(rule)
    names = [f.name for f in dataclasses.fields(rule) if f.compare]
    if given.keys() != set(names):
        raise OutputError(
            f"pixels.rule: {name} has {', '.join(names)}, and not {', '.join(map(str, given))[:200]}",
            code="output-damaged",
            key="pixels.rule",
        )
    values = {each: tuple(value) if isinstance(value := given[each], list) else value for each in names}
    for each, value in values.items():
        if not _fits(value, hints[each]):
            raise OutputError(
                f"pixels.rule: {each} of {name} cannot be {str(value)[:60]}", code="output-damaged", key="pixels.rule"
            )
    return rule(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON may stand in a field of this type, as far as rules have types."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return any(_fits(value, each) for each in of)
    if origin is tuple:
        return isinstance(value, tuple) and 1 <= len(value) <= 16 and all(_fits(each, of[0]) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and abs(value) < _MOST
    if kind is int:
        return type(value) is int and 0 <= value < _MOST
    return isinstance(value, kind)
