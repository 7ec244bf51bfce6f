"""Processes with torchvision, which answer many tests of one process."""

import json
import os
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT


def run_hf(conversations: dict[str, list[Any]], folder: Path) -> dict[str, np.ndarray]:
    """Tensors of whole HF processors, "directory name/conversation/key", by tests/render/hf_processor.py."""
    spec, out = folder / "spec.json", folder / "out.npz"
    spec.write_text(json.dumps(conversations))
    worker = hf_worker()
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(json.dumps([str(spec), str(out)]) + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    assert line, "tests/render/hf_processor.py ended"
    assert json.loads(line) is None, json.loads(line)[-2000:]
    with np.load(out) as saved:
        return dict(saved)


@lru_cache(maxsize=1)
def hf_worker() -> "subprocess.Popen[str]":
    """The process of `run_hf`, for all tests of this one; it ends when its input does."""
    return torchvision_process(ROOT / "tests" / "render" / "hf_processor.py")


@lru_cache(maxsize=1)
def torchvision_worker() -> "subprocess.Popen[str]":
    """The process of `run_with_torchvision`, likewise."""
    return torchvision_process(ROOT / "tests" / "with_torchvision.py")


def torchvision_process(script: Path) -> "subprocess.Popen[str]":
    """A process that says "ready" and then takes lines; the test is skipped where it has no torchvision."""
    worker = subprocess.Popen(
        [sys.executable, str(script)], env=torchvision_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        assert worker.wait() == 3, f"{script} ended with {worker.returncode}"
        pytest.skip("torchvision cannot be imported here (the Makefile installs it into .venv/torchvision)")
    return worker


def torchvision_environment() -> dict[str, str]:
    folders = [ROOT / ".venv" / "torchvision", ROOT, ROOT / "tests"]
    search = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": search}


def run_with_torchvision(script: Path, *arguments: str) -> str:
    """What a script prints that imports tests/with_torchvision.py."""
    worker = torchvision_worker()
    assert worker.stdin is not None and worker.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        worker.stdin.write(json.dumps([str(output), str(script), *arguments]) + "\n")
        worker.stdin.flush()
        code = worker.stdout.readline()
        assert code == "0\n", Path(f"{output}.err").read_text()[-2000:]
        return output.read_text()
