"""Media that are not files of this machine: objects of a store, and downloads where they are allowed."""

import hashlib
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from neatpack.storage.files import Hashed, read_json, write_json, write_whole
from neatpack.storage.location import Location
from neatpack.storage.uris import is_http, is_stored, is_uri, redact_uri, shown_path

from ..records import MediaError, MediaRef
from ..runtime.journal import OVERTIME
from .host_failures import NAMES, host_failures
from .limits import limits

# Environment variable: the folder where downloads are kept. Empty or absent: nothing is downloaded.
DOWNLOADS = "NEATPACK_DOWNLOADS"
# And: hosts, or hosts with a port, that they may ask wherever they are, between spaces.
ALLOWED_HOSTS = "NEATPACK_ALLOWED_HOSTS"
TRIES = 3
BACKOFF = 1.0  # seconds before the second try; four times as long before the third
TIMEOUT = 30  # seconds without a byte
MAX_BYTES = 1 << 30  # of a download
MAX_REDIRECTS = 5

_REDIRECTS = (301, 302, 303, 307, 308)
# Servers of the cloud that each machine in it can ask, at addresses that count as public: Azure's, and Oracle's at
# 192.0.0.192, in a network that Python before 3.12.4 calls public.
_CLOUD = (ipaddress.ip_network("168.63.129.16/32"), ipaddress.ip_network("192.0.0.0/24"))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SAFE = "%/:=&?~+!$,;'@()*[]"  # what stays of the path and query of a URL
_NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))  # else the resolver failed
_TRY_LATER = (408, 429)  # of the 4xx statuses, these say nothing about the file


def located(path: str, media_dir: str) -> str:
    """Where a medium is that a row names. A store's query (endpoint_override=…) stays at the end."""
    if path.startswith("/") or is_uri(path):
        return path
    if not is_uri(media_dir):
        return os.path.join(media_dir, path)
    if is_stored(media_dir):
        return (Location.parse(media_dir) / path).uri
    folder, mark, query = media_dir.partition("?")
    name = path.replace("?", "%3F").replace("#", "%23")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


@contextmanager
def missing_told(uri: str) -> Iterator[None]:
    """Raise MediaError where an object is missing or forbidden. A store that does not answer raises `NoAnswer`."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise MediaError("missing_media", f"{shown_path(uri)}: {error.strerror}", medium=shown_path(uri)) from None
    except ValueError as error:  # a name that no object can have
        raise MediaError("missing_media", f"{shown_path(uri)}: {error}", medium=shown_path(uri)) from None


def fetched(url: str) -> Location:
    """The file of a download, which is made once: measuring and rendering see the same bytes."""
    folder = os.environ.get(DOWNLOADS)
    if not folder:
        raise MediaError(
            "missing_media", f"{shown_path(url)}: downloads are off; give --allow-http", medium=shown_path(url)
        )
    path = Location.parse(folder) / hashlib.sha256(url.encode()).hexdigest()
    if not path.exists():
        _download(url, path)
    return path


class Fetched(NamedTuple):
    """A download, on record: a file behind a URL may be another one tomorrow."""

    url: str  # without user, password and query
    bytes: int
    sha256: str


def fetched_for(ref: MediaRef) -> list[Fetched]:
    """The downloads that a medium was read from."""
    urls = [path for path in ref.frames or (ref.path,) if is_http(path)]
    return [Fetched(**read_json(fetched(url).with_suffix(".json"))) for url in urls]


def _download(url: str, path: Location) -> None:
    """All tries together have the time that a medium has."""
    seconds = limits().media_timeout
    deadline = time.monotonic() + seconds if seconds else float("inf")
    try:
        failing = host = _host_of(url)
    except ValueError:  # its message may hold a password
        raise MediaError(
            "missing_media", f"{shown_path(url)}: not a URL that can be asked for", medium=shown_path(url)
        ) from None
    errors: list[Exception] = []
    while len(errors) < host_failures.num_tries(failing, TRIES):
        _wait(len(errors))
        try:
            _copy(url, path, deadline)
        except _HTTPStatus as error:
            if error.code < 500 and error.code not in _TRY_LATER:
                host_failures.note_answer(host)
                raise MediaError("missing_media", f"{shown_path(url)}: {error}", medium=shown_path(url)) from None
            failing = host
            errors.append(error)
        except http.client.InvalidURL:  # its message may hold a password
            raise MediaError(
                "missing_media", f"{shown_path(url)}: not a URL that can be asked for", medium=shown_path(url)
            ) from None
        except (OSError, http.client.HTTPException) as error:
            failing = error.host if isinstance(error, _Unconnected) else host
            errors.append(error)
            if isinstance(error, socket.gaierror):
                failing = NAMES
                if error.errno in _NO_SUCH_NAME:
                    break
        except ValueError as error:
            raise MediaError("missing_media", f"{shown_path(url)}: {error}", medium=shown_path(url)) from None
        else:
            host_failures.note_answer(host)
            return
        if time.monotonic() > deadline:
            break
    # Of many hosts some are gone for good, and none of them may end a run.
    host_failures.note_failure(failing, is_connected=not isinstance(errors[-1], _Unconnected))
    if time.monotonic() > deadline:
        raise MediaError("missing_media", f"{shown_path(url)}: download {OVERTIME}", medium=shown_path(url))
    raise MediaError(
        "missing_media",
        f"{shown_path(url)}: cannot be read, {len(errors)} times over: {errors[-1]}",
        medium=shown_path(url),
    )


def _host_of(url: str) -> str:
    """A host as failures are counted: with its port, which the scheme tells where none is named."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


class _Unconnected(OSError):
    """No connection to a host could be made: that of the URL, or of a redirect."""

    def __init__(self, host: str, error: OSError) -> None:
        super().__init__(str(error))
        self.host = host


class _HTTPStatus(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"HTTP status {code} {reason}")
        self.code = code


def _copy(url: str, path: Location, deadline: float) -> None:
    with _response(url, deadline) as response, write_whole(path) as file:
        out, most = Hashed(file), min(MAX_BYTES, limits().max_media_bytes)
        while block := response.read1(1 << 20):  # what is there: read() would wait for all of it
            if out.tell() + len(block) > most:
                raise MediaError("bad_media", f"{shown_path(url)}: larger than {most} bytes", medium=shown_path(url))
            out.write(block)
        if time.monotonic() > deadline:
            raise TimeoutError  # the connection was shut down
        told = response.headers.get("Content-Length")
        if told is not None and int(told) != out.tell():  # http.client takes a connection that broke for the end
            raise ConnectionError(f"{out.tell()} of {told} bytes came")
        record = Fetched(url=redact_uri(url), bytes=out.tell(), sha256=out.digest())
        write_json(path.with_suffix(".json"), record._asdict())


@contextmanager
def _response(url: str, deadline: float) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request. Redirects are followed within the scheme, each to an address that is allowed."""
    for _ in range(MAX_REDIRECTS + 1):
        with _connected(url, deadline) as (connection, target):
            connection.request("GET", target, headers={"User-Agent": "neatpack"})
            response = connection.getresponse()
            if 200 <= response.status < 300:
                yield response
                return
            if response.status not in _REDIRECTS:
                raise _HTTPStatus(response.status, response.reason)
            location = urllib.parse.urljoin(url, response.headers.get("Location", ""))
            if location.partition(":")[0].lower() != url.partition(":")[0].lower():
                raise ValueError(f"is redirected to another scheme, {location.partition(':')[0][:20]}")
            url = location
    raise ValueError(f"is redirected more than {MAX_REDIRECTS} times")


@contextmanager
def _connected(url: str, deadline: float) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    """A connection to the host of a URL, and what to ask it for.

    The host's name is resolved once, and the connection goes to the address that was checked: asked again, a name may
    lead elsewhere. So proxies of the environment are not used, for a proxy resolves names itself.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_tls = parts.scheme.lower() == "https"
        port = parts.port or (443 if is_tls else 80)
    except ValueError:  # its message may hold a password
        raise ValueError("not a URL that can be asked for") from None
    if not parts.hostname:
        raise ValueError("no host in it")
    if "@" in parts.netloc:
        raise ValueError("has a user or password, which are not sent")
    host = _host_of(url)
    if host_failures.is_resting(host):
        raise ValueError("no connection to its host")
    address = _address(parts.hostname, port)
    kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    connection = kind(parts.hostname, port)
    target = urllib.parse.quote(parts._replace(scheme="", netloc="", fragment="").geturl() or "/", safe=_SAFE)
    timeout = _left(deadline)
    try:
        opened = socket.create_connection(address, timeout=timeout)
    except OSError as error:
        raise _Unconnected(host, error) from None
    # A server that sends a byte now and then passes every time-out of a socket: this ends it.
    alarm = threading.Timer(min(deadline - time.monotonic(), threading.TIMEOUT_MAX), _shut_down, [opened])
    alarm.daemon = True
    alarm.start()
    try:
        opened.settimeout(_left(deadline))
        connection.sock = (
            ssl.create_default_context().wrap_socket(opened, server_hostname=parts.hostname) if is_tls else opened
        )
        yield connection, target if target.startswith("/") else f"/{target}"
    finally:
        alarm.cancel()
        connection.close()
        opened.close()


def _shut_down(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def _left(deadline: float) -> float:
    left = min(TIMEOUT, deadline - time.monotonic())
    if left <= 0:
        raise TimeoutError
    return left


def _address(host: str, port: int) -> tuple[str, int]:
    """Resolve a host to an address that downloads may ask. Raises ValueError where it has none."""
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    name = host.lower().rstrip(".")
    hosts = os.environ.get(ALLOWED_HOSTS, "").lower().split()
    if name in hosts or f"{name}:{port}" in hosts or f"[{name}]:{port}" in hosts:
        return found[0], port
    for address in found:
        if is_public(address):
            return address, port
    raise ValueError("its host is on this machine or in a private network; allow it with --allow-host")


def is_public(address: str) -> bool:
    """Whether an address is of the internet: none of this machine, its links, a private network, or of many hosts."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local:
            return False
    is_cloud = any(found in network for network in _CLOUD)
    return found.is_global and not (found.is_multicast or found.is_reserved or is_cloud)


def _wait(num_errors: int) -> None:
    if num_errors:
        time.sleep(BACKOFF * 4 ** (num_errors - 1))
