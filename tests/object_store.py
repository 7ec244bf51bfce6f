"""A folder as an S3 bucket on loopback: what pyarrow asks for when it reads, counted, and held up on request.

And what processes of a test do with it. New ones import this module, which is light, and not the test's.
"""

import logging
import multiprocessing
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from neatpack import PackedShards

# Forked, a process would inherit locks of the S3 client and of the store from threads that it does not inherit. Forked
# by a server that has only imported what it needs, it does not, and need not import it, which takes seconds.
ANEW = multiprocessing.get_context("forkserver")
ANEW.set_forkserver_preload(["torch.utils.data", "neatpack.loaders", "object_store", "pack_numbers"])


class Store(ThreadingHTTPServer):
    """`requests`: (method, key) of every request. `hold(key)` stops its next GET after half of the body."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.requests = folder, list[tuple[str, str]]()
        self.held: str | None = None
        self.reached, self.go_on = threading.Event(), threading.Event()

    def uri(self, key: str) -> str:
        """With a password in it, which must not be seen anywhere."""
        return self.plain_uri(key).replace("://", "://user:secret@")

    def plain_uri(self, key: str) -> str:
        return f"s3://bucket/{key}?endpoint_override=127.0.0.1:{self.server_port}&scheme=http&region=here"

    def hold(self, key: str) -> None:
        self.held = key
        self.reached.clear()
        self.go_on.clear()

    def num(self, method: str, end: str) -> int:
        return sum(found == method and key.endswith(end) for found, key in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        asked, _, query = self.path.partition("?")
        key = unquote(asked).removeprefix("/bucket/")
        self.server.requests.append((self.command, key))
        if (self.command, asked.rstrip("/")) == ("HEAD", "/bucket"):  # whether it is there
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if "list-type=2" in query:
            self._list(parse_qs(query)["prefix"][0])
            return
        path = self.server.folder / key
        found = path.is_file()
        body = path.read_bytes() if found else b"<Error><Code>NoSuchKey</Code></Error>"
        total = len(body)
        wanted = self.headers.get("Range") if found else None
        if wanted is not None:
            first, last = wanted.removeprefix("bytes=").split("-")
            body = body[int(first) : int(last) + 1]
        self.send_response(404 if not found else 206 if wanted is not None else 200)
        if wanted is not None:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{total}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        if with_body:
            self._send(key, body)

    def _list(self, prefix: str) -> None:
        folder = self.server.folder / prefix
        files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
        contents = "".join(
            f"<Contents><Key>{escape(prefix + path.name)}</Key><Size>{path.stat().st_size}</Size>"
            "<LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
            for path in files
        )
        head = "<ListBucketResult><IsTruncated>false</IsTruncated>"
        body = f"{head}<KeyCount>{len(files)}</KeyCount>{contents}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, key: str, body: bytes) -> None:
        half = len(body) // 2
        try:
            self.wfile.write(body[:half])
            if key == self.server.held:
                self.server.held = None
                self.server.reached.set()
                self.server.go_on.wait()
            self.wfile.write(body[half:])
        except ConnectionError:
            self.close_connection = True  # the client was killed

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Store]:
    with Store(folder) as store:
        thread = threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield store
        finally:
            store.go_on.set()
            store.shutdown()
            thread.join()


# Processes


def started(target: Any, *arguments: Any) -> Any:
    process = ANEW.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def sums_of(packs: PackedShards) -> dict[int, int]:
    return {item["pack"]: int(item["input_ids"].sum()) for item in packs}


def read_first(packs: PackedShards) -> None:
    packs.pack(0)


def read_all(packs: PackedShards, barrier: Any, results: Any) -> None:
    barrier.wait()
    results.put(sums_of(packs))


def read_with_limit(packs: PackedShards, limit: int, results: Any) -> None:
    """No file may become larger than `limit`: the kernel refuses room for a shard, as a full disk does."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("neatpack").addHandler(handler)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    results.put((sums_of(packs), messages))
