"""A path or URI as a row names it -> the file or object that it is, if the row may name that.

Rows come from strangers. A row may name media inside of the bounds of its data set: `media_dir`, or else the folders of
the meta JSON and of the data files, and `media_prefixes`. Nothing else is opened, looked for or asked for.
"""

import os
import stat
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from neatpack.storage.location import Location
from neatpack.storage.uris import SCHEME, STORES, is_http, is_stored, is_uri, redact_uri

from ..media.remote import located
from ..records import Skip

_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # bytes, in Linux
_LONGEST_URI = 8192  # characters; more than any server takes, signatures in the query included
_SHOWN = 100  # characters of a path in a message
_ALLOW = "Allow its folder with media_prefixes in the meta JSON or --media-prefix"


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaFolders:
    """Where media may be: paths and URIs."""

    search: tuple[str, ...] = ("",)  # where relative paths may start, in this order; each is allowed to those
    # Media lie in one of these folders or are one of these files, symbolic links followed; None: they may lie anywhere,
    # for a program names them.
    bounds: tuple[str, ...] | None = None


ANYWHERE = MediaFolders()


def resolve_path(text: str, folders: MediaFolders) -> str | Skip:
    """Return the path or URI of a medium."""
    if text.startswith("file:/") and not text.startswith("file://"):
        text = f"file://{text[len('file:') :]}"  # as Java and Spark write it
    scheme = SCHEME.match(text[:_LONGEST_URI]) if "://" in text else None
    if scheme is not None and len(text) > _LONGEST_URI:
        return Skip(
            reason="bad_row",
            detail=f"a URI of {len(text)} characters (at most {_LONGEST_URI})",
            fields={"got": len(text), "most": _LONGEST_URI},
        )
    if scheme is not None and scheme[1].lower() != "file":
        return text if is_http(text) else _object(text, scheme[1], folders)
    if len(text) > _LONGEST_NAME and (
        len(text) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in text.split("/"))
    ):
        return Skip(
            reason="missing_media",
            detail=f"a text of {len(text)} characters that is too long for a path and not base64 of a known kind",
        )
    if scheme is None:
        return _whole(text, text, folders) if text.startswith("/") else _relative(text, folders)
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = None
    if parts is None or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        return Skip(
            reason="bad_row",
            detail=f"{_shown(text)} is on another machine; expected file:///…",
            fields={"medium": _shown(text)},
        )
    try:  # not of parts.path: a ? or # is part of a name here
        return _whole(unquote_to_bytes(text[text.index("/", len("file://")) :]).decode(), text, folders)
    except UnicodeDecodeError:
        return Skip(
            reason="bad_row", detail=f"{_shown(text)} is not UTF-8 once decoded", fields={"medium": _shown(text)}
        )


def is_inside(path: str, bounds: tuple[str, ...], also: tuple[str, ...] = ()) -> bool:
    """Whether a path leads into one of these folders, or is one of these files, symbolic links followed.

    Nothing is asked of the disk about a path that lies, as it is written, neither in `bounds` nor in `also`.
    """
    places = _local(bounds)
    plain = os.path.abspath(path) if path[:1] != "/" or "/." in path or "//" in path else path
    if plain in places.itself:
        return True
    if not places.has(plain) and not (also and _local(also).has(plain)):
        return False
    if "\0" in path:  # a name that no file can have: opening it says so
        return True
    folder, name = os.path.split(path)
    if name in (".", "..", ""):
        return places.has(os.path.realpath(path))
    # Only in a folder that is inside the name itself is looked at.
    return places.has(_real_folder(folder)) and (not os.path.islink(path) or places.has(os.path.realpath(path)))


def _whole(path: str, named: str, folders: MediaFolders) -> str | Skip:
    if folders.bounds is None or is_inside(path, folders.bounds, folders.search):
        return path
    return _outside(named)


def _relative(path: str, folders: MediaFolders) -> str | Skip:
    """The file of that name in the first folder that has it; where none does, in the first: there it is missing.

    Two files of that name are one too many: which of them is meant, only the user knows.
    """
    first = located(path, folders.search[0])
    if is_uri(first):
        leads_out = is_stored(first) and not Location.parse(first).is_under(Location.parse(folders.search[0]))
        return _outside(path) if leads_out and folders.bounds is not None else first
    found = _candidates(path, folders)
    if "\\" in path and not any(each.exists for each in found):
        others = _candidates(path.replace("\\", "/"), folders)  # written in Windows
        if any(each.exists or each.is_outside for each in others):
            found = others
    hits = [each.path for each in found if each.exists]
    for other in hits[1:]:
        if not os.path.samefile(hits[0], other):
            return Skip(
                reason="bad_row",
                detail=f"{_shown(path)} is both {hits[0]} and {other}; give media_dir, or whole paths",
                fields={"medium": _shown(path), "found": [hits[0], other]},
            )
    if hits:
        return hits[0]
    return _outside(path) if found[0].is_outside else found[0].path


class _Candidate(NamedTuple):
    path: str
    exists: bool = False
    is_outside: bool = False


def _candidates(path: str, folders: MediaFolders) -> list[_Candidate]:
    """A relative path in each of the folders where it may start."""
    found: list[_Candidate] = []
    for folder in folders.search:
        candidate = located(path, folder)
        if folders.bounds is not None and not is_inside(candidate, (folder, *folders.bounds)):
            found.append(_Candidate(candidate, is_outside=True))
        elif len(folders.search) == 1:
            found.append(_Candidate(candidate))  # wherever it is: whoever opens it says what is missing
        else:
            found.append(_Candidate(candidate, exists=_is_file(candidate)))
    return found


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # ValueError: a name that no file can have, with a zero byte in it
        return False


def _object(uri: str, named: str, folders: MediaFolders) -> str | Skip:
    """An object of a store. Its client is that of the bound that it is below: a row brings no option of its own."""
    scheme = named.lower()
    if folders.bounds is None:
        return uri if scheme in STORES else _unknown(named)
    if uri in folders.bounds:  # our own import names it
        return uri
    stores = _remote(folders.bounds)
    authority, _, key = uri[len(scheme) + len("://") :].partition("/")
    for store in stores:
        if (scheme, authority) == (store.scheme, store.authority.rpartition("@")[2]) and "?" not in key:
            found = replace(store, key="") / key
            if found.is_under(store):
                return found.uri
    is_known = scheme in STORES or scheme in {store.scheme for store in stores}
    return _outside(uri) if is_known else _unknown(named)


def _unknown(scheme: str) -> Skip:
    known = ", ".join(("file", *STORES, "http", "https", "data"))
    return Skip(
        reason="bad_row",
        detail=f"unknown scheme {scheme[:20]}://; known: {known}, or a path",
        fields={"scheme": scheme[:20]},
    )


def _outside(named: str) -> Skip:
    return Skip(
        reason="missing_media",
        detail=f"{_shown(named)} is outside of media_dir. {_ALLOW}",
        fields={"medium": _shown(named)},
    )


def _shown(path: str) -> str:
    shown = redact_uri(path)
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…")


class _Local(NamedTuple):
    """Folders and files, as they are written and with their symbolic links followed."""

    itself: frozenset[str]
    below: tuple[str, ...]  # with a slash at the end

    def has(self, path: str) -> bool:
        return path.startswith(self.below) or path in self.itself


@lru_cache(maxsize=256)
def _local(bounds: tuple[str, ...]) -> _Local:
    paths = [os.path.abspath(bound) for bound in bounds if not is_uri(bound)]
    itself = frozenset([*paths, *map(os.path.realpath, paths)])
    return _Local(itself, tuple(f"{path.rstrip('/')}/" for path in itself))


@lru_cache(maxsize=256)
def _remote(bounds: tuple[str, ...]) -> tuple[Location, ...]:
    return tuple(Location.parse(bound) for bound in bounds if is_stored(bound))


@lru_cache(maxsize=4096)
def _real_folder(path: str) -> str:
    """Folders are asked for once: many files lie in one."""
    return os.path.realpath(path)
