"""What test_nasty.py proves by internals."""

import json
from typing import Any

import numpy as np
import pytest
from support.nasty import NASTY, media as media, outcomes, strict as strict

from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media.image import decode_image
from neatpack.pipeline.records import Example, MediaRef

pytestmark = pytest.mark.skipif(
    not NASTY.is_dir(), reason="the collection of broken files (../shared/data/nasty) is not here"
)


def pixels(name: str) -> np.ndarray:
    return decode_image(MediaRef(kind="image", path=str(NASTY / "images" / name))).astype(int)


def test_eight_orientations_are_one_picture(media: dict[str, dict[str, Any]]) -> None:
    upright = pixels("landscape_1.jpg")
    assert upright.shape == (450, 600, 3)
    for number in range(2, 9):
        turned = pixels(f"landscape_{number}.jpg")
        assert np.abs(turned - upright).mean() < 20  # compressed apart: 15; turned a wrong way: above 50
        assert media[f"images/landscape_{number}.jpg"]["tokens"] == media["images/landscape_1.jpg"]["tokens"]


@pytest.mark.parametrize(
    "name", ["L_16__128x128.png", "rgb_pytorch16.png", "cmyk_pytorch.jpg", "grayalpha_pytorch.png"]
)
def test_odd_modes_keep_their_contrast(name: str) -> None:
    """Neither wrapped nor clipped: not all white, not all black."""
    picture = pixels(name)
    assert picture.shape[2] == 3
    assert picture.min() >= 0
    assert picture.max() <= 255
    assert picture.std() > 20


def test_calls_are_turns_of_the_assistant_and_observations_of_a_tool(strict: dict[str, Any]) -> None:
    """Not of the user, and not dropped. That their text is in the tokens is tested where they are rendered."""
    rows = json.loads((NASTY / "data" / "toolcall_roles.json").read_text(encoding="utf-8"))
    names = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
    sharegpt = FORMATS["sharegpt"]
    dataset = Dataset(name="", format="sharegpt", columns=sharegpt.columns, tags=sharegpt.tags)
    for row in rows:
        example = convert(row, dataset)
        assert isinstance(example, Example)
        assert [turn.role for turn in example.turns] == [names[turn["from"]] for turn in row["conversations"]]
        calls = [call["function"] for turn in example.turns for call in turn.tool_calls]
        assert calls == [json.loads(turn["value"]) for turn in row["conversations"] if turn["from"] == "function_call"]
        assert len(example.tools) == len(json.loads(row["tools"] or "[]"))
    found = outcomes(strict["toolcall_roles.json"])
    assert len(found) == len(rows) == 40
    for row, text in zip(rows, found, strict=True):
        if json.loads(row["tools"] or "[]"):
            assert text.startswith("bad_row: ") and "tools" in text, "Qwen2.5-VL's template has no tools"
        else:
            assert text == "packed"
