"""docs/API.md says what can be imported and how it is called; this holds it to that."""

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT

import neatpack
from neatpack.loaders import online

TABLES = (ROOT / "docs" / "API.md").read_text().partition("| name | what it promises |")[2]
ROWS = re.findall(r"^\| `(.+?)` \| [^|]+ \|$", TABLES, re.MULTILINE)


def documented(call: str) -> list[tuple[str, object]]:
    """Parameters with their defaults, as the table writes them."""
    scope: dict[str, object] = {}
    exec(f"def documented({call}): ...", scope)
    return [
        (parameter.name if parameter.kind is not parameter.VAR_KEYWORD else f"**{parameter.name}", parameter.default)
        for parameter in inspect.signature(scope["documented"]).parameters.values()
    ]


def exported(module: ModuleType) -> list[str]:
    """Names that a module imports or makes to be imported from it."""
    body = ast.parse(Path(module.__file__).read_text()).body
    imported = [name for node in body if isinstance(node, ast.ImportFrom) for name in node.names]
    targets = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
    made = [target.id for target in targets if isinstance(target, ast.Name)]
    return made + [name.asname for name in imported if name.asname == name.name]


@pytest.mark.parametrize("call", ROWS, ids=[re.split(r"[(]", row)[0] for row in ROWS])
def test_every_name_imports_with_its_signature(call):
    name, _, parameters = call.partition("(")
    found = online
    for part in name.split("."):
        found = getattr(found, part)
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
    listed = {re.split(r"[(.]", call)[0] for call in ROWS}
    ours = {"PackedShards", "IndexedPacks", "PackSampler", "PackCollater", "num_items_in_batch",
            "steps", "restore_pixels", "PackConfig", "UserError",
            "DataLossError", "OutputError", "ShardError", "run_pack", "run_plan", "__version__"}  # fmt: skip
    assert set(neatpack.__all__) - listed == ours
    assert set(exported(online)) <= listed
    assert set(dir(neatpack)) >= set(neatpack.__all__)


def test_every_public_name_comes_from_its_home_in_the_stub():
    for name, home in neatpack._HOMES.items():
        assert getattr(neatpack, name) is getattr(sys.modules[home], name)


def test_the_constants():
    assert online.MEDIA_KEYS[:4] == ("pixel_values", "image_grid_thw", "image_position_ids", "pixel_values_videos")
    assert "Qwen2_5_VLProcessor" in online._IMSTART_TEMPLATE_PROCESSORS
    assert online._GEMMA4_MODEL_TURN == "<|turn>model\n"
    assert online._GEMMA4_THINKING_PREFIX == "<|channel>thought\n<channel|>"


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="nothing"):
        _ = neatpack.nothing  # type: ignore[attr-defined]
