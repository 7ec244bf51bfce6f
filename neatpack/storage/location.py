"""Objects of stores, by URI, used like paths.

`Remote` has the part of pathlib that neatpack uses, so that whoever is given a place need not know where it is. What a
store answers comes as the kernel's own errors: FileNotFoundError, PermissionError. What says nothing about the object
(throttling, a connection that breaks, a time-out) is tried again, and ends as `Unreachable`, never as a missing file.
"""

import errno
import fnmatch
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from neatpack.errors import UserError
from neatpack.storage.clients import Bucket, client, is_known, tried
from neatpack.storage.uris import STORES, redact_uri, unquote_key

if TYPE_CHECKING:
    from pyarrow import fs

BUFFER = 1 << 20  # bytes of a request, where somebody reads on from a place
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?]*)/*([^?]*)(?:\?(.*))?", re.DOTALL)
_BUCKETS = ("s3", "gs", "gcs")  # schemes whose URIs begin with one

Result = TypeVar("Result")


class NoBucket(FileNotFoundError):
    """Neither the object nor its bucket is there: a name with a slip of the pen, mostly."""


@dataclass(frozen=True, order=True)
class Remote:
    """An object of a store, or a folder, which is what the names of objects begin with."""

    scheme: str
    authority: str  # bucket; or whatever else stands between :// and the next slash
    key: str = ""  # without a slash at either end
    query: str = ""  # options of the client

    # As pathlib has it

    def __truediv__(self, name: str) -> "Remote":
        """`.` and `..` lead as they do on disk: no client would sign them as they are."""
        if {".", ".."}.isdisjoint(name.split("/")):
            return replace(self, key="/".join(part for part in (self.key, name.strip("/")) if part))
        return replace(self, key=os.path.normpath(f"/{self.key}/{name}").strip("/"))

    def __str__(self) -> str:
        """For people: without what may be secret. `uri` is the whole."""
        return redact_uri(self.uri)

    @property
    def uri(self) -> str:
        return self.bucket.uri(self.key)

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.scheme, self.authority, self.query)

    @property
    def _path(self) -> PurePosixPath:
        return PurePosixPath(self.key)

    @property
    def name(self) -> str:
        return self._path.name or self.authority

    @property
    def stem(self) -> str:
        return self._path.stem

    @property
    def suffix(self) -> str:
        return self._path.suffix

    @property
    def parent(self) -> "Remote":
        return replace(self, key=self.key.rpartition("/")[0])

    def with_name(self, name: str) -> "Remote":
        return self.parent / name

    def with_suffix(self, suffix: str) -> "Remote":
        return replace(self, key=str(self._path.with_suffix(suffix)))

    def is_relative_to(self, other: object) -> bool:
        if not isinstance(other, Remote) or (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        return not other.key or self.key == other.key or self.key.startswith(f"{other.key}/")

    def relative_to(self, other: "Remote") -> PurePosixPath:
        return PurePosixPath(self.key.removeprefix(other.key).lstrip("/"))

    def resolve(self) -> "Remote":
        return self

    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Stores have no folders."""

    # What is there

    def _info(self) -> "fs.FileInfo":
        return self._asked(lambda filesystem, path: filesystem.get_file_info(path))

    def exists(self) -> bool:
        return bool(self._info().type)  # NotFound is 0

    def is_file(self) -> bool:
        return bool(self._info().is_file)

    def is_dir(self) -> bool:
        from pyarrow.fs import FileType

        return bool(self._info().type == FileType.Directory)

    def stat(self) -> SimpleNamespace:
        info = self._info()
        if not info.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return SimpleNamespace(st_size=info.size, st_mtime_ns=info.mtime_ns or 0)

    def _listed(self, *, recursive: bool = False) -> Iterator[tuple["Remote", "fs.FileInfo"]]:
        """What is under it, by name; nothing where nothing is. A request for a thousand names."""
        from pyarrow.fs import FileSelector

        def listed(filesystem: "fs.FileSystem", path: str) -> "list[fs.FileInfo]":
            found: list[fs.FileInfo] = filesystem.get_file_info(
                FileSelector(path, allow_not_found=True, recursive=recursive)
            )
            start = len(path.rstrip("/")) + 1
            return sorted((info.path.rstrip("/")[start:], info) for info in found if len(info.path) > start)

        for name, info in self._asked(listed):  # an object may be called "..", or "a?endpoint_override=x"
            yield replace(self, key=f"{self.key}/{name}" if self.key else name), info

    def iterdir(self) -> Iterator["Remote"]:
        return (place for place, _ in self._listed())

    def glob(self, pattern: str) -> Iterator["Remote"]:
        """Of this folder, by a pattern of names without a slash; `**/` before it: also below."""
        below = pattern.removeprefix("**/")
        listed = self._listed(recursive=below != pattern)
        return (place for place, _ in listed if fnmatch.fnmatchcase(place.name, below))

    def rglob(self, pattern: str) -> Iterator["Remote"]:
        return self.glob(f"**/{pattern}")

    @property
    def before_pattern(self) -> "Remote":
        """Of a name that is a pattern, the folder in which all that is like it lies."""
        return replace(self, key=self.key[: re.search(r"[*?[]|$", self.key).start()].rpartition("/")[0])  # type: ignore[union-attr]

    def matches(self, among: Iterable["Remote"]) -> list["Remote"]:
        """Those whose names are like this one, a pattern: * and ? stand for what has no slash, ** for folders."""
        pattern = re.compile(glob_translated(self.key))
        return [place for place in among if pattern.fullmatch(place.key)]

    def files(self) -> list[tuple["Remote", int, int]]:
        """All objects below, with their sizes and when they were changed."""
        listed = self._listed(recursive=True)
        return [(place, info.size, info.mtime_ns or 0) for place, info in listed if info.is_file]

    def sizes(self) -> dict[str, int]:
        """Of the objects in this folder, by name: one question for all of them."""
        return {place.name: info.size for place, info in self._listed() if info.is_file}

    # Bytes

    def opened(self, seconds: float = 0.0) -> "Opened":
        """`seconds`: how long each of its requests is tried again; 0: as long as any."""
        return Opened(self, seconds)

    def read_bytes(self) -> bytes:
        file = self.opened()
        return file.read_at(file.size, 0)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: Any) -> None:
        """All at once, or nothing: in one call, so that no error of ours can end an upload in its middle. pyarrow would
        take its end for the end of the object."""

        def write(filesystem: "fs.FileSystem", path: str) -> None:
            with filesystem.open_output_stream(path) as file:
                file.write(content)

        self._asked(write)

    def unlink(self, *, missing_ok: bool = False) -> None:
        try:
            self._asked(lambda filesystem, path: filesystem.delete_file(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_all(self) -> None:
        """Remove the object, or all objects below. If an answer gets lost, the next try finds nothing: that is fine."""
        info = self._info()
        if info.is_file:
            self.unlink(missing_ok=True)
        elif info.type:
            with suppress(FileNotFoundError):
                self._asked(lambda filesystem, path: filesystem.delete_dir(path))

    def _asked(self, ask: Callable[["fs.FileSystem", str], Result], seconds: float = 0.0) -> Result:
        """What the store answers. Each try asks for the client: a fork in between has none of its threads."""

        def asked() -> Result:
            filesystem, root = client(self.bucket, os.getpid())
            return ask(filesystem, f"{root}/{self.key}" if self.key else root)

        try:
            return tried(asked, str(self), seconds)
        except FileNotFoundError:
            if self.has_bucket:
                raise
        raise NoBucket(errno.ENOENT, self.no_bucket, str(self))

    @property
    def has_bucket(self) -> bool:
        """True, too, where the store does not say."""
        return self.scheme not in _BUCKETS or _has_bucket(self.bucket, os.getpid())

    @property
    def no_bucket(self) -> str:
        """For people, where it has none."""
        return f"there is no bucket {self.authority.rpartition('@')[2]!r}; correct its name, or create it"


class Opened:
    """An object that is open for reading, in any thread: its size and version are known, and requests are ranges."""

    def __init__(self, place: Remote, seconds: float = 0.0) -> None:
        self.place, self._seconds = place, seconds
        self._file = place._asked(lambda filesystem, path: filesystem.open_input_file(path), seconds)
        self.size: int = self._file.size()
        self._head = b""

    @cached_property
    def version(self) -> str:
        """Changes with the content: the store's tag of it, or when it was written."""
        told = self._file.metadata() or {}
        tag = told.get("ETag") or told.get("Last-Modified") or b""
        return tag.decode("ascii", "replace").strip('"').replace(" ", "_")

    @property
    def num_ahead(self) -> int:
        return len(self._head)

    def read_ahead(self, length: int) -> None:
        """The first bytes, to be there when they are read."""
        self._head = self.read_at(min(length, self.size), 0)

    def read_at(self, length: int, start: int) -> bytes:
        length = max(0, min(length, self.size - start))
        if start + length <= len(self._head):
            return self._head[start : start + length]
        if not length:
            return b""

        def read() -> bytes:
            try:
                found: bytes = self._file.read_at(length, start)
            except OSError:
                self.place.stat()  # of a short answer pyarrow cannot tell a 404 from a 503; this can
                raise
            if len(found) != length:
                raise OSError(f"{len(found)} of {length} bytes came")
            return found

        return tried(read, str(self.place), self._seconds)

    def file(self, buffer: int = BUFFER) -> io.BufferedReader:
        """As a file, read by requests of at least `buffer` bytes."""
        return io.BufferedReader(RawObject(self), min(buffer, max(self.size, 1)))


class RawObject(io.RawIOBase):
    """What an object looks like to Python's files."""

    def __init__(self, opened: Opened) -> None:
        self.opened, self._at = opened, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.opened.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self.opened.read_at(len(buffer), self._at)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def glob_translated(pattern: str) -> str:
    """A pattern of names as a regular expression: "a/**/*.jsonl" -> a/(?:.*/)?[^/]*[.]jsonl"""
    pieces = re.split(r"(\*\*/|\*|\?|\[[^]]*\])", pattern)
    known = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(piece) or (piece if piece[:1] == "[" else re.escape(piece)) for piece in pieces)


@lru_cache(maxsize=64)  # thousands of rows may name media that are not there
def _has_bucket(bucket: Bucket, process: int) -> bool:
    filesystem, root = client(bucket, process)
    try:
        return bool(filesystem.get_file_info(root).type)  # NotFound is 0
    except OSError:  # who may read objects need not be allowed to ask for their bucket
        return True


def parse(uri: str) -> Remote:
    """Raises ValueError for a scheme that nobody knows."""
    found = _URI.fullmatch(uri)
    if found is None:
        raise UserError(
            "no URI of a store; expected scheme://bucket/key", code="uri-invalid", expected="scheme://bucket/key"
        )
    scheme, authority, key, query = found[1].lower(), found[2], found[3], found[4] or ""
    if not is_known(scheme):
        known = ", ".join(STORES)
        raise UserError(
            f"unknown scheme {scheme}://; known: {known}, those that an installed fsspec knows, or a path",
            code="uri-invalid",
            scheme=scheme,
        )
    return Remote(scheme, authority, unquote_key(key.strip("/")), query)
