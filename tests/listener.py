"""A listener on loopback that counts connections, and secrets in the environment that would be sent to it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

# As a job on a cluster has them.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "example/secret",
    "AWS_SESSION_TOKEN": "example-token",
    "AWS_REGION": "us-east-1",
    "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/key.json",
}


@dataclass
class Listener:
    """What connects is counted, and then closed without an answer."""

    server: socket.socket
    num_connections: int = 0
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def accept(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self.server.accept()
            except TimeoutError:
                continue
            self.num_connections += 1
            connection.close()


@contextmanager
def listening() -> Iterator[Listener]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        server.settimeout(0.05)
        listener = Listener(server)
        thread = threading.Thread(target=listener.accept)
        thread.start()
        try:
            yield listener
        finally:
            listener.closing.set()
            thread.join()


def put_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
