"""Stored bytes back to the `pixel_values` of the HF processor, bit for bit, by table look-up."""

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from neatpack.errors import OutputError, UserError
from neatpack.format.layout import MediaArray
from neatpack.format.manifest import REMEDY, Manifest, Pixels
from neatpack.format.members import read_array
from neatpack.format.output import OutputReader
from neatpack.format.pixels import ImageRenderer

from .arrays import empty

STORED_KEY = "stored_pixels"  # in a batch whose pixels are still uint8: {name: how its bytes are restored}
RESTORE_KEY = "restore_pixels_as"  # in an item for a collater alone: the dtype it restores them as; None: not at all
PIXEL_KEYS = ("pixel_values", "pixel_values_videos")  # what a pixel_dtype is the dtype of
_CHUNK = 512  # rows at a time: what is in work stays in the cache


@dataclass(frozen=True, slots=True)
class Stored:
    """How the bytes of an array become floats."""

    table: torch.Tensor  # float32 [channels, 256]
    repeat: int = 1  # times that each row is repeated, channel by channel
    counts: str = ""  # of an array that is handed over as [media, longest, …]: what tells the rows of each medium
    first: str = ""  # the array whose rows go before these, each before a medium's
    pictures: bool = False  # what `counts` tells are heights and widths of pictures, padded to the largest

    def __reduce__(self) -> tuple[Any, ...]:
        """By value: every batch of a loader's worker carries it, and torch would send the table by file descriptor."""
        return _stored, (self.table.numpy(), self.repeat, self.counts, self.first, self.pictures)


def _stored(table: np.ndarray, *rest: Any) -> Stored:
    return Stored(torch.from_numpy(table), *rest)


def load_renderer(pixels: Pixels) -> ImageRenderer:
    """Import what renders images of the codec `source`: the only part of the pipeline that loading needs."""
    from neatpack.pipeline.families import restore

    return restore.load_renderer(pixels)


def read_tables(manifest: Manifest, read: Callable[[str], bytes], out: str) -> dict[str, np.ndarray]:
    """float32 [channels, 256]: what each stored byte stands for, by kind.

    `read` gives the content of a file of the output, its digest compared; `out` is for messages.
    """
    tables = {}
    for kind, name in manifest.pixels.tables.items():
        content = read(name)
        try:
            table = read_array(content)
        except ValueError as error:
            raise OutputError(
                f"{out}/{name}: {error}; {REMEDY}", code="output-damaged", out=str(out), file=name
            ) from None
        if table.dtype != np.float32 or table.ndim != 2 or table.shape[1] != 256 or not len(table):
            raise OutputError(
                f"{out}/{name}: {table.dtype} {table.shape}, expected float32 [channels, 256]; {REMEDY}",
                code="output-damaged",
                out=str(out),
                file=name,
            )
        tables[kind] = table.copy()
    return tables


def read_pixel_tables(reader: OutputReader) -> dict[str, np.ndarray]:
    """Read the tables of an output."""
    return read_tables(reader.manifest, reader.read_file, reader.out)


def stored_arrays(layout: Mapping[str, MediaArray], tables: Mapping[str, np.ndarray]) -> dict[str, Stored]:
    """How each array of bytes in a layout is restored. Raises OutputError where the tables are not for it."""
    stored = {}
    for name, array in layout.items():
        deliver = array.deliver
        if not deliver.table:
            continue
        table = tables.get(deliver.table)
        if table is None or any(side < 1 for side in array.row) or math.prod(array.row) % len(table):
            has = "no table" if table is None else f"a table of {len(table)} channels"
            raise OutputError(
                f"{name}: rows of {array.row} bytes, and {has} for them; {REMEDY}",
                code="output-damaged",
                array=name,
                row=array.row,
            )
        counts = array.counts if deliver.per_medium else ""
        stored[name] = Stored(torch.from_numpy(table), deliver.repeat, counts, deliver.first, deliver.pictures)
    return stored


@dataclass(frozen=True, slots=True)
class StoredPixels:
    """Bytes of a batch until `restore_pixels`. Not a tensor: many models would take bytes for pixels, and train on."""

    rows: torch.Tensor
    how: Stored
    counts: torch.Tensor | None = None  # what tells the rows of each medium, where they are padded to the longest
    first: "torch.Tensor | StoredPixels | None" = None  # goes before the rows of each medium

    def pin_memory(self) -> "StoredPixels":
        return replace(self, rows=self.rows.pin_memory())

    def to(self, device: torch.device | str, **options: Any) -> "StoredPixels":
        """Bytes, to where they will be restored: Lightning and accelerate move what has this, and Lightning refuses
        what has not."""
        return replace(self, rows=self.rows.to(device, **options))

    def __getattr__(self, name: str) -> Any:
        """What a model asks of pixels."""
        raise AttributeError(
            f"pixels are bytes until restore_pixels(batch, device), and have no {name!r}: call it before the model, or "
            'give PackedShards pixels="bf16" (as HF Trainer needs it)'
        )

    def restored(self, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
        pixels = restored(self.rows.to(device), self.how, dtype)
        # What pads a medium is zero, and not what a byte of zero stands for.
        if self.counts is not None and self.how.pictures:
            for picture, (height, width) in zip(pixels, self.counts.tolist(), strict=True):
                picture[:, height:] = picture[:, :, width:] = 0
        elif self.counts is not None:
            counts = self.counts.to(device).reshape(len(pixels), -1).prod(1)
            pixels[torch.arange(pixels.shape[1], device=device)[None] >= counts[:, None]] = 0
        if self.first is None:
            return pixels
        first = self.first.restored(device, dtype) if isinstance(self.first, StoredPixels) else self.first.to(device)
        return with_first(first, pixels)


def with_stored_pixels(batch: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Bytes of a batch, and what their restoring needs, in one value each. Changed in place and returned."""
    stored: Mapping[str, Stored] = {key: how for key, how in batch.pop(STORED_KEY, {}).items() if key in batch}
    for key, how in stored.items():
        batch[key] = StoredPixels(batch[key], how, batch[how.counts] if how.counts else None)
    for key, how in stored.items():
        if how.first:
            batch[key] = replace(batch[key], first=batch.pop(how.first))
    return batch


def refuse_to_cut(batch: Mapping[str, Any]) -> None:
    """Bytes that only the whole batch can restore: what pads them would become what a byte of zero stands for."""
    padded = [name for name, how in batch.get(STORED_KEY, {}).items() if how.counts and name in batch]
    if names := padded + [name for name, value in batch.items() if isinstance(value, StoredPixels)]:
        raise UserError(
            f"{', '.join(names)}: bytes of this family, or of this collater, cannot be cut by microbatch and restored "
            'then; use PackedShards(pixels="bf16") with pipeline parallelism',
            code="batch-mismatch",
            arrays=list(names),
        )


def restore_pixels(
    batch: MutableMapping[str, Any], device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16
) -> MutableMapping[str, Any]:
    """Move uint8 pixels of a batch to `device` (a quarter of the bytes of what images become) and restore them.

    The batch must come from `PackedShards(pixels="uint8")`, which puts the tables in. Changed in place and returned.
    A batch without media is left as it is.
    """
    for key, value in with_stored_pixels(batch).items():
        if isinstance(value, StoredPixels):
            batch[key] = value.restored(device, dtype)
    return batch


def cast_pixels(batch: dict[str, Any], dtype: torch.dtype | None) -> dict[str, Any]:
    """The batch with its pixels as another kind of float; None: as they are. Bytes stay bytes."""
    pixels = {name: batch.get(name) for name in PIXEL_KEYS}
    floats = {
        name: rows for name, rows in pixels.items() if isinstance(rows, torch.Tensor) and rows.is_floating_point()
    }
    return batch | {name: rows.to(dtype) for name, rows in floats.items() if dtype is not None}


def restored(pixels: torch.Tensor, stored: Stored, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """uint8 rows of any shape, [patches, 588] or [tiles, 3, 384, 384], as floats; repeated ones are flat.

    out: where they are to be written, of the shape that `restored_shape` tells.
    """
    # Where channels are alike, the last axis is a row as good as any, and short ones stay in the cache.
    is_short = len(stored.table) == stored.repeat == 1
    rows = pixels.flatten(0, -2 if is_short else max(0, pixels.ndim - 4))  # [media, tiles, 3, 448, 448] -> tiles
    flat = looked_up(rows.flatten(1), stored.table, stored.repeat, dtype, out)
    return flat.view(restored_shape(pixels.shape, stored))


def restored_shape(shape: Sequence[int], stored: Stored) -> tuple[int, ...]:
    return (shape[0], stored.repeat * math.prod(shape[1:])) if stored.repeat > 1 else tuple(shape)


def restored_end_to_end(arrays: Sequence[torch.Tensor], stored: Stored, dtype: torch.dtype) -> torch.Tensor:
    """Rows of one shape, restored straight into what the batch has of them."""
    rows = [len(array) for array in arrays]
    result = empty(restored_shape((sum(rows), *arrays[0].shape[1:]), stored), dtype)
    for array, out in zip(arrays, torch.split(result, rows), strict=True):
        restored(array, stored, dtype, out)
    return result


def with_first(first: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """One row of each medium before its others: [media, …] and [media, longest, …] -> [media, 1 + longest, …]."""
    return torch.cat([first[:, None].to(rest.dtype), rest], dim=1)


def put_together(patches: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Square patches of pictures, row by row, back in place: [patches, channels, side, side] and heights and widths ->
    [pictures, channels, height, width], with zeros below and to the right of the smaller ones.
    """
    channels, side = patches.shape[1:3]
    height, width = sizes.amax(0).tolist()
    pictures = patches.new_zeros(len(sizes), channels, height, width)
    grids = (sizes // side).tolist()
    cuts = torch.split(patches, [rows * columns for rows, columns in grids])
    for picture, cut, (rows, columns) in zip(pictures, cuts, grids, strict=True):
        in_place = cut.view(rows, columns, channels, side, side).permute(2, 0, 3, 1, 4)
        picture[:, : rows * side, : columns * side] = in_place.reshape(channels, rows * side, columns * side)
    return pictures


def looked_up(
    stored: torch.Tensor, table: torch.Tensor, repeat: int, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[rows, channels * area] uint8 -> [rows, channels * repeat * area]: each row is repeated in time.

    fp32 values are the table's; bf16 ones are their rounding, as `pixel_values.to(torch.bfloat16)` gives them.
    """
    if stored.dtype != torch.uint8:
        raise UserError(
            f"pixel_values are {stored.dtype}, expected uint8 as stored",
            code="item-incomplete",
            key="pixel_values",
            got=str(stored.dtype),
        )
    shape = (len(stored), repeat * stored.shape[1])
    if stored.device.type != "cpu":
        out = torch.empty(shape, dtype=dtype, device=stored.device)
    elif out is None:
        out = empty(shape, dtype)
    by_channel = out.view(len(stored), len(table), repeat, stored.shape[1] // len(table))
    is_even = by_channel.shape[-1] % 2 == 0
    look_up = _look_up_in_pairs if stored.device.type == "cpu" and is_even and dtype in _PAIRS else _look_up_singly
    look_up(stored, table, by_channel)
    return out.view(shape)


def _look_up_singly(stored: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """For accelerators, and for patches of an odd number of pixels."""
    channels = len(table)
    values = table.to(stored.device, out.dtype).reshape(-1, 1)
    first = torch.arange(channels, dtype=torch.int32, device=stored.device)[:, None] * 256
    for start in range(0, len(stored), _CHUNK):
        places = stored[start : start + _CHUNK].reshape(-1, channels, out.shape[-1]).int() + first
        out[start : start + _CHUNK] = torch.nn.functional.embedding(places, values).squeeze(-1)[:, :, None]


# Two neighbours at once: a pair of bytes is one of 65536, and their two values side by side are one wider integer.
_PAIRS: dict[torch.dtype, tuple[torch.dtype, Any, Any]] = {
    torch.bfloat16: (torch.int16, np.uint16, np.uint32),
    torch.float32: (torch.int32, np.uint32, np.uint64),
}


def _look_up_in_pairs(stored: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """On a CPU: two to three times as fast as one by one, and less than three times a memcpy of the result."""
    same_size, _, wide = _PAIRS[out.dtype]
    pairs = _pair_tables(table.numpy().tobytes(), len(table), out.dtype)
    num_rows, channels, num_pairs = len(stored), len(table), out.shape[-1] // 2
    bytes_in_pairs = stored.contiguous().numpy().view(np.uint16).reshape(num_rows, channels, num_pairs)
    wide_out = out.view(same_size).numpy().view(wide)
    buffer = np.empty((min(_CHUNK, num_rows), num_pairs), dtype=wide)
    indices = np.empty(buffer.shape, np.intp)  # which numpy would make anew each time
    for start in range(0, num_rows, _CHUNK):
        stop = min(start + _CHUNK, num_rows)
        places, values = indices[: stop - start], buffer[: stop - start]
        for channel in range(channels):
            np.copyto(places, bytes_in_pairs[start:stop, channel])
            # mode="wrap" spares numpy a copy and a test; a uint16 cannot be out of range.
            np.take(pairs[channel], places, out=values, mode="wrap")
            wide_out[start:stop, channel] = values[:, None]


@lru_cache(maxsize=8)
def _pair_tables(table: bytes, channels: int, dtype: torch.dtype) -> list[np.ndarray]:
    same_size, narrow, wide = _PAIRS[dtype]
    floats = torch.frombuffer(bytearray(table), dtype=torch.float32).reshape(channels, 256)
    bits = floats.to(dtype).view(same_size).numpy().view(narrow).astype(wide)
    pair = np.arange(65536)
    low, high = pair & 255, pair >> 8  # the first of two bytes is the low one
    return [row[low] | (row[high] << wide(8 * np.dtype(narrow).itemsize)) for row in bits]
