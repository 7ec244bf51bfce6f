"""A medium as a row names it -> a reference to its bytes. Shared by both dialects of rows."""

from typing import Any

from ..media.remote import located
from ..records import MediaKind, MediaRef, Sampling, Skip


def media_reference(entry: Any, kind: MediaKind, column: str, media_dir: str) -> MediaRef | Skip:
    """An entry is a path or an object with `path`; a video may also be a list of pictures or have `frames`."""

    def bad(problem: str) -> Skip:
        return Skip(reason="bad_row", detail=f"column {column!r}: {problem}")

    given = entry if isinstance(entry, dict) else {"frames": entry} if isinstance(entry, list) else {"path": entry}
    paths = given.get("frames") if kind == "video" and "frames" in given else [given.get("path")]
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) and p and is_unicode(p) for p in paths):
        return bad(f"{str(entry)[:80]!r} is not a path")
    where: dict[str, Any] = {key: given[key] for key in ("offset", "length") if key in given}
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in where.values()):
        return bad(f"offset and length must be whole numbers, got {where}")
    joined = [located(path, media_dir) for path in paths]
    if kind != "video":
        return MediaRef(kind=kind, path=joined[0], **where)
    sampling = _sampling(given)
    if isinstance(sampling, str):
        return bad(sampling)
    frames = tuple(joined) if "frames" in given else ()
    return MediaRef(kind=kind, path=joined[0], frames=frames, sampling=sampling, **where)


def _sampling(given: dict[str, Any]) -> Sampling | str:
    """What a row asks of a video, or what is wrong with it."""
    numbers = {name: given.get(name) for name in ("fps", "video_start", "video_end")}
    for name, number in numbers.items():
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9
        ):
            return f"{name} must be a number of at least 0, got {number!r}"
    if numbers["fps"] == 0:
        return "fps must be above 0"
    indices = given.get("frame_indices")
    if indices is not None:
        whole = isinstance(indices, list) and indices and all(type(i) is int and 0 <= i < 1 << 31 for i in indices)
        if not whole or sorted(indices) != indices:
            return "frame_indices must be whole numbers in ascending order"
        indices = tuple(indices)
    return Sampling(fps=numbers["fps"], frame_indices=indices, start=numbers["video_start"], end=numbers["video_end"])


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_name(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number",
             type(None): "null"}  # fmt: skip
    return names.get(type(value), type(value).__name__)
