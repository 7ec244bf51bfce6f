"""Texts that are JSON: how tables have lists that know none."""

import json
from typing import Any, TypeGuard


def is_list_text(value: Any) -> TypeGuard[str]:
    """Whether it may be JSON of a list."""
    return isinstance(value, str) and value.lstrip().startswith("[")


def parsed(text: str) -> Any:
    """What a text is as JSON; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
