"""`sharegpt`: {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}."""

from ..dialect import Columns
from .messages import FIELDS, ROW_REASONING, SHAREGPT_TAGS as TAGS, read, turns_in
from .said import Format, Row


def has_turns(row: Row) -> bool:
    turns = turns_in(row, "conversations", "conversation", "messages")
    return bool(turns) and all("from" in turn and "value" in turn for turn in turns)


def fits(row: Row) -> bool:
    return has_turns(row) and not any(row.get(column) is not None for column in ("image", "video", "audio"))


FORMAT: Format = Format(
    read=read, fits=fits, columns=Columns(messages="conversations"), tags=TAGS, fields=FIELDS, keys=ROW_REASONING
)
