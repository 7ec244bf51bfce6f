"""Rows that would be packed as something that they are not.

'[{"type": "text", "text": "Who?"}]'        parts, as tables have them that know no lists: warned of
"<bbox>", with a column `objects`           a box, as ms-swift has it: skipped
`rejected_response`                         the answer not to learn from: skipped
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..records import Skip
from .formats.example import TAGGED
from .formats.parts import TEXTS, TYPES
from .formats.said import Row, Said, bad_row, is_empty
from .formats.texts import is_list_text, parsed
from .media import shown

_BOXES = re.compile(r"<(?:bbox|ref-object)>")
_REJECTED, _OBJECTS = "rejected_response", "objects"


def unsupported(row: Row, said: Said) -> Skip | None:
    """The skip of a row that needs what is not supported yet."""
    if _REJECTED in row and not is_empty(row[_REJECTED]):
        return bad_row(
            f"column {_REJECTED!r}: preference pairs are not supported; to train on the preferred answer alone, list "
            'the column under "ignore_columns"'
        )
    if row.get(_OBJECTS):
        tag = next((found[0] for _, text in _texts(said) if (found := _BOXES.search(text))), "")
        if tag:
            return bad_row(
                f"{tag} stands for an entry of column {_OBJECTS!r}, which is not supported; write the boxes into the "
                'text, or list the column under "ignore_columns" to take the tag as text'
            )
    return None


def stand_ins(rows: Sequence[Row], said: Sequence[Said | Skip]) -> Iterator[str]:
    """What to warn of, in words."""
    if found := [text for what in said if not isinstance(what, Skip) and (text := _parts(what))]:
        yield (
            f"turns of {len(found)} of the first {len(rows)} rows have parts as a text that is JSON "
            f"({shown(found[0])}, for one), and are packed with it as it stands: write a list, if it is not meant so"
        )


def _texts(said: Said) -> Iterator[tuple[str, str]]:
    return ((turn.role, turn.content) for turn in said.turns if isinstance(turn.content, str))


def _parts(said: Said) -> str:
    def is_part(item: Any) -> bool:
        return isinstance(item, dict) and item.get("type") in (*TEXTS, *TYPES)

    for role, text in _texts(said):
        items = parsed(text) if role in TAGGED and is_list_text(text) else None
        if isinstance(items, list) and items and all(map(is_part, items)):
            return text
    return ""
