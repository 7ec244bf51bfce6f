"""MedPix: questions about medical pictures."""

from collections.abc import Mapping
from typing import Any

from .examples import Conversation, Examples, asked_and_answered, medium_of, text_of
from .load import load, media_folders


def make_medpix_dataset(
    path_or_dataset: Any = "medpix-dataset/medpix-dataset", split: str = "train", **kwargs: Any
) -> Examples:
    """Columns `image_id` (the picture itself), `question` and `answer`. Other arguments are ignored.

    Lazy, as every source here: no picture is read before its example is asked for.
    """
    return Examples(
        "medpix",
        load(path_or_dataset, split),
        ("image_id", "question", "answer"),
        _example,
        media_folders(path_or_dataset),
    )


def _example(row: Mapping[str, Any], number: int) -> Conversation:
    picture = {"type": "image", "image": medium_of(row, "image_id")}
    return {"conversation": asked_and_answered(picture, text_of(row, "question"), answer=text_of(row, "answer"))}
