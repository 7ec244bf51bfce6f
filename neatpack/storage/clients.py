"""Clients of stores: s3, gs, abfs and hdfs through pyarrow, other schemes through fsspec; and asking them again.

Credentials come from the standard chain of each store (environment, profile, the machine's role), never from us.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote

from neatpack.errors import UserError
from neatpack.storage.uris import STORES, quote_key, redact_uri, without_secrets

if TYPE_CHECKING:
    from pyarrow import fs

TRIES = 6  # of a request, over those of pyarrow's own
BACKOFF = 0.5  # seconds before the second try, give or take a half; twice as long before each further one: 15 s in all
PATIENCE = 10.0  # seconds without a byte after which S3 is asked again
_S3_OPTIONS = ("endpoint_override", "region", "scheme")  # that a URI may have
_S3_ENDPOINTS, _S3_REGIONS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")
_NOT_FILES = ("http", "https", "data", "file", "local")  # fsspec knows them, and they are no stores
# What stores say of an object that we may not have; S3's answers to HEAD have no body, and no other word than this.
_DENIED = re.compile(r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|HTTP status 403|code: 403|403 Forbidden|Forbidden")
_GONE = re.compile(r"NO_SUCH_KEY|NO_SUCH_BUCKET|NoSuchKey|NoSuchBucket|RESOURCE_NOT_FOUND|Path does not exist")

Result = TypeVar("Result")


@dataclass(frozen=True, order=True)
class Bucket:
    """What one client is for; of stores that have no buckets, what stands in their place."""

    scheme: str
    authority: str  # what stands between :// and the next slash
    query: str = ""  # options of the client: endpoint_override=…&scheme=http

    def uri(self, key: str = "") -> str:
        return f"{self.scheme}://{self.authority}/{quote_key(key)}{'?' if self.query else ''}{self.query}"

    def __str__(self) -> str:
        """For people: without what may be secret."""
        return redact_uri(self.uri())


class Unreachable(OSError):
    """A store, disk or mount that fails: it ends the run, for it says nothing about the medium."""

    code = "store-unreachable"  # both as errors.NeatpackError has them
    fields: Mapping[str, Any] = {}

    def __init__(self, told: str) -> None:
        self.told = without_secrets(told)
        super().__init__(errno.ETIMEDOUT, self.told)  # by which runtime/faults.py knows it behind another error

    def __str__(self) -> str:
        return f"{self.told}; run again when it can, what is done is kept"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.told,)


class NoAnswer(Unreachable):
    """A store fails or does not answer, however often it is asked. For a medium, media/store_failures.py decides what
    that costs: its row or the run.

    Attributes:
        shown: the object that was asked for, without what may be secret.
    """

    def __init__(self, shown: str, problem: str) -> None:
        super().__init__(f"{shown}: {problem}")
        self.shown, self._problem = shown, problem
        self.fields = {"shown": shown}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shown, self._problem)


def tried(ask: Callable[[], Result], shown: str, seconds: float = 0.0) -> Result:
    """Return the answer of a store, asked for again while it may only be busy.

    `seconds`: after so many there is no further try; 0: the number of tries is the only bound.
    """
    waits = random.Random(f"{shown} {os.getpid()}")  # many workers that were refused at once must not come at once
    start, number = time.monotonic(), 0
    while True:
        try:
            return ask()
        except (FileNotFoundError, PermissionError) as error:
            raise type(error)(error.errno or errno.ENOENT, os.strerror(error.errno or errno.ENOENT), shown) from None
        except OSError as error:
            said = str(error)
            for pattern, number_of in ((_GONE, errno.ENOENT), (_DENIED, errno.EACCES)):
                if pattern.search(said):
                    raise OSError(number_of, os.strerror(number_of), shown) from None
            number += 1
            wait = BACKOFF * 2 ** (number - 1) * (0.5 + waits.random())
            if number == TRIES or (seconds and time.monotonic() + wait > start + seconds):
                raise NoAnswer(shown, f"does not answer, {number} times over: {said}") from None
        time.sleep(wait)


@lru_cache(maxsize=64)
def client(bucket: Bucket, _process: int) -> tuple["fs.FileSystem", str]:
    """One per bucket and process: clients of stores have threads, which a forked worker does not inherit."""
    from pyarrow import fs

    if bucket.scheme == "s3":
        return _s3(bucket), bucket.authority.rpartition("@")[2]
    if bucket.scheme in STORES:
        filesystem, root = fs.FileSystem.from_uri(_bounded(bucket).uri())
        return filesystem, root.rstrip("/")
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(bucket.uri())
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root.rstrip("/")


def _bounded(bucket: Bucket) -> Bucket:
    """Google's client tries for 15 minutes by itself; `tried` goes on from there."""
    if bucket.scheme not in ("gs", "gcs") or "retry_limit_seconds" in bucket.query:
        return bucket
    return replace(bucket, query="&".join(filter(None, (bucket.query, f"retry_limit_seconds={PATIENCE:.0f}"))))


def _s3(bucket: Bucket) -> "fs.S3FileSystem":
    """As `FileSystem.from_uri` makes it, but small objects are one request (allow_delayed_open), and not three."""
    from pyarrow import fs

    return fs.S3FileSystem(
        **s3_options(bucket),
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),  # `tried` goes on from there
        request_timeout=PATIENCE,
        connect_timeout=PATIENCE,
    )


def s3_options(bucket: Bucket) -> dict[str, Any]:
    """What the URI of a bucket and the environment say, by pyarrow's names; credentials only if the URI has them."""
    from pyarrow import fs

    user, _, host = bucket.authority.rpartition("@")
    key, _, secret = user.partition(":")
    options: dict[str, Any] = dict(parse_qsl(bucket.query))
    if unknown := options.keys() - set(_S3_OPTIONS):
        raise UserError(
            f"{bucket}: unknown option {', '.join(sorted(unknown))}; known: {', '.join(_S3_OPTIONS)}",
            code="option-unknown",
            store=str(bucket),
            option=sorted(unknown)[0],
        )
    if "endpoint_override" not in options and (endpoint := next(filter(None, map(os.environ.get, _S3_ENDPOINTS)), "")):
        scheme, _, address = endpoint.rpartition("://")  # which S3FileSystem itself does not look for
        options |= {"endpoint_override": address.rstrip("/"), **({"scheme": scheme} if scheme else {})}
    if not {"region", "endpoint_override"} & options.keys() and not any(map(os.environ.get, _S3_REGIONS)):
        options["region"] = fs.resolve_s3_region(host)  # a bucket of another region would only answer that it is one
    if user:
        options |= {"access_key": unquote(key), "secret_key": unquote(secret)}
    return options


@lru_cache(maxsize=64)
def is_known(scheme: str) -> bool:
    """Of a store."""
    if scheme in STORES:
        return True
    if scheme in _NOT_FILES:
        return False
    import fsspec

    return scheme in fsspec.available_protocols()
