"""What is imported when, for every task and every loader worker pays for it; and who may import whom."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from helpers import ROOT

# One process for each line, for to import torch takes 2 s of CPU: what a module may not import, those before it in its
# line may not either.
LINES = [
    {
        "neatpack": ["numpy"],
        "neatpack.pipeline.cli": ["torch", "yaml"],  # --help works without the extra that brings yaml
        "neatpack.pipeline.run": ["torch", "transformers"],  # what is wrong with the flags is told before
        "neatpack.pipeline.shard.summary": ["torch"],  # inspect, diff and skipped look at tables
    },
    {
        "neatpack.loaders": ["transformers", "PIL"],
        "neatpack.pipeline.shard.verify": ["transformers"],
        "neatpack.pipeline.stages": ["transformers.processing_utils"],  # seconds: all of transformers' processors
    },
]
IMPORTING = """
import importlib, json, sys
found = {}
for module, absent in json.loads(sys.argv[1]).items():
    importlib.import_module(module)
    found[module] = [name for name in absent if name in sys.modules]
print(json.dumps(found))
"""


@pytest.mark.parametrize("line", LINES, ids=lambda line: next(iter(line)))
def test_what_is_not_needed_is_not_imported(line):
    command = [sys.executable, "-c", IMPORTING, json.dumps(line)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {module: [] for module in line}


def modules() -> dict[str, Path]:
    """Every module of the source by its name."""
    found = {}
    for folder in ("neatpack", "pipeline", "loaders"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if folder == "neatpack" else ("neatpack", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(name: str, text: str, is_package: bool) -> Iterator[str]:
    """The modules of ours that a module imports: anywhere in it, so lazy and typing-only imports too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "neatpack")
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            package = name.split(".")[: None if is_package else -1]
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
        if base.split(".")[0] == "neatpack":
            full = (f"{base}.{alias.name}" for alias in node.names)
            yield from (module if module in MODULES else base for module in full)


@cache
def graph() -> dict[str, set[str]]:
    return {
        name: set(imported(name, path.read_text(encoding="utf-8"), path.name == "__init__.py")) - {name}
        for name, path in MODULES.items()
    }


def group(module: str) -> str:
    """neatpack.pipeline.render.sample -> render; neatpack.loaders.online.labels -> loaders.online."""
    parts = module.split(".")[1:]
    if parts[:1] == ["storage"]:
        return "storage"
    if parts[:1] == ["loaders"]:
        return "loaders.online" if parts[1:2] == ["online"] else "loaders"
    return "neatpack" if not parts else parts[1] if len(parts) > 1 else parts[0]


def groups() -> dict[str, set[str]]:
    result: dict[str, set[str]] = {}
    for name, others in graph().items():
        result.setdefault(group(name), set()).update(group(other) for other in others if group(other) != group(name))
    return result


def test_imports_are_read_wherever_they_stand():
    text = "import neatpack.a\ndef f():\n    from ..records import Skip\n    from . import plan\nimport numpy"
    assert sorted(imported("neatpack.pipeline.plan.assign", text, is_package=False)) == [
        "neatpack.a", "neatpack.pipeline.plan.plan", "neatpack.pipeline.records",
    ]  # fmt: skip
    assert len(graph()) > 90 and "neatpack.format.layout" in graph()["neatpack.pipeline.records"]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


@pytest.mark.parametrize("found", [graph, groups], ids=["modules", "groups"])
def test_no_cycles(found):
    TopologicalSorter(found()).prepare()


def test_storage_imports_neither_side():
    """The job, the loader and the format are built on it."""
    found = {other for name, others in graph().items() if group(name) == "storage" for other in others if name != other}
    assert {each for each in found if group(each) != "storage"} == {"neatpack.errors"}
    assert not graph()["neatpack.errors"]


OPENING = ("open", "os.open", "io.open", "pa.memory_map")


def opening(text: str) -> Iterator[str]:
    """Lines that open a path by themselves, and do not say `# local: …`, why it can be no URI."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in OPENING
            and "# local: " not in lines[node.lineno - 1]
        ):
            yield lines[node.lineno - 1].strip()


def test_one_layer_opens_files():
    """A path may be a URI wherever one is given, because nobody else opens it."""
    found = {
        str(path.relative_to(ROOT)): lines
        for name, path in MODULES.items()
        if group(name) != "storage" and (lines := list(opening(path.read_text(encoding="utf-8"))))
    }
    assert found == {}
    text = "with open(x) as f: pass\nstorage.open_file(y)\nopen(z)  # local: a pipe"
    assert list(opening(text)) == ["with open(x) as f: pass"]
