"""Media that are not files of this machine: objects of a store, and downloads where they are allowed."""

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

from ..records import MediaError, MediaRef, without_secrets
from ..runtime.storage import Hashed, read_json, write_json, write_whole

# Environment variable: the folder where downloads are kept. Empty or absent: nothing is downloaded.
DOWNLOADS = "NEATPACK_DOWNLOADS"
TRIES = 3
BACKOFF = 1.0  # seconds before the second try; four times as long before the third
TIMEOUT = 30  # seconds without a byte
MAX_BYTES = 1 << 30  # of a download

STORES, HTTP = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs"), ("http", "https")
SCHEMES = (*STORES, *HTTP)

_STORE = re.compile(rf"(?:{'|'.join(STORES)})://")
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_TRY_LATER = (408, 429)  # of the 4xx statuses, these say nothing about the file


class Unreachable(OSError):
    """A store, disk or mount that fails: it ends the run, for it says nothing about the medium."""

    def __init__(self, told: str) -> None:
        super().__init__(without_secrets(told))

    def __str__(self) -> str:
        return f"{self.args[0]}; run again when it can, what is done is kept"


def is_stored(path: str) -> bool:
    return _STORE.match(path) is not None


def is_http(path: str) -> bool:
    return _HTTP.match(path) is not None


def is_uri(path: str) -> bool:
    return is_stored(path) or is_http(path)


def located(path: str, media_dir: str) -> str:
    """Where a medium is that a row names. A store's query (endpoint_override=…) stays at the end."""
    if is_uri(path) or os.path.isabs(path) or not is_uri(media_dir):
        return path if is_uri(path) else os.path.join(media_dir, path)
    folder, mark, query = media_dir.partition("?")
    return f"{folder.rstrip('/')}/{path}{mark}{query}"


def stored_bytes(uri: str, offset: int = 0, length: int = -1, most: int = MAX_BYTES) -> bytes:
    """An object of a store, or `length` bytes of it; more than `most` are not read.

    missing_media says that it is not there, and nothing else does: a store that does not answer is `Unreachable`,
    which ends the run. What is done by then is kept, and the next run goes on from there.
    """
    place, mark, query = uri.partition("?")
    bucket, _, key = place.partition("://")[2].partition("/")
    base = f"{place.partition('://')[0]}://{bucket}/{mark}{query}"
    errors: list[Exception] = []
    while len(errors) < TRIES:
        _wait(len(errors))
        try:
            filesystem, root = _filesystem(base, os.getpid())
            with filesystem.open_input_file(f"{root.rstrip('/')}/{key}") as file:
                size = file.size()
                end = offset + length if length >= 0 else size
                if max(offset, end) > size:
                    raise MediaError("bad_media", f"{uri}: has {size} bytes, and not {offset} to {end}")
                if end - offset > most:
                    raise MediaError("bad_media", f"{uri}: {end - offset} bytes, above --max-media-bytes {most}")
                return bytes(file.read_at(end - offset, offset))
        except FileNotFoundError:
            raise MediaError("missing_media", f"{uri}: no such object") from None
        except OSError as error:
            errors.append(error)
        except ValueError as error:  # ArrowInvalid
            raise MediaError("missing_media", f"{uri}: {error}") from None
    raise _unreachable(uri, errors[-1])


@lru_cache(maxsize=64)
def _filesystem(base: str, _process: int) -> tuple[Any, str]:
    """One per bucket and process: clients of object stores have threads, which a forked worker does not inherit."""
    filesystem, root = fs.FileSystem.from_uri(base)
    return filesystem, root


def fetched(url: str) -> Path:
    """The file of a download, which is made once: measuring and rendering see the same bytes."""
    folder = os.environ.get(DOWNLOADS)
    if not folder:
        raise MediaError("missing_media", f"{url}: downloads are off; give --allow-http")
    path = Path(folder) / hashlib.sha256(url.encode()).hexdigest()
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


def _download(url: str, path: Path) -> None:
    errors: list[Exception] = []
    while len(errors) < TRIES:
        _wait(len(errors))
        try:
            _copy(url, path)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in _TRY_LATER:
                raise MediaError("missing_media", f"{url}: HTTP status {error.code} {error.reason}") from None
            errors.append(error)
        except http.client.InvalidURL:  # its message may hold a password
            raise MediaError("missing_media", f"{url}: not a URL that can be asked for") from None
        except (OSError, http.client.HTTPException) as error:
            errors.append(error)
        except ValueError as error:
            raise MediaError("missing_media", f"{url}: {error}") from None
    # Of many hosts some are gone for good, and none of them may end a run; a store of the user's own is another matter.
    raise MediaError("missing_media", f"{url}: cannot be read, {TRIES} times over: {errors[-1]}")


def _copy(url: str, path: Path) -> None:
    if not urllib.parse.urlsplit(url).hostname:
        raise ValueError("no host in it")
    request = urllib.request.Request(
        urllib.parse.quote(url, safe="%/:=&?~#+!$,;'@()*[]"), headers={"User-Agent": "neatpack"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response, write_whole(path) as file:
        out = Hashed(file)
        if not is_http(response.url):
            raise MediaError("missing_media", f"{url}: leads to {response.url}, which is no http")
        while block := response.read(1 << 20):
            if out.tell() + len(block) > MAX_BYTES:
                raise MediaError("bad_media", f"{url}: larger than {MAX_BYTES} bytes")
            out.write(block)
        told = response.headers.get("Content-Length")
        if told is not None and int(told) != out.tell():  # http.client takes a connection that broke for the end
            raise ConnectionError(f"{out.tell()} of {told} bytes came")
        record = Fetched(url=without_secrets(url), bytes=out.tell(), sha256=out.digest())
        write_json(path.with_suffix(".json"), record._asdict())


def _wait(num_errors: int) -> None:
    if num_errors:
        time.sleep(BACKOFF * 4 ** (num_errors - 1))


def _unreachable(uri: str, error: Exception) -> Unreachable:
    return Unreachable(f"{uri}: cannot be read, {TRIES} times over: {error}")
