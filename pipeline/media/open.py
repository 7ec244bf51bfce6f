"""The bytes of a medium as a file, or as an FFmpeg container. What cannot be read is a MediaError: see `blamed`.

Nothing but the bytes of the medium itself is read, whatever they say: media come from strangers.
"""

import errno
import io
import re
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, BinaryIO

from PIL import UnidentifiedImageError

from neatpack.storage.clients import Unreachable
from neatpack.storage.files import NotPlain, open_regular
from neatpack.storage.uris import is_http, is_stored

from ..records import MediaError, MediaRef
from .ahead import ahead
from .budget import Budget
from .inline import LastLine
from .limits import limits
from .parquet import cell_bytes, cell_of, is_cell
from .remote import fetched, missing_told

# Containers that hold what they show. FFmpeg knows others that name further files and URLs, which it opens (playlists,
# scripts, session descriptions), or that draw text as a video.
CONTAINERS = (  # by FFmpeg's first name: mov is mp4, m4a and 3gp, too; matroska webm; asf wmv and wma
    "mov,matroska,avi,flv,mpegts,mpeg,mpegvideo,m4v,h264,hevc,obu,ivf,mjpeg,asf,gif,apng,ogg,rm,mxf,dv,nut,"
    "wav,w64,aiff,au,caf,mp3,flac,aac,ac3,eac3,amr,ape,wv"
)
_BYTES_ALONE = {"format_whitelist": CONTAINERS, "protocol_whitelist": ""}
_LISTS = {  # how they begin
    "an HLS playlist": re.compile(rb"#EXTM3U"),
    "a concat script": re.compile(rb"ffconcat"),
    "an SDP file": re.compile(rb"v=0\s"),
    "a DASH manifest": re.compile(rb"(<\?xml.{0,500})?<MPD", re.DOTALL),
}
# These say that something is wrong with the machine, or its mounts: the medium may be as good as any.
TROUBLE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def trouble(ref: MediaRef, error: OSError) -> OSError:
    """What ends the run; at limits of the process the kernel's own error, for which runtime/faults.py knows help."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return error
    return Unreachable(f"{ref.shown}: cannot be read: {error.strerror}")


def open_media(ref: MediaRef) -> BinaryIO:
    """The bytes of a medium as a file."""
    if isinstance(ref.held, bytes):
        return _in_memory(ref, ref.held)
    path = fetched(ref.path).uri if is_http(ref.path) else ref.path
    if is_cell(ref.inside):
        return _in_memory(ref, _in_cell(ref, path))
    if is_stored(path):
        return _in_store(ref, path)
    try:
        opened, status = open_regular(path)
        with ExitStack() as on_error:
            file = on_error.enter_context(io.BufferedReader(opened))
            end = _end(ref, status.st_size)
            if not ref.offset and ref.length < 0:
                on_error.pop_all()
                return file
            key = path, ref.offset, end, status.st_size, getattr(status, "st_mtime_ns", 0)

            def read() -> bytes:
                file.seek(ref.offset)
                return file.read(end - ref.offset)

            content = _inside(key, read, ref) if ref.inside else read()
        return _in_memory(ref, content)
    except Unreachable:
        raise
    except NotPlain:
        raise _not_plain(ref) from None
    except OSError as error:
        if error.errno in TROUBLE:
            raise trouble(ref, error) from None
        raise MediaError("missing_media", f"{ref.shown}: {error.strerror or error}", medium=ref.shown) from None
    except ValueError as error:  # a name that no file can have, with a zero byte in it
        raise MediaError("missing_media", f"{ref.shown!r}: {error}", medium=ref.shown) from None


def _not_plain(ref: MediaRef) -> MediaError:
    return MediaError("bad_media", f"{ref.shown}: not a regular file but a pipe, device or socket", medium=ref.shown)


def _in_store(ref: MediaRef, uri: str) -> BinaryIO:
    """An object, read by ranges as they are asked for: a header is at its beginning, an index of frames at its end."""
    with missing_told(uri):
        if ref.length < 0:
            opened = ahead.opened(uri)
            end = _end(ref, opened.size)
            if not ref.offset:
                return opened.file()
            content = opened.read_at(end - ref.offset, ref.offset)
        else:
            _check_size(ref, ref.length)
            size, content = ahead.content(uri, ref.offset, ref.length)
            _end(ref, size)
    return _in_memory(ref, _inside(content, lambda: content, ref) if ref.inside else content)


def _end(ref: MediaRef, size: int) -> int:
    """Where in a file of this size the bytes of a medium end."""
    end = ref.offset + ref.length if ref.length >= 0 else size
    if max(ref.offset, end) > size:
        raise MediaError("bad_media", f"{ref.shown}: has {size} bytes, and not {ref.offset} to {end}", medium=ref.shown)
    _check_size(ref, end - ref.offset)
    return end


def _in_memory(ref: MediaRef, content: bytes) -> BinaryIO:
    _check_size(ref, len(content))
    return io.BytesIO(content)


def _check_size(ref: MediaRef, size: int) -> None:
    if not size:
        raise MediaError("bad_media", f"{ref.shown}: is empty", medium=ref.shown)
    limits().check("max_media_bytes", size, ref, "bytes")


_last_line = LastLine()


def _inside(key: Hashable, read: Callable[[], bytes], ref: MediaRef) -> bytes:
    try:
        return _last_line.bytes_at(key, read, ref.inside)
    except ValueError as error:
        raise MediaError(
            "bad_media", f"{ref.shown}: {error}; has it changed since it was measured?", medium=ref.shown
        ) from None


def _in_cell(ref: MediaRef, path: str) -> bytes:
    try:
        with Budget(ref):
            return cell_bytes(path, cell_of(ref.inside))
    except Unreachable:
        raise
    except NotPlain:
        raise _not_plain(ref) from None
    except OSError as error:
        if error.errno in TROUBLE:
            raise trouble(ref, error) from None
        raise MediaError("missing_media", f"{ref.shown}: {error.strerror or error}", medium=ref.shown) from None
    except ValueError as error:
        raise MediaError(
            "bad_media", f"{ref.shown}: {error}; has it changed since it was measured?", medium=ref.shown
        ) from None


@contextmanager
def blamed(ref: MediaRef) -> Iterator[None]:
    """Around all that decoders and parsers do with a medium: whatever they raise is its fault, and costs its row alone.

    Broken files make them raise anything: OSError, SyntaxError, struct.error, EOFError, AssertionError … What says
    nothing about the medium passes: a lack of memory, and a disk or mount that fails.
    """
    try:
        yield
    except (MediaError, MemoryError, Unreachable):
        raise
    except Exception as error:
        if isinstance(error, OSError) and not _is_of_ffmpeg(error) and error.errno in TROUBLE:
            raise trouble(ref, error) from None
        raise MediaError("bad_media", f"{ref.shown}: {_words(error)}", medium=ref.shown) from None


def _words(error: Exception) -> str:
    """Without what differs from run to run: addresses of file objects, which Pillow and PyAV put into messages."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if strerror := getattr(error, "strerror", None) if isinstance(error, OSError) or _is_of_ffmpeg(error) else None:
        return f"{type(error).__name__}: {strerror.split(':')[0]}"
    if _is_of_ffmpeg(error):
        return f"{type(error).__name__}: {str(error).split(':')[0]}"
    return f"{type(error).__name__}: {re.sub(r' at 0x[0-9a-fA-F]+', '', str(error))}"


def _is_of_ffmpeg(error: Exception) -> bool:
    """Without importing PyAV: a loader that decodes pictures does without."""
    av: Any = sys.modules.get("av")
    return av is not None and isinstance(error, av.FFmpegError)


@contextmanager
def guarded(ref: MediaRef) -> Iterator[None]:
    """Around a decoder of pictures: within a budget, and what is raised is blamed on the picture."""
    with Budget(ref), blamed(ref):
        yield


@contextmanager
def open_picture(ref: MediaRef) -> Iterator[BinaryIO]:
    """The bytes of a picture; what is raised inside the `with` is blamed on it."""
    with open_media(ref) as file, guarded(ref):
        yield file


@contextmanager
def open_containers(ref: MediaRef) -> Iterator[tuple[Callable[[], Any], Budget]]:
    """A video or sound as what opens PyAV's container, as often as it is called, and what all of it may take.

    What is raised inside the `with` is blamed on the medium.
    """
    with open_media(ref) as file, Budget(ref) as budget, blamed(ref):
        _refuse_lists(ref, file)
        yield partial(_container, ref, file), budget


@contextmanager
def open_container(ref: MediaRef) -> Iterator[tuple[Any, Budget]]:
    """The same, opened once."""
    with open_containers(ref) as (opened, budget), opened() as container:
        yield container, budget


def _container(ref: MediaRef, file: BinaryIO) -> Any:
    import av  # here and not above: pictures do without

    file.seek(0)
    # Without its name, by which FFmpeg might take it for something else than it is, or look for files beside it.
    nameless = SimpleNamespace(read=file.read, seek=file.seek, tell=file.tell)
    try:
        # Some files have metadata that is not UTF-8, which must not cost the medium.
        container = av.open(nameless, "r", metadata_errors="ignore", options=_BYTES_ALONE)
    except av.ArgumentError:
        told = f"not a container that is read; convert it, to mp4 or flac say ({CONTAINERS})"
        raise MediaError("bad_media", f"{ref.shown}: {told}", medium=ref.shown) from None
    for stream in container.streams:
        if stream.codec_context is not None:
            stream.codec_context.thread_count = 1  # damaged streams decode differently with several threads
    return container


def _refuse_lists(ref: MediaRef, file: BinaryIO) -> None:
    beginning = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    for what, pattern in _LISTS.items():
        if pattern.match(beginning):
            raise MediaError(
                "bad_media", f"{ref.shown}: {what}, which only names other files; give the video or sound itself"
            )
