"""Failing runs on Ray: the message comes before Ray stops; nodes with other packages end a run before its tasks."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from support.errors import raises

from neatpack.pipeline.runtime.calls import Call
from neatpack.pipeline.runtime.engine import engine
from neatpack.pipeline.runtime.faults import MachineError

pytestmark = pytest.mark.cluster

# A driver that dies as soon as it stops Ray, as it did when Ray's core aborted it.
DYING = """
import os
import ray
from neatpack.pipeline.runtime.engine import engine
from neatpack.pipeline.runtime.progress import Progress

def fail():
    raise ValueError("the reason")

progress = Progress()
progress.on_failure = lambda error: print(error, flush=True)
ray.shutdown = os.abort
with engine("ray", 1, progress=progress) as running:
    running.run(fail, [()], title="fail")
"""


def test_message_is_printed_before_ray_stops() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": ""}
    done = subprocess.run([sys.executable, "-c", DYING], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == -6, done.stderr[-2000:]
    assert "the reason" in done.stdout


@pytest.mark.on_ray
@pytest.mark.parametrize(("package", "version"), [("av", "0.1"), ("numpy", "99"), ("tiktoken", "")])
def test_node_with_another_version_ends_the_run(package: str, version: str, monkeypatch, tmp_path: Path) -> None:
    """What this process has is changed here, and the node has what is installed."""
    installed = importlib.metadata.version
    mark = tmp_path / "ran"

    def touch() -> None:
        mark.touch()

    with engine("ray", num_workers=1) as running:
        with monkeypatch.context() as patched:
            patched.setattr(importlib.metadata, "version", lambda name: version if name == package else installed(name))
            with raises(MachineError, "versions-differ") as caught:
                running.flow([Call(function=touch, arguments=())], lambda call, result: (), title="touch")
        (told,) = caught.error.fields["differences"]
        assert all(fact in told for fact in (package, installed(package), version))
        assert not mark.exists(), "no task runs on such a node"


@pytest.mark.on_ray
def test_node_with_the_same_versions_runs_tasks() -> None:
    def number() -> int:
        return 1

    with engine("ray", num_workers=1) as running:
        assert running.run(number, [()], title="number") == [1]
