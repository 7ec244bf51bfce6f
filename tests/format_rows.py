"""Data sets of a format, a question and its answer in them, and a picture of a few bytes."""

import base64
from typing import Any

from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.records import Example, MediaRef, Skip, Turn

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TEXT_OF_PNG = base64.b64encode(PNG).decode()


def dataset(name: str, **keys: Any) -> Dataset:
    """A data set of a format, as `read_meta` gives it."""
    preset = FORMATS[name]
    given = {"columns": preset.columns, "tags": preset.tags, "media_dir": "/media"} | keys
    return Dataset(name="d", files=("rows.jsonl",), format=name, **given)


def asked(*parts: str | MediaRef) -> tuple[Turn, Turn]:
    """A user's turn, and the answer "Me."."""
    return Turn(role="user", parts=parts), Turn(role="assistant", parts=("Me.",))


ASKED = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]


def spoken(*turns: dict[str, Any], **columns: Any) -> Example | Skip:
    keys = {key: columns.pop(key) for key in ("ignore_keys",) if key in columns}
    return convert({"messages": list(turns), **columns}, dataset("messages", **keys))


def turns_of(example: Example | Skip) -> tuple[Turn, ...]:
    assert isinstance(example, Example), example
    return example.turns


USER, ANSWER = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}
