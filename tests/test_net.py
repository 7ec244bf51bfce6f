"""Files of the net import nothing that a redesign may move: the public names, tests/support and third parties."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

TESTS = ROOT / "tests"
PUBLIC = {
    "neatpack", "neatpack.loaders", "neatpack.loaders.online", "neatpack.loaders.hf", "neatpack.loaders.energon",
    "neatpack.loaders.mended", "neatpack.loaders.online.datasets",
}  # fmt: skip
# The command line, as support/commands.py imports it; the demo and recipes, which are what their tests are about.
COMMAND_LINE = "neatpack.pipeline.cli"
UNIT_TESTS_TOO = ("support/errors.py", "neatpack.pipeline.records")  # it expects skips between stages as well
OLD_NAMES = set(re.findall(r"\b(_\w+)", (ROOT / "docs" / "API.md").read_text()))  # documented, for older code
PATCHED = re.compile(r"[\"']neatpack\.(?:pipeline|loaders|storage)\.[\w.]+[\"']")


def net_files() -> list[Path]:
    return sorted(path for path in TESTS.rglob("test_*.py") if "pytest.mark.net" in path.read_text())


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Modules and names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def own_module(name: str) -> Path | None:
    """A module of tests/ by its name."""
    path = TESTS / name.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def private_imports(path: Path, seen: set[Path]) -> Iterator[str]:
    """What a file, and the modules of tests/ that it imports, take of the inside of the product."""
    if path in seen:
        return
    seen.add(path)
    where = path.relative_to(TESTS)
    for module, name in imported(path):
        is_ours = module.split(".")[0] in ("neatpack", "pipeline", "loaders")
        if (own := own_module(module)) is not None and not is_ours:
            yield from private_imports(own, seen)
        elif is_ours and module not in PUBLIC:
            if (module, where.parts[0]) != (COMMAND_LINE, "support") and (str(where), module) != UNIT_TESTS_TOO:
                yield f"{where}: {module}"
        elif is_ours and name.startswith("_") and name not in {"__version__", *OLD_NAMES}:
            yield f"{where}: {module}.{name}"
    if path.name != "test_net.py" and where.parts[0] != "support":
        yield from (
            f"{where}: {found}"
            for found in PATCHED.findall(path.read_text())
            if found[1:-1] not in {*PUBLIC, COMMAND_LINE}
        )


@pytest.mark.parametrize("path", net_files(), ids=lambda path: str(path.relative_to(TESTS)))
def test_the_net_takes_nothing_from_the_inside(path: Path) -> None:
    assert list(private_imports(path, set())) == []


def test_private_imports_are_seen(tmp_path: Path) -> None:
    assert len(net_files()) > 8
    found = list(private_imports(TESTS / "helpers.py", set()))
    assert any("neatpack.pipeline.plan.assign" in line for line in found)
