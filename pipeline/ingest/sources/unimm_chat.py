"""UniMM-Chat: conversations of several turns about a picture."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

from .examples import BadRow, Conversation, Examples, medium_of, text_of
from .load import load, media_folders

ROLES = {"human": "user", "gpt": "assistant"}
_TAG = re.compile(r"<image\s*>", re.IGNORECASE)
_BASE64 = ("/9j/", "iVBOR", "R0lGOD", "UklGR")  # how JPEG, PNG, GIF and WebP begin in it


def make_unimm_chat_dataset(
    path_or_dataset: Any = "Yirany/UniMM-Chat", split: str = "train", **kwargs: Any
) -> Examples:
    """Columns `image` (a picture, or base64 text) and `conversation` (JSON text of from/value turns).

    The picture goes to every <image> tag of a question, and before the first question where there is none. Texts are
    stripped, answers too. Other keyword arguments are ignored, as in every make_*_dataset.
    """
    return Examples(
        "unimm_chat", load(path_or_dataset, split), ("image", "conversation"), _example, media_folders(path_or_dataset)
    )


def _example(row: Mapping[str, Any], number: int) -> Conversation:
    picture = {"type": "image", "image": _picture(medium_of(row, "image"))}
    turns = _turns(row)
    waiting = not any(_TAG.search(text) for role, text in turns if role == "user")  # goes before the first question
    conversation: list[dict[str, Any]] = []
    for role, text in turns:
        pieces = [text]
        if role == "user":
            pieces = ["", text] if waiting else _TAG.split(text)
            waiting = False
        content: list[dict[str, Any]] = []
        for number, piece in enumerate(pieces):
            content += [picture] if number else []
            content += [{"type": "text", "text": piece.strip()}] if piece.strip() else []
        conversation.append({"role": role, "content": content or [{"type": "text", "text": ""}]})
    if waiting:
        raise BadRow("column 'conversation': no turn from 'human' to put the image in", column="conversation")
    return {"conversation": conversation}


def _turns(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    try:
        turns = json.loads(text_of(row, "conversation"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRow(f"column 'conversation': broken JSON: {error}", column="conversation") from None
    if not isinstance(turns, list):
        raise BadRow("column 'conversation': expected a JSON list of turns", column="conversation")
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict) or turn.get("from") not in tuple(ROLES) or not isinstance(turn.get("value"), str):
            raise BadRow(
                f"column 'conversation', turn {number}: expected from (human or gpt) and value (a text)",
                column="conversation",
                turn=number,
            )
    return [(ROLES[turn["from"]], turn["value"]) for turn in turns]


def _picture(value: Any) -> Any:
    """Base64 as the bytes that it stands for; a path is not mistaken for it, by how pictures begin."""
    if not isinstance(value, str) or not value.startswith(_BASE64):
        return value
    try:
        return {"bytes": base64.b64decode(value, validate=True), "path": None}
    except binascii.Error as error:
        raise BadRow(f"column 'image': broken base64: {error}", column="image") from None
