"""A medium as a row names it -> a reference to its bytes. Shared by all formats of rows."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from neatpack.format.layout import MediaKind
from neatpack.storage.uris import cut_text, without_secrets

from ..media.inline import bytes_of_text, is_data_uri, pointer
from ..media.parquet import cell_of
from ..records import NO_WISHES, MediaRef, Sampling, Skip, Wishes
from .media_paths import ANYWHERE as ANYWHERE, MediaFolders as MediaFolders, resolve_path

Steps = tuple[str | int, ...]  # from a row to a place in it: ("images", 0)

# What may be asked of one medium: fields of Wishes.
SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width")
FRAME_COUNTS = ("nframes", "min_frames", "max_frames")
MIN_FPS = 1e-4  # of a video, as a row asks for it: one frame in three hours
WISHES: dict[MediaKind, tuple[str, ...]] = {
    "image": SIZES,
    "video": (*SIZES, "total_pixels", *FRAME_COUNTS),
    "audio": (),
}

# Keys of an object that name the medium; the bytes themselves before the place that they had once.
AS_BASE64 = ("bytes", "base64", "data")
AS_PLACE = ("path", "url", "uri")

MAX_MEDIA, MAX_FRAMES = 4096, 65536  # of a row: media, and pictures in lists that stand for videos
MAX_WISH = (1 << 31) - 1  # pixels, sides or frames that a row may ask for; a pack has no more tokens than this
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*+[=\s]*+")  # possessive: without it, spaces are tried at every split of the two
_LOOKS_ENCODED = re.compile(r"[A-Za-z0-9+/]{64}|data:", re.IGNORECASE)
_SHORTEST_BASE64 = 64  # characters; no picture is smaller, and many names of files are
_LONGEST_PATH = 4096  # bytes, in Linux
# How files of known kinds begin: JPEG, PNG, GIF, TIFF, RIFF (WebP, WAV, AVI), Matroska and WebM, MP3, Ogg, FLAC.
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*", b"RIFF", b"\x1a\x45\xdf\xa3", b"ID3",
          b"OggS", b"fLaC")  # fmt: skip
_MP3_FRAME = (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")


def media_reference(
    entry: Any,
    kind: MediaKind,
    column: str,
    folders: MediaFolders = ANYWHERE,
    at: Steps = (),
    asked: Mapping[str, Any] | None = None,
) -> MediaRef | Skip:
    """An entry is a path, a URI, base64, bytes or an object with one of them; a video may also be a list of pictures
    or have `frames`. `at` is its place in the row: what is written into the row is found again by it. `asked` is what
    is said of it elsewhere (fps …)."""

    def bad(problem: str, reason: str = "bad_row") -> Skip:
        return Skip(reason=reason, detail=f"column {column!r}: {problem}", fields={"column": column})

    asks: dict[str, Any] = {}
    where: dict[str, Any] = {}
    value, key, place, cell = entry, "", at, ""
    if asked or not isinstance(entry, str):  # else it is a name, and nothing more: nearly all are
        given: Mapping[str, Any] = {**(entry if isinstance(entry, Mapping) else {}), **(asked or {})}
        where = {key: given[key] for key in ("offset", "length") if given.get(key) is not None}
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in where.values()):
            return bad(f"offset and length must be whole numbers, got {shown(where)}")
        cell = given.get("cell") or ""
        try:
            if cell:
                cell_of(str(cell))
        except ValueError as error:
            return bad(f"cell {shown(cell)}: {error}")
        found = _asks(given, kind)
        if isinstance(found, str):
            return bad(found)
        asks = found
        frames = entry if isinstance(entry, list) else given.get("frames")
        if kind == "video" and frames is not None:
            paths = _frames(frames, folders)
            if isinstance(paths, Skip):
                return bad(paths.detail, paths.reason)
            if counts := [name for name in FRAME_COUNTS if name in given]:
                return bad(f"{counts[0]} of a list of pictures, which are all taken; list those that you want")
            return MediaRef(kind=kind, path=paths[0], frames=paths, **asks, **where)
        value, key, place = _medium(entry, kind, at)
        if isinstance(value, bytes | bytearray | memoryview):
            return MediaRef(kind=kind, path=f"({kind} in memory)", held=bytes(value), **asks)
    if not isinstance(value, str) or not value or not is_unicode(value):
        return bad(f"{shown(str(entry))} is not a path")
    if key in AS_BASE64 or is_data_uri(value) or is_base64(value):
        try:
            held = bytes_of_text(value)
        except ValueError as error:
            return bad(str(error), "bad_media")
        return MediaRef(kind=kind, path="", inside=pointer(*place), held=held, **asks)
    path = resolve_path(value, folders)
    if isinstance(path, Skip):
        return bad(path.detail, path.reason)
    return MediaRef(kind=kind, path=path, inside=str(cell), **asks, **where)


def _medium(entry: Any, kind: MediaKind, at: Steps) -> tuple[Any, str, Steps]:
    """What names the medium, under which key, and its place: of {"image_url": {"url": "a"}} the "a"."""
    names, value, key = (*AS_BASE64, *AS_PLACE, kind, f"{kind}_url"), entry, ""
    for _ in range(2):  # no deeper: nobody writes that
        if isinstance(value, Mapping):
            key = next((name for name in names if value.get(name) is not None), "")
            value, at = value.get(key), (*at, key)
    return value, key, at


def _frames(paths: Any, folders: MediaFolders) -> tuple[str, ...] | Skip:
    """The pictures of a video; or what is wrong with them."""
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) and p and is_unicode(p) for p in paths):
        return Skip(reason="bad_row", detail=f"{shown(str(paths))} is not a path")
    if len(paths) > MAX_FRAMES:
        detail = f"{len(paths)} frames (at most {MAX_FRAMES}); take fewer, or give the video"
        return Skip(reason="bad_row", detail=detail, fields={"got": len(paths), "most": MAX_FRAMES})
    if any(is_data_uri(path) or is_base64(path) for path in paths):
        return Skip(reason="bad_row", detail="frames as base64; expected paths of files")
    found: list[str] = []
    for path in paths:
        resolved = resolve_path(path, folders)
        if isinstance(resolved, Skip):
            return resolved
        found.append(resolved)
    return tuple(found)


def is_base64(text: str) -> bool:
    """Whether a text is a medium and not its name: long, of base64's alphabet, and of a file of a known kind."""
    if len(text) < _SHORTEST_BASE64:
        return False
    try:
        head = base64.b64decode("".join(text[:80].split())[:32], validate=True)
    except (binascii.Error, ValueError):
        return False
    known = (
        head.startswith(_MAGIC)
        or head[4:8] == b"ftyp"
        or (head.startswith(b"BM") and head[6:10] == bytes(4))
        # An MP3 without tags. Its two bytes are the "//s" of a path, too, but no path is so long.
        or (head.startswith(_MP3_FRAME) and len(text) > _LONGEST_PATH)
    )
    return known and _BASE64.fullmatch(text) is not None


def held_medium(value: Any, kind: MediaKind) -> Any:
    """What a program holds, as `MediaRef.held` has it; None for what is none, or is not in memory.

    A picture of Pillow's, an array or a tensor of its pixels; a sound as (samples, sampling rate).
    """
    if isinstance(value, Image.Image | tuple):
        return value
    if kind == "image" and (isinstance(value, np.ndarray) or hasattr(value, "detach")):
        return _picture(value)
    return None


def _picture(pixels: Any) -> Image.Image:
    """Of an array or a tensor: bytes, or fractions of 0 to 1; a ValueError where it is neither.

    [height, width], or with 1, 3 or 4 channels, as the first axis or as the last; where both would do, the first, as in
    transformers.
    """
    if hasattr(pixels, "detach"):
        pixels = pixels.detach().cpu()
        pixels = pixels.float() if pixels.is_floating_point() else pixels  # numpy has no bfloat16
    array = np.asarray(pixels)
    channels = (1, 3, 4)
    if array.ndim == 3 and array.shape[0] in channels:
        array = np.moveaxis(array, 0, -1)
    if not array.size or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in channels):
        shape = list(np.shape(pixels))
        raise ValueError(f"a picture of the shape {shape}; expected [height, width], or 1, 3 or 4 channels beside them")
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind == "f" and 0 <= low <= high <= 1:
        array = np.round(array * 255)
    elif array.dtype.kind not in "iuf" or not 0 <= low <= high <= 255 or (array != np.floor(array)).any():
        raise ValueError(
            f"a picture of {array.dtype} from {low:g} to {high:g}; expected bytes of 0 to 255, or fractions of 0 to 1: "
            "give it before it is normalised"
        )
    array = array.astype(np.uint8)
    return Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)


def _sampling(given: Mapping[str, Any]) -> Sampling | str:
    """What a row asks of a video, or what is wrong with it."""
    numbers = {name: given.get(name) for name in ("fps", "video_start", "video_end")}
    for name, number in numbers.items():
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9
        ):
            return f"{name} must be a number of at least 0, got {shown(number)}"
    if numbers["fps"] is not None and numbers["fps"] < MIN_FPS:
        return f"fps: too low (got {shown(numbers['fps'])}, expected at least {MIN_FPS})"
    indices = given.get("frame_indices")
    if indices is not None:
        whole = isinstance(indices, list) and indices and all(type(i) is int and 0 <= i < 1 << 31 for i in indices)
        if not whole or sorted(indices) != indices:
            return "frame_indices must be whole numbers in ascending order"
        indices = tuple(indices)
    return Sampling(fps=numbers["fps"], frame_indices=indices, start=numbers["video_start"], end=numbers["video_end"])


def wishes_of(given: Mapping[str, Any], kind: MediaKind) -> Wishes | str:
    """What a row asks of one medium, or what is wrong with it."""
    asked: dict[str, Any] = {name: given[name] for name in WISHES[kind] if given.get(name) is not None}
    if not asked:
        return NO_WISHES
    for name, number in asked.items():
        whole = isinstance(number, int | float) and not isinstance(number, bool) and number == number // 1
        if not whole or not 1 <= number <= MAX_WISH:
            return f"{name} must be a whole number from 1 to {MAX_WISH}, got {shown(number)}"
    if ("resized_height" in asked) != ("resized_width" in asked):
        return "resized_height and resized_width belong together; give both"
    for low, high in (("min_pixels", "max_pixels"), ("min_frames", "max_frames")):
        if low in asked and high in asked and asked[low] > asked[high]:
            return f"{low} {asked[low]} is above {high} {asked[high]}"
    return Wishes(**{name: int(number) for name, number in asked.items()})


def _asks(given: Mapping[str, Any], kind: MediaKind) -> dict[str, Any] | str:
    """What a row asks of a medium, as fields of a MediaRef; or what is wrong with it."""
    wishes = wishes_of(given, kind)
    if isinstance(wishes, str) or kind != "video":
        return wishes if isinstance(wishes, str) else {"wishes": wishes}
    sampling = _sampling(given)
    if isinstance(sampling, str):
        return sampling
    asked = wishes.given | {name: True for name in ("fps", "frame_indices") if given.get(name) is not None}
    for one, *others in (("nframes", "fps", "min_frames", "max_frames"), ("frame_indices", *FRAME_COUNTS)):
        if one in asked and (other := next((name for name in others if name in asked), None)):
            return f"both {one} and {other} say which frames are taken; remove one of the two"
    return {"wishes": wishes, "sampling": sampling}


def is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A value of a row in a message: its beginning, but never a medium that is written as text."""
    text = cut_text(repr(value), 4096)
    if _LOOKS_ENCODED.search(text):
        return f"a JSON {json_name(value)}"
    text = without_secrets(text)
    return text if len(text) <= 100 else f"{text[:100]}…"


def json_name(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number",
             type(None): "null"}  # fmt: skip
    return names.get(type(value), type(value).__name__)
