"""The token store: one Arrow file per part, one line per row read, good or skipped. Read by memory map, row by row."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..ingest.lines import Part
from ..media.stamp import content_of, is_changed
from ..records import Measured, MeasuredMedia, MediaRef, Skip
from ..runtime.tables import open_arrow, write_arrow

_MEDIUM = pa.struct(
    [
        ("kind", pa.string()),
        ("path", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("inside", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("size", pa.list_(pa.int32(), 2)),
        ("grid", pa.list_(pa.int32(), 3)),
        ("frames", pa.list_(pa.int32())),
        ("total_frames", pa.int32()),
        ("fps", pa.float64()),
        ("asked_fps", pa.float64()),
        ("frame_paths", pa.list_(pa.string())),
        ("num_samples", pa.int64()),
        ("stamp", pa.string()),
    ]
)
_OF_REF = ("kind", "path", "offset", "length", "inside")  # columns of _MEDIUM that are fields of a MediaRef
_OF_MEDIUM = tuple(field.name for field in dataclasses.fields(MeasuredMedia) if field.name != "ref")
_OF_MEASURED = (
    "tokens",
    "visual_tokens",
    "media_bytes",
    "form",
    "loss",
)  # columns of SCHEMA that are fields of Measured
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("tokens", pa.int32()),
        ("visual_tokens", pa.int32()),
        ("media_bytes", pa.int64()),
        ("reason", pa.string()),  # "" for a good row
        ("detail", pa.string()),
        ("id", pa.string()),  # what the row calls itself, or ""
        ("ids", pa.list_(pa.int32())),
        ("targets", pa.list_(pa.int32())),  # start, stop, start, stop, …
        ("form", pa.string()),
        ("loss", pa.string()),
        ("media", pa.list_(_MEDIUM)),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPart:
    """A part of a data file and its file in the token store."""

    corpus: int  # index into the run's corpora
    part: Part
    path: Path


def write_measured(path: Path, numbers: Sequence[int], ids: Sequence[str], results: Sequence[Measured | Skip]) -> None:
    """`ids`: what each row calls itself."""
    lines = [
        {"row": number, "id": id_, **_line(result)} for number, id_, result in zip(numbers, ids, results, strict=True)
    ]
    write_arrow(path, pa.Table.from_pylist(lines, schema=SCHEMA))


def _line(result: Measured | Skip) -> dict[str, Any]:
    if isinstance(result, Skip):
        skipped = {"tokens": 0, "visual_tokens": 0, "media_bytes": 0, "ids": [], "targets": [], "media": []}
        return {"reason": result.reason, "detail": result.detail, "form": "", "loss": "", **skipped}
    media = [
        {name: getattr(medium.ref, name) for name in _OF_REF}
        | {"frame_paths": medium.ref.frames}
        | {name: getattr(medium, name) for name in _OF_MEDIUM}
        for medium in result.media
    ]
    same = {name: getattr(result, name) for name in _OF_MEASURED}
    return {"reason": "", "detail": "", **same, "ids": result.ids, "targets": result.targets.ravel(), "media": media}


def check_media(paths: Sequence[Path], level: str) -> tuple[bool, str]:
    """The task of --check-media: whether a medium of these parts has changed, and a digest of what media there are."""
    digest = hashlib.sha256()
    changed = False
    for line in (line for path in paths for line in open_arrow(path)["media"].to_pylist()):
        for medium in map(_medium, line):
            changed |= is_changed(medium.ref, medium.stamp)
            digest.update(content_of(medium.ref, medium.stamp, level).encode() + b"\n")
    return changed, digest.hexdigest()


def has_media_trouble(path: Path) -> bool:
    """Whether any row of a part was skipped for its media files."""
    trouble = pa.array(["missing_media", "bad_media"])
    return bool(pc.any(pc.is_in(open_arrow(path)["reason"], trouble)).as_py())


def is_good(path: Path, index: int) -> bool:
    """Whether line `index` of a part's file is a row that was measured, and not skipped."""
    return not open_arrow(path)["reason"][index].as_py()


def read_measured(path: Path, index: int) -> Measured:
    """Line `index` of a part's file, a good one."""
    table = open_arrow(path)
    return Measured(
        ids=table["ids"][index].values.to_numpy(),
        media=tuple(_medium(item) for item in table["media"][index].as_py()),
        targets=table["targets"][index].values.to_numpy().reshape(-1, 2),
        **{name: table[name][index].as_py() for name in _OF_MEASURED},
    )


def _medium(item: dict[str, Any]) -> MeasuredMedia:
    """Lists of Arrow are tuples here."""
    ref = MediaRef(**{name: item[name] for name in _OF_REF}, frames=tuple(item["frame_paths"]))
    values: dict[str, Any] = {
        name: tuple(item[name]) if isinstance(item[name], list) else item[name] for name in _OF_MEDIUM
    }
    return MeasuredMedia(ref=ref, **values)
