"""An output from a stranger: what it names is opened only with --follow-sources, and nothing is contacted before."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, TinyData, tiny_config

from neatpack.pipeline.cli import main
from neatpack.pipeline.plan.files import write_paths
from neatpack.pipeline.run import run_pack
from neatpack.storage.location import Location

pytestmark = pytest.mark.slow

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "session",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "HF_TOKEN": "hf_secret",
}
COMMANDS = {
    "show": ["show", "OUT", "0"],
    "show-html": ["show", "OUT", "0", "--html", "PAGE"],
    "skipped": ["skipped", "OUT"],
    "skipped-jsonl": ["skipped", "OUT", "--jsonl"],
    "report": ["report", "OUT"],
    "inspect": ["inspect", "OUT"],
    "diff": ["diff", "OUT", "OUT"],
    "card": ["export", "hub-card", "OUT"],
}


class Listener:
    """Counts connections to a port of this machine."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.connections += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """With credentials in the environment, as on a training machine."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    found = Listener()
    yield found
    found.close()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranger")
    data = TinyData(folder / "data").text("Why?", "So.").image(60, 90).row([("user", "No answer?")])
    run_pack(tiny_config(data.write(), folder / "out", record_paths=True))
    return folder / "out"


@pytest.fixture
def out(packed: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", str(packed), str(tmp_path / "out")], check=True)
    return tmp_path / "out"


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def names_base(out: Path, uri: str) -> None:
    edit(out / "sources.json", lambda found: found.update(base=uri))


def names_base_in_work(out: Path, uri: str) -> None:
    edit(out / "sources.json", lambda found: found.update(base=""))
    edit(out / "work/base.json", lambda found: found.update(base=uri))


def names_file(out: Path, uri: str) -> None:
    edit(out / "sources.json", lambda found: found["datasets"]["tiny"]["files"][0].update(file=uri))


def names_lines(out: Path, uri: str) -> None:
    edit(out / "sources.json", lambda found: found["datasets"]["tiny"]["files"][0].update(lines=uri))


def _with(key: str, uri: str) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update({key: uri})


def names_processor(out: Path, uri: str) -> None:
    for name, key in (("sources.json", "processor_path"), ("work/base.json", "processor")):
        edit(out / name, _with(key, uri))


def names_token_store(out: Path, uri: str) -> None:
    (parts,) = (out / "work/plans").glob("*.parts.arrow")
    write_paths(parts, [Location.parse(uri)] * 9)


ATTACKS = [names_base, names_base_in_work, names_file, names_lines, names_processor, names_token_store]
URIS = {
    "s3": "s3://bucket/x.jsonl?endpoint_override=127.0.0.1:{port}&scheme=http",
    "gs": "gs://bucket/x.jsonl?endpoint_override=127.0.0.1:{port}&scheme=http",
    "hdfs": "hdfs://127.0.0.1:{port}/x.jsonl",
}


@pytest.mark.parametrize("scheme", URIS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_command_contacts_a_store_that_an_output_names(
    out: Path, tmp_path: Path, listener: Listener, attack: Callable[[Path, str], None], scheme: str
) -> None:
    attack(out, URIS[scheme].format(port=listener.port))
    for command in COMMANDS.values():
        words = {"OUT": str(out), "PAGE": str(tmp_path / "page.html")}
        assert main([words.get(word, word) for word in command]) == 0
    assert listener.connections == 0


def test_show_asks_no_hub_for_the_processor_that_an_output_names(out: Path, listener: Listener) -> None:
    """In a process of its own: the hub's client reads its address when it is imported."""
    names_processor(out, "attacker/processor")
    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{listener.port}", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "neatpack.pipeline.cli", "show", str(out), "0"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "texts are token ids" in done.stdout
    assert listener.connections == 0


@pytest.mark.parametrize("name", ["sources.json", "work/base.json", "manifest.json"])
@pytest.mark.parametrize("kind", ["pipe", "endless", "link", "huge"])
def test_files_of_an_output_are_plain_and_bounded(out: Path, tmp_path: Path, name: str, kind: str) -> None:
    """None is waited for, read without end, or followed out of the output; with --follow-sources, too."""
    path = out / name
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        (tmp_path / "elsewhere.json").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere.json")
    else:
        path.touch()
        os.truncate(path, 1 << 40)  # of which no block is on disk
    for command in (["skipped", str(out), "--follow-sources"], ["show", str(out), "0", "--follow-sources"]):
        done = subprocess.run(
            [sys.executable, "-m", "neatpack.pipeline.cli", *command],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == (2 if name == "manifest.json" else 0), done.stderr
        assert "Traceback" not in done.stderr


def test_rows_are_written_only_of_an_output_that_is_trusted(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skipped", str(out), "--rows"]) == 2
    assert "--follow-sources" in capsys.readouterr().err
    assert main(["skipped", str(out), "--rows", "--follow-sources"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"][0]["content"] == "No answer?"


def test_skipped_names_the_file_and_opens_it_only_if_asked(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skipped", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("rows.jsonl: tiny row 2: no_target: ") and printed.err == ""
    assert printed.out.count("\n") == 1
    assert main(["skipped", str(out), "--follow-sources"]) == 0
    assert "data/rows.jsonl:3: tiny row 2: no_target" in capsys.readouterr().out


def test_report_of_pack_has_texts_and_that_of_another_command_has_not(out: Path) -> None:
    assert "No answer?" not in (out / "report.html").read_text() and "Why?" in (out / "report.html").read_text()
    assert main(["report", str(out)]) == 0
    assert "Why?" not in (out / "report.html").read_text()
    assert main(["report", str(out), "--follow-sources"]) == 0
    assert "Why?" in (out / "report.html").read_text()
