"""What the media arrays of a pack are, and which of their rows belong to whom: read, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neatpack.pipeline.records import MediaKind


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaArray:
    """A media member of a pack: its layout on disk, and how a loader makes the model's input of it.

    Recorded in the manifest, so that loaders and the pipeline-parallel splitter read the layout instead of guessing.
    Rows of all media of the kind lie end to end. How many belong to a medium: one, or (`counts`) the product of its
    row in another array, [1, 4, 6] -> 24. `groups`: a row belongs to as many media as it says (LLaVA's
    batch_num_images).
    """

    kind: MediaKind
    dtype: str
    row: tuple[int, ...]  # shape of a row; a side of -1 differs from document to document and is padded with zeros
    counts: str = ""
    groups: bool = False
    table: str = ""  # "image" or "video": bytes that stand for floats, by that table
    channels_last: bool = False  # which channel's line of the table: by the first axis of a row, or by the last
    repeat: int = 1  # times that each row of bytes is repeated, channel by channel (a still image in time)
    mask: str = ""  # handed over as [media, longest, …], with a mask of this name
    mask_dtype: str = "int64"
    transposed: bool = False  # … as [media, …, longest]
    first: str = ""  # handed over as [media, 1 + longest, …]: before its rows comes the medium's one row of this array
    fill: int = 0  # pads it to the longest

    @property
    def row_bytes(self) -> int:
        return int(np.prod(np.abs(self.row))) * np.dtype(self.dtype).itemsize

    @property
    def axis(self) -> str:
        """What a row of the model's input is: "images", "videos", "audios", "groups", or the array that counts rows."""
        if self.groups:
            return "groups"
        return self.counts if self.counts and not self.mask and not self.first else f"{self.kind}s"


def rows_per_part(
    name: str, arrays: Mapping[str, Any], layout: Mapping[str, MediaArray], parts: Mapping[MediaKind, Sequence[int]]
) -> list[int]:
    """Rows of an array that belong to each part (document, sample, microbatch); `parts`: media of each kind in each.

    Two images with grids [[1, 2, 2], [1, 4, 2]] in parts of 1, 0 and 1: patches [4, 0, 8].
    """
    array = layout[name]
    per_part = [int(count) for count in parts[array.kind]]
    if array.groups:
        return _rows_that_add_up(np.asarray(arrays[name]).tolist(), per_part)
    if not array.counts:
        return per_part
    counting = np.asarray(arrays[array.counts])
    per_row = counting.prod(axis=tuple(range(1, counting.ndim)))
    sums = np.concatenate([[0], np.cumsum(per_row)])
    ends = np.cumsum(rows_per_part(array.counts, arrays, layout, parts), dtype=np.int64)
    return np.diff(sums[ends], prepend=0).tolist()


def _rows_that_add_up(rows: Sequence[int], per_part: Sequence[int]) -> list[int]:
    """Rows [1, 3, 1] in parts of 1, 4 and 0 media: [1, 2, 0]."""
    result, at = [], 0
    for wanted in per_part:
        start, total = at, 0
        while total < wanted:
            total += rows[at]
            at += 1
        result.append(at - start)
    return result


def split_media(
    arrays: Mapping[str, Any], layout: Mapping[str, MediaArray], parts: Mapping[MediaKind, Sequence[int]]
) -> list[dict[str, Any]]:
    """The media arrays of each part, as views."""
    num_parts = len(next(iter(parts.values())))
    result: list[dict[str, Any]] = [{} for _ in range(num_parts)]
    for name in layout:
        start = 0
        for part, rows in zip(result, rows_per_part(name, arrays, layout, parts), strict=True):
            part[name] = arrays[name][start : start + rows]
            start += rows
    return result


def layout_of(described: Mapping[str, Any]) -> dict[str, MediaArray]:
    """The layout that a manifest's `family` describes."""
    return {name: MediaArray(**{**array, "row": tuple(array["row"])}) for name, array in described["media"].items()}
