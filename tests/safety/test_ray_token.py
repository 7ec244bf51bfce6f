"""A Ray that neatpack starts takes jobs only from those who know its token."""

import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from attacks import listening_ports, post_job
from helpers import ROOT

from neatpack.pipeline.runtime.clusters import require_token

pytestmark = pytest.mark.cluster

AGENT_PORT = 52365  # Ray's default; an agent that cannot have it serves no HTTP
# Starts Ray through neatpack, prints its token and waits for a line on stdin.
DRIVER = """
import json, os, sys
from neatpack.pipeline.runtime.engine import engine

with engine("ray", 1) as running:
    token = os.environ.get("RAY_AUTH_TOKEN")
    print(json.dumps({"token": token}), flush=True)
    sys.stdin.readline()
"""


@contextmanager
def started(folder: Path) -> Iterator[dict[str, Any]]:
    """Start a driver without any setting of authentication, in an empty home directory; yield what it says."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
        env=env | {"HOME": str(home), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield json.loads(driver.stdout.readline()) | {"home": home, "pid": driver.pid}
    finally:
        driver.communicate("\n", timeout=120)


def is_taken() -> bool:
    """Whether a Ray of this machine has the port of agents, at any address."""
    listening = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    return any(each.laddr.port == AGENT_PORT for each in listening)


def find_http_ports(pid: int, command: str) -> set[int]:
    """Return the ports of a Ray that speak HTTP, some time after its start; none if another Ray has that port."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.5)
        ours = listening_ports(pid)
        if found := {port for port in ours if post_job(port, command, {})}:
            return found
        if AGENT_PORT not in ours and is_taken():
            return set()
    return set()


def test_job_over_http_needs_the_token(tmp_path: Path) -> None:
    """The agent listens on one fixed port. While another Ray of the suite has it, this one speaks no HTTP at all."""
    mark = tmp_path / "ran"
    command = f"touch {mark}"
    refused = [{}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {secrets.token_hex(32)}"},
               {"X-Ray-Authorization": "Bearer x"}, {"Cookie": "ray-authentication-token=x"}]  # fmt: skip
    deadline = time.monotonic() + 420
    while time.monotonic() < deadline:
        if is_taken():
            time.sleep(1)
            continue
        with started(tmp_path) as ray:
            if not (ports := find_http_ports(ray["pid"], command)):
                continue
            speaking = {port: [post_job(port, command, headers) for headers in refused] for port in ports}
            assert all(code in (401, 403) for codes in speaking.values() for code in codes if code), speaking
            accepted = [post_job(port, command, {"Authorization": f"Bearer {ray['token']}"}) for port in speaking]
            assert 200 in accepted, accepted
            return
    pytest.fail("no port of Ray spoke HTTP; look for where its agent listens now")


def test_token_is_in_no_file_and_on_no_command_line(tmp_path: Path) -> None:
    with started(tmp_path) as ray:
        assert len(ray["token"]) >= 32
        assert not list(ray["home"].rglob("auth_token")), "Ray wrote its token into the home directory"
        for process in psutil.process_iter(["cmdline"]):
            assert ray["token"] not in " ".join(process.info["cmdline"] or [])


@pytest.mark.parametrize("given", [
    {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "mine" * 8},
    {"RAY_AUTH_TOKEN": "mine" * 8},
    {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/run/secrets/ray"},
])  # fmt: skip
def test_token_of_the_user_is_kept(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    require_token()
    kept = {name: os.environ[name] for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH") if name in os.environ}
    assert kept == {name: value for name, value in given.items() if name != "RAY_AUTH_MODE"}


def test_other_mode_of_the_user_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "dis" + "abled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with caplog.at_level(logging.WARNING, logger="neatpack"):
        require_token()
    assert "RAY_AUTH_TOKEN" not in os.environ and "can run code" in caplog.text


def test_no_file_of_the_project_switches_authentication_off() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    word = "RAY_AUTH_MODE"
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        if file.suffix in (".png", ".md") and file.name == "CHANGELOG.md" or not file.is_file():
            continue
        for line in file.read_bytes().decode(errors="replace").splitlines():
            assert not (word in line and "dis" + "abled" in line), f"{name}: {line}"
