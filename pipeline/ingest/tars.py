"""Webdataset tars as rows: samples by key, media by their place in the tar, which is not unpacked.

Of the members 7.json, 7.0.jpg and 7.1.jpg comes the row that 7.json has, and {"images": [place, place]} with it.
"""

import json
import logging
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Self

from neatpack.format.layout import MediaKind
from neatpack.storage.location import Location, PathLike
from neatpack.storage.uris import redact_uri

from ..config import UserError
from ..media.limits import limits
from .lines import PROBLEM
from .twice import KeyTwiceError, once

# Under which column of a row media go, if its JSON does not say where.
COLUMNS: dict[MediaKind, str] = {"image": "images", "video": "videos", "audio": "audios"}
# Also those that few decoders read, or none: a picture that cannot be decoded is in the ledger, and one that is not
# looked at leaves its caption behind, to be trained on alone.
KINDS: dict[MediaKind, tuple[str, ...]] = {
    "image": ("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif",
              "jp2", "svg"),
    "video": ("mp4", "m4v", "webm", "mkv", "avi", "mov", "mpg", "mpeg", "wmv", "flv", "3gp"),
    "audio": ("wav", "mp3", "flac", "ogg", "oga", "m4a", "opus", "aac", "wma", "aiff", "aif"),
}  # fmt: skip
KIND_OF = {extension: kind for kind, extensions in KINDS.items() for extension in extensions}
_BLOCK = 512
# Headers that tell something about the next one.
_ABOUT_NEXT = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE
)  # fmt: skip
_MOST_HEADERS = 16  # before a member: a long name, a long link, attributes. tarfile calls itself for each
_LARGEST = 1 << 60  # bytes of a tar
_LONGEST_HEADER = 1 << 20  # bytes of one of these

logger = logging.getLogger(__name__)


class _Tar(tarfile.TarFile):
    depth = 0  # headers of the member that is read


class _Header(tarfile.TarInfo):
    """A header whose numbers are checked before tarfile acts on them.

    At a negative size, Python before 3.13.6 reads the same headers for ever (CVE-2025-8194).
    """

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or (found.type in _ABOUT_NEXT and found.size > _LONGEST_HEADER):
            raise tarfile.ReadError(f"a header with a size of {found.size}")
        return found

    @classmethod
    def fromtarfile(cls, tar: Any) -> Self:
        tar.depth += 1
        try:
            if tar.depth > _MOST_HEADERS:
                raise tarfile.ReadError(f"more than {_MOST_HEADERS} headers of one member")
            return super().fromtarfile(tar)
        finally:
            tar.depth -= 1


Sample = dict[str, tarfile.TarInfo]  # by extension: what follows the first dot of the name ("0.jpg")


def tar_rows(file: PathLike, columns: Mapping[MediaKind, str] = COLUMNS, name: str = "") -> Iterator[dict[str, Any]]:
    """One row per sample, in the order of the tar; `columns` names those of the media. `name`: of the tar, where `file`
    is a copy of it."""
    file = Location.parse(file)
    name = name or file.uri
    shown = redact_uri(name)
    idle: Counter[str] = Counter()
    with file.open() as content:
        for key, sample in _samples(shown, content):
            idle.update(extension for extension in sample if not _means_something(extension))
            try:
                yield {**_row(sample, content, name, columns), "__key__": key}
            except (ValueError, RecursionError) as error:
                yield {PROBLEM: f"sample {key!r} of {file.name}: {error}"}
    if idle:
        told = ", ".join(f"{extension} ({count})" for extension, count in idle.most_common(10))
        logger.info("%s: members of these kinds are not looked at: %s", shown, told)


def _samples(file: str, content: BinaryIO) -> Iterator[tuple[str, Sample]]:
    """Neighbours of one key. A key that comes again later is another sample, and so is one that has a name twice."""
    current, sample = "", Sample()
    for member in _members(file, content):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, extension = base.partition(".")
        if not stem or not dot:  # as webdataset: hidden files, and files without an extension, are no samples
            continue
        key, extension = folder + slash + stem, extension.lower()
        if sample and (key != current or extension in sample):
            yield current, sample
            sample = {}
        current, sample[extension] = key, member
    if sample:
        yield current, sample


def _members(file: str, content: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """All members but folders; the tar must be whole."""

    def broken(what: str) -> UserError:
        return UserError(f"{file}: {what}; write or download it again", code="data-unreadable", file=str(file))

    try:
        with _Tar(fileobj=content, tarinfo=_Header) as tar:
            position = 0
            while (member := tar.next()) is not None:
                # Attributes (pax) may give a size, too.
                if member.size < 0 or not position < tar.offset < _LARGEST:
                    raise tarfile.ReadError(f"a member with a size of {member.size} at byte {position}")
                position = tar.offset
                tar.members.clear()  # type: ignore[attr-defined]  # or it keeps them all
                if not member.isdir():
                    yield member
            position = tar.offset
    except (tarfile.TarError, ValueError, OverflowError) as error:  # ValueError: numbers that are none
        raise broken(f"not a readable tar: {error}") from None
    # tarfile takes a header that it cannot read for the end, and looks no further than the first end.
    content.seek(position)
    if len(end := content.read(_BLOCK)) < _BLOCK:
        raise broken(f"a tar without its end; it was cut off at byte {position}")
    while end:
        if end.strip(b"\0"):
            raise broken(
                f"a tar with something else than a member at byte {position}; is it broken, or two tars in one?"
            )
        end = content.read(1 << 20)


def _means_something(extension: str) -> bool:
    last = extension.rpartition(".")[2]
    return last in KIND_OF or last in ("json", "txt", "cls")


def _row(sample: Sample, content: BinaryIO, path: str, columns: Mapping[MediaKind, str]) -> dict[str, Any]:
    """What the sample says; ValueError: it cannot be read."""
    for member in sample.values():
        if not member.isreg() or member.issparse():
            raise ValueError(f"{member.name} is a link or a sparse file, which cannot be read in place")
    row = _said(sample, content)
    places = {
        extension: {"path": path, "offset": member.offset_data, "length": member.size}
        for extension, member in sample.items()
        if extension.rpartition(".")[2] in KIND_OF
    }
    names = {sample[extension].name.rpartition("/")[2]: extension for extension in places}
    named: set[str] = set()  # extensions of media that the JSON names
    media_columns = {*COLUMNS, *COLUMNS.values(), *columns.values()}

    def placed(value: Any, is_medium: bool) -> Any:
        """The JSON with places for the names of members, in columns of media."""
        if isinstance(value, list):
            return [placed(item, is_medium) for item in value]
        if isinstance(value, dict):
            changed = {
                key: placed(item, key in media_columns or (is_medium and key == "path")) for key, item in value.items()
            }
            inner = changed.get("path")
            return {**changed, **inner} if is_medium and isinstance(inner, dict) else changed
        if not is_medium or not isinstance(value, str):
            return value
        extension = value.lower() if value.lower() in places else names.get(value.rpartition("/")[2], "")
        if extension:
            named.add(extension)
        return places.get(extension, value)

    row = {key: placed(value, key in media_columns) for key, value in row.items()}
    for kind, column in columns.items():
        others = [
            place
            for extension, place in places.items()
            if extension not in named and KIND_OF[extension.rpartition(".")[2]] == kind
        ]
        if others and not row.get(column):  # an empty list names nothing
            row[column] = others
    return row


def _said(sample: Sample, content: BinaryIO) -> dict[str, Any]:
    """The JSON of a sample; without one, its text and class."""

    def read(member: tarfile.TarInfo) -> bytes:
        if member.size > limits().max_row_bytes:
            raise ValueError(f"{member.name} has more bytes than --max-row-bytes {limits().max_row_bytes} allows")
        content.seek(member.offset_data)
        return content.read(member.size)

    found = [extension for extension in sample if extension.rpartition(".")[2] == "json"]
    if len(found) > 1 and "json" not in found:
        raise ValueError(
            f"{len(found)} JSON members: {', '.join(found)}; expected one, or one that is called .json alone"
        )
    if found:
        try:
            row = json.loads(read(sample["json" if "json" in found else found[0]]), object_pairs_hook=once)
        except KeyTwiceError:
            raise
        except (ValueError, RecursionError) as error:  # ValueError: not JSON, not UTF-8, thousands of digits
            raise ValueError(f"broken JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"its JSON is a {type(row).__name__}; expected an object")
    else:
        row = {"caption": read(sample["txt"]).decode("utf-8")} if "txt" in sample else {}
    if "cls" in sample:
        row.setdefault("cls", read(sample["cls"]).decode("utf-8").strip())
    return row
