"""Texts of rows that stand for something else, and are packed as they are: told, for nothing else shows it.

'[{"type": "text", "text": "Who?"}]'        parts, as tables have them that know no lists
"<bbox>", with a column `objects`           a box, as ms-swift has it
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..records import Skip
from .formats.example import TAGGED
from .formats.parts import TEXTS, TYPES
from .formats.said import Row, Said
from .formats.texts import is_list_text, parsed
from .media import shown

_BOXES = re.compile(r"<(?:bbox|ref-object)>")


def stand_ins(rows: Sequence[Row], said: Sequence[Said | Skip]) -> Iterator[str]:
    """What to warn of, in words."""
    looks: dict[str, Callable[[Row, Said], str]] = {
        "have parts as a text that is JSON": _parts,
        "have tags for the boxes of a column 'objects', which is not read": _boxes,
    }
    remedies = ("write a list", "write the boxes there")
    good = [(row, what) for row, what in zip(rows, said, strict=True) if not isinstance(what, Skip)]
    for (told, look), remedy in zip(looks.items(), remedies, strict=True):
        if found := [text for row, what in good if (text := look(row, what))]:
            yield (
                f"turns of {len(found)} of the first {len(rows)} rows {told} ({shown(found[0])}, for one), and are "
                f"packed with it as it stands: {remedy}, if it is not meant so"
            )


def _texts(said: Said) -> Iterator[tuple[str, str]]:
    return ((turn.role, turn.content) for turn in said.turns if isinstance(turn.content, str))


def _parts(_: Row, said: Said) -> str:
    def is_part(item: Any) -> bool:
        return isinstance(item, dict) and item.get("type") in (*TEXTS, *TYPES)

    for role, text in _texts(said):
        items = parsed(text) if role in TAGGED and is_list_text(text) else None
        if isinstance(items, list) and items and all(map(is_part, items)):
            return text
    return ""


def _boxes(row: Row, said: Said) -> str:
    found = (_BOXES.search(text) for _, text in _texts(said)) if row.get("objects") else ()
    return next((match[0] for match in found if match), "")
