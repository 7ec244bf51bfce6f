"""Texts that are JSON: how tables have lists that know none."""

import json
from typing import Any, TypeGuard

# Levels of lists and objects in a row, or in a text of it that is JSON. Templates, json.dumps and the code that looks
# for texts in tools recurse a few times for each level, and Python allows 1,000 calls.
MAX_DEPTH = 100
TOO_DEEP = f"lists and objects are nested in more than {MAX_DEPTH} levels"


def is_list_text(value: Any) -> TypeGuard[str]:
    """Whether it may be JSON of a list."""
    return isinstance(value, str) and value.lstrip().startswith("[")


def parsed(text: str) -> Any:
    """What a text is as JSON; None where it is none, or is nested too deep."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if text.count("[") + text.count("{") > MAX_DEPTH and is_too_deep(value) else value


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested in more than `MAX_DEPTH` levels: [] has one."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [each for each in level if type(each) is list or type(each) is dict]
        if not level:
            return False
        level = [item for each in level for item in (each if type(each) is list else each.values())]
    return True
