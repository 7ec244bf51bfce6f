"""CORD-V2: receipts, and what is on them as JSON, written out in tags."""

import json
from collections.abc import Mapping
from typing import Any

from .examples import BadRow, Conversation, Examples, asked_and_answered, medium_of, text_of
from .load import load, media_folders

PROMPT = "Describe this image."


def make_cord_v2_dataset(
    path_or_dataset: Any = "naver-clova-ix/cord-v2", split: str = "train", **kwargs: Any
) -> Examples:
    """Columns `image` and `ground_truth`. Other keyword arguments are ignored, as in every make_*_dataset.

    Where a row has several ground truths (`gt_parses`), row n takes number n modulo their count: the same in every
    epoch, on every rank and in the packed data, where a drawn one would differ.
    """
    return Examples(
        "cord_v2", load(path_or_dataset, split), ("image", "ground_truth"), _example, media_folders(path_or_dataset)
    )


def json2token(obj: Any, sort_json_key: bool = True) -> str:
    """JSON as a sequence of tags: {"menu": [{"nm": "Tea"}, {"nm": "Pie"}]} -> <s_menu><s_nm>Tea</s_nm><sep/>…</s_menu>.

    Keys are sorted downwards, z to a, as in Donut, where this form comes from: models trained on it read it so. Its
    {"text_sequence": text} is that text.
    """
    if isinstance(obj, list):
        return "<sep/>".join(json2token(item, sort_json_key) for item in obj)
    if not isinstance(obj, dict):
        return str(obj)
    if list(obj) == ["text_sequence"]:
        return str(obj["text_sequence"])
    keys = sorted(obj, reverse=True) if sort_json_key else list(obj)
    return "".join(f"<s_{key}>{json2token(obj[key], sort_json_key)}</s_{key}>" for key in keys)


def _example(row: Mapping[str, Any], number: int) -> Conversation:
    picture = {"type": "image", "image": medium_of(row, "image")}
    parses = _parses(text_of(row, "ground_truth"))
    try:
        answer = json2token(parses[number % len(parses)])
    except RecursionError:
        raise BadRow("column 'ground_truth': too deeply nested", column="ground_truth") from None
    return {"conversation": asked_and_answered(picture, PROMPT, answer=answer)}


def _parses(ground_truth: str) -> list[dict[str, Any]]:
    try:
        truth = json.loads(ground_truth)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"column 'ground_truth': broken JSON: {error}", column="ground_truth") from None
    if isinstance(truth, dict) and "gt_parses" in truth:
        parses = truth["gt_parses"]
        if not isinstance(parses, list) or not parses or not all(isinstance(parse, dict) for parse in parses):
            raise BadRow("column 'ground_truth': gt_parses is not a list of at least one object", column="ground_truth")
        return parses
    if not isinstance(truth, dict) or not isinstance(truth.get("gt_parse"), dict):
        raise BadRow(
            "column 'ground_truth': expected an object with gt_parse (an object) or gt_parses (a list of them)",
            column="ground_truth",
        )
    return [truth["gt_parse"]]
