"""Downloads: where they may go, how long and how large they may be."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import TinyData, assert_verified, tiny_config
from listener import Listener, listening

from neatpack.pipeline.media import remote
from neatpack.pipeline.media.host_failures import HostFailures
from neatpack.pipeline.media.limits import LIMITS, Limits
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.media.remote import ALLOWED_HOSTS, DOWNLOADS, is_public
from neatpack.pipeline.records import MediaError, MediaRef
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger


@pytest.fixture(autouse=True)
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DOWNLOADS, str(tmp_path / "fetched"))
    monkeypatch.delenv(ALLOWED_HOSTS, raising=False)
    monkeypatch.setenv(LIMITS, Limits(media_timeout=2.0).as_text())
    monkeypatch.setattr(remote, "BACKOFF", 0.0)
    monkeypatch.setattr(remote, "host_failures", HostFailures())


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as found:
        yield found


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """Start a server that answers each connection by a function; its port."""
    with ExitStack() as stack:
        stopping = threading.Event()

        def start(answer: Callable[[socket.socket], None]) -> int:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server.settimeout(0.05)

            def run() -> None:
                while not stopping.is_set():
                    try:
                        connection, _ = server.accept()
                    except TimeoutError:
                        continue
                    with connection:
                        connection.settimeout(5)
                        connection.recv(65536)
                        with suppress(OSError):  # the client has gone
                            answer(connection)

            thread = threading.Thread(target=run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(stopping.set)
            return int(server.getsockname()[1])

        yield start


def skip_of(url: str) -> tuple[str, str]:
    with pytest.raises(MediaError) as caught:
        open_media(MediaRef(kind="image", path=url))
    return caught.value.skip.reason, caught.value.skip.detail


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "localhost.", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::1]",
     "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
     "100.64.0.1", "224.0.0.1", "192.0.0.192", "0177.0.0.1", "0x7f.1", "①27.0.0.1", "[::ffff:0:7f00:1]"],
)  # fmt: skip
def test_private_host_is_not_asked(host: str, listener: Listener) -> None:
    reason, detail = skip_of(f"http://{host}:{listener.port}/a.png?key=secret")
    assert reason == "missing_media" and "secret" not in detail
    if "Cannot assign" not in detail and "resolve" not in detail and "Address family" not in detail:
        assert "--allow-host" in detail or "Name or service" in detail, detail
    assert listener.num_connections == 0


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True), ("2001:4860:4860::8888", True), ("::ffff:8.8.8.8", True), ("64:ff9b::808:808", True),
        ("127.0.0.1", False), ("10.1.2.3", False), ("169.254.169.254", False), ("100.100.100.200", False),
        ("0.0.0.0", False), ("255.255.255.255", False), ("224.0.1.1", False), ("168.63.129.16", False),
        ("192.0.0.192", False), ("::ffff:192.0.0.192", False), ("2002:c000:c0::", False), ("198.18.0.1", False),
        ("::", False), ("::1", False), ("::7f00:1", False), ("fe80::1", False), ("fe80::1%eth0", False),
        ("fd00:ec2::254", False), ("fec0::1", False), ("ff02::1", False), ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False), ("2002:a00:1::", False), ("64:ff9b::7f00:1", False), ("64:ff9b:1::1", False),
    ],
)  # fmt: skip
def test_address_is_public(address: str, expected: bool) -> None:
    assert is_public(address) == expected


@pytest.mark.parametrize("hosts", ["127.0.0.1", "127.0.0.1:{port}", "other 127.0.0.1"])
def test_host_that_is_allowed_by_name_is_asked(hosts: str, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port = serve(lambda connection: connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc"))
    monkeypatch.setenv(ALLOWED_HOSTS, hosts.format(port=port))
    with open_media(MediaRef(kind="image", path=f"http://127.0.0.1:{port}/a.png")) as file:
        assert file.read() == b"abc"
    reason, detail = skip_of(f"http://localhost:{port}/a.png")
    assert "--allow-host" in detail, "another name of the same machine"


def test_port_of_an_allowed_host_is_the_only_one(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_HOSTS, f"127.0.0.1:{listener.port + 1}")
    assert "--allow-host" in skip_of(f"http://127.0.0.1:{listener.port}/a.png")[1]
    assert listener.num_connections == 0


def test_name_is_resolved_once(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is public when it is checked and private when it is asked (DNS rebinding)."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "rebinding.test":
            return real(host, port, *args, **kwargs)
        asked.append(host)
        address = "192.0.2.1" if len(asked) % 2 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    connected: list[Any] = []

    def connect(address: Any, **_: Any) -> Any:
        connected.append(address)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(remote, "is_public", lambda address: address == "192.0.2.1")
    monkeypatch.setattr(socket, "create_connection", connect)
    skip_of(f"http://rebinding.test:{listener.port}/a.png")
    assert connected and {host for host, _ in connected} == {"192.0.2.1"}
    assert listener.num_connections == 0


@pytest.mark.parametrize(
    "location",
    ["http://localhost:{port}/a", "//localhost:{port}/a", "http://[::1]:{port}/a", "https://127.0.0.1:{port}/a",
     "ftp://127.0.0.1:{port}/a", "file:///etc/hostname", "gopher://127.0.0.1:{port}/_x", "s3://bucket/a"],
)  # fmt: skip
def test_redirect_leads_to_no_other_scheme_and_no_refused_address(
    location: str, serve: Any, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = location.format(port=listener.port).encode()
    port = serve(lambda connection: connection.sendall(b"HTTP/1.0 302 Found\r\nLocation: " + target + b"\r\n\r\n"))
    monkeypatch.setenv(ALLOWED_HOSTS, "127.0.0.1")
    reason, detail = skip_of(f"http://127.0.0.1:{port}/a")
    assert reason == "missing_media"
    assert "another scheme" in detail or "--allow-host" in detail, detail
    assert listener.num_connections == 0


def test_redirect_to_itself_ends(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port = serve(lambda connection: connection.sendall(b"HTTP/1.0 301 Moved\r\nLocation: /a\r\n\r\n"))
    monkeypatch.setenv(ALLOWED_HOSTS, "127.0.0.1")
    assert " 5 " in skip_of(f"http://127.0.0.1:{port}/a")[1]


def drip(connection: socket.socket, head: bytes, unit: bytes) -> None:
    connection.sendall(head)
    for _ in range(600):
        connection.sendall(unit)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "unit"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.0 200 OK\r\n", b"X"),
        (b"HTTP/1.0 200 OK\r\n", b"X: y\r\n"),
        (b"", b"H"),
    ],
    ids=["length", "no length", "chunks", "header", "headers", "status"],
)
def test_server_that_drips_is_left_after_the_media_timeout(
    head: bytes, unit: bytes, serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ALLOWED_HOSTS, "127.0.0.1")
    port = serve(lambda connection: drip(connection, head, unit))
    started = time.monotonic()
    reason, detail = skip_of(f"http://127.0.0.1:{port}/a.png?key=secret")
    assert time.monotonic() - started < 20, "of 2 seconds; the server goes on for 30, three times"
    assert reason == "missing_media" and "--media-timeout" in detail and "secret" not in detail
    assert not any(path.is_file() for path in (tmp_path / "fetched").rglob("*"))


def test_download_has_a_size_limit(serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ALLOWED_HOSTS, "127.0.0.1")
    monkeypatch.setenv(LIMITS, Limits(max_media_bytes=1 << 20).as_text())

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(1000):
            connection.sendall(bytes(1 << 16))

    port = serve(endless)
    reason, detail = skip_of(f"http://127.0.0.1:{port}/a.png")
    assert (reason, "1048576 bytes" in detail) == ("bad_media", True)
    assert not any(path.is_file() for path in (tmp_path / "fetched").rglob("*"))


def test_proxies_of_the_environment_are_not_used(
    serve: Any, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://{listener.address}")
    monkeypatch.setenv(ALLOWED_HOSTS, "127.0.0.1")
    port = serve(lambda connection: connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nabc"))
    with open_media(MediaRef(kind="image", path=f"http://127.0.0.1:{port}/a.png")) as file:
        assert file.read() == b"abc"
    assert listener.num_connections == 0


# ---------------------------------------------------------------- hosts that fail


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses that downloads connect to, from now on."""
    found: list[Any] = []
    real = socket.create_connection

    def connect(address: Any, *args: Any, **kwargs: Any) -> socket.socket:
        found.append(address)
        return real(address, *args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setenv(ALLOWED_HOSTS, "127.0.0.1")
    return found


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.0 503 Busy\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\na"]
)
def test_host_that_failed_three_times_in_a_row_is_not_tried_again(
    answer: bytes, serve: Any, connections: list[Any]
) -> None:
    answers = [answer] * (3 * 3 + 20) + [b"HTTP/1.0 200 OK\r\n\r\nabc"] + [answer] * 3
    left = iter(answers)
    port = serve(lambda connection: connection.sendall(next(left)))
    counts = []
    for number in range(23):
        assert skip_of(f"http://127.0.0.1:{port}/{number}.png")[0] == "missing_media"
        counts.append(len(connections))
    assert counts == [3, 6, 9, *range(10, 30)], "it answers: it is asked for each, but once"
    with open_media(MediaRef(kind="image", path=f"http://127.0.0.1:{port}/a.png")) as file:
        assert file.read() == b"abc"
    skip_of(f"http://127.0.0.1:{port}/b.png")
    assert len(connections) == len(answers), "and after an answer, three times again"


def test_host_without_connections_is_not_asked_for_a_while(
    connections: list[Any], closed_port: int, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for number in range(40):
        reason, detail = skip_of(f"http://127.0.0.1:{closed_port}/{number}.png?key=secret")
        assert reason == "missing_media" and "secret" not in detail
        counts.append(len(connections))
    assert counts == [3, 6, 9, *range(10, 17), *[16] * 30]
    other = serve(lambda connection: connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nabc"))
    with open_media(MediaRef(kind="image", path=f"http://127.0.0.1:{other}/a.png")) as file:
        assert file.read() == b"abc"
    skip_of(f"https://127.0.0.1:{closed_port}/a.png")
    assert len(connections) == 16 + 1 + 3, "another scheme may have another port"
    del connections[16:]
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 61)
    skip_of(f"http://127.0.0.1:{closed_port}/later.png")
    skip_of(f"http://127.0.0.1:{closed_port}/at-once.png")
    assert len(connections) == 16 + 1, "once a minute"


def test_redirects_to_a_dead_host_are_not_blamed_on_the_host_that_redirects(
    connections: list[Any], closed_port: int, serve: Any
) -> None:
    away = f"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:{closed_port}/a\r\n\r\n".encode()
    answers = iter([away] * (9 + 7 + 4) + [b"HTTP/1.0 200 OK\r\n\r\nabc"])
    port = serve(lambda connection: connection.sendall(next(answers)))
    for number in range(14):
        skip_of(f"http://127.0.0.1:{port}/{number}.png")
    with open_media(MediaRef(kind="image", path=f"http://127.0.0.1:{port}/good.png")) as file:
        assert file.read() == b"abc"
    assert connections.count(("127.0.0.1", closed_port)) == 16


@pytest.mark.parametrize(
    ("error", "expected"),
    [(socket.EAI_NONAME, [1, 1, 1, 1, 1]), (socket.EAI_AGAIN, [3, 3, 3, 1, 1])],
    ids=["no such name", "no resolver"],
)
def test_names_that_are_not_resolved(error: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row names another host. A resolver is none here: what it says comes from the test."""
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise socket.gaierror(error, "sorry")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for number in range(len(expected)):
        assert skip_of(f"http://host{number}.test/a.png")[0] == "missing_media"
    assert [asked.count(f"host{number}.test") for number in range(len(expected))] == expected


def test_rows_of_a_dead_host_cost_themselves_and_not_the_run(
    tmp_path: Path, closed_port: int, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOWED_HOSTS)
    rows = TinyData(tmp_path)
    for number in range(60):
        name = f"http://127.0.0.1:{closed_port}/{number}.png?key=secret"
        rows.row([("user", "<image>What?"), ("assistant", "That.")], images=[name])
        rows.row([("user", "What?"), ("assistant", "That.")])
    run_pack(tiny_config(rows.write(), tmp_path / "out", max_skipped=1.0, allow_http=True, allow_hosts=("127.0.0.1",)))
    lines = read_ledger(tmp_path / "out", assert_verified(tmp_path / "out")).to_pylist()
    assert [(line["status"], line["reason"]) for line in lines] == [("skipped", "missing_media"), ("packed", "")] * 60
    assert not any("secret" in line["detail"] for line in lines)
    assert len(connections) == 16
