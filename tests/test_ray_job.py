"""`ray job submit --working-dir . -- python pipeline/pack.py …` on a real, small cluster on this machine."""

import os
import shlex
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
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
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


def submit(submitting, checkout: Path, command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    address, environment = submitting
    words = [*RAY, "job", "submit", "--address", address, *options, "--working-dir", str(checkout), "--", *command]
    for _ in range(15):  # the dashboard answers before the node's agent is there to take a job
        done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, timeout=240)
        if "No available agent" not in done.stderr:
            break
        time.sleep(2)
    return done


def line_with(text: str, start: str) -> list[str]:
    """The words of the `ray job submit` of a text that begins so."""
    (line,) = (line for line in text.replace("\\\n#", " ").splitlines() if start in line)
    return shlex.split(line[line.index(start) :])


def test_the_job_gives_the_same_bytes_and_refuses_relative_paths(submitting, tiny, tmp_path):
    """As README.md has it, and with the runtime environment of jobs/, as that has it."""
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "expected"))
    checkout = copy_checkout(tmp_path / "checkout")
    (checkout / "jobs").mkdir()
    shutil.copy(ROOT / "jobs" / "runtime_env.yaml", checkout / "jobs")

    here = {"/data/meta.json": str(meta), "/models/qwen": str(DEMO_PROCESSOR), "/data/processor": str(DEMO_PROCESSOR),
            "python": sys.executable}  # fmt: skip
    small = ["--pack-size", "512", "--shard-mb", "1", "--group-size", "4", "--pixels", "u8"]
    texts = {"readme": (ROOT / "README.md").read_text(), "spec": (ROOT / "jobs" / "runtime_env.yaml").read_text()}
    for name, text in texts.items():
        words = line_with(text, "ray job submit ")
        options, command = words[3 : words.index("--working-dir")], words[words.index("--") + 1 :]
        assert options == ([] if name == "readme" else ["--runtime-env", "jobs/runtime_env.yaml"])
        out = str(tmp_path / name)
        command = [here.get(word, out if word == "/data/packed" else word) for word in command]
        done = submit(submitting, checkout, [*command, *small], *options)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert " packed + 0 skipped" in done.stdout
        assert files_of(tmp_path / name) == files_of(tmp_path / "expected")

    look = [sys.executable, "-c", "import os; print('uploaded', *sorted(os.listdir()), sep=':')"]
    done = submit(submitting, checkout, look, "--runtime-env", "jobs/runtime_env.yaml")
    uploaded = next(line for line in done.stdout.splitlines() if "uploaded:" in line)
    assert "pipeline" in uploaded and "jobs" not in uploaded, "what is excluded is not"

    relative = [sys.executable, "pipeline/pack.py", "--meta", str(meta), "--processor", str(DEMO_PROCESSOR)]
    refused = submit(submitting, checkout, [*relative, "--out", "relative-out"])
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
    """Twice at most: beside other clusters on a busy machine the command has ended otherwise; why is not known."""
    python = without_neatpack(tmp_path / "venv")
    flags = {"meta": mixed_rows(tiny).write(), "processor": DEMO_PROCESSOR, "out": tmp_path / "out"}
    given = [str(text) for flag, value in flags.items() for text in (f"--{flag}", value)]
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        with cluster(tmp_path / attempt, [str(python), "-m", "ray.scripts.scripts"]) as (_, address, environment):
            done = subprocess.run(
                [sys.executable, "-m", "neatpack.pipeline.cli", "pack", *given],
                env=environment | {"RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
                capture_output=True, text=True, timeout=240,
            )  # fmt: skip
        told = next((line for line in done.stderr.splitlines() if line.startswith("neatpack: ")), "")
        if "cannot import neatpack" in told:
            break
    assert done.returncode == 1, done.stderr
    assert told.startswith("neatpack: the workers of Ray cannot import neatpack: every node needs "), done.stderr[
        -4000:
    ]
    assert sum(line.startswith("neatpack: ") for line in done.stderr.splitlines()) == 1
    for words in ("neatpack[pack]", "--working-dir", "--runtime-env-json", "RAY_ADDRESS"):
        assert words in told
    assert "Traceback" not in done.stderr
