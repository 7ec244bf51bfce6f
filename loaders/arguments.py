"""What is wrong with an argument, said where it is given: torch, numpy and Python say it later, of something else."""

import operator
from math import inf
from numbers import Real
from typing import Any

from neatpack.errors import UserError


def whole(name: str, value: Any, least: int = 0, remedy: str = "") -> int:
    """A whole number, of Python, numpy or torch; True and 2.0 are none."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise UserError(
            f"{name} is {value!r}; it must be a whole number of at least {least}{remedy}",
            code="loader-argument",
            argument=name,
            got=value,
            least=least,
        )
    return found


def flag(name: str, value: Any) -> bool:
    """Any text is true, "no" as well."""
    if value not in (True, False):
        raise UserError(
            f"{name} is {value!r}; it must be True or False", code="loader-argument", argument=name, got=value
        )
    return bool(value)


def is_positive(value: Any) -> bool:
    """A number above 0, and not infinite."""
    return isinstance(value, Real) and 0 < float(value) < inf
