"""The token store: one Arrow file per part, one line per row read, good or skipped. Read by memory map, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..ingest.lines import Part
from ..records import Measured, MeasuredMedia, MediaRef, Skip
from ..runtime.tables import open_arrow, write_arrow

_MEDIUM = pa.struct(
    [
        ("kind", pa.string()),
        ("path", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
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
    ]
)
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("tokens", pa.int32()),
        ("visual_tokens", pa.int32()),
        ("media_bytes", pa.int64()),
        ("reason", pa.string()),  # "" for a good row
        ("detail", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("media", pa.list_(_MEDIUM)),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPart:
    """A part of a data file and its file in the token store."""

    corpus: int  # index into the run's corpora
    part: Part
    path: Path


def write_measured(path: Path, numbers: Sequence[int], results: Sequence[Measured | Skip]) -> None:
    lines = [_line(number, result) for number, result in zip(numbers, results, strict=True)]
    write_arrow(path, pa.Table.from_pylist(lines, schema=SCHEMA))


def _line(row: int, result: Measured | Skip) -> dict[str, Any]:
    if isinstance(result, Skip):
        skipped = {"tokens": 0, "visual_tokens": 0, "media_bytes": 0, "ids": [], "media": []}
        return {"row": row, "reason": result.reason, "detail": result.detail, **skipped}
    media = [
        {
            "kind": medium.ref.kind,
            "path": medium.ref.path,
            "offset": medium.ref.offset,
            "length": medium.ref.length,
            "height": medium.height,
            "width": medium.width,
            "size": medium.size,
            "grid": medium.grid,
            "frames": medium.frames,
            "total_frames": medium.total_frames,
            "fps": medium.fps,
            "asked_fps": medium.asked_fps,
            "frame_paths": medium.ref.frames,
            "num_samples": medium.num_samples,
        }
        for medium in result.media
    ]
    return {
        "row": row,
        "tokens": result.tokens,
        "visual_tokens": result.visual_tokens,
        "media_bytes": result.media_bytes,
        "reason": "",
        "detail": "",
        "ids": result.ids,
        "media": media,
    }


def has_media_trouble(path: Path) -> bool:
    """Whether any row of a part was skipped for its media files."""
    trouble = pa.array(["missing_media", "bad_media"])
    return bool(pc.any(pc.is_in(open_arrow(path)["reason"], trouble)).as_py())


def read_measured(path: Path, index: int) -> Measured:
    """Line `index` of a part's file."""
    table = open_arrow(path)
    media = tuple(
        MeasuredMedia(
            ref=MediaRef(
                kind=item["kind"],
                path=item["path"],
                offset=item["offset"],
                length=item["length"],
                frames=tuple(item["frame_paths"]),
            ),
            height=item["height"],
            width=item["width"],
            size=tuple(item["size"]),
            grid=tuple(item["grid"]),
            frames=tuple(item["frames"]),
            total_frames=item["total_frames"],
            fps=item["fps"],
            asked_fps=item["asked_fps"],
            num_samples=item["num_samples"],
        )
        for item in table["media"][index].as_py()
    )
    return Measured(
        ids=table["ids"][index].values.to_numpy(),
        media=media,
        tokens=table["tokens"][index].as_py(),
        visual_tokens=table["visual_tokens"][index].as_py(),
        media_bytes=table["media_bytes"][index].as_py(),
    )
