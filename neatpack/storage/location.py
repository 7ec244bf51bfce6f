"""Files and folders, on this machine or in a store, by one type: code that is given a `Location` need not know where
it is.

A `Location` has the part of pathlib that neatpack uses. What a store answers comes as the kernel's own errors:
FileNotFoundError, PermissionError. What says nothing about the object (throttling, a connection that breaks, a
time-out) is tried again and ends as `Unreachable`, never as a missing file.
"""

import errno
import fnmatch
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import unquote

from neatpack.errors import UserError
from neatpack.storage.clients import connect, is_known, retry
from neatpack.storage.uris import SCHEME, STORES, quote_key, redact_uri, unquote_key

if TYPE_CHECKING:
    from pyarrow import fs

AT_ONCE = 16  # requests to a store that a process has under way
BUFFER = 1 << 20  # bytes of a request, where a file is read on from some place
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?]*)/*([^?]*)(?:\?(.*))?", re.DOTALL)
_BUCKETS = ("s3", "gs", "gcs")  # schemes whose URIs begin with one

PathLike = str | os.PathLike[str]  # a path, a URI, or a Location
Result = TypeVar("Result")


class NoBucket(FileNotFoundError):
    """Neither the object nor its bucket exists: mostly a typing error in its name."""


class FileStatus(NamedTuple):
    """Size and time of change of a file, by the names of os.stat_result."""

    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, order=True)
class Location:
    """A path of this machine, or an object of a store and the folder that object names begin with.

    Attributes:
        scheme: of a store; "" for a path.
        authority: the bucket, or whatever else stands between :// and the next slash.
        key: the path; or the name of the object, without a slash at either end.
        query: options of the store's client.
    """

    scheme: str
    authority: str
    key: str = ""
    query: str = ""

    @classmethod
    def parse(cls, given: PathLike) -> "Location":
        """Return the location of a path or a URI. `uri` is the inverse.

        Raises:
            UserError: the scheme is unknown.
        """
        if isinstance(given, Location):
            return given
        text = os.fspath(given)
        scheme = SCHEME.match(text) if isinstance(given, str) else None
        if scheme is None:
            return cls("", "", str(Path(text)))
        if scheme[1].lower() == "file":
            return cls("", "", str(Path(unquote(text[len(scheme[0]) :]))))
        return _parse_uri(text)

    @property
    def is_local(self) -> bool:
        return not self.scheme

    @property
    def path(self) -> Path:
        """The path of this machine."""
        return Path(self)

    def __fspath__(self) -> str:
        if self.scheme:
            raise TypeError(f"{self} is no path of this machine")
        return self.key

    @property
    def uri(self) -> str:
        """The text that `parse` reads. Not for people: a URI may have options that are nobody's business."""
        if self.is_local:
            return self.key
        return f"{self.scheme}://{self.authority}/{quote_key(self.key)}{'?' if self.query else ''}{self.query}"

    def __str__(self) -> str:
        """The text for people: without what may be secret."""
        return self.key if self.is_local else redact_uri(self.uri)

    # Names

    def __truediv__(self, name: str) -> "Location":
        """`.` and `..` lead in a store as they do on disk: no client would sign them as they are."""
        if self.is_local:
            return replace(self, key=str(Path(self.key, name)))
        if {".", ".."}.isdisjoint(name.split("/")):
            return replace(self, key="/".join(part for part in (self.key, name.strip("/")) if part))
        return replace(self, key=os.path.normpath(f"/{self.key}/{name}").strip("/"))

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name or self.authority

    @property
    def stem(self) -> str:
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> "Location":
        return replace(self, key=str(Path(self.key).parent) if self.is_local else self.key.rpartition("/")[0])

    @property
    def root(self) -> "Location":
        """The bucket, or the root of this machine."""
        return replace(self, key="/" if self.is_local else "")

    def with_name(self, name: str) -> "Location":
        return self.parent / name

    def with_suffix(self, suffix: str) -> "Location":
        return replace(self, key=str(PurePosixPath(self.key).with_suffix(suffix)))

    def is_under(self, folder: "Location") -> bool:
        """Whether this is the folder or in it, by name."""
        if (self.scheme, self.authority) != (folder.scheme, folder.authority):
            return False
        return folder.key in ("", "/", self.key) or self.key.startswith(f"{folder.key}/")

    def relative_to(self, folder: "Location") -> str:
        """Return the name of a file as seen from a folder that it is in."""
        return self.key.removeprefix(folder.key).lstrip("/")

    def resolve(self) -> "Location":
        """Follow symbolic links."""
        return replace(self, key=os.path.realpath(self.key)) if self.is_local else self

    def absolute(self) -> "Location":
        return replace(self, key=str(Path(self.key).absolute())) if self.is_local else self

    # What exists

    def exists(self) -> bool:
        return self.path.exists() if self.is_local else bool(self._info().type)  # NotFound is 0

    def is_file(self) -> bool:
        return self.path.is_file() if self.is_local else bool(self._info().is_file)

    def is_dir(self) -> bool:
        if self.is_local:
            return self.path.is_dir()
        from pyarrow.fs import FileType

        return bool(self._info().type == FileType.Directory)

    def is_symlink(self) -> bool:
        return self.is_local and self.path.is_symlink()

    def stat(self) -> os.stat_result | FileStatus:
        if self.is_local:
            return os.stat(self.key)
        info = self._info()
        if not info.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return FileStatus(info.size, info.mtime_ns or 0)

    def iterdir(self) -> Iterator["Location"]:
        if self.is_local:
            return map(Location.parse, self.path.iterdir())
        return (place for place, _ in self._list())

    def glob(self, pattern: str) -> list["Location"]:
        """Return what is in this folder by a pattern of names, sorted."""
        return sorted(place for place in self.iterdir() if fnmatch.fnmatchcase(place.name, pattern))

    def files(self) -> list[tuple["Location", int, int]]:
        """Return all files below, with their sizes and times of change."""
        if not self.is_local:
            listed = self._list(recursive=True)
            return [(place, info.size, info.mtime_ns or 0) for place, info in listed if info.is_file]
        found = [(Location.parse(path), path.stat()) for path in sorted(self.path.rglob("*")) if path.is_file()]
        return [(place, status.st_size, status.st_mtime_ns) for place, status in found]

    def sizes(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """Return the sizes of the files in this folder by name; of these files alone, if `names` are given.

        A store is asked once for all. On disk each of the names is asked for: the others may be many.
        """
        if not self.is_local:
            found = {place.name: info.size for place, info in self._list() if info.is_file}
            return found if names is None else {name: found[name] for name in names if name in found}
        if names is None:
            with suppress(FileNotFoundError), os.scandir(self.key) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
            return {}
        found = {}
        for name in names:
            with suppress(FileNotFoundError, NotADirectoryError):
                found[name] = os.stat(os.path.join(self.key, name)).st_size
        return found

    # Bytes

    def open(self, buffer: int = BUFFER) -> BinaryIO:
        """Open a file for reading from any place in it; in a store by requests of at least `buffer` bytes."""
        if self.is_local:
            return open(self.key, "rb")
        return self.open_object().file(buffer)

    def open_object(self, seconds: float = 0.0) -> "ObjectReader":
        """Open an object. `seconds`: how long each of its requests is tried again; 0: as long as any."""
        return ObjectReader(self, seconds)

    def read_bytes(self) -> bytes:
        if self.is_local:
            return self.path.read_bytes()
        reader = self.open_object()
        return reader.read_at(reader.size, 0)

    def read_range(self, length: int, start: int) -> bytes:
        """Return so many bytes from a place on; fewer where the file ends before."""
        if not self.is_local:
            return self.open_object().read_at(length, start)
        with open(self.key, "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, start)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: Any) -> None:
        """Write an object at once, or not at all: an error between two calls would end an upload in its middle, and
        pyarrow would take that for the end of the object."""
        assert self.scheme, "files on disk are written by files.write_whole"

        def write(filesystem: "fs.FileSystem", path: str) -> None:
            with filesystem.open_output_stream(path) as file:
                file.write(content)

        self._ask(write)

    def unlink(self, *, missing_ok: bool = False) -> None:
        try:
            if self.is_local:
                os.unlink(self.key)
            else:
                self._ask(lambda filesystem, path: filesystem.delete_file(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove(self) -> None:
        """Remove a file, or a folder with all that is in it. Nothing happens where there is none."""
        if self.is_local:
            if self.is_dir() and not self.is_symlink():
                shutil.rmtree(self.key)
            else:
                self.unlink(missing_ok=True)
            return
        info = self._info()
        if info.is_file:
            self.unlink(missing_ok=True)
        elif info.type:
            with suppress(FileNotFoundError):  # an answer that got lost: the next try finds nothing
                self._ask(lambda filesystem, path: filesystem.delete_dir(path))

    def mkdir(self) -> None:
        """Make a folder and those above it. Stores have none."""
        if self.is_local:
            os.makedirs(self.key, exist_ok=True)

    # Requests to a store

    def _info(self) -> "fs.FileInfo":
        return self._ask(lambda filesystem, path: filesystem.get_file_info(path))

    def _list(self, *, recursive: bool = False) -> Iterator[tuple["Location", "fs.FileInfo"]]:
        """Yield what is in this folder, by name; nothing where nothing is. A request for a thousand names."""
        from pyarrow.fs import FileSelector

        def list_names(filesystem: "fs.FileSystem", path: str) -> "list[tuple[str, fs.FileInfo]]":
            found = filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))
            start = len(path.rstrip("/")) + 1
            return sorted((info.path.rstrip("/")[start:], info) for info in found if len(info.path) > start)

        for name, info in self._ask(list_names):  # an object may be called "..", or "a?endpoint_override=x"
            yield replace(self, key=f"{self.key}/{name}" if self.key else name), info

    def _ask(self, ask: Callable[["fs.FileSystem", str], Result], seconds: float = 0.0) -> Result:
        """Return the answer of the store. Each try asks for the client: a fork in between has none of its threads."""

        def ask_once() -> Result:
            filesystem, root = connect(self.scheme, self.authority, self.query, os.getpid())
            return ask(filesystem, f"{root}/{self.key}" if self.key else root)

        try:
            return retry(ask_once, str(self), seconds)
        except FileNotFoundError:
            if self.has_bucket:
                raise
        raise NoBucket(errno.ENOENT, self.no_bucket, str(self))

    @property
    def has_bucket(self) -> bool:
        """Whether the bucket exists, or the store does not say."""
        return self.scheme not in _BUCKETS or _has_bucket(self.scheme, self.authority, self.query, os.getpid())

    @property
    def no_bucket(self) -> str:
        """The message where it has none."""
        return f"there is no bucket {self.authority.rpartition('@')[2]!r}; correct its name, or create it"


class ObjectReader:
    """An object that is open for reading, in any thread: its size and version are known, and requests are ranges."""

    def __init__(self, place: Location, seconds: float = 0.0) -> None:
        self.place, self._seconds, self._head = place, seconds, b""
        self._file = place._ask(lambda filesystem, path: filesystem.open_input_file(path), seconds)
        self.size: int = self._file.size()

    @cached_property
    def version(self) -> str:
        """Changes with the content: the store's tag of it, or when it was written."""
        about = self._file.metadata() or {}
        tag = about.get("ETag") or about.get("Last-Modified") or b""
        return tag.decode("ascii", "replace").strip('"').replace(" ", "_")

    @property
    def num_ahead(self) -> int:
        return len(self._head)

    def read_ahead(self, length: int) -> None:
        """Read the first bytes now."""
        self._head = self.read_at(min(length, self.size), 0)

    def read_at(self, length: int, start: int) -> bytes:
        """Return so many bytes from a place on; fewer where the object ends before."""
        length = max(0, min(length, self.size - start))
        if start + length <= len(self._head):
            return self._head[start : start + length]
        if not length:
            return b""

        def read_range() -> bytes:
            try:
                found: bytes = self._file.read_at(length, start)
            except OSError:
                self.place.stat()  # pyarrow cannot distinguish a 404 from a 503 in a short answer; this can
                raise
            if len(found) != length:
                raise OSError(f"{len(found)} of {length} bytes came")
            return found

        return retry(read_range, str(self.place), self._seconds)

    def file(self, buffer: int = BUFFER) -> io.BufferedReader:
        """Return a file that is read by requests of at least `buffer` bytes."""
        return io.BufferedReader(ObjectFile(self), min(buffer, max(self.size, 1)))


class ObjectFile(io.RawIOBase):
    """An object as Python's own files have it."""

    def __init__(self, reader: ObjectReader) -> None:
        self.reader, self._at = reader, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.reader.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self.reader.read_at(len(buffer), self._at)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


@lru_cache(maxsize=64)  # thousands of rows may name media of a bucket that does not exist
def _has_bucket(scheme: str, authority: str, query: str, process: int) -> bool:
    filesystem, path = connect(scheme, authority, query, process)
    try:
        return bool(filesystem.get_file_info(path).type)  # NotFound is 0
    except OSError:  # who may read objects need not be allowed to ask for their bucket
        return True


def _parse_uri(uri: str) -> Location:
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
    return Location(scheme, authority, unquote_key(key.strip("/")), query)
