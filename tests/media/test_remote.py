"""Media of object stores and of the web: what is there, what is not, what only cannot be reached, and no secrets."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from helpers import assert_verified, files_of, picture, tiny_config
from object_store import serving
from pyarrow import fs
from support.errors import raises_media_error

from neatpack.format.manifest import Manifest
from neatpack.pipeline.ingest.media import MediaFolders, media_reference
from neatpack.pipeline.ingest.meta import read_meta
from neatpack.pipeline.media import remote
from neatpack.pipeline.media.ahead import ahead
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.media.image import decode_image, image_size
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.media.remote import ALLOWED_HOSTS, DOWNLOADS, located
from neatpack.pipeline.media.video import video_facts
from neatpack.pipeline.records import MediaError, MediaRef
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger, verify_ledger
from neatpack.storage import clients, location
from neatpack.storage.uris import without_secrets


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    monkeypatch.setattr(clients, "BACKOFF", 0.0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    ahead.forget()


def image(path: str, **where: int) -> MediaRef:
    return MediaRef(kind="image", path=path, **where)


def content(ref: MediaRef) -> bytes:
    with open_media(ref) as file:
        return file.read()


def skip_of(ref: MediaRef) -> tuple[str, str]:
    with pytest.raises(MediaError) as caught:
        open_media(ref)
    return caught.value.skip.reason, caught.value.skip.detail


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("path", "media_dir", "expected"),
    [
        ("a.png", "/media", "/media/a.png"),
        ("/a.png", "/media", "/a.png"),
        ("s3://b/a.png", "/media", "s3://b/a.png"),
        ("https://host/a.png", "s3://b", "https://host/a.png"),
        ("a b/ü.png", "s3://b/dir/", "s3://b/dir/a b/ü.png"),
        ("a.png", "s3://b/dir?region=x", "s3://b/dir/a.png?region=x"),
        ("/a.png", "s3://b/dir", "/a.png"),
    ],
)
def test_where_a_medium_is(path: str, media_dir: str, expected: str) -> None:
    assert located(path, media_dir) == expected
    ref = media_reference(path, "image", "images", MediaFolders(search=(media_dir,)))
    assert isinstance(ref, MediaRef) and ref.path == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://me:key@bucket/a.png?region=x: no such object", "s3://bucket/a.png: no such object"),
        ("https://h/a.png?token=1:2&b=3: HTTP status 404", "https://h/a.png: HTTP status 404"),
        ("Cannot parse URI: 's3://u:p@b c/x?e=127.0.0.1:80'", "Cannot parse URI: 's3://…'"),
        ("https://h/a?secret", "https://h/a"),
        ("/media/a?b.png: what? no", "/media/a?b.png: what? no"),
        ("https://h/a@b.png: here", "https://h/a@b.png: here"),
    ],
)
def test_secrets_are_not_told(text: str, expected: str) -> None:
    assert without_secrets(text) == expected
    assert str(MediaError("bad_media", text)) == expected


# ---------------------------------------------------------------- object stores


def test_objects(tmp_path: Path) -> None:
    file = picture(tmp_path / "deep" / "cat of ü.png", 40, 60)
    with serving(tmp_path) as store:
        ref = image(store.uri("deep/cat of ü.png"))
        assert content(ref) == file.read_bytes()
        assert image_size(ref) == (40, 60)
        assert content(image(ref.path, offset=1, length=3)) == b"PNG"
        with raises_media_error("missing_media", "s3://bucket/deep/dog.png: "):
            open_media(image(store.uri("deep/dog.png")))
        reason, detail = skip_of(image(ref.path, offset=1, length=1 << 30))
        assert reason == "bad_media" and "secret" not in detail


def test_a_store_that_does_not_answer_is_no_missing_media(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"here")
    errors = [OSError("slow down s3://u:secret@b/x")] * 2

    class Moody:
        def open_input_file(self, path: str) -> Any:
            if errors:
                raise errors.pop()
            return fs.LocalFileSystem().open_input_file(str(tmp_path / Path(path).name))

    monkeypatch.setattr(location, "connect", lambda *_: (Moody(), "bucket"))
    assert content(image("s3://bucket/a.png")) == b"here"
    errors += [OSError("slow down s3://u:secret@b/x")] * clients.TRIES
    with pytest.raises(clients.Unreachable) as caught:
        open_media(image("s3://me:secret@bucket/b.png"))
    told = str(caught.value)
    assert "s3://bucket/b.png" in told and "slow down s3://b/x" in told and "secret" not in told
    for read in (image_size, decode_image, video_facts, lambda ref: decode_audio(ref, 16_000)):
        errors += [OSError("slow down")] * clients.TRIES
        with pytest.raises(clients.Unreachable):  # through all that is blamed on media
            read(image("s3://bucket/c.png"))


def test_packing_from_a_store(tmp_path: Path) -> None:
    """A media_dir in a store; the shards are those of the same files on disk."""
    picture(tmp_path / "cat.png", 40, 60)
    row = {"messages": [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "."}]}
    rows = [row | {"images": [name]} for name in ("cat.png", "gone.png")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with serving(tmp_path) as store:
        for name, media_dir in (("here", ""), ("there", store.plain_uri(""))):
            entry = {"file_name": "rows.jsonl", "media_dir": media_dir}
            (tmp_path / f"{name}.json").write_text(json.dumps({"d": entry}))
            run_pack(tiny_config(tmp_path / f"{name}.json", tmp_path / name))
        (dataset,) = read_meta(tmp_path / "there.json")
        assert dataset.media_dir == store.plain_uri("")
    lines = read_ledger(tmp_path / "there", assert_verified(tmp_path / "there")).to_pylist()
    assert [line["reason"] for line in lines] == ["", "missing_media"]
    assert lines[1]["detail"] == "gone.png: No such file or directory"
    shards = [{k: v for k, v in files_of(tmp_path / n).items() if k.endswith(".tar")} for n in ("here", "there")]
    assert shards[0] == shards[1] and shards[0]


# ---------------------------------------------------------------- http


class Web(ThreadingHTTPServer):
    """`answers`: of a path, (status, body) for each request in turn, the last of them for ever. A short body breaks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, list[tuple[int, bytes]]] = {}
        self.asked: list[str] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        answers = self.server.answers.get(self.path.partition("?")[0], [(404, b"")])
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if status == 299 else body)  # 299: the connection breaks

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Web]:
    with _running(Web()) as server:
        yield server


@contextmanager
def _running(server: Web) -> Iterator[Web]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DOWNLOADS, str(tmp_path / "fetched"))
    monkeypatch.setenv(ALLOWED_HOSTS, "127.0.0.1")
    return tmp_path / "fetched"


def test_downloads_are_off(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        monkeypatch.delenv(DOWNLOADS, raising=False)
        if value is not None:
            monkeypatch.setenv(DOWNLOADS, value)
        with raises_media_error("missing_media", f"{web.url('/a.png')}: ", "--allow-http"):
            open_media(image(web.url("/a.png?key=secret")))
    assert web.asked == []


def test_a_download_is_made_once(web: Web, allowed: Path) -> None:
    web.answers["/a%20b.png"] = [(200, b"first"), (200, b"changed")]
    for _ in range(2):
        assert content(image(web.url("/a b.png"))) == b"first"
    assert content(image(web.url("/a b.png"), offset=1, length=2)) == b"ir"
    assert web.asked == ["/a%20b.png"]
    (file,) = (path for path in allowed.iterdir() if not path.suffix)
    assert file.read_bytes() == b"first"
    digest = {"url": web.url("/a b.png"), "bytes": 5, "sha256": hashlib.sha256(b"first").hexdigest()}
    assert json.loads(file.with_suffix(".json").read_text()) == digest


@pytest.mark.parametrize("trouble", [(500, b""), (503, b""), (429, b""), (299, b"half of it")])
def test_trouble_that_passes(web: Web, allowed: Path, trouble: tuple[int, bytes]) -> None:
    web.answers["/a"] = [trouble, trouble, (200, b"there")]
    assert content(image(web.url("/a"))) == b"there"


@pytest.mark.parametrize("trouble", [(500, b""), (299, b"half of it")])
def test_trouble_that_stays_costs_the_row_and_not_the_run(web: Web, allowed: Path, trouble: tuple[int, bytes]) -> None:
    web.answers["/a"] = [trouble]
    reason, detail = skip_of(image(web.url("/a?key=secret")))
    assert reason == "missing_media" and "/a: " in detail
    assert len(web.asked) == 3 and "secret" not in detail
    assert not allowed.exists() or not any(allowed.iterdir())


@pytest.mark.parametrize("status", [403, 404, 410])
def test_what_is_not_there(web: Web, allowed: Path, status: int) -> None:
    web.answers["/a"] = [(status, b"sorry")]
    reason, detail = skip_of(image(web.url("/a?key=secret")))
    assert reason == "missing_media" and detail.startswith(f"{web.url('/a')}: ") and str(status) in detail
    assert len(web.asked) == 1


def test_what_is_too_large(web: Web, allowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_BYTES", 10)
    web.answers["/a"] = [(200, b"x" * 11)]
    with raises_media_error("bad_media", f"{web.url('/a')}: ", "10 bytes"):
        open_media(image(web.url("/a")))
    assert list(allowed.iterdir()) == []


@pytest.mark.parametrize("url", ["http://me:secret@host/a", "http://", "http://[broken/a", "http://host:port/a"])
def test_what_is_no_url(allowed: Path, url: str) -> None:
    reason, detail = skip_of(image(url))
    assert reason == "missing_media" and "secret" not in detail


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.on_ray)])
def test_packing_with_downloads(web: Web, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DOWNLOADS, raising=False)
    web.answers["/cat.png"] = [(200, picture(tmp_path / "cat.png", 40, 60).read_bytes()), (500, b"")]
    row = {"messages": [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "."}]}
    rows = [row | {"images": [web.url(name)]} for name in ("/cat.png", "/gone.png")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "meta.json").write_text(json.dumps({"d": {"file_name": "rows.jsonl"}}))
    out = tmp_path / "out"
    run_pack(tiny_config(tmp_path / "meta.json", out, allow_http=True, allow_hosts=("127.0.0.1",), engine=engine))
    lines = read_ledger(out, assert_verified(out)).to_pylist()
    assert [line["reason"] for line in lines] == ["", "missing_media"]
    assert web.asked == ["/cat.png", "/gone.png"]
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "off", engine="inline"))
    lines = read_ledger(tmp_path / "off", assert_verified(tmp_path / "off")).to_pylist()
    assert [line["reason"] for line in lines] == ["missing_media"] * 2
    assert "--allow-http" in lines[0]["detail"]
    assert not (tmp_path / "off/fetched.parquet").exists()


def test_an_output_tells_what_was_downloaded(web: Web, tmp_path: Path) -> None:
    """Each file once, those that are in a pack alone, without the key in the URL."""
    names = ("cat", "dog", "text")
    contents = {name: picture(tmp_path / f"{name}.png", 40, 60, seed=len(name)).read_bytes() for name in names[:2]}
    contents["text"] = b"no picture"
    web.answers |= {f"/{name}.png": [(200, content)] for name, content in contents.items()}
    row = {"messages": [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "."}]}
    rows = [row | {"images": [web.url(f"/{name}.png?key=secret")]} for name in ("dog", "cat", "text", "dog")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "meta.json").write_text(json.dumps({"d": {"file_name": "rows.jsonl"}}))
    out = tmp_path / "out"
    run_pack(tiny_config(tmp_path / "meta.json", out, allow_http=True, allow_hosts=("127.0.0.1",)))
    assert pq.read_table(out / "fetched.parquet").to_pylist() == [
        {"url": web.url(f"/{name}.png"), "bytes": len(contents[name]),
         "sha256": hashlib.sha256(contents[name]).hexdigest()}
        for name in ("cat", "dog")
    ]  # fmt: skip
    assert "fetched.parquet" in assert_verified(out).files
    (out / "manifest.json").unlink()  # a finished shard's downloads are known from its note
    before = (out / "fetched.parquet").read_bytes()
    assert (
        run_pack(tiny_config(tmp_path / "meta.json", out, allow_http=True, allow_hosts=("127.0.0.1",))).reused_shards
        == 1
    )
    assert (out / "fetched.parquet").read_bytes() == before
    (out / "fetched.parquet").write_bytes(b"other")
    (problem,) = verify_ledger(out, Manifest.read(out))
    assert (problem.code, problem.fields["file"]) == ("file-changed", "fetched.parquet")
