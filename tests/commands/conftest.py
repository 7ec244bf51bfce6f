"""Commands in this process, data for them, and what `pack` makes of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, conversation, flags
from PIL import Image
from support.commands import main, run_command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process: exit code, stdout, stderr."""

    def call(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        return run_command(*arguments)

    return call


@pytest.fixture(scope="session")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 rows of text, 4 with a picture, and 3 bad ones."""
    folder = tmp_path_factory.mktemp("data")
    rows: list[Any] = [{"messages": conversation(f"Count to {i}.", "one two " * i or "No.")} for i in range(12)]
    for i in range(4):
        Image.new("RGB", (60 + 20 * i, 90), (50 * i, 99, 7)).save(folder / f"{i}.png")
        rows.append({"messages": conversation("<image>What?", "That."), "images": [f"{i}.png"]})
    rows += [[1], {"messages": conversation("<image>?", "!"), "images": ["absent.png"]}, {"messages": []}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    entries = {"tiny": {"file_name": "rows.jsonl"}, "again": {"file_name": "rows.jsonl", "sample_ratio": 0.5}}
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


@pytest.fixture(scope="session")
def made(meta: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished output, for all: nobody writes to it."""
    out = tmp_path_factory.mktemp("made") / "out"
    assert main(["pack", *flags(meta, out)]) == 0
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "out")
