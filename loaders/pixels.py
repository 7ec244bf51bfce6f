"""Stored bytes back to the `pixel_values` of the HF processor, bit for bit, by table look-up."""

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..pipeline.layout import MediaArray
from ..pipeline.manifest import REMEDY, Manifest, OutputError
from ..pipeline.shard.codec import read_array

STORED_KEY = "stored_pixels"  # in a batch whose pixels are still uint8: {name: how its bytes are restored}
_CHUNK = 2048  # rows at a time: what is in work stays in the cache


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


def read_tables(manifest: Manifest, read: Callable[[str], bytes], out: str) -> dict[str, np.ndarray]:
    """float32 [channels, 256]: what each stored byte stands for, by kind.

    `read` gives the content of a file of the output, its digest compared; `out` is for messages.
    """
    tables = {}
    for kind, name in manifest.pixels.tables.items():
        try:
            table = read_array(read(name))
        except OutputError:
            raise
        except ValueError as error:
            raise OutputError(f"{out}/{name}: {error}; {REMEDY}") from None
        if table.dtype != np.float32 or table.ndim != 2 or table.shape[1] != 256 or not len(table):
            raise OutputError(f"{out}/{name}: {table.dtype} {table.shape}, expected float32 [channels, 256]; {REMEDY}")
        tables[kind] = table.copy()
    return tables


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
            raise OutputError(f"{name}: rows of {array.row} bytes, and {has} for them; {REMEDY}")
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
    pixels = {name: batch.get(name) for name in ("pixel_values", "pixel_values_videos")}
    floats = {
        name: rows for name, rows in pixels.items() if isinstance(rows, torch.Tensor) and rows.is_floating_point()
    }
    return batch | {name: rows.to(dtype) for name, rows in floats.items() if dtype is not None}


def restored(pixels: torch.Tensor, stored: Stored, dtype: torch.dtype) -> torch.Tensor:
    """uint8 rows of any shape, [patches, 588] or [tiles, 3, 384, 384], as floats; repeated ones are flat."""
    if pixels.ndim > 4:  # [media, tiles, 3, 448, 448]
        return restored(pixels.flatten(0, -4), stored, dtype).reshape(pixels.shape)
    # Where channels are alike, the last axis is a row as good as any, and short ones stay in the cache.
    rows = pixels.flatten(0, -2) if len(stored.table) == stored.repeat == 1 else pixels.flatten(1)
    flat = looked_up(rows, stored.table, stored.repeat, dtype)
    return flat if stored.repeat > 1 else flat.reshape(pixels.shape)


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


def looked_up(stored: torch.Tensor, table: torch.Tensor, repeat: int, dtype: torch.dtype) -> torch.Tensor:
    """[rows, channels * area] uint8 -> [rows, channels * repeat * area]: each row is repeated in time.

    fp32 values are the table's; bf16 ones are their rounding, as `pixel_values.to(torch.bfloat16)` gives them.
    """
    if stored.dtype != torch.uint8:
        raise ValueError(f"pixel_values are {stored.dtype}, expected uint8 as stored")
    area = stored.shape[1] // len(table)
    if stored.device.type == "cpu" and area % 2 == 0 and dtype in _PAIRS:
        return _looked_up_in_pairs(stored, table, repeat, dtype)
    return _looked_up_singly(stored, table, repeat, dtype)


def _looked_up_singly(stored: torch.Tensor, table: torch.Tensor, repeat: int, dtype: torch.dtype) -> torch.Tensor:
    """For accelerators, and for patches of an odd number of pixels."""
    channels = len(table)
    out = torch.empty(len(stored), channels, repeat, stored.shape[1] // channels, dtype=dtype, device=stored.device)
    values = table.to(stored.device, dtype).reshape(-1, 1)
    first = torch.arange(channels, dtype=torch.int32, device=stored.device)[:, None] * 256
    for start in range(0, len(stored), _CHUNK):
        places = stored[start : start + _CHUNK].reshape(-1, channels, out.shape[-1]).int() + first
        out[start : start + _CHUNK] = torch.nn.functional.embedding(places, values).squeeze(-1)[:, :, None]
    return out.flatten(1)


# Two neighbours at once: a pair of bytes is one of 65536, and their two values side by side are one wider integer.
_PAIRS: dict[torch.dtype, tuple[torch.dtype, Any, Any]] = {
    torch.bfloat16: (torch.int16, np.uint16, np.uint32),
    torch.float32: (torch.int32, np.uint32, np.uint64),
}


def _looked_up_in_pairs(stored: torch.Tensor, table: torch.Tensor, repeat: int, dtype: torch.dtype) -> torch.Tensor:
    """On a CPU: two to three times as fast as one by one (jobs/bench_load.py)."""
    same_size, _, wide = _PAIRS[dtype]
    pairs = _pair_tables(table.numpy().tobytes(), len(table), dtype)
    num_patches, channels = len(stored), len(table)
    num_pairs = stored.shape[1] // channels // 2
    bytes_in_pairs = stored.contiguous().numpy().view(np.uint16).reshape(num_patches, channels, num_pairs)
    out = np.empty((num_patches, channels, repeat, num_pairs), dtype=wide)
    buffer = np.empty((min(_CHUNK, num_patches), num_pairs), dtype=wide)
    for start in range(0, num_patches, _CHUNK):
        stop = min(start + _CHUNK, num_patches)
        values = buffer[: stop - start]
        for channel in range(channels):
            # mode="clip" spares numpy a copy; a uint16 cannot be out of range.
            np.take(pairs[channel], bytes_in_pairs[start:stop, channel], out=values, mode="clip")
            out[start:stop, channel] = values[:, None]
    signed = np.int16 if same_size == torch.int16 else np.int32
    return torch.from_numpy(out.view(signed)).view(dtype).flatten(1)


@lru_cache(maxsize=8)
def _pair_tables(table: bytes, channels: int, dtype: torch.dtype) -> list[np.ndarray]:
    same_size, narrow, wide = _PAIRS[dtype]
    floats = torch.frombuffer(bytearray(table), dtype=torch.float32).reshape(channels, 256)
    bits = floats.to(dtype).view(same_size).numpy().view(narrow).astype(wide)
    pair = np.arange(65536)
    low, high = pair & 255, pair >> 8  # the first of two bytes is the low one
    return [row[low] | (row[high] << wide(8 * np.dtype(narrow).itemsize)) for row in bits]
