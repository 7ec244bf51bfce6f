"""Common Voice 17, Turkish: clips and what is said in them."""

from collections.abc import Mapping
from typing import Any

from .examples import Conversation, Examples, asked_and_answered, medium_of, text_of
from .load import load, media_folders

PROMPT = "Transcribe the Turkish audio clip."


def make_cv17_dataset(
    path_or_dataset: Any = "ysdede/commonvoice_17_tr_fixed", split: str = "train", **kwargs: Any
) -> Examples:
    """Columns `audio` and `transcription`. Other keyword arguments are ignored, as in every make_*_dataset.

    The sound stands beside the conversation, as `"audio": (samples, sampling_rate)`: float32, mono, at the sampling
    rate that the column declares, else the file's own. The user turn has an audio part without data, which takes it.
    """
    return Examples(
        "cv17", load(path_or_dataset, split), ("audio", "transcription"), _example, media_folders(path_or_dataset)
    )


def _example(row: Mapping[str, Any], number: int) -> Conversation:
    turns = asked_and_answered({"type": "audio"}, PROMPT, answer=text_of(row, "transcription"))
    return {"conversation": turns, "audio": medium_of(row, "audio")}
