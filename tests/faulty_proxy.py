"""A proxy in front of the S3 server that records every request, and lets those fail that a test names.

A client signs the address that it speaks to, so its headers are passed on unchanged, Host included.

The proxy is threads of this process. pyarrow ends an output stream that was dropped without close() while it holds the
interpreter's lock, and so waits for a proxy that waits for it: what does such a thing needs a process of its own.
"""

import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

from s3_server import PATIENCE, S3

Kind = Literal[
    "503",  # SlowDown; this and the next two are not passed on to the server
    "500",  # InternalError
    "403",  # AccessDenied
    "cut",  # the connection ends before the answer; the server has not seen the request
    "lost",  # the same, but the server has done what it was asked
    "half request",  # the server gets half of the request's body, then both connections end
    "half answer",  # the client gets half of the answer's body, then its connection ends
    "stall",  # the answer begins `seconds` later
    "trickle",  # the answer's body comes at `rate` bytes a second
]
_CODES = {"503": "SlowDown", "500": "InternalError", "403": "AccessDenied"}
# As long as those of S3: pyarrow reads an answer into a buffer of the range's size, errors too.
_ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{code}</Code><Message>as the test wants it</Message><RequestId>4442587FB7D0A2F9</RequestId>\
<HostId>Uuag1LuByRx9e6j5Onimru9pO4ZVKnJ2Qz7/C1NPcfTWAtRPfTaOFg==</HostId></Error>"""
_TICK = 0.05  # seconds between the pieces of a trickle
_Asked = tuple[str, str, str, str | None]  # method, key, query, range


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    key: str  # "" for the bucket: lists, deletion of many
    query: str  # "uploads" begins an upload, "partNumber=2&uploadId" is a part, "uploadId" completes or aborts it
    range: str | None
    status: int | None  # None: the client saw the connection end instead
    fault: Kind | None


@dataclass(kw_only=True)
class Rule:
    """Which requests fail how. `hits` counts those that did."""

    kind: Kind
    method: str
    key: str
    query: str
    times: int | None
    share: float
    seed: int
    seconds: float
    rate: int
    hits: int = 0

    def wants(self, asked: _Asked, nth: int) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        patterns = (self.method, self.key, self.query)
        if not all(fnmatchcase(text, pattern) for text, pattern in zip(asked[:3], patterns, strict=True)):
            return False
        # By what is asked and how often it was, not by the order of arrival: threads do not change what fails.
        return random.Random(f"{self.seed} {asked} {nth}").random() < self.share


class Proxy(ThreadingHTTPServer):
    """`requests` has them in the order of their answers; `s3` is the bucket as seen through the proxy."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, s3: S3) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = urlsplit(s3.endpoint).netloc
        self.s3 = replace(s3, endpoint=f"http://127.0.0.1:{self.server_port}")
        self.requests = list[Request]()
        self.rules = list[Rule]()
        self.seen = Counter[_Asked]()
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.connections = set[socket.socket]()

    @property
    def env(self) -> dict[str, str]:
        return self.s3.env

    def fail(
        self,
        kind: Kind,
        *,
        method: str = "*",
        key: str = "*",
        query: str = "*",
        times: int | None = None,
        share: float = 1.0,
        seed: int = 0,
        seconds: float = 0.0,
        rate: int = 0,
    ) -> Rule:
        """Patterns are those of fnmatch. Of several rules that want a request, the first has it."""
        assert (kind == "stall") == (seconds > 0), "a stall, and nothing else, needs seconds"
        assert (kind == "trickle") == (rate > 0), "a trickle, and nothing else, needs a rate in bytes a second"
        rule = Rule(
            kind=kind,
            method=method,
            key=key,
            query=query,
            times=times,
            share=share,
            seed=seed,
            seconds=seconds,
            rate=rate,
        )
        self.rules.append(rule)
        return rule

    def heal(self) -> None:
        """No request fails from now on."""
        self.rules.clear()

    def num(self, method: str, key: str = "*", query: str = "*") -> int:
        """How many requests of a kind there were, those that failed included."""
        return sum(
            fnmatchcase(asked.method, method) and fnmatchcase(asked.key, key) and fnmatchcase(asked.query, query)
            for asked in self.requests
        )

    def fault_of(self, method: str, key: str, query: str, range_: str | None) -> Rule | None:
        with self.lock:
            asked = (method, key, query, range_)
            nth = self.seen[asked]
            self.seen[asked] += 1
            for rule in self.rules:
                if rule.wants(asked, nth):
                    rule.hits += 1
                    return rule
        return None


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait for 40 ms
    server: Proxy

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has gone, or the proxy ends
            super().handle()

    def _pass_on(self) -> None:
        path, _, query = self.path.partition("?")
        key = unquote(path).removeprefix(f"/{self.server.s3.bucket}").removeprefix("/")
        query = re.sub(r"\buploadId=[^&]*", "uploadId", query)  # the server makes it up: another one in every run
        range_ = self.headers.get("Range")
        rule = self.server.fault_of(self.command, key, query, range_)
        kind = rule.kind if rule else None

        def record(status: int | None) -> None:
            asked = Request(method=self.command, key=key, query=query, range=range_, status=status, fault=kind)
            self.server.requests.append(asked)

        if kind == "cut":
            record(None)
            self.close_connection = True
            return
        if kind == "half request":
            record(None)
            self._send_half()
            self.close_connection = True
            return
        body = self._body()
        if rule and rule.kind == "stall":
            self.server.closing.wait(rule.seconds)
        answer = _refusal(kind) if kind in _CODES else self._asked(body)
        record(None if kind == "lost" else answer.status)
        if kind == "lost":
            self.close_connection = True
            return
        self._answer(answer, rule)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = list[bytes]()
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers of HTTP; S3's own are in the body
        return b"".join(pieces)

    def _to_server(self, body: bytes) -> tuple[HTTPConnection, bytes]:
        """A connection that was sent all headers, and the body as it goes over the wire."""
        connection = HTTPConnection(self.server.behind, timeout=PATIENCE)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, text in self.headers.items():
            if name.lower() not in ("connection", "expect"):  # the client was told to go on with its body
                connection.putheader(name, text)
        connection.endheaders()
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        return connection, body

    def _asked(self, body: bytes) -> _Answer:
        connection, sent = self._to_server(body)
        try:
            connection.send(sent)
            got = connection.getresponse()
            return _Answer(got.status, got.getheaders(), got.read())
        except (OSError, HTTPException) as error:
            raise ConnectionError("the server behind the proxy has gone") from error
        finally:
            connection.close()

    def _send_half(self) -> None:
        connection, sent = self._to_server(self._body())
        connection.send(sent[: len(sent) // 2])
        connection.close()

    def _answer(self, answer: _Answer, rule: Rule | None) -> None:
        self.send_response_only(answer.status)
        for name, text in answer.headers:
            # Content-Length of HEAD is that of the object; a chunked body has been read whole.
            if name.lower() not in ("connection", "transfer-encoding") and not (
                name.lower() == "content-length" and self.command != "HEAD"
            ):
                self.send_header(name, text)
        if self.command != "HEAD" and answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if rule and rule.kind == "half answer":
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.close_connection = True
        elif rule and rule.kind == "trickle":
            step = max(1, int(rule.rate * _TICK))
            for first in range(0, len(answer.body), step):
                self.wfile.write(answer.body[first : first + step])
                self.server.closing.wait(_TICK)
        else:
            self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        pass


def _refusal(kind: Kind) -> _Answer:
    text = _ERROR.format(code=_CODES[kind])
    return _Answer(int(kind), [("Content-Type", "application/xml")], text.encode())


@contextmanager
def faulty_proxy(s3: S3) -> Iterator[Proxy]:
    with Proxy(s3) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()  # whoever stalls goes on
            proxy.shutdown()
            thread.join()
            for connection in list(proxy.connections):
                with suppress(OSError):  # the client was first
                    connection.shutdown(socket.SHUT_RDWR)
