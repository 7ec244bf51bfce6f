"""Attacks that several tests make: modules beside the data, jobs sent to Ray's ports."""

import http.client
import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

MODULES = ("av", "numpy", "json", "sitecustomize", "usercustomize", "torch", "pyarrow", "PIL", "neatpack", "tokenizers")


def plant_modules(folder: Path, mark: Path) -> None:
    """Write modules and a package that leave a mark wherever they are imported."""
    code = f"import os\nopen({str(mark)!r}, 'a').write(__name__ + '\\n')\nraise ImportError('planted')\n"
    for name in MODULES:
        (folder / f"{name}.py").write_text(code)
    package = folder / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text(code)


def post_job(port: int, command: str, headers: dict[str, str]) -> int | None:
    """The HTTP status of an attempt to run a command through Ray's agent; None if the port speaks no HTTP."""
    for path in ("/api/job_agent/jobs/", "/api/jobs/"):
        body = json.dumps({"entrypoint": command}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json", **headers}, method="POST"
        )
        try:
            return int(urllib.request.urlopen(request, timeout=5).status)
        except urllib.error.HTTPError as error:
            if error.code not in (404, 405):
                return error.code
        except (OSError, http.client.HTTPException):  # a port that speaks no HTTP
            return None
    return None


@contextmanager
def posting_jobs(process: subprocess.Popen[str], command: str) -> Iterator[dict[int, int]]:
    """Send a job without a token to every port that a process or its children open. The answers, by port."""
    answers: dict[int, int] = {}
    ended = threading.Event()

    def post() -> None:
        while not ended.wait(1):  # again and again: an agent that starts listens before it answers
            for port in listening_ports(process.pid) - answers.keys():
                if not ended.is_set() and (code := post_job(port, command, {})):
                    answers[port] = code

    thread = threading.Thread(target=post)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that the children of a process listen at."""
    found: set[int] = set()
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                found |= {each.laddr.port for each in child.net_connections("tcp") if each.status == "LISTEN"}
    return found
