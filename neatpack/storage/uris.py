"""URIs as text: schemes, object names inside of them, and redaction. Nothing here opens anything."""

import re

STORES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")  # schemes that pyarrow knows
HTTP = ("http", "https")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters at least: C:/ is a drive
MAX_SHOWN = 200  # characters of a URI in a message, which says more than the URI

_NO_STORE = (*HTTP, "file", "data")
_HTTP = re.compile(r"https?://", re.IGNORECASE)
# Characters of an object name that mean something in a URI, or that no line of text should have.
_SPECIAL = re.compile(r"[%?#\x00-\x1f\x7f]")
_ESCAPE = re.compile(r"%(25|3F|23|7F|[01][0-9A-F])", re.IGNORECASE)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]*\]|[^\s:@\[\]'\"]*)(?::[0-9]*)?")
_BEFORE_AUTHORITY = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/{2,}")
_AFTER_AUTHORITY = re.compile(r"[/?#;]")
_QUERY = re.compile(r"[?#;]")
_NAMES = "|".join((*HTTP, *STORES))
_BARE_SCHEME = re.compile(rf"(?:{_NAMES}):", re.IGNORECASE)  # where no // follows
_MAY_HIDE = re.compile(r"[@?#;:]")
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")
# Where a URI of a text may begin, or be a few characters later.
_BEGIN = re.compile(rf"://|(?<![\w:/.+-])//|(?<![A-Za-z0-9+.-])(?:{_NAMES}):(?!//)", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s")
_LONGEST_SCHEME = 20  # characters that are looked at before a ://
_HIDDEN = "…"


def is_stored(path: str) -> bool:
    """Whether it is an object of a store, or could be one: what it is called by begins with a scheme."""
    scheme = SCHEME.match(path) if "://" in path else None  # that is asked of every path, and few have one
    return scheme is not None and scheme[1].lower() not in _NO_STORE


def is_http(path: str) -> bool:
    return "://" in path and _HTTP.match(path) is not None


def is_uri(path: str) -> bool:
    return is_stored(path) or is_http(path)


def quote_key(key: str) -> str:
    """Return an object name as it stands in a URI: "a?b 100%" -> "a%3Fb 100%25". `unquote_key` is the inverse."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", key)


def unquote_key(text: str) -> str:
    """Undo `quote_key`. Other escapes stay as they are written: "my%20file" is the name "my%20file"."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def is_host(text: str) -> bool:
    """Whether the text between :// and the next slash, user and password removed, is a host or bucket, and a port."""
    return _HOST.fullmatch(text) is not None


def redact_uri(uri: str) -> str:
    """Return one URI without user, password, parameters, query and fragment; a path as it is.

    "https://me:key@host/a.png?token=x" -> "https://host/a.png". A URI whose authority is ambiguous is hidden:
    the password of "s3://user:pa/ss@bucket" has a slash, so all that follows the scheme may belong to it.
    """
    found = _BEFORE_AUTHORITY.match(uri)
    if found is None:
        return _redact_path(uri)
    rest = uri[found.end() :]
    end = _AFTER_AUTHORITY.search(rest)
    authority, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    host = authority.rpartition("@")[2]
    query = _QUERY.search(tail)
    path = tail[: query.start()] if query else tail
    may_go_on = ":" in authority + path or tail[:1] != "/" or (not authority and is_http(uri))
    if ("@" in tail and may_go_on) or not is_host(host):
        return f"{found[0]}{_HIDDEN}"
    return f"{found[0]}{host}{path}"


def _redact_path(path: str) -> str:
    """Hide what has no :// or // in front, and still may have a password: "https:me:key@host", "me:key@host"."""
    scheme = _BARE_SCHEME.match(path)
    if scheme is not None:
        return f"{scheme[0]}{_HIDDEN}" if _MAY_HIDE.search(path, scheme.end()) else path
    colon, at = path.find(":"), path.rfind("@")
    if path.startswith("/"):  # a relative path may have been one, in a folder
        return f"{path[: path.rfind('/', 0, colon) + 1]}{_HIDDEN}" if 0 <= colon < at else path
    if "://" in path:
        return _HIDDEN if _QUERY.search(path) or at >= 0 else path
    is_on_drive = _DRIVE.match(path) and path.count(":") == 1
    return _HIDDEN if 0 <= colon < at and not is_on_drive else path


def shown_path(path: str) -> str:
    """Return a path or URI for messages: redacted, and a URI cut to `MAX_SHOWN` characters."""
    shown = redact_uri(path)
    return f"{shown[:MAX_SHOWN]}{_HIDDEN}" if len(shown) > MAX_SHOWN and SCHEME.match(path) else shown


def without_secrets(text: str) -> str:
    """Redact the URIs in a text that others wrote, such as an error of a library; in linear time.

    "s3://me:key@bucket/a.png?region=x: no such object" -> "s3://bucket/a.png: no such object". A URI ends at the next
    space, or, where a quotation mark precedes it, at the last such mark. Where the URI itself is known, use
    `redact_uri`, which need not guess where it ends.
    """
    last_at = text.rfind("@")
    pieces: list[str] = []
    done = 0
    mark = _BEGIN.search(text)
    while mark is not None:
        start = mark.start()
        if mark[0] == "://":
            first = max(done, start - _LONGEST_SCHEME)
            while start > first and (text[start - 1].isalnum() or text[start - 1] in "+.-"):
                start -= 1
        quote = text[start - 1] if start > done and text[start - 1] in "'\"" else ""
        end = text.rfind(quote, mark.end()) if quote else -1
        if end < 0:
            space = _SPACE.search(text, mark.end())
            end = space.start() if space else len(text)
        while end > mark.end() and text[end - 1] in ":;,.)'\"":
            end -= 1
        shown = redact_uri(text[start:end])
        if shown.endswith(_HIDDEN) and last_at >= end:  # a password with spaces in it
            space = _SPACE.search(text, last_at)
            end = space.start() if space else len(text)
        pieces += [_redact_words(text[done:start]), shown]
        done = end
        mark = _BEGIN.search(text, done)
    return "".join([*pieces, _redact_words(text[done:])])


def _redact_words(text: str) -> str:
    """Redact what is no URI as it is written: "user:key@host" among other words, or 'user:my key@host' in quotes."""
    if "@" not in text or ":" not in text:
        return text
    return _WORD.sub(_redact_word, _QUOTED.sub(_redact_word, text))


def _redact_word(found: re.Match[str]) -> str:
    word = found[0].lstrip("'\"({[").rstrip("'\")}],.;:")
    return found[0].replace(word, _redact_path(word), 1) if "@" in word else found[0]


def cut_text(text: str, most: int) -> str:
    """Cut a text before its secrets are looked for. The rest of a URI that is cut is no URI any more, and left out."""
    if len(text) <= most:
        return text
    text = text[:most]
    last = text.rfind("://")
    text = text if last < 0 else text[: last + len("://")]
    *_, word = _SPACE.split(text)
    return text[: len(text) - len(word)] if ":" in word.removesuffix("://") or word.startswith("//") else text
