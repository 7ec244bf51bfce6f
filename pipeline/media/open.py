"""The bytes of a medium as a file, or as an FFmpeg container; what cannot be opened is a MediaError."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import av

from ..records import MediaError, MediaRef
from .inline import bytes_in_line
from .parquet import cell_bytes, cell_of, is_cell
from .remote import fetched, is_http, is_stored, stored_bytes


def open_media(ref: MediaRef) -> BinaryIO:
    """The bytes of a medium as a file."""
    if isinstance(ref.held, bytes):
        return io.BytesIO(ref.held)
    if is_cell(ref.inside):
        return io.BytesIO(_in_cell(ref))
    if is_stored(ref.path):
        return io.BytesIO(stored_bytes(ref.path, ref.offset, ref.length))
    path = fetched(ref.path) if is_http(ref.path) else ref.path
    try:
        file = open(path, "rb")  # noqa: SIM115 (the caller closes it)
        if not ref.offset and ref.length < 0:
            return file
        with file:
            size = os.fstat(file.fileno()).st_size
            end = ref.offset + ref.length if ref.length >= 0 else size
            if max(ref.offset, end) > size:
                raise MediaError("bad_media", f"{ref.path}: has {size} bytes, and not {ref.offset} to {end}")
            file.seek(ref.offset)
            content = file.read(end - ref.offset)
        return io.BytesIO(_inside(content, ref) if ref.inside else content)
    except OSError as error:
        raise MediaError("missing_media", f"{ref.path}: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have, with a zero byte in it
        raise MediaError("missing_media", f"{ref.path!r}: {error}") from None


def _inside(line: bytes, ref: MediaRef) -> bytes:
    try:
        return bytes_in_line(line, ref.inside)
    except ValueError as error:
        raise MediaError("bad_media", f"{ref.path}: {error}; has it changed since it was measured?") from None


def _in_cell(ref: MediaRef) -> bytes:
    try:
        return cell_bytes(ref.path, cell_of(ref.inside))
    except OSError as error:
        raise MediaError("missing_media", f"{ref.path}: {error.strerror or error}") from None
    except ValueError as error:
        raise MediaError("bad_media", f"{ref.path}: {error}; has it changed since it was measured?") from None


@contextmanager
def open_container(ref: MediaRef) -> Iterator[Any]:
    """A video or sound as PyAV's container; what FFmpeg says against it inside the `with` is a MediaError."""
    with open_media(ref) as file:
        try:
            # Some files have metadata that is not UTF-8, which must not cost the medium.
            with av.open(file, "r", metadata_errors="ignore") as container:
                yield container
        except (av.FFmpegError, UnicodeDecodeError) as error:
            raise ffmpeg_error(ref, error) from None


def ffmpeg_error(ref: MediaRef, error: Exception) -> MediaError:
    """FFmpeg's message without the name of the file object that PyAV adds, which holds an address."""
    words = (getattr(error, "strerror", None) or str(error)).split(":")[0]
    return MediaError("bad_media", f"{ref.path}: {type(error).__name__}: {words}")
