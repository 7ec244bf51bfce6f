"""Rows that each family is given, for test_contract.py and test_contract_inside.py."""

from pathlib import Path

import pytest
from support.data import TinyData, clip, picture, tone

ANSWERS = [
    "Only text.",
    "A picture.",
    "Two pictures.",
    "First one.\n\nThen more.",
    "A film.",
    "A tone.",
    "Both.",
    "Short.",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """One row per answer: text, one picture, two, several turns, a video, a sound, a video and a picture, text."""
    data = TinyData(tmp_path_factory.mktemp("contract") / "data")
    for number, size in enumerate([(60, 90), (120, 48), (33, 200)]):
        picture(data.folder / f"{number}.png", *size, seed=number)
    clip(data.folder / "a.mp4")
    tone(data.folder / "a.wav", 0.8, rate=22_050)
    data.text("What is it?", ANSWERS[0])
    data.row([("user", "<image>What?"), ("assistant", ANSWERS[1])], images=["0.png"])
    data.row([("user", "<image>And<image>which?"), ("assistant", ANSWERS[2])], images=["1.png", "2.png"])
    first, second = ANSWERS[3].split("\n\n")
    data.row(
        [("user", "<image>One?"), ("assistant", first), ("user", "Go on."), ("assistant", second)], images=["2.png"]
    )
    data.row([("user", "<video>What happens?"), ("assistant", ANSWERS[4])], videos=["a.mp4"])
    data.row([("user", "<audio>What is heard?"), ("assistant", ANSWERS[5])], audios=["a.wav"])
    data.row([("user", "<video>or<image>?"), ("assistant", ANSWERS[6])], videos=["a.mp4"], images=["0.png"])
    data.text("Briefly?", ANSWERS[7])
    return data.write()
