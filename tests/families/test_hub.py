"""A processor that is nowhere is told at once, and one in the cache is taken from there without a network."""

import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import DEMO_PROCESSOR, ROOT
from huggingface_hub import constants
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.hub import check_processor

NAME = "owner/name"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub that nobody is at, and an empty cache."""
    check_processor.cache_clear()
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield tmp_path
    check_processor.cache_clear()


def cached(folder: Path) -> None:
    """As the hub's own client leaves it."""
    repository = folder / "cache" / "models--owner--name"
    shutil.copytree(DEMO_PROCESSOR, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")


def test_a_directory_is_taken_and_a_path_that_is_none_is_no_hub_id(nowhere: Path):
    assert check_processor(str(DEMO_PROCESSOR)) is False
    for path in ("/a/b", "./processor", "a/b/c", "~/x", "../x"):
        with raises(UserError, "processor-missing", processor=path):
            check_processor(path)
    (nowhere / "config.json").touch()
    with raises(UserError, "processor-missing", file=str(nowhere / "config.json")):
        check_processor(str(nowhere / "config.json"))


def test_a_hub_that_is_not_reachable_is_told_with_what_helps():
    with raises(UserError, "processor-missing", processor=NAME) as caught:
        check_processor(NAME)
    for named in ("http://127.0.0.1:1", "hf download owner/name", "HF_HUB_CACHE"):
        assert named in str(caught.error)


def test_offline_on_purpose_is_told_as_such(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with raises(UserError, "processor-missing", processor=NAME) as caught:
        check_processor(NAME)
    assert "HF_HUB_OFFLINE" in str(caught.error) and "127.0.0.1" not in str(caught.error)


@pytest.mark.slow
def test_what_is_in_the_cache_is_taken_from_there(nowhere: Path):
    cached(nowhere)
    assert check_processor(NAME) is True
    code = f"from neatpack.pipeline.families.registry import load_family, ProcessorKey\n" \
           f"print(load_family(ProcessorKey(processor={NAME!r})).name)"  # fmt: skip
    environment = {"HF_HUB_CACHE": str(nowhere / "cache"), "HF_ENDPOINT": "http://127.0.0.1:1",
                   "PYTHONPATH": str(ROOT), "HOME": str(nowhere)}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "qwen2_vl\n", done.stderr
    assert "Retry" not in done.stderr


class Refusing(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None: ...


def test_a_hub_that_answers_anything_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch):
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert check_processor(NAME) is False
        server.shutdown()
