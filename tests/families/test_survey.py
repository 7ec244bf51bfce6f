"""Which processors of transformers family default takes: what docs/FAMILY.md says is what comes out."""

import json
import os
import re

import pytest
from helpers import ROOT, run_with_torchvision


def told() -> dict[str, set[str]]:
    """{"works": names, "does not": names} of the two blocks in the docs."""
    page = (ROOT / "docs" / "FAMILY.md").read_text(encoding="utf-8")
    section = page.split("## Processors that `default` takes", 1)[1].split("\n## ", 1)[0]
    works, refused = re.findall(r"```names\n(.*?)```", section, re.DOTALL)
    names = {kind: set(re.findall(r"\w+Processor\b|\w+_Processor\b", block)) for kind, block in
             (("works", works), ("does not", refused))}  # fmt: skip
    assert not names["works"] & names["does not"]
    return names


def test_the_table_names_each_once():
    names = told()
    assert len(names["works"]) > 50 and {"LlavaProcessor", "Qwen2VLProcessor"} <= names["works"]


@pytest.mark.skipif(not os.environ.get("NEATPACK_SURVEY"), reason="takes minutes; NEATPACK_SURVEY=1 runs it")
def test_every_processor_of_transformers():
    script = ROOT / "tests" / "families" / "survey_processors.py"
    found = json.loads(run_with_torchvision(script).splitlines()[-1])
    names = told()
    assert {name for name, why in found.items() if not why} == names["works"]
    assert {name for name, why in found.items() if why} == names["does not"], found
