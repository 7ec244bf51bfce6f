"""Media of object stores, read before they are asked for, by threads: decoding waits for no request."""

import os
import re
from collections import OrderedDict, deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from neatpack.storage.location import AT_ONCE, Location, ObjectReader
from neatpack.storage.uris import is_stored

from ..records import MediaRef
from .store_failures import store_failures

HEADER = 64 << 10  # bytes that are read ahead where only a header is wanted; most have it there
WHOLE = 8 << 20  # a medium of at most so many bytes is read ahead whole; of a larger one, only what is asked for
COMING = 2 * AT_ONCE  # media that are under way, or wait to be used
KEPT_BYTES, KEPT = 64 << 20, 256  # of media that were used, and may be asked for again: first its stamp, then its size


_LONGEST_KEY = 1024  # bytes; stores answer longer names, and some with control characters, as if they had failed
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class _Wanted(NamedTuple):
    uri: str
    offset: int = 0
    length: int = -1  # -1: to its end


class _Held(NamedTuple):
    opened: ObjectReader
    content: bytes  # of a medium that is a part of an object


class Ahead:
    """A task tells what comes, in that order."""

    def __init__(self) -> None:
        self._process = 0
        self._reset()

    def _reset(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._objects: OrderedDict[str, ObjectReader] = OrderedDict()  # those that media are parts of
        self._next: deque[tuple[_Wanted, bool]] = deque()
        self._coming: dict[_Wanted, Future[_Held]] = {}
        self._used: OrderedDict[_Wanted, _Held] = OrderedDict()

    def tell(self, refs: Iterable[MediaRef], *, headers: bool = False) -> None:
        """What is asked for next. `headers`: only the first bytes of pictures and videos are wanted."""
        if self._process != os.getpid():  # threads do not survive a fork
            self._process = os.getpid()
            self._reset()
        for ref in refs:
            for path in ref.frames or (ref.path,):
                if is_stored(path) and ref.held is None and ref.length <= WHOLE:
                    wanted = _Wanted(path, ref.offset, ref.length) if ref.length >= 0 else _Wanted(path)
                    self._next.append((wanted, headers and ref.kind != "audio"))
        self._fill()

    def opened(self, uri: str) -> ObjectReader:
        return self._got(_Wanted(uri)).opened

    def content(self, uri: str, offset: int, length: int) -> tuple[int, bytes]:
        """How large an object is, and `length` bytes of it."""
        held = self._got(_Wanted(uri, offset, length))
        return held.opened.size, held.content

    def forget(self) -> None:
        """What the next task reads may be newer."""
        for read in self._coming.values():
            read.cancel()
        self._next.clear()
        self._coming.clear()
        self._used.clear()
        self._objects.clear()

    def _fill(self) -> None:
        while self._next and len(self._coming) < COMING:
            wanted, headers = self._next.popleft()
            if wanted not in self._coming and wanted not in self._used:
                self._pool = self._pool or ThreadPoolExecutor(AT_ONCE)
                self._coming[wanted] = self._pool.submit(self._read, wanted, headers)

    def _got(self, wanted: _Wanted) -> _Held:
        if self._process != os.getpid():
            self.tell([])
        if wanted not in self._used:
            coming = self._coming.pop(wanted, None)
            try:
                self._used[wanted] = coming.result() if coming else self._read(wanted, wanted.length < 0)
            finally:
                self._fill()
        self._used.move_to_end(wanted)
        while len(self._used) > KEPT or (len(self._used) > 1 and self._num_bytes() > KEPT_BYTES):
            self._used.popitem(last=False)
        return self._used[wanted]

    def _num_bytes(self) -> int:
        return sum(held.opened.num_ahead + len(held.content) for held in self._used.values())

    def _read(self, wanted: _Wanted, headers: bool) -> _Held:
        if wanted.length >= 0:
            opened = self._objects.get(wanted.uri) or self._objects.setdefault(wanted.uri, _opened(wanted.uri))
            return _Held(opened, opened.read_at(wanted.length, wanted.offset))
        opened = _opened(wanted.uri)
        if headers or opened.size <= WHOLE:
            opened.read_ahead(HEADER if headers else opened.size)
        return _Held(opened, b"")


def _opened(uri: str) -> ObjectReader:
    found = Location.parse(uri)
    assert not found.is_local, "a path is opened elsewhere"
    if len(found.key.encode()) > _LONGEST_KEY or _CONTROL.search(found.key):
        raise ValueError("no store has an object of such a name")
    opened = found.open_object(store_failures.patience(found))
    store_failures.note_answer(found)
    return opened


ahead = Ahead()  # of this process
