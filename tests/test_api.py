"""jobs/API.md says what can be imported, how it is called and where it is tested; this holds it to that."""

import inspect
import re

import pytest
from helpers import ROOT

import loaders

ROWS = re.findall(r"^\| `(.+?)` \| (\S+) \| (\S+) \|$", (ROOT / "jobs" / "API.md").read_text(), re.MULTILINE)


def documented(call: str) -> list[tuple[str, object]]:
    """Parameters with their defaults, as the table writes them."""
    scope: dict[str, object] = {}
    exec(f"def documented({call}): ...", scope)
    return [
        (parameter.name if parameter.kind is not parameter.VAR_KEYWORD else f"**{parameter.name}", parameter.default)
        for parameter in inspect.signature(scope["documented"]).parameters.values()
    ]


def test_the_table_is_read_whole():
    assert len(ROWS) == 79
    lines = [line for line in (ROOT / "jobs" / "API.md").read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS)


@pytest.mark.parametrize(("call", "module", "test"), ROWS, ids=[re.split(r"[(]", row[0])[0] for row in ROWS])
def test_every_name_imports_with_its_signature_and_is_tested(call, module, test):
    name, _, parameters = call.partition("(")
    found = loaders
    for part in name.split("."):
        found = getattr(found, part)
    home = (ROOT / module).read_text()
    last = name.split(".")[-1]
    assert last.strip("_") in home, f"{module} does not speak of {last}"
    text = (ROOT / test).read_text()
    spoken = last in text or last.strip("_") in text or (last.startswith("__") and name.split(".")[0] in text)
    assert spoken, f"{test} does not speak of {name}"
    if not parameters:
        return
    signature = inspect.signature(found)
    own = [
        (p.name if p.kind is not p.VAR_KEYWORD else f"**{p.name}", p.default)
        for p in signature.parameters.values()
        if p.kind is not p.KEYWORD_ONLY and p.name != "self"
    ]
    wanted = documented(parameters.rsplit(")", 1)[0])
    assert own[: len(wanted)] == wanted
    assert all(default is not inspect.Parameter.empty for _, default in own[len(wanted) :]), "more, but optional"


def test_every_public_name_is_in_the_table():
    listed = {re.split(r"[(.]", call)[0] for call, _, _ in ROWS}
    assert set(loaders.__all__) - listed == {"PackedShards", "restore_pixels"}, "our own"
    assert set(loaders._HOME) <= listed
    assert set(dir(loaders)) >= set(loaders.__all__)


def test_the_constants():
    assert loaders.MEDIA_KEYS[:4] == ("pixel_values", "image_grid_thw", "image_position_ids", "pixel_values_videos")
    assert "Qwen2_5_VLProcessor" in loaders._IMSTART_TEMPLATE_PROCESSORS
    assert loaders._GEMMA4_MODEL_TURN == "<|turn>model\n"
    assert loaders._GEMMA4_THINKING_PREFIX == "<|channel>thought\n<channel|>"


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = loaders.nothing
