"""What the media arrays of a pack are, and which of their rows belong to whom: read, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from neatpack.errors import OutputError
from neatpack.pipeline.typed import check_types

MediaKind = Literal["image", "video", "audio"]

Form = Literal["chat", "document"]  # a conversation by the chat template, or a text as it is
IGNORE = -100  # label of a position that is not trained on
TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3  # values of mm_token_type_ids
TOKEN_TYPES: dict[MediaKind, int] = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}


# What arrays of a pack may hold: numbers of a fixed size, and so nothing that would be unpickled.
DTYPES = ("uint8", "int16", "int32", "int64", "float32")
COUNTING = ("int16", "int32", "int64")  # what tells how many rows there are
MAX_REPEAT = 64  # times that a stored row may be repeated; temporal patches are of 2 or 4 frames


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """How a loader makes the model's input of a stored array; by default it hands the rows over as they are."""

    table: str = ""  # "image" or "video": bytes that stand for floats, by that table
    repeat: int = 1  # times that each row of bytes is repeated, channel by channel (a still image in time)
    mask: str = ""  # handed over as [media, longest, …], with a mask of this name
    mask_dtype: str = "int64"
    transposed: bool = False  # … as [media, …, longest]
    first: str = ""  # handed over as [media, 1 + longest, …]: before its rows comes the medium's one row of this array
    fill: int = 0  # pads it to the longest
    pictures: bool = False  # patches put together: [media, channels, height, width], zeros up to the largest
    batch_axis: bool = False  # handed over as [1, rows, …], for models that want images in a batch axis of their own

    def __post_init__(self) -> None:
        assert self.mask or not self.transposed, "only what is padded, and has a mask, can be transposed"

    @property
    def per_medium(self) -> bool:
        """Whether a row of the model's input is a whole medium, padded to the longest."""
        return bool(self.mask or self.first or self.pictures)


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaArray:
    """A media member of a pack as it is stored, and (`deliver`) how it is handed over.

    Recorded in the manifest, so that loaders and the pipeline-parallel splitter read the layout instead of guessing.
    Rows of all media of its kinds lie end to end; those of several kinds in the order in which the media stand in the
    text (InternVL: tiles of images and frames of videos). How many rows belong to a medium: one, or (`counts`) the
    product of its row in another array, [1, 4, 6] -> 24; where that has heights and widths of pictures in pixels
    (`deliver.pictures`), by the area of a row, [28, 42] -> 6 patches of 14 x 14. `groups`: a row belongs to as many
    media as it says (LLaVA's batch_num_images).
    """

    kinds: tuple[MediaKind, ...]
    dtype: str
    row: tuple[int, ...]  # shape of a row; a side of -1 differs from document to document and is padded with zeros
    counts: str = ""
    groups: bool = False
    deliver: Delivery = Delivery()

    @property
    def row_bytes(self) -> int:
        return int(np.prod(np.abs(self.row))) * np.dtype(self.dtype).itemsize

    @property
    def counted(self) -> int:
        """What one row is of the product that `counts` gives."""
        return self.row[-2] * self.row[-1] if self.deliver.pictures else 1


Layout = Mapping[str, MediaArray]
Parts = Mapping[MediaKind, Sequence[int]]  # media of each kind in each part: document, sample or microbatch


def rows_per_part(name: str, arrays: Mapping[str, Any], layout: Layout, parts: Parts) -> list[int]:
    """Rows of an array that belong to each part.

    Two images with grids [[1, 2, 2], [1, 4, 2]] in parts of 1, 0 and 1: patches [4, 0, 8].
    """
    array = layout[name]
    per_part = [sum(map(int, counts)) for counts in zip(*(parts[kind] for kind in array.kinds), strict=True)]
    if array.groups:
        return _rows_that_add_up(np.asarray(arrays[name]).tolist(), per_part)
    if not array.counts:
        return per_part
    counting = np.asarray(arrays[array.counts])
    per_row = counting.prod(axis=tuple(range(1, counting.ndim))) // array.counted
    sums = np.concatenate([[0], np.cumsum(per_row)])
    ends = np.cumsum(rows_per_part(array.counts, arrays, layout, parts), dtype=np.int64)
    return [int(count) for count in np.diff(sums[ends], prepend=0)]


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
    arrays: Mapping[str, Any], layout: Layout, parts: Parts, *, of_batch: bool = False
) -> list[dict[str, Any]]:
    """The media arrays of each part, as views; an array that is not there is left out.

    `of_batch`: the arrays and the layout are `delivered` ones, where rows may lie behind a batch axis.
    """
    num_parts = len(next(iter(parts.values())))
    result: list[dict[str, Any]] = [{} for _ in range(num_parts)]
    for name, array in layout.items():
        if name not in arrays:
            continue
        start = 0
        for part, rows in zip(result, rows_per_part(name, arrays, layout, parts), strict=True):
            inside = slice(start, start + rows)
            part[name] = arrays[name][:, inside] if of_batch and array.deliver.batch_axis else arrays[name][inside]
            start += rows
    return result


def delivered(layout: Layout) -> dict[str, MediaArray]:
    """The layout of a batch, whose arrays are in the form in which the model takes them.

    A padded array has one row per medium, and its mask, too. An array that was put before the rows of another is gone.
    """
    absorbed = {array.deliver.first for array in layout.values()}
    result: dict[str, MediaArray] = {}
    for name, array in layout.items():
        if name in absorbed:
            continue
        result[name] = replace(array, counts="") if array.deliver.per_medium else array
        if array.deliver.mask:
            result[array.deliver.mask] = MediaArray(kinds=array.kinds, dtype=array.deliver.mask_dtype, row=())
    return result


class Misfit(str):
    """What is wrong with an array, in words; "" if nothing is. `array` names it."""

    array: str

    def __new__(cls, words: str = "", array: str = "") -> "Misfit":
        self = super().__new__(cls, words)
        self.array = array
        return self


def layout_of(described: Mapping[str, Any]) -> dict[str, MediaArray]:
    """The layout that a manifest's `family` describes. Raises ValueError where it is not one."""
    try:
        layout = {
            str(name): MediaArray(
                **{
                    **array,
                    "kinds": tuple(array["kinds"]),
                    "row": tuple(array["row"]),
                    "deliver": Delivery(**array["deliver"]),
                }
            )
            for name, array in described["media"].items()
        }
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise OutputError(
            f"family.media: {type(error).__name__}: {error}", code="output-damaged", key="family.media"
        ) from None
    for name, array in layout.items():
        check_types(array, f"family.media.{name}")
        check_types(array.deliver, f"family.media.{name}.deliver")
        if wrong := _misdescribed(name, array, layout):
            raise OutputError(
                f"family.media.{name}: {wrong}", code="output-damaged", key=f"family.media.{name}.{wrong.array}"
            )
    return layout


def _misdescribed(name: str, array: MediaArray, layout: Layout) -> Misfit:
    """What no family would declare; its `array` is the field of the array."""
    deliver = array.deliver
    if not name.isidentifier() or not array.kinds or not set(array.kinds) <= set(TOKEN_TYPES):
        return Misfit(f"an array of {array.kinds}", "kinds")
    if array.dtype not in DTYPES or deliver.mask_dtype not in ("int64", "bool"):
        return Misfit(f"of type {array.dtype}, its mask {deliver.mask_dtype}", "dtype")
    if any(side < -1 for side in array.row) or not 1 <= deliver.repeat <= MAX_REPEAT:
        return Misfit(f"rows of {array.row}, repeated {deliver.repeat} times", "row")
    if {array.counts, deliver.first} - {"", *layout} or deliver.table not in ("", "image", "video"):
        told = f"counted by {array.counts!r}, after {deliver.first!r}, by the table {deliver.table!r}"
        return Misfit(told, "deliver")
    counting = array.counts
    for _ in layout:
        counting = counting and layout[counting].counts if counting in layout else ""
    if counting or (array.counts and (array.groups or layout[array.counts].dtype not in COUNTING)):
        return Misfit(f"counted by {array.counts!r}, which does not count", "counts")
    if deliver.pictures and not (len(array.row) == 3 and min(array.row) > 0 and array.counts and not deliver.mask):
        return Misfit(
            f"rows of {array.row}, counted by {array.counts!r}, are no patches of pictures", "deliver.pictures"
        )
    if deliver.table and array.dtype != "uint8":
        return Misfit(f"{array.dtype}, and by a table of bytes", "deliver.table")
    return Misfit()


def misfit(arrays: Mapping[str, np.ndarray], layout: Layout, parts: Parts) -> Misfit:
    """How the media arrays of a pack disagree with the layout and with the media of its parts; "" if they agree.

    Types and shapes of rows first: then the sums are of small integers.
    """
    for name, array in layout.items():
        found = arrays[name]
        sides = zip(found.shape[1:], array.row, strict=False)
        if (
            found.dtype != array.dtype
            or found.ndim != len(array.row) + 1
            or any(n not in (has, -1) for has, n in sides)
        ):
            return Misfit(
                f"{name} {found.shape} of {found.dtype}: rows of another shape or type than {array.row} {array.dtype}",
                name,
            )
    for name, array in layout.items():
        found = arrays[name]
        try:
            rows = sum(rows_per_part(name, arrays, layout, parts))
        except IndexError:
            rows = -1
        if len(found) != rows:
            media = " and ".join(f"{sum(parts[kind])} {kind}s" for kind in array.kinds)
            return Misfit(f"{name} {found.shape}: does not fit the {media} of the documents", name)
    return Misfit()
