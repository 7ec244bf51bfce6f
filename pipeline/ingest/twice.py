"""Keys that an object of a row has twice, with two values: Python's reader keeps the last and says nothing.

To have every object as pairs (`object_pairs_hook`) would take as long as parsing it. So keys are counted: in the texts
of many rows at once, where each is followed by `":`, and in what was parsed. Only where the two differ, a row is looked
at: by a second count, and then by parsing it once more.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

_KEY = b'":'
_QUOTED = b'\\":'  # inside a text: JSON or code that it quotes
_LONG = 64 << 10  # bytes of a row: it holds a medium, and is not copied for this


class KeyTwiceError(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} is there twice in one object, with two values; remove one")


def problems(texts: Sequence[bytes], rows: Sequence[Any]) -> dict[int, str]:
    """What is wrong with rows that have a key twice, by their index. `rows`: what `texts` were parsed to."""
    found: dict[int, str] = {}
    in_rows = [_num_keys_of_turns(row) for row in rows]
    if _num_colons(texts) == sum(in_rows):
        return found
    for index, (text, row, number) in enumerate(zip(texts, rows, in_rows, strict=True)):
        try:
            _refuse_twice(text, row, number)
        except KeyTwiceError as error:
            found[index] = str(error)
        except RecursionError:  # two values that are compared
            found[index] = "nested too deep, and with a key that is there twice in one object; remove one"
    return found


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for `object_pairs_hook`. A key that has the same value twice does no harm."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if found[key] != value:
                raise KeyTwiceError(key)
    return found


def _refuse_twice(text: bytes, row: Any, num_keys: int) -> None:
    if (number := text.count(_KEY)) == num_keys:
        return
    # Equal, too, with `" :` in one place and a key twice in another, which no program writes.
    if number - text.count(_QUOTED) != _num_keys(row):
        json.loads(text, object_pairs_hook=once)


def _num_colons(texts: Sequence[bytes]) -> int:
    """How often `":` is in them, in a third of the time of `count`."""
    if max(map(len, texts), default=_LONG) >= _LONG:
        return sum([text.count(_KEY) for text in texts])
    content = np.frombuffer(b"".join(texts), np.uint8)
    return int(np.count_nonzero((content[:-1] == _KEY[0]) & (content[1:] == _KEY[1])))


def _num_keys_of_turns(row: Any) -> int:
    """Keys of the row and of objects in its lists, and no deeper, as most rows are: a third of the time of the next."""
    if type(row) is not dict:
        return -1
    number = len(row)
    for value in row.values():
        if type(value) is list and value and type(value[0]) is dict:
            try:
                number += sum(map(len, value))
            except TypeError:  # a number among objects
                return -1
    return number


def _num_keys(row: Any) -> int:
    """Of all objects in it, however deep."""
    number, left = 0, [row]
    while left:
        value = left.pop()
        if type(value) is dict:
            number += len(value)
            left.extend(value.values())
        elif type(value) is list:
            left.extend(value)
    return number
