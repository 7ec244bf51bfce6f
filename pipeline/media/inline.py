"""Media written into a row as text: base64, bare or as a data: URI, and where in the row it stands."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

_DATA_URI = re.compile(r"data:[^,]*?(;base64)?,", re.IGNORECASE)


def is_data_uri(text: str) -> bool:
    return text[:5].lower() == "data:"


def bytes_of_text(text: str) -> bytes:
    """The bytes that a data: URI or a bare base64 text stands for. Raises ValueError where it is neither."""
    uri = _DATA_URI.match(text)
    if uri is None and is_data_uri(text):
        raise ValueError("a data: URI without a comma")
    if uri is not None and uri[1] is None:
        return unquote_to_bytes(text[uri.end() :])
    # Line breaks are allowed in it (MIME), and padding at the end is often left out.
    encoded = re.sub(r"\s+", "", text[uri.end() :] if uri else text)
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def pointed(value: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to: {"a": [5, 6]}, "/a/1" -> 6. Raises LookupError if there is nothing.

    A step into a text goes into what that text is as JSON, {"a": "[5, 6]"}, "/a/1" -> 6, for some tables have
    conversations so; ValueError where it is no JSON.
    """
    for key in steps(pointer):
        if isinstance(value, str):
            value = _parsed_text(value)
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@lru_cache(maxsize=1)
def _parsed_text(text: str) -> Any:
    """A text as JSON; the last one is kept, for a row may have many media in it."""
    return json.loads(text)


def pointer(*steps: str | int) -> str:
    """The pointer to a place: ("a/b", 1) -> "/a~1b/1"."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def steps(pointer: str) -> list[str]:
    """ "/a~1b/1" -> ["a/b", "1"]."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


class LastLine:
    """The line of JSON that was parsed last: a row may have thousands of media in it."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._parsed: Any = None

    def bytes_at(self, key: Hashable, read: Callable[[], bytes], pointer: str) -> bytes:
        """Return the medium that a line has as a text at a pointer. `read` is called unless the last key was this one.

        Raises:
            ValueError: There is none, or the line is no JSON.
        """
        if key != self._key:
            self._key = None
            try:
                self._parsed = json.loads(read())
            except ValueError as error:
                raise _nothing_at(pointer, error) from None
            self._key = key
        return _bytes_at(self._parsed, pointer)


def _nothing_at(pointer: str, error: Exception) -> ValueError:
    return ValueError(f"nothing at {pointer} of its line: {error}")


def _bytes_at(parsed: Any, pointer: str) -> bytes:
    try:
        text = pointed(parsed, pointer)
    except (LookupError, TypeError, ValueError) as error:
        raise _nothing_at(pointer, error) from None
    if not isinstance(text, str):
        raise ValueError(f"no text at {pointer} of its line")
    return bytes_of_text(text)
