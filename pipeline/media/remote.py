"""Media that are not files of this machine: objects of a store, and downloads where they are allowed."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..records import MediaError, MediaRef
from ..runtime.storage import Hashed, Place, place, read_json, text_of, write_json, write_whole
from ..uris import is_http, is_stored, is_uri, redact_uri

# Environment variable: the folder where downloads are kept. Empty or absent: nothing is downloaded.
DOWNLOADS = "NEATPACK_DOWNLOADS"
TRIES = 3
BACKOFF = 1.0  # seconds before the second try; four times as long before the third
TIMEOUT = 30  # seconds without a byte
MAX_BYTES = 1 << 30  # of a download

_TRY_LATER = (408, 429)  # of the 4xx statuses, these say nothing about the file


def located(path: str, media_dir: str) -> str:
    """Where a medium is that a row names. A store's query (endpoint_override=…) stays at the end."""
    if path.startswith("/") or is_uri(path):
        return path
    if not is_uri(media_dir):
        return os.path.join(media_dir, path)
    if is_stored(media_dir):
        return text_of(place(media_dir) / path)
    folder, mark, query = media_dir.partition("?")
    return f"{folder.rstrip('/')}/{path}{mark}{query}"


@contextmanager
def missing_told(uri: str) -> Iterator[None]:
    """missing_media says that an object is not there, or not for us, and nothing else does: a store that does not
    answer is `Unreachable`, which ends the run. What is done by then is kept, and the next run goes on from there."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise MediaError("missing_media", f"{uri}: {error.strerror}") from None
    except ValueError as error:  # a name that no object can have
        raise MediaError("missing_media", f"{uri}: {error}") from None


def fetched(url: str) -> Place:
    """The file of a download, which is made once: measuring and rendering see the same bytes."""
    folder = os.environ.get(DOWNLOADS)
    if not folder:
        raise MediaError("missing_media", f"{url}: downloads are off; give --allow-http")
    path = place(folder) / hashlib.sha256(url.encode()).hexdigest()
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


def _download(url: str, path: Place) -> None:
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


def _copy(url: str, path: Place) -> None:
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
        record = Fetched(url=redact_uri(url), bytes=out.tell(), sha256=out.digest())
        write_json(path.with_suffix(".json"), record._asdict())


def _wait(num_errors: int) -> None:
    if num_errors:
        time.sleep(BACKOFF * 4 ** (num_errors - 1))
