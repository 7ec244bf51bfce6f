"""Functions that an assistant may call, and its calls, in the form that chat templates of transformers take."""

import json
from collections.abc import Mapping
from typing import Any

from ...records import Skip
from ..media import is_unicode, json_name
from .said import Row, bad_row, column_of
from .texts import parsed


def tools_of(row: Row, column: str) -> tuple[Any, ...] | Skip:
    """The functions of a row: a list, or a text that is JSON of one. Each {"type": "function", "function": {…}}."""
    column = column_of(row, column)
    if row.get(column) is None:
        return ()
    found = _list(row.get(column))
    if found is None:
        return bad_row(f"column {column!r} is a JSON {json_name(row[column])}; expected a list of functions")
    tools = []
    for number, tool in enumerate(found):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else tool
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return bad_row(f"column {column!r}: entry {number} is no function with a name")
        tools.append(tool if function is not tool else {"type": "function", "function": tool})
    return tuple(tools) if _is_text(tools) else bad_row(f"column {column!r}: not Unicode text")


def tool_calls_of(value: Any) -> tuple[Any, ...] | str:
    """OpenAI's form, or bare {"name", "arguments"}; or what is wrong with it.

    Arguments are an object, or a text that is JSON of one: OpenAI writes a text, templates want the object.
    """
    found = _list(value)
    if found is None:
        return f"'tool_calls' is a JSON {json_name(value)}; expected a list of calls"
    calls = []
    for number, call in enumerate(found):
        function = call.get("function") or call if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return f"tool call {number} has no name; expected {{'name': …, 'arguments': {{…}}}}"
        arguments = _arguments(function.get("arguments"))
        if arguments is None:
            return f"tool call {number}: its arguments are no JSON object"
        own = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        calls.append({**own, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return tuple(calls) if _is_text(calls) else "not Unicode text: half of a surrogate pair"


def _list(value: Any) -> list[Any] | None:
    value = parsed(value) if isinstance(value, str) and value.strip() else value or []
    return [value] if isinstance(value, Mapping) else value if isinstance(value, list) else None


def _arguments(value: Any) -> Mapping[str, Any] | None:
    value = parsed(value) if isinstance(value, str) and value.strip() else value or {}
    return value if isinstance(value, Mapping) else None


def _is_text(value: Any) -> bool:
    """Whether it can be written: no half of a surrogate pair in it, and nothing that JSON has no form for."""
    try:
        return is_unicode(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return False
