"""RDR items: small pictures of things and a description each."""

from collections.abc import Mapping
from typing import Any

from .examples import Conversation, Examples, asked_and_answered, medium_of, text_of
from .load import load, media_folders

PROMPT = "Describe this image."


def make_rdr_dataset(path_or_dataset: Any = "quintend/rdr-items", split: str = "train", **kwargs: Any) -> Examples:
    """Columns `image` and `text`. Other keyword arguments are ignored, as in every make_*_dataset."""
    return Examples("rdr", load(path_or_dataset, split), ("image", "text"), _example, media_folders(path_or_dataset))


def _example(row: Mapping[str, Any], number: int) -> Conversation:
    picture = {"type": "image", "image": medium_of(row, "image")}
    return {"conversation": asked_and_answered(picture, PROMPT, answer=text_of(row, "text"))}
