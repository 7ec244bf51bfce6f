"""URIs as text: what schemes there are, and how a URI is shown. Nothing here opens anything."""

import re

STORES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")  # schemes that pyarrow knows
HTTP = ("http", "https")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters at least: C:/ is a drive

_NO_STORE = (*HTTP, "file", "data")
_HTTP = re.compile(r"https?://", re.IGNORECASE)


def is_stored(path: str) -> bool:
    """Whether it is an object of a store, or could be one: what it is called by begins with a scheme."""
    scheme = SCHEME.match(path) if "://" in path else None  # that is asked of every path, and few have one
    return scheme is not None and scheme[1].lower() not in _NO_STORE


def is_http(path: str) -> bool:
    return "://" in path and _HTTP.match(path) is not None


def is_uri(path: str) -> bool:
    return is_stored(path) or is_http(path)


def without_secrets(text: str) -> str:
    """URIs in a text without user, password and query, which may hold keys; logs and ledgers are read by others.

    "s3://me:key@bucket/a.png?region=x: no such object" -> "s3://bucket/a.png: no such object"
    """
    text = re.sub(r"(\w+://)[^/\s]*@", r"\1", text)
    return re.sub(r"(\w+://[^?'\"]*)\?[^\s'\"]*?(?=['\"]|[:;,.)]*(?:\s|$))", r"\1", text)
