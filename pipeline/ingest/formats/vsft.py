"""`vsft`: messages in parts, whose pictures are numbers of the row's: {"type": "image", "index": 0, "text": null}."""

from collections.abc import Mapping

from .messages import FIELDS, ROW_REASONING, read, turns_in
from .said import Format, Row


def fits(row: Row) -> bool:
    contents = [turn.get("content") for turn in turns_in(row, "messages")]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, Mapping) and part.get("index") is not None for part in parts)


FORMAT: Format = Format(read=read, fits=fits, fields=FIELDS, keys=ROW_REASONING)
