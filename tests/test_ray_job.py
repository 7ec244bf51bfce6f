"""`ray job submit --working-dir . -- python pipeline/pack.py …` on a real, small cluster on this machine."""

import os
import re
import secrets
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from install.environment import copy_checkout
from places import DEMO_PROCESSOR, ROOT
from ports import free_ports
from support.data import mixed_rows
from support.outputs import files_of
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = [pytest.mark.cluster, pytest.mark.net]

RAY = [str(Path(sys.executable).with_name("ray"))]


class Cluster(NamedTuple):
    dashboard: str
    address: str
    environment: dict[str, str]  # it was started in


STARTED = "Ray runtime started."


@contextmanager
def cluster(folder: Path, ray: list[str]) -> Iterator[Cluster]:
    """A head node on loopback, of one CPU: each more would be a worker more that imports transformers, for each job.
    Ended by its process id: `ray stop` would end everybody's.

    Its ports answer before its node is there, and what has not come up may end again: it is up when it says so. On a
    busy machine Ray may give up starting, for it gives its own processes 30 s, or another process may take a port
    between our choice and its start: it is started anew.
    """
    for attempt in range(5):
        session = tempfile.mkdtemp(prefix="np")  # short: the paths of its sockets may have 107 characters
        # Every port of its own: another Ray may run beside this one.
        names = ("ray-client-server-port", "metrics-export-port", "runtime-env-agent-port",
                 "dashboard-agent-listen-port", "dashboard-agent-grpc-port")  # fmt: skip
        dashboard, port, *others = free_ports(2 + len(names))
        ports = [f"--{name}={each}" for name, each in zip(names, others, strict=True)]
        command = [
            *ray, "start", "--head", "--block", "--num-cpus", "1", "--node-ip-address", "127.0.0.1",
            "--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard), "--disable-usage-stats",
            "--temp-dir", session, f"--port={port}", *ports,
        ]  # fmt: skip
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PYTHONUNBUFFERED": "1",
            "RAY_worker_niceness": "0",
        }
        environment.pop("PYTHONPATH", None)  # what is importable here need not be there
        said = folder / f"head-{attempt}.log"
        with said.open("wb") as log:
            head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            while head.poll() is None and STARTED not in said.read_text():
                time.sleep(0.2)
            if head.poll() is None:
                yield Cluster(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{port}", environment)
                assert head.poll() is None, f"it ended before it was told to: {said.read_text()[-2000:]}"
                return
        finally:
            head.terminate()
            head.wait(timeout=60)
            shutil.rmtree(session, ignore_errors=True)
    pytest.fail(f"five times, Ray did not come up: {said.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """A Python that has all packages of this one but neatpack, which is not among them but linked by a .pth file."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def lacking(python, tmp_path_factory) -> Iterator[Cluster]:
    """A cluster of that Python: a job brings neatpack along, or is told."""
    with cluster(tmp_path_factory.mktemp("ray"), [str(python), "-m", "ray.scripts.scripts"]) as running:
        yield running


def submit(lacking: Cluster, checkout: Path, command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    words = [
        *RAY,
        "job",
        "submit",
        "--address",
        lacking.dashboard,
        *options,
        "--working-dir",
        str(checkout),
        "--",
        *command,
    ]
    for _ in range(15):  # the dashboard answers before the node's agent is there to take a job
        done = subprocess.run(words, cwd=checkout, env=lacking.environment, capture_output=True, text=True, timeout=240)
        if "No available agent" not in done.stderr:
            break
        time.sleep(2)
    return done


def line_with(text: str, start: str) -> list[str]:
    """The words of the `ray job submit` of a text that begins so."""
    (line,) = (line for line in text.replace("\\\n#", " ").splitlines() if start in line)
    return shlex.split(line[line.index(start) :])


def test_the_job_gives_the_same_bytes_and_refuses_relative_paths(lacking, tiny, tmp_path):
    """As docs/COMMANDS.md has it, and with the runtime environment of jobs/, as that has it."""
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "expected"))
    checkout = copy_checkout(tmp_path / "checkout")
    (checkout / "jobs").mkdir()
    shutil.copy(ROOT / "jobs" / "runtime_env.yaml", checkout / "jobs")

    here = {"/data/meta.json": str(meta), "/models/qwen": str(DEMO_PROCESSOR), "/data/processor": str(DEMO_PROCESSOR),
            "python": sys.executable}  # fmt: skip
    small = ["--pack-size", "512", "--shard-mb", "1", "--group-size", "4", "--pixels", "u8"]
    texts = {
        "commands": (ROOT / "docs" / "COMMANDS.md").read_text(),
        "spec": (ROOT / "jobs" / "runtime_env.yaml").read_text(),
    }
    for name, text in texts.items():
        words = line_with(text, "ray job submit ")
        options, command = words[3 : words.index("--working-dir")], words[words.index("--") + 1 :]
        assert options == ([] if name == "commands" else ["--runtime-env", "jobs/runtime_env.yaml"])
        out = str(tmp_path / name)
        command = [here.get(word, out if word == "/data/packed" else word) for word in command]
        done = submit(lacking, checkout, [*command, *small], *options)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert " packed + 0 skipped" in done.stdout
        assert files_of(tmp_path / name) == files_of(tmp_path / "expected")

    # What is uploaded, and a path that would be in there: in one job, for each has a client and a supervisor.
    look = [sys.executable, "-c", "import os; print('uploaded', *sorted(os.listdir()), sep=':')"]
    relative = [sys.executable, "pipeline/pack.py", "--meta", str(meta), "--processor", str(DEMO_PROCESSOR)]
    both = f"{shlex.join(look)}; exec {shlex.join([*relative, '--out', 'relative-out'])}"
    refused = submit(lacking, checkout, ["bash", "-c", both], "--runtime-env", "jobs/runtime_env.yaml")
    uploaded = next(line for line in refused.stdout.splitlines() if "uploaded:" in line)
    assert "pipeline" in uploaded and "jobs" not in uploaded, "what is excluded is not"
    assert refused.returncode != 0
    assert "relative-out" in refused.stdout + refused.stderr and "[option-invalid]" in refused.stdout + refused.stderr


def test_workers_that_lack_neatpack_are_told_with_what_helps(lacking, python, tiny, tmp_path):
    found = subprocess.run([python, "-c", "import ray, neatpack"], cwd=tmp_path, capture_output=True, text=True, env={})
    if "No module named 'neatpack'" not in found.stderr:
        pytest.skip("neatpack is installed in the environment itself, so that workers have it")
    flags = {"meta": mixed_rows(tiny).write(), "processor": DEMO_PROCESSOR, "out": tmp_path / "out"}
    given = [str(text) for flag, value in flags.items() for text in (f"--{flag}", value)]
    done = subprocess.run(
        [sys.executable, "-m", "neatpack.pipeline.cli", "pack", *given],
        env=lacking.environment | {"RAY_ADDRESS": lacking.address, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    # Not of whole lines: what a thread of Ray prints of its workers may have no line break yet.
    told = re.findall(r"neatpack: .*\[worker-import\]", done.stderr)
    assert len(told) == 1, done.stderr
    others = [line for line in done.stderr.splitlines() if line.startswith("neatpack: ") and told[0] not in line]
    assert not others, "and nothing else is said"
    for words in ("neatpack[pack]", "--working-dir", "--runtime-env-json", "RAY_ADDRESS"):
        assert words in told[0]
    assert "Traceback" not in done.stderr
