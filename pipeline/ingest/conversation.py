"""The conversation format of the online datasets, to and from an Example.

    {"conversation": [{"role": "user", "content": [{"type": "image", "image": "cat.jpg"},
                                                   {"type": "text", "text": "Who is it?"}]},
                      {"role": "assistant", "content": [{"type": "text", "text": "Tom."}]}]}

A medium is spelled as in any row (see media.py), or held in memory: a PIL image, an array or tensor of pixels, bytes,
{"bytes": …}, or a sound as (samples, sampling rate) or {"array": …, "sampling_rate": …}.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..media.parquet import is_cell
from ..records import Example, MediaRef, Skip, Turn
from .dialect import Columns, Dialect
from .formats import messages
from .formats.example import in_parts
from .formats.parts import KINDS as KINDS
from .formats.said import Said, Spoken, media_of
from .media import ANYWHERE, MediaFolders

COLUMNS = Columns(messages="conversation", images="image", videos="video", audios="audio")


def to_conversation(example: Example) -> dict[str, Any]:
    turns = []
    for turn in example.turns:
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": part.kind, part.kind: _given(part), **_asked(part)}
            for part in turn.parts
        ]
        turns.append({"role": turn.role, "content": content, **_extras(turn)})
    tools = {"tools": list(example.tools)} if example.tools else {}
    return {"conversation": turns, **tools}


def _extras(turn: Turn) -> dict[str, Any]:
    """What a turn says beside role and content, as rows say it."""
    said = {
        "reasoning_content": turn.reasoning,
        "tool_calls": list(turn.tool_calls),
        "name": turn.name,
        "tool_call_id": turn.call_id,
    }
    loss = {} if turn.loss is None else {"loss": turn.loss}
    return {key: value for key, value in said.items() if value} | loss


def from_conversation(
    example: Mapping[str, Any], folders: MediaFolders = ANYWHERE, *, needs_target: bool = False
) -> Example | Skip:
    """Content may be a text or a list of parts. A medium without its data takes the next of the example's own column
    of that name: {"type": "audio"} and example["audio"].

    needs_target: what has no answer to learn from is a Skip; else it is for `measure` to say so, where it matters.
    """
    turns = example.get("conversation")
    if not isinstance(turns, list) or not turns:
        return Skip(reason="bad_row", detail="no conversation; expected a list of turns in 'conversation'")
    dialect = Dialect(columns=COLUMNS, folders=folders, needs_target=needs_target)
    said = _document(example, turns) or messages.read(example, dialect)
    found = said if isinstance(said, Skip) else in_parts(said, dialect, of_file=False)
    if isinstance(found, Skip) or not any(ref.inside and not ref.path for ref in found.media):
        return found
    return replace(found, turns=tuple(replace(turn, parts=tuple(map(_in_memory, turn.parts))) for turn in found.turns))


def _document(example: Mapping[str, Any], turns: list[Any]) -> Said | None:
    """What is one turn of the role "document", as `to_conversation` writes it."""
    first = turns[0]
    if len(turns) > 1 or not isinstance(first, Mapping) or first.get("role") != "document":
        return None
    content = first.get("content")
    parts = content if isinstance(content, list) else [content]
    turn = Spoken(role="document", content=parts, at=("conversation", 0, "content"))
    return Said(turns=(turn,), media=media_of(example, COLUMNS))


def _in_memory(part: str | MediaRef) -> str | MediaRef:
    """A medium that is written into the example: there is no file of which it is a line."""
    if isinstance(part, str) or not part.inside or part.path:
        return part
    return replace(part, path=f"({part.kind} in memory)", inside="")


def _given(ref: MediaRef) -> Any:
    """A path where that says all; otherwise what is in memory, a list of pictures, or an object."""
    if ref.held is not None or ref.frames:
        return ref.held if ref.held is not None else list(ref.frames)
    where: dict[str, Any] = {} if not ref.offset and ref.length < 0 else {"offset": ref.offset, "length": ref.length}
    if is_cell(ref.inside):
        where["cell"] = ref.inside
    return {"path": ref.path, **where} if where else ref.path


def _asked(ref: MediaRef) -> dict[str, Any]:
    """What a row asks of a medium, beside it."""
    sampling = ref.sampling
    asked = {
        "fps": sampling.fps,
        "frame_indices": list(sampling.frame_indices) if sampling.frame_indices is not None else None,
        "video_start": sampling.start,
        "video_end": sampling.end,
    }
    return {key: value for key, value in asked.items() if value is not None} | ref.wishes.given
