"""`sharegpt`: {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}."""

from ..dialect import Columns, Tags
from .messages import FIELDS, read, turns_in
from .said import Format, Row

TAGS = Tags(role_tag="from", content_tag="value", user_tag="human", assistant_tag="gpt")


def has_turns(row: Row) -> bool:
    turns = turns_in(row, "conversations", "conversation", "messages")
    return bool(turns) and all("from" in turn and "value" in turn for turn in turns)


def fits(row: Row) -> bool:
    return has_turns(row) and not any(row.get(column) is not None for column in ("image", "video", "audio"))


FORMAT = Format(read=read, fits=fits, columns=Columns(messages="conversations"), tags=TAGS, fields=FIELDS)
