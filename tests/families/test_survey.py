"""Which processors of transformers family default takes: what docs/FAMILY.md says is what comes out."""

import json
import os
import re

import pytest
from helpers import ROOT, run_with_torchvision

SCRIPT = ROOT / "tests" / "families" / "survey_processors.py"
# A few that take a second or three each, of every kind: floats, bytes, videos with times, refused ones.
QUICK = ("AlignProcessor", "CLIPProcessor", "LlavaProcessor", "Glm4vProcessor", "ColPaliProcessor",
         "GlmImageProcessor")  # fmt: skip
STORED = ("u8", "floats")


def section() -> str:
    page = (ROOT / "docs" / "FAMILY.md").read_text(encoding="utf-8")
    return page.split("## Processors that `default` takes", 1)[1].split("\n## ", 1)[0]


def told() -> dict[str, tuple[str, str]]:
    """How pictures and videos are stored, by the table in the docs; a class that does not work has "" of both."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*?) ?\|$", section(), re.MULTILINE)
    works = {name: (pictures, videos.replace(",", "")) for name, pictures, videos in rows}
    assert len(rows) == len(works)
    (refused,) = re.findall(r"```names\n(.*?)```", section(), re.DOTALL)
    names = re.findall(r"\w+Processor\b|\w+_Processor\b", refused)
    assert len(names) == len(set(names)) and not works.keys() & set(names)
    return works | dict.fromkeys(names, ("", ""))


def surveyed(*classes: str) -> dict[str, tuple[str, str]]:
    found = json.loads(run_with_torchvision(SCRIPT, *classes).splitlines()[-1])
    result = {}
    for name, of in found.items():
        works = of["image"] in STORED
        has_videos = works and of["video"].startswith(STORED)
        why = "no" if works and of["video"] and not has_videos else ""
        result[name] = (of["image"], of["video"] if has_videos else why) if works else ("", "")
    return result


def test_the_table_names_each_once():
    found = told()
    works = {name for name, (pictures, _) in found.items() if pictures}
    assert len(works) > 50 and {"LlavaProcessor", "Qwen2VLProcessor"} <= works
    assert {pictures for pictures, _ in found.values()} == {"", *STORED}
    refused = {name for name, (_, videos) in found.items() if videos == "no"}
    assert refused == set(
        re.findall(r"(\w+Processor)\b", section().split('Why videos are "no":', 1)[1].split("\n\n", 1)[0])
    )


def test_some_processors_of_transformers():
    told_of = told()
    assert surveyed(*QUICK) == {name: told_of[name] for name in QUICK}


@pytest.mark.skipif(not os.environ.get("NEATPACK_SURVEY"), reason="takes minutes; NEATPACK_SURVEY=1 runs it")
def test_every_processor_of_transformers():
    assert surveyed() == told()
