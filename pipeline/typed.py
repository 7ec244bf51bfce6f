"""Records from files of unknown origin: their fields hold what they are declared with, or it is an error."""

import types
import typing
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from neatpack.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def check_types(record: "DataclassInstance", name: str = "") -> None:
    """Raises ValueError where a field holds another type than it is declared with."""
    for field, kind in declared(type(record)).items():
        if not is_of(value := getattr(record, field), kind):
            where = f"{name}.{field}" if name else field
            told = kind.__name__ if isinstance(kind, type) else str(kind)
            raise OutputError(f"{where}: expected {told}, got {str(value)[:60]!r}", code="output-damaged", key=where)


@cache
def declared(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as far as the types of our records go."""
    if kind is Any:
        return True
    if isinstance(kind, type):
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    origin, of = _parts(kind)
    if origin is types.UnionType:
        return any(is_of(value, each) for each in of)
    if origin is dict:
        return isinstance(value, dict) and all(is_of(key, of[0]) and is_of(each, of[1]) for key, each in value.items())
    if origin is list:
        return isinstance(value, list) and all(is_of(each, of[0]) for each in value)
    if origin is Literal:
        return isinstance(value, str) and value in of
    assert origin is tuple, f"a record of ours is declared with {kind}; say here what it holds"
    of = of[:1] * len(value) if of[1:] == (...,) and isinstance(value, tuple) else of
    return isinstance(value, tuple) and len(value) == len(of) and all(map(is_of, value, of))


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """list[int] -> list, (int,)"""
    return typing.get_origin(kind), typing.get_args(kind)


def described(kind: Any) -> str:
    """A type for people, as far as those of our config go: "a whole number"."""
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(filter(None, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "a list of names"
    if bool in (typing.get_args(kind) or (kind,)):
        return "true or false"
    return {int: "a whole number", float: "a number", str: "a text"}[kind]
