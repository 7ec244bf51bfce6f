"""Clients of stores: s3, gs, abfs and hdfs through pyarrow, other schemes through fsspec; and asking them again.

Credentials come from the standard chain of each store (environment, profile, the machine's role), never from us.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote

from neatpack.errors import UserError
from neatpack.storage.uris import STORES, without_secrets

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


def retry(ask: Callable[[], Result], shown: str, seconds: float = 0.0) -> Result:
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
def connect(scheme: str, authority: str, query: str, _process: int) -> tuple["fs.FileSystem", str]:
    """Return the client of a bucket and the path of its root.

    One per bucket and process: clients of stores have threads, which a forked worker does not inherit.
    """
    from pyarrow import fs

    if scheme == "s3":
        # As `FileSystem.from_uri` makes it, but a small object is one request (allow_delayed_open) instead of three.
        filesystem = fs.S3FileSystem(
            **_s3_options(authority, query),
            allow_delayed_open=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),  # `retry` goes on from there
            request_timeout=PATIENCE,
            connect_timeout=PATIENCE,
        )
        return filesystem, authority.rpartition("@")[2]
    uri = f"{scheme}://{authority}/{'?' if query else ''}{query}"
    if scheme in STORES:
        if scheme in ("gs", "gcs") and "retry_limit_seconds" not in query:
            # Google's client tries for 15 minutes by itself; `retry` goes on from there.
            uri += f"{'&' if query else '?'}retry_limit_seconds={PATIENCE:.0f}"
        filesystem, path = fs.FileSystem.from_uri(uri)
    else:
        import fsspec

        found, path = fsspec.core.url_to_fs(uri)
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(found))
    return filesystem, path.rstrip("/")


def _s3_options(authority: str, query: str) -> dict[str, Any]:
    """Return what the URI of a bucket and the environment say, by pyarrow's names; credentials only from the URI."""
    from pyarrow import fs

    user, _, host = authority.rpartition("@")
    key, _, secret = user.partition(":")
    options: dict[str, Any] = dict(parse_qsl(query))
    if unknown := options.keys() - set(_S3_OPTIONS):
        raise UserError(
            f"s3://{host}/: unknown option {', '.join(sorted(unknown))}; known: {', '.join(_S3_OPTIONS)}",
            code="option-unknown",
            store=f"s3://{host}/",
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
    """Return whether a scheme is that of a store."""
    if scheme in STORES:
        return True
    if scheme in _NOT_FILES:
        return False
    import fsspec

    return scheme in fsspec.available_protocols()
