"""Which format rows are in, told from the first of them."""

from collections.abc import Sequence

from . import FORMATS
from .said import Row


def detect(rows: Sequence[Row]) -> str | None:
    """The format that fits the most rows; of several, the first in FORMATS. None: no row fits any.

    A row fits
        vsft             where a part of its `messages` has an `index`
        messages         where its turns (`messages`, `conversation` or `conversations`) have a `role`
        sharegpt         where they have `from` and `value`, and there is no column `image`, `video` or `audio`
        llava            where they have `from` and `value`; a set with some pictures fits this better than sharegpt
        cauldron         where `texts` is a list of objects with `user` and `assistant`
        alpaca           with the texts `instruction` and `output`
        prompt_response  with `prompt` and `response` or `completion`, `question` and `answer`, …
        document         with a text `text` or `caption`, or a list `text_list`, `texts` (and `images`) or `content`
    """
    votes = {name: sum(format_.fits(row) for row in rows) for name, format_ in FORMATS.items()}
    best = max(votes, key=lambda name: votes[name])  # the first of equals
    return best if votes[best] else None


def used_and_unused(rows: Sequence[Row], used: set[str]) -> tuple[list[str], list[str]]:
    """The keys of rows, in their order, by whether they are among those that mean something; null counts as absent."""
    keys = list(dict.fromkeys(key for row in rows for key, value in row.items() if value is not None))
    return [key for key in keys if key in used], [key for key in keys if key not in used]
