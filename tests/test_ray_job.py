"""`ray job submit --working-dir . -- python pipeline/pack.py …` on a real, small cluster on this machine."""

import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import DEMO_PROCESSOR, ROOT, files_of, mixed_rows, tiny_config
from install.environment import copy_checkout

from neatpack.pipeline.run import run_pack

RAY = [str(Path(sys.executable).with_name("ray"))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def cluster(folder: Path, ray: list[str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """A head node on loopback, ended by its process id: `ray stop` would end everybody's.

    Address of its dashboard, its own address, and the environment it was started in.
    """
    session = tempfile.mkdtemp(prefix="np")  # short: the paths of its sockets may have 107 characters
    dashboard = free_port()
    # Every port of its own: another Ray may run beside this one.
    port = free_port()
    ports = ("ray-client-server-port", "metrics-export-port", "runtime-env-agent-port",
             "dashboard-agent-listen-port", "dashboard-agent-grpc-port")  # fmt: skip
    command = [
        *ray, "start", "--head", "--block", "--num-cpus", "2", "--node-ip-address", "127.0.0.1",
        "--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard), "--disable-usage-stats",
        "--temp-dir", session, f"--port={port}", *(f"--{name}={free_port()}" for name in ports),
    ]  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment["RAY_AUTH_MODE"] = "disabled"
    environment.pop("PYTHONPATH", None)  # what is importable here need not be there
    log = open(folder / "head.log", "wb")  # noqa: SIM115 (closed below)
    head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/version", timeout=5).read()
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert head.poll() is None, (folder / "head.log").read_text()[-2000:]
                assert time.monotonic() < deadline, "the cluster did not come up"
                time.sleep(0.5)
        yield address, f"127.0.0.1:{port}", environment
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(timeout=60)
        log.close()
        shutil.rmtree(session, ignore_errors=True)


@pytest.fixture
def submitting(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("ray"), RAY) as (address, _, environment):
        yield address, environment


def test_the_job_gives_the_same_bytes_and_refuses_relative_paths(submitting, tiny, tmp_path):
    address, environment = submitting
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "expected"))
    checkout = copy_checkout(tmp_path / "checkout")

    def submit(out: str) -> subprocess.CompletedProcess[str]:
        for _ in range(15):  # the dashboard answers before the node's agent is there to take a job
            done = submit_once(out)
            if "No available agent" not in done.stderr:
                break
            time.sleep(2)
        return done

    def submit_once(out: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*RAY, "job", "submit", "--address", address, "--working-dir", str(checkout), "--",
             sys.executable, "pipeline/pack.py", "--meta", str(meta), "--processor", str(DEMO_PROCESSOR),
             "--out", out, "--pack-size", "512", "--shard-mb", "1", "--group-size", "4"],
            env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip

    done = submit(str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " packed + 0 skipped" in done.stdout
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")

    refused = submit("relative-out")
    assert refused.returncode != 0
    assert "give an absolute path under `ray job submit`" in refused.stdout + refused.stderr


def without_neatpack(folder: Path) -> Path:
    """A Python that has all packages of this one but neatpack, which is not among them but linked by a .pth file."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text("\n".join(site.getsitepackages()))
    python = folder / "bin" / "python"
    found = subprocess.run([python, "-c", "import ray, neatpack"], cwd=folder, capture_output=True, text=True, env={})
    if "No module named 'neatpack'" not in found.stderr:
        pytest.skip("neatpack is installed in the environment itself, so that workers have it")
    return python


def test_workers_that_lack_neatpack_are_told_with_what_helps(tiny, tmp_path):
    python = without_neatpack(tmp_path / "venv")
    with cluster(tmp_path, [str(python), "-m", "ray.scripts.scripts"]) as (_, address, environment):
        flags = {"meta": mixed_rows(tiny).write(), "processor": DEMO_PROCESSOR, "out": tmp_path / "out"}
        given = [str(text) for flag, value in flags.items() for text in (f"--{flag}", value)]
        done = subprocess.run(
            [sys.executable, "-m", "neatpack.pipeline.cli", "pack", *given],
            env=environment | {"RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (told,) = (line for line in done.stderr.splitlines() if line.startswith("neatpack: "))
    assert told.startswith("neatpack: the workers of Ray cannot import neatpack: every node needs ")
    for words in ("neatpack[pack]", "--working-dir", "--runtime-env-json", "RAY_ADDRESS"):
        assert words in told
    assert "Traceback" not in done.stderr
